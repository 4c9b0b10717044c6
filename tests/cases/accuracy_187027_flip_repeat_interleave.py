"""flip after repeat_interleave under dynamic shapes reads at negative offsets. Source: pytorch/pytorch#187027 (also #190765)."""

import torch

KIND = "accuracy"
BACKEND = "inductor"
FAILS = ("2.11", "2.13")
DYNAMIC = True


def f(x):
    return torch.repeat_interleave((x + 1).flatten(), 2).flip(0)


def make():
    torch.manual_seed(0)
    return f, (torch.randn(8, 8),)
