"""What else is done to torch's operator samples: other values, sizes, layouts and dtypes, and other ops around the operator."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

ROUNDS: Sequence[tuple[str, int, int]] = (
    ("", 0, 1),
    ("wide+fused+special", 0, 2),
    ("wide+fused+into_bool", 0, 2),
    ("empty", 0, 1),
    ("wide+transposed+special", 1, 2),
    ("wide+fused+mixed", 0, 1),
    ("constant", 0, 1),
    ("", 1, 2),
    ("wide+fused+symbolic", 0, 1),
    ("one+fused", 1, 2),
    ("wide+fused+into_float16", 0, 2),
    ("expanded+fused", 0, 1),
    ("empty+fused", 1, 3),
    ("", 2, 6),
    ("wide+sliced+special", 2, 4),
    ("wide+into_int64", 0, 3),
    ("symbolic+transposed", 1, 3),
    ("fused+constant", 1, 2),
    ("wide+fused+special", 2, 8),
    ("", 6, 16),
    ("", 16, 1000),
)
"""Twists, joined by ``+``, and the samples of each cell that a round takes: first a little of everything."""

OTHER_DTYPE = {
    torch.float32: torch.bfloat16, torch.bfloat16: torch.float32, torch.float16: torch.float32, torch.float64: torch.float32,
    torch.int64: torch.float32, torch.int32: torch.int64, torch.uint8: torch.int8, torch.int8: torch.uint8,
    torch.int16: torch.bool, torch.bool: torch.int64, torch.complex64: torch.float32, torch.complex128: torch.complex64,
}  # fmt: skip
SPECIAL = (float("nan"), float("inf"), -float("inf"), 0.0, -0.0)


WIDER = 8
"""Times the last size: torch's samples are too small for vectorised loops."""
TESTED_BY_TORCH = ("float32", "int64", "float16", "float64", "int32")


def order_for(
    backend: str, dtypes: Sequence[str], most: int | None = None
) -> Sequence[tuple[tuple[str, int, int], str]]:
    """Each round in each dtype, breadth first: a further twist in one dtype takes its turn with the twist before in the one after next.

    ``most`` is the number of samples that an operator has in one dtype at most. Without it, what torch tests inductor with
    (plain samples in few dtypes, ``test_torchinductor_opinfo.py``) comes last there.
    """
    rounds = list(ROUNDS)
    if most is not None:
        rounds = list(limited(rounds, most))
    elif backend == "inductor":
        rounds.sort(key=lambda one: not one[0])
        dtypes = sorted(dtypes, key=TESTED_BY_TORCH.__contains__)
    places = itertools.product(range(len(rounds)), range(len(dtypes)))
    order = sorted(places, key=lambda one: 2 * one[0] + one[1])
    return [(rounds[place], dtypes[dtype]) for place, dtype in order]


def limited(rounds: Iterable[tuple[str, int, int]], most: int) -> Iterator[tuple[str, int, int]]:
    """The rounds as far as they have ``most`` samples together."""
    for twist, first, last in rounds:
        taken = min(last - first, most)
        most -= taken
        if taken:
            yield twist, first, first + taken


def inverse_of(dtype: torch.dtype) -> Any:
    """A function that is its own inverse, for a backend to fuse with its neighbours."""
    if dtype is torch.bool:
        return torch.logical_not
    return torch.neg if dtype.is_floating_point or dtype.is_complex else torch.bitwise_not


def undone(value: torch.Tensor) -> torch.Tensor:
    """What the inverse makes ``value`` of, in its layout."""
    inverse, expanded = inverse_of(value.dtype), value.numel() and 0 in value.stride()
    result: torch.Tensor = inverse(value.detach()[:1] if expanded else value.detach())
    return (result.expand(value.shape) if expanded else result).requires_grad_(value.requires_grad)


def twisted(value: torch.Tensor, place: int, twists: Sequence[str], dtype: torch.dtype) -> torch.Tensor:
    """The ``place``-th tensor of a sample in ``dtype``, twisted; the same tensor where nothing of it changes.

    Special values stay out of indices, which eager does not always check, and out of samples with a backward: what the
    derivative at NaN is differs between eager's own kernels.
    """
    if value.layout is not torch.strided or not twists:
        return value
    result = value.detach()
    rank = result.dim()
    if "wide" in twists and rank and result.shape[-1] > 1:
        result = result.repeat([*[1] * (rank - 1), WIDER])
    if "special" in twists and value.dtype is dtype and not value.requires_grad:
        result = with_special_values(result, place)
    if "mixed" in twists and place:
        result = result.to(OTHER_DTYPE.get(result.dtype, result.dtype))
    if "empty" in twists and rank:
        result = result[:0]
    if "one" in twists and rank:
        result = result[..., :1]
    if "transposed" in twists:
        backwards = list(range(rank - 1, -1, -1))
        result = result.permute(backwards).contiguous().permute(backwards)
    if "sliced" in twists:
        result = torch.stack([result, result], -1)[..., 0]
    if "expanded" in twists and rank:
        result = result[:1].expand(result.shape)
    return result.requires_grad_(value.requires_grad and result.is_floating_point() | result.is_complex())


def with_special_values(value: torch.Tensor, first: int) -> torch.Tensor:
    """A copy of which every second element from ``first`` on is inf, NaN or a zero, or the least or largest integer."""
    result = value.clone(memory_format=torch.contiguous_format)
    specials: Sequence[Any] = SPECIAL
    if value.dtype is torch.bool:
        return result
    if not (value.dtype.is_floating_point or value.dtype.is_complex):
        specials = (torch.iinfo(value.dtype).min, torch.iinfo(value.dtype).max, 0)
    flat = result.view(-1)
    for place, special in enumerate(specials):
        flat[2 * place + first :: 2 * len(specials)] = special
    return result
