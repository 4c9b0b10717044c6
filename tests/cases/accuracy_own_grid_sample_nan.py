"""grid_sample at NaN coordinates is NaN in eager and zero compiled. Source: own exploration."""

import torch
import torch.nn.functional as F

KIND = "accuracy"
BACKEND = "inductor"
FAILS = ("2.11", "2.12", "2.13", "2.14", "2.15")


def f(x, g):
    return F.grid_sample(x, g, align_corners=False)


def make():
    torch.manual_seed(0)
    grid = torch.rand(1, 4, 4, 2) * 2 - 1
    grid[0, 1, 2] = float("nan")
    return f, (torch.randn(1, 3, 9, 9), grid)
