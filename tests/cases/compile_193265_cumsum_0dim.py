"""cumsum of a 0-dim constant: the pointless-cumsum rewrite indexes an empty shape. Source: pytorch/pytorch#193265."""

import torch

KIND = "compile"
BACKEND = "inductor"
FAILS = ("2.11", "2.13", "2.14")


def f(x):
    return x + torch.full((), 5.0).cumsum(0)


def make():
    torch.manual_seed(0)
    return f, (torch.randn(4),)
