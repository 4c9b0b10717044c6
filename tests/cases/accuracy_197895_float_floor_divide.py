"""Floating-point floor division is one too high when the quotient rounds up to an integer. Source: pytorch/pytorch#197895."""

import torch

KIND = "accuracy"
BACKEND = "inductor"
FAILS = ("2.11", "2.12", "2.13", "2.14", "2.15")


def f(a, b):
    return a // b


def make():
    return f, (torch.tensor([1.0, 0.5, 6.0, 1.0]), torch.tensor([0.1, 0.1, 0.2, 1 / 3]))
