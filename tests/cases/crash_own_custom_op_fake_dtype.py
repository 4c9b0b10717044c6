"""A custom op returns int8 where its fake kernel promised int64: nothing checks the dtype, the kernel reads eight times too far. Source: own exploration."""

import torch

KIND = "crash"
BACKEND = "inductor"
FAILS = ("2.11", "2.13")


@torch.library.custom_op("realcase_dtype::narrow", mutates_args=())
def narrow(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.int8)


@narrow.register_fake
def _(x):
    return torch.empty_like(x, dtype=torch.int64)


def f(x):
    return narrow(x) * 2


def make():
    torch.manual_seed(0)
    return f, (torch.randn(64, 1 << 20),)
