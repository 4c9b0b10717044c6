"""lerp of complex tensors compares the complex weight with 0.5. Source: own fuzzing of torch's op samples."""

import torch

KIND = "compile"
BACKEND = "inductor"
FAILS = ("2.12", "2.13", "2.14", "2.15")


def f(x, y):
    return torch.lerp(x, y, 0.25 + 0.5j)


def make():
    torch.manual_seed(0)
    return f, (torch.randn(5, dtype=torch.complex64), torch.randn(5, dtype=torch.complex64))
