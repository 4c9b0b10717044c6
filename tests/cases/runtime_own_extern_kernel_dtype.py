"""A ramp counted in bfloat16 loses its dtype in inductor, and the mm of an extern kernel gets float32."""

import torch

KIND = "runtime"
BACKEND = "inductor"
FAILS = ("2.13",)


def f(x, w):
    ramp = torch.ones((4, 8), dtype=torch.bool).cumsum(1, dtype=x.dtype)
    return x + torch.mm((ramp / 3).sin(), w)


def make():
    torch.manual_seed(0)
    return f, (torch.randn(4, 8, dtype=torch.bfloat16), torch.randn(8, 8, dtype=torch.bfloat16))
