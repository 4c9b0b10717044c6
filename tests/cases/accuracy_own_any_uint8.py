"""any() of uint8, which eager answers in uint8, comes back as bool. Source: own fuzzing of pointwise ops and reductions."""

import torch

KIND = "accuracy"
BACKEND = "inductor"
FAILS = ("2.11", "2.13", "2.14", "2.15")


def f(x):
    return (x + 1).any()


def make():
    return f, (torch.arange(21, dtype=torch.uint8),)
