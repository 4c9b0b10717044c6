"""Addition of empty complex tensors that are broadcast views them in a layout that cannot be. Source: own fuzzing of torch's op samples."""

import torch

KIND = "compile"
BACKEND = "inductor"
FAILS = ("2.11", "2.13", "2.14", "2.15")


def f(x, y):
    return x + y


def make():
    return f, (torch.ones(0, 1, 3, dtype=torch.complex64), torch.ones(0, 10, 3, dtype=torch.complex64))
