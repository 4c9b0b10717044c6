"""A custom op whose fake kernel promises contiguous strides: assert_size_stride fails. Source: pytorch/pytorch#143579 (also #182328)."""

import torch

KIND = "runtime"
BACKEND = "inductor"
FAILS = ("2.11", "2.13", "2.14", "2.15")


@torch.library.custom_op("realcase_stride::scale", mutates_args=())
def scale(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(0, 1).contiguous().transpose(0, 1) * 2


@scale.register_fake
def _(x):
    return torch.empty_like(x)


def f(x):
    return scale(x) + 1


def make():
    torch.manual_seed(0)
    return f, (torch.randn(4, 5),)
