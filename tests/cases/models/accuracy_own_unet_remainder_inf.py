"""A diffusion UNet (own implementation) whose time embedding reduces phases by a period that is infinite for the constant channel: NaN compiled. Source: own exploration."""

import torch
import torch.nn as nn

KIND = "accuracy"
BACKEND = "inductor"
FAILS = ("2.13", "2.14", "2.15")


class TimeEmbed(nn.Module):
    def __init__(self, d):
        super().__init__()
        f = torch.exp(-torch.arange(d) / 4.0)
        f[-1] = 0
        self.register_buffer("period", 6.2831853 / f)
        self.proj = nn.Sequential(nn.Linear(d, d), nn.SiLU(), nn.Linear(d, d))

    def forward(self, t):
        return self.proj(torch.remainder(t[:, None], self.period).sin())


class Res(nn.Module):
    def __init__(self, i, o, d):
        super().__init__()
        self.a = nn.Sequential(nn.GroupNorm(4, i), nn.SiLU(), nn.Conv2d(i, o, 3, padding=1))
        self.b = nn.Sequential(nn.GroupNorm(4, o), nn.SiLU(), nn.Conv2d(o, o, 3, padding=1))
        self.t = nn.Linear(d, o)
        self.s = nn.Conv2d(i, o, 1) if i != o else nn.Identity()

    def forward(self, x, e):
        h = self.a(x) + self.t(e)[:, :, None, None]
        return self.s(x) + self.b(h)


class UNet(nn.Module):
    def __init__(self, c=8, d=32):
        super().__init__()
        self.te = TimeEmbed(d)
        self.inp = nn.Conv2d(3, c, 3, padding=1)
        w = [c, c, 2 * c, 4 * c]
        self.down = nn.ModuleList(Res(w[i], w[i + 1], d) for i in range(3))
        self.mid = nn.ModuleList(Res(4 * c, 4 * c, d) for _ in range(2))
        self.up = nn.ModuleList(Res(w[i + 1] * 2, w[i], d) for i in reversed(range(3)))
        self.out = nn.Sequential(nn.GroupNorm(4, c), nn.SiLU(), nn.Conv2d(c, 3, 3, padding=1))

    def forward(self, x, t):
        e, skips = self.te(t), []
        h = self.inp(x)
        for r in self.down:
            h = r(h, e)
            skips.append(h)
            h = nn.functional.avg_pool2d(h, 2)
        for r in self.mid:
            h = r(h, e)
        for r in self.up:
            h = nn.functional.interpolate(h, scale_factor=2, mode="nearest")
            h = r(torch.cat([h, skips.pop()], 1), e)
        return self.out(h)


def make():
    torch.manual_seed(0)
    return UNet().eval(), (torch.randn(2, 3, 32, 32), torch.tensor([3.0, 250.0]))
