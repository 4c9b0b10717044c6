"""isclose of booleans made by any() of a constant: a boolean inside a sympy relation. Source: pytorch/pytorch#188231."""

import torch

KIND = "compile"
BACKEND = "inductor"
FAILS = ("2.11", "2.13")


def f(x):
    a = torch.any(torch.full((4, 4, 4, 4), 0.9), 3)
    b = torch.where(a, a, a)
    return x * torch.isclose(b, a)


def make():
    torch.manual_seed(0)
    return f, (torch.randn(4, 4, 4),)
