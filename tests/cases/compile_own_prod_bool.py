"""prod(dtype=bool) meets an assertion in the vectorised code of reductions. Source: own fuzzing."""

import torch

KIND = "compile"
BACKEND = "inductor"
FAILS = ("2.11", "2.13", "2.14", "2.15")


def f(x):
    return (x > 0).prod(dtype=torch.bool)


def make():
    return f, (torch.arange(21.0),)
