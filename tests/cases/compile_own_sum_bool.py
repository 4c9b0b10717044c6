"""sum(dtype=bool) of integers is written as C++ that does not compile. Source: own fuzzing."""

import torch

KIND = "compile"
BACKEND = "inductor"
FAILS = ("2.11", "2.13", "2.14", "2.15")


def f(x):
    return (x * 2).sum(dtype=torch.bool)


def make():
    return f, (torch.arange(21) % 2 == 0,)
