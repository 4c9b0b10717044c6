"""The remainder by an infinite divisor is NaN instead of the dividend. Source: own fuzzing."""

import torch

KIND = "accuracy"
BACKEND = "inductor"
FAILS = ("2.11", "2.13", "2.14", "2.15")


def f(x, y):
    return torch.remainder(x, y) + 1


def make():
    return f, (torch.full((21,), 100.0), torch.full((21,), float("inf")))
