"""cumsum(dtype=bfloat16) of an in-graph constant comes back int64. Source: pytorch/pytorch#189518."""

import torch

KIND = "accuracy"
BACKEND = "inductor"
FAILS = ("2.11", "2.12", "2.13")


def f(x):
    ones = torch.ones((2, 4, 4), dtype=torch.bool)
    return x.sum() > 0, ones.cumsum(1, dtype=torch.bfloat16)


def make():
    torch.manual_seed(0)
    return f, (torch.randn(3),)
