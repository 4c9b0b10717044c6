"""A Triton kernel that writes where nobody may: apart from ``faulty``, since Triton comes with builds for GPUs alone."""

import torch
import triton
import triton.language as tl


@triton.jit
def far_away(x_ptr, distance):
    tl.store(x_ptr + distance, 1.0)


def write(x: torch.Tensor) -> None:
    far_away[(1,)](x, 1 << 42)
