"""A bare subclass of Tensor in an extern kernel: the mode around the first call of a compiled function refuses it."""

import torch

KIND = "runtime"
BACKEND = "inductor"
FAILS = ("2.13", "2.14")


class Bare(torch.Tensor):
    pass


def f(x, w):
    return torch.mm(x, w).relu()


def make():
    torch.manual_seed(0)
    return f, (torch.randn(4, 8).as_subclass(Bare), torch.randn(8, 8))
