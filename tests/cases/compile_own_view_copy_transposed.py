"""view_copy of a transposed tensor, which eager copies, is refused. Source: own fuzzing of layouts."""

import torch

KIND = "compile"
BACKEND = "inductor"
FAILS = ("2.13", "2.14", "2.15")


def f(x):
    return torch.view_copy(x, (25, 5))


def make():
    torch.manual_seed(0)
    return f, (torch.randn(5, 5, 5).transpose(-1, -2),)
