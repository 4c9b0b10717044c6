"""nextafter in float16 is computed in float32: the next number below infinity is infinity. Source: own fuzzing."""

import torch

KIND = "accuracy"
BACKEND = "inductor"
FAILS = ("2.13", "2.14")


def f(x, towards):
    return torch.nextafter(x, towards)


def make():
    x = torch.full((21,), float("inf"), dtype=torch.float16)
    return f, (x, torch.zeros(21, dtype=torch.float16))
