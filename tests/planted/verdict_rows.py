"""Programs in which one thing hides another: ``WRONG``, ``PLAIN`` and ``HEALTHY`` of test_verdict.

``WRONG``: a backend that spoils a result, and something in the program that may hide it. ``PLAIN``: the same without what
hides it. ``HEALTHY``: a backend that computes the same in another order or precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from spoiled import (
    Bug,
    Row,
    Run,
    after,
    at,
    cotangent,
    gradient,
    in_float64,
    instead,
    only,
    output,
    place_of,
    plus,
    small,
    times,
    unwritten,
    zeros,
)
from torch import Tensor, nn

f16, bf16, f32, f64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
c64, c128, i64 = torch.complex64, torch.complex128, torch.int64
LARGE_MASK = -1e9


def r(*shape: int, dtype: torch.dtype = f32, size: float = 1.0) -> Tensor:
    return torch.randn(shape, dtype=f32 if dtype.itemsize < 4 else dtype).mul(size).to(dtype)


def trained(value: Tensor) -> Tensor:
    return value.requires_grad_()


def mask(*shape: int, share: float = 0.5, dtype: torch.dtype = f32) -> Tensor:
    return (torch.rand(shape) < share).to(dtype)


def with_large(value: Tensor, index: Any, size: float) -> Tensor:
    """``value``, of which a row, a column or an element is large."""
    value[index] *= size
    return value


WRONG: list[Row] = []
PLAIN: list[Row] = []
HEALTHY: list[Row] = []


def wrong(
    reading: str,
    name: str,
    program: Any,
    inputs: Callable[[], tuple[Any, ...]],
    bug: Bug,
    *,
    plainly: Any = None,
    on: Callable[[], tuple[Any, ...]] | None = None,
    by: Bug | None = None,
) -> None:
    """A row of WRONG. In PLAIN it is another program, or on other inputs, or has another bug."""
    WRONG.append(Row(reading, name, program, inputs, bug))
    if plainly or on or by:
        PLAIN.append(Row(reading, f"{name}, plain", plainly or program, on or inputs, by or bug))


def healthy(
    reading: str, name: str, program: Any, inputs: Callable[[], tuple[Any, ...]], way: Bug | str
) -> None:
    HEALTHY.append(Row(reading, name, program, inputs, way))


# ---- 6a.1: a leaf of small values beside a leaf of large ones


def adam(p: Tensor, g: Tensor, v: Tensor) -> Tensor:
    v.mul_(0.999).addcmul_(g, g, value=0.001)
    p.sub_(0.01 * g / (v.sqrt() + 1e-8))
    return p.sum()


def adam_state() -> tuple[Any, ...]:
    return r(64, 64), r(64, 64, size=1e-3), torch.zeros(64, 64)


def second_moment(p: Tensor, g: Tensor) -> tuple[Tensor, ...]:
    return p - 1e-3 * g, 0.001 * (1e-3 * g) ** 2


def pair(dtype: torch.dtype) -> Callable[[], tuple[Any, ...]]:
    return lambda: (r(32, 32, dtype=dtype), r(32, 32, dtype=dtype))


class Normalized(nn.Module):
    """A batch norm whose running statistics begin at 0, of inputs that are small."""

    def __init__(self, size: float) -> None:
        super().__init__()
        self.size = size
        self.norm = nn.BatchNorm1d(8)
        nn.init.zeros_(self.norm.running_var)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x * self.size)


wrong(
    "6a.1",
    "second moment of Adam beside the parameter",
    second_moment,
    pair(f32),
    output(zeros, 1),
    plainly=lambda p, g: (0.001 * (1e-3 * g) ** 2,),
    by=output(zeros),
)
wrong(
    "6a.1",
    "second moment of Adam, in place, never written",
    adam,
    adam_state,
    unwritten(2),
    on=lambda: (r(64, 64), r(64, 64), torch.zeros(64, 64)),
)
wrong(
    "6a.1",
    "second moment of Adam, in place, of another sign",
    adam,
    adam_state,
    after(lambda a, b: -a, 2),
)
wrong(
    "6a.1",
    "a vanishing gradient is zero",
    lambda x, y: x * 1e-6 + y,
    lambda: (trained(r(32, 32)), trained(r(32, 32))),
    gradient(zeros),
    on=lambda: (trained(r(32, 32)), r(32, 32)),
)
wrong(
    "6a.1",
    "a vanishing gradient has the wrong sign, behind a matmul",
    lambda x, w, b: (x @ w) * 1e-7 + b,
    lambda: (r(32, 16), trained(r(16, 8)), trained(r(8))),
    gradient(times(-1.0), 1),
    on=lambda: (r(32, 16), trained(r(16, 8)), r(8)),
)
wrong(
    "6a.1",
    "float64: 1e-12 beside 1e3",
    lambda x, y: (x * 1e3, y * 1e-12),
    pair(f64),
    output(times(2.0), 1),
    plainly=lambda x, y: (y * 1e-12, x > y),
    by=output(times(2.0)),
)
wrong(
    "6a.1",
    "bfloat16: 1e-7 beside 1e2",
    lambda x, y: (x * 1e2, y * 1e-7),
    pair(bf16),
    output(times(-1.0), 1),
    plainly=lambda x, y: (y * 1e-7, x > y),
    by=output(times(-1.0)),
)
wrong(
    "6a.1",
    "float16: 1e-3 of squares beside 1e2",
    lambda x, y: (x * 1e2, y * y * 1e-4),
    pair(f16),
    output(zeros, 1),
)
wrong(
    "6a.1",
    "complex64: a small spectrum beside a large one",
    lambda x, y: (x * 50, y * 1e-7),
    pair(c64),
    output(torch.conj_physical, 1),
    plainly=lambda x, y: (y * 1e-7,),
    by=output(torch.conj_physical),
)
wrong(
    "6a.1",
    "a learning rate of 1e-8 as a 0-dim leaf",
    lambda x, lr: (x * 2, lr * 0.5),
    lambda: (r(64), torch.tensor(1e-8)),
    output(times(3.0), 1),
)
wrong(
    "6a.1",
    "running mean of a batch norm never written",
    partial(Normalized, 1e-4),
    lambda: (r(16, 8),),
    unwritten("running_mean"),
)
wrong(
    "6a.1",
    "running variance of a batch norm never written",
    partial(Normalized, 1e-2),
    lambda: (r(16, 8),),
    unwritten("running_var"),
    plainly=partial(Normalized, 1.0),
)
wrong(
    "6a.1",
    "running variance of a batch norm is zero, in float64",
    lambda x, v: v.mul_(0.9).add_(0.1 * (x * 1e-6).var(0)) + x.sum(),
    lambda: (r(16, 8, dtype=f64), torch.zeros(8, dtype=f64)),
    after(lambda a, b: b, 1),
)
wrong(
    "6a.1",
    "gradients of 1e-9 beside one of 1, float64",
    lambda x, y: (x * 1e-9 + y).sum(),
    lambda: (trained(r(16, dtype=f64)), trained(r(16, dtype=f64))),
    gradient(times(1.5)),
)


# ---- 6a.2: elements of small values beside elements of large ones, in one leaf


def masked(x: Tensor, m: Tensor) -> Tensor:
    return x + m * LARGE_MASK


def attention_scores(q: Tensor, k: Tensor, m: Tensor) -> Tensor:
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    return scores.masked_fill(m > 0, torch.finfo(q.dtype).min)


def through_float8(x: Tensor) -> Tensor:
    return x.to(torch.float8_e4m3fn).to(x.dtype)


unmasked = partial(only, lambda v: v.abs() < 1e8)
not_lowest = partial(only, lambda v: v > torch.finfo(v.dtype).min / 2)


def nearest_size(size: float) -> Callable[[Tensor], Tensor]:
    """True at the element whose size is nearest to ``size``."""

    def where(value: Tensor) -> Tensor:
        off = (value.float().abs() / size).log().abs().flatten()
        return (torch.arange(off.numel()) == off.argmin()).reshape(value.shape)

    return where


wrong(
    "6a.2",
    "mask of -1e9 on a half, the others off by 3",
    masked,
    lambda: (r(64, 64), mask(64, 64)),
    output(unmasked(plus(3.0))),
    on=lambda: (r(64, 64), torch.zeros(64, 64)),
)
wrong(
    "6a.2",
    "mask of -1e9 on 95 %, the others doubled",
    masked,
    lambda: (r(64, 64), mask(64, 64, share=0.95)),
    output(unmasked(times(2.0))),
    on=lambda: (r(64, 64), torch.zeros(64, 64)),
)
wrong(
    "6a.2",
    "mask of finfo.min on 90 % of scores, float32",
    attention_scores,
    lambda: (r(4, 16, 8), r(4, 16, 8), mask(4, 16, 16, share=0.9)),
    output(not_lowest(times(-1.0))),
    on=lambda: (r(4, 16, 8), r(4, 16, 8), torch.zeros(4, 16, 16)),
)
wrong(
    "6a.2",
    "mask of finfo.min on 90 % of scores, bfloat16",
    attention_scores,
    lambda: (r(4, 16, 8, dtype=bf16), r(4, 16, 8, dtype=bf16), mask(4, 16, 16, share=0.9)),
    output(not_lowest(times(2.0))),
)
wrong(
    "6a.2",
    "mask of -65504 on a half of scores, float16",
    attention_scores,
    lambda: (r(4, 16, 8, dtype=f16), r(4, 16, 8, dtype=f16), mask(4, 16, 16)),
    output(not_lowest(plus(0.5))),
)
wrong(
    "6a.2",
    "mask of -inf, the others off by 3",
    lambda x, m: x.masked_fill(m > 0, -math.inf),
    lambda: (r(64, 64), mask(64, 64)),
    output(plus(3.0)),
)
for least, words in ((-math.inf, "-inf"), (torch.finfo(torch.float32).min, "finfo.min")):
    wrong(
        "6a.2",
        f"probabilities beside a mask of {words}, one off by a hundredth",
        lambda x, m, least=least: x.masked_fill(m > 0, least).softmax(-1),
        lambda: (
            r(16, 64),
            mask(16, 64).index_fill(0, torch.tensor(3), 1) * (torch.arange(64) > 0),
        ),
        output(only(nearest_size(0.05), times(1.01))),
    )
    wrong(
        "6a.2",
        f"logsumexp beside a mask of {words}, one off by a hundredth",
        lambda x, m, least=least: x.masked_fill(m > 0, least).logsumexp(-1),
        lambda: (r(16, 64), mask(16, 64)),
        output(at(3, times(1.01))),
    )
    wrong(
        "6a.2",
        f"gradients of scores beside a mask of {words}, a row negated",
        lambda x, m, least=least: (x.masked_fill(m > 0, least).log_softmax(-1) * (1 - m)).nan_to_num().sum(),
        lambda: (trained(r(16, 64)), mask(16, 64)),
        gradient(at(3, times(-1.0))),
    )
wrong(
    "6a.2",
    "probabilities of a row that is masked by finfo.min as a whole, one doubled",
    lambda x, m: x.masked_fill(m > 0, torch.finfo(x.dtype).min).softmax(-1),
    lambda: (r(16, 64), torch.ones(16, 64)),
    output(at((3, 5), times(2.0))),
)
wrong(
    "6a.2",
    "the gradient of a norm of order inf, tripled",
    lambda x: torch.linalg.vector_norm(x, math.inf),
    lambda: (trained(r(16, 8)),),
    gradient(times(3.0)),
)
wrong(
    "6a.2",
    "the gradient of a scatter of maxima, one negated",
    lambda x, i: x.new_zeros(4, 8).scatter_reduce(0, i, x, "amax", include_self=False),
    lambda: (trained(r(16, 8)), torch.arange(16)[:, None].expand(16, 8) % 4),
    gradient(at(slice(0, 8), times(-1.0))),
)
wrong(
    "6a.2",
    "one row of 1e6 in a table, the others halved",
    lambda x: x * 1.1 + 0.3,
    lambda: (with_large(r(64, 16), 0, 1e6),),
    output(only(small(1e3), times(0.5))),
    on=lambda: (r(64, 16),),
)
wrong(
    "6a.2",
    "one column of 3e6, the others halved plus 1",
    lambda x: x * 1.1 + 0.3,
    lambda: (with_large(r(64, 16), (slice(None), 0), 3e6),),
    output(at((slice(None), slice(1, None)), lambda v: v / 2 + 1)),
    on=lambda: (r(64, 16),),
)
wrong(
    "6a.2",
    "columns of 1e6 are the majority, the sign of the rest is flipped",
    lambda x: x * 1.1 + 0.3,
    lambda: (with_large(r(64, 16), (slice(None), slice(2, None)), 1e6),),
    output(at((slice(None), slice(0, 2)), times(-1.0))),
    on=lambda: (r(64, 16),),
)
wrong(
    "6a.2",
    "an embedding with a row of 1e6 looked up, another row wrong by a hundredth",
    lambda i, w: F.embedding(i, w) * 1.7,
    lambda: (torch.arange(64), with_large(r(64, 16), 5, 1e6)),
    output(at(7, times(1.01))),
    on=lambda: (torch.arange(64), r(64, 16)),
)
wrong(
    "6a.2",
    "a range from e-30 to e30, the small ones doubled",
    lambda x: (x * 10).exp(),
    lambda: (r(64, 64),),
    output(only(small(1e-3), times(2.0))),
    on=lambda: (r(64, 64, size=0.1),),
    by=output(times(2.0)),
)
wrong(
    "6a.2",
    "float64: a column of 1e12, the others off by 1e-3",
    lambda x: x * 1.1 + 0.3,
    lambda: (with_large(r(64, 16, dtype=f64), (slice(None), 3), 1e12),),
    output(only(small(1e3), plus(1e-3))),
    on=lambda: (r(64, 16, dtype=f64),),
)
wrong(
    "6a.2",
    "complex128: a column of 1e12, the others conjugate",
    lambda x: x * (1.1 + 0.3j),
    lambda: (with_large(r(64, 16, dtype=c128), (slice(None), 3), 1e12),),
    output(only(small(1e3), torch.conj_physical)),
    on=lambda: (r(64, 16, dtype=c128),),
)
wrong(
    "6a.2",
    "bfloat16 matmul with rows of 1e4, the other rows off by 1",
    lambda x, w: x @ w,
    lambda: (with_large(r(64, 32, dtype=bf16), slice(0, 8), 1e4), r(32, 32, dtype=bf16)),
    output(at(slice(8, None), plus(1.0))),
    on=lambda: (r(64, 32, dtype=bf16), r(32, 32, dtype=bf16)),
)
wrong(
    "6a.2",
    "gradients of a cube with a large column, the others negative",
    lambda x: x**3,
    lambda: (trained(with_large(r(64, 16), (slice(None), 0), 1e4)),),
    gradient(at((slice(None), slice(1, None)), times(-1.0))),
    on=lambda: (trained(r(64, 16)),),
)
wrong(
    "6a.2",
    "an embedding's gradient: one row of 1e7, another zero",
    lambda i, w, s: F.embedding(i, w) * s,
    lambda: (torch.arange(32), trained(r(32, 8)), with_large(r(32, 1), 3, 1e7)),
    gradient(at(9, zeros), 1),
    on=lambda: (torch.arange(32), trained(r(32, 8)), r(32, 1)),
)
wrong(
    "6a.2",
    "an input after the call: masked in place, the others off by 3",
    lambda x, m: x.add_(m * LARGE_MASK).sum(),
    lambda: (r(64, 64), mask(64, 64)),
    after(lambda a, b: unmasked(plus(3.0))(a)),
    on=lambda: (r(64, 64), torch.zeros(64, 64)),
)
wrong(
    "6a.2",
    "a buffer: one channel of 1e8, the variance of another doubled",
    partial(nn.BatchNorm1d, 8),
    lambda: (with_large(r(16, 8), (slice(None), 0), 1e4),),
    after(lambda a, b: at(3, times(2.0))(a), "running_var"),
    on=lambda: (r(16, 8),),
)
for size in (1.0, 0.1, 1e-2):
    wrong(
        "6a.2",
        f"float8 round trip, an element of {size} three times too large",
        through_float8,
        lambda: (r(64, 64),),
        output(only(nearest_size(size), times(3.0))),
        plainly=lambda x: x * 1.5,
    )
wrong(
    "6a.2",
    "float8 e5m2 of bfloat16, an element of 0.1 is zero",
    lambda x: x.to(torch.float8_e5m2).to(x.dtype),
    lambda: (r(64, 64, dtype=bf16),),
    output(only(nearest_size(0.1), zeros)),
)
wrong(
    "6a.2",
    "float8 matmul operand: a row is four times too large",
    lambda x, w: (through_float8(x)[:, :, None] * w).sum(1),
    lambda: (r(64, 32), r(32, 16)),
    output(at(11, times(4.0))),
    plainly=lambda x, w: x @ w,
)


# ---- 6a.3: integers and bools, of which rounding decides one


def with_a_tie(x: Tensor, y: Tensor) -> Tensor:
    """z, far from x * y but at one element: the rounded product, less than the exact one."""
    product = x * y
    z = product + torch.where(torch.rand(product.shape) < 0.5, 0.5, -0.5)
    at_tie = (x.double() * y.double() > product.double()).flatten().nonzero()[0]
    return z.flatten().index_copy(0, at_tie, product.flatten()[at_tie]).reshape(z.shape)


def compared_at_a_tie(*shape: int) -> Callable[[], tuple[Any, ...]]:
    def inputs() -> tuple[Any, ...]:
        x, y = r(*shape), r(*shape)
        return x, y, with_a_tie(x, y)

    return inputs


def without_a_tie(*shape: int) -> Callable[[], tuple[Any, ...]]:
    return lambda: ((x := r(*shape)), (y := r(*shape)), x * y + 0.5)


def ordered_otherwise() -> tuple[Tensor, Tensor, Tensor]:
    """Two columns x, y, z whose x * y + z float32 orders in one way and float64 in the other."""
    x, y, z = torch.rand(3, 100_000, 2) + 1
    close = x[:, 0] * y[:, 0] + z[:, 0] - x[:, 1] * y[:, 1]
    z[:, 1] = torch.nextafter(close, torch.tensor(math.inf))
    narrow, wide = x * y + z, x.double() * y.double() + z.double()
    apart = ((narrow[:, 0] - narrow[:, 1]).sign() * (wide[:, 0] - wide[:, 1]).sign()) < 0
    place = int(apart.nonzero()[0])
    return x[place], y[place], z[place]


def rows_with_a_tie(rows: int, columns: int, spread: float = 1.0) -> Callable[[], tuple[Any, ...]]:
    """Rows of clear largest elements, but for row 0, which begins with ``ordered_otherwise``."""

    def inputs() -> tuple[Any, ...]:
        x, y = r(rows, columns), r(rows, columns)
        z = torch.stack([torch.randperm(columns) for _ in range(rows)]).float() * 10 * spread
        for whole, tied in zip((x, y, z), ordered_otherwise(), strict=True):
            whole[0] = -100.0 * spread * torch.arange(columns) if whole is z else whole[0]
            whole[0, :2] = tied
        return x, y, z

    return inputs


def one_clear_winner() -> tuple[Any, ...]:
    x, w = r(64, 32, dtype=bf16), r(32, 256, dtype=bf16)
    x[9] = 8 * w[:, 100]
    return x, w


def flipped(index: Any) -> Callable[[Tensor], Tensor]:
    return at(index, torch.logical_not)


def pixels_of_which_one_is_at_an_edge() -> Tensor:
    def in_uint8(x: Tensor) -> Tensor:
        return (x / 3 * 255).to(torch.uint8)

    at_edges = torch.arange(1, 256).repeat(64) / 255 * 3 * (1 + 1e-7 * torch.rand(64 * 255))
    apart = in_uint8(at_edges) != in_uint8(at_edges.double())
    pixels = (torch.arange(256) + 0.5) / 255 * 3
    return pixels.index_copy(0, torch.tensor([0]), at_edges[apart][:1])


def other_than(value: Tensor, size: int) -> Tensor:
    return (value + 1) % size


wrong(
    "6a.3",
    "x * y > z, one near tie, eight others flipped",
    lambda x, y, z: (x * y > z,),
    compared_at_a_tie(8, 8),
    output(flipped(slice(3, 4))),
    on=without_a_tie(8, 8),
)
wrong(
    "6a.3",
    "x * y > z in place in a bool input, one near tie, a row flipped",
    lambda x, y, z, m: m.copy_(x * y > z).sum(),
    lambda: (*compared_at_a_tie(8, 8)(), torch.zeros(8, 8, dtype=torch.bool)),
    after(lambda a, b: flipped(3)(a), 3),
)
wrong(
    "6a.3",
    "a mask of 1 and 0 as uint8, one near tie, an element of 4096 flipped",
    lambda x, y, z: (x * y > z).to(torch.uint8),
    compared_at_a_tie(64, 64),
    output(at((50, 3), lambda v: 1 - v)),
)
wrong(
    "6a.3",
    "argmax, one near tie, two rows wrong",
    lambda x, y, z: (x * y + z).argmax(1),
    rows_with_a_tie(32, 16),
    output(at(slice(5, 7), lambda v: other_than(v, 16))),
    on=lambda: tuple(v[1:] for v in rows_with_a_tie(33, 16)()),
)
wrong(
    "6a.3",
    "argmin of float64's order, one near tie, one row wrong",
    lambda x, y, z: (-(x * y + z)).argmin(1),
    rows_with_a_tie(64, 8),
    output(at(40, lambda v: other_than(v, 8))),
)
wrong(
    "6a.3",
    "topk indices, one near tie, one row reversed",
    lambda x, y, z: (x * y + z).topk(4, 1).indices,
    rows_with_a_tie(32, 16),
    output(at(9, lambda v: v.flip(0))),
)
wrong(
    "6a.3",
    "sort indices, one near tie, two of another row swapped",
    lambda x, y, z: (x * y + z).sort(1).indices,
    rows_with_a_tie(16, 8),
    output(at((5, slice(0, 2)), lambda v: v.flip(0))),
)
wrong(
    "6a.3",
    "quantized to int8 with one half, another element off by one",
    lambda x, y, z: ((x * y - z) * 4).round().to(torch.int8).flatten()[:64],
    lambda: (
        torch.full((64,), 0.1),
        torch.full((64,), 5.0).index_fill_(0, torch.arange(1, 64), 9.0),
        torch.zeros(64).index_fill_(0, torch.tensor(0), 0.375),
    ),
    output(at(40, lambda v: v + 1)),
)
wrong(
    "6a.3",
    "an image in uint8, one pixel at an edge, another off by 7",
    lambda x: (x / 3 * 255).to(torch.uint8),
    lambda: (pixels_of_which_one_is_at_an_edge(),),
    output(at(100, lambda v: v + 7)),
)
wrong(
    "6a.3",
    "searchsorted, one near tie, another place wrong by one",
    lambda x, y, z: torch.searchsorted(z.sort().values, x * y),
    lambda: ((x := r(64)), (y := r(64)), with_a_tie(x, y)),
    output(at(63, lambda v: v - 1)),
)
wrong(
    "6a.3",
    "bfloat16: argmax of 64 rows with near ties, a clear one wrong",
    lambda x, w: (x @ w).argmax(1),
    one_clear_winner,
    output(at(9, lambda v: other_than(v, 256))),
)
wrong(
    "6a.3",
    "int64 above 2**53, off by one, beside floats",
    lambda x, n: (x * 2, n + 1),
    lambda: (r(8), torch.full((8,), 2**53 + 2)),
    output(at(3, lambda v: v + 1), 1),
)
wrong(
    "6a.3",
    "int64 above 2**53 of floats, with one near tie, another off by one",
    lambda x, y, z: (x * y > z).long() + 2**60,
    compared_at_a_tie(8, 8),
    output(at((3, 3), lambda v: v + 1)),
)
wrong(
    "6a.3",
    "num_batches_tracked is one too many",
    partial(nn.BatchNorm1d, 8),
    lambda: (r(16, 8),),
    after(lambda a, b: a + 1, "num_batches_tracked"),
)
wrong(
    "6a.3",
    "num_batches_tracked is never written",
    partial(nn.BatchNorm1d, 8),
    lambda: (r(16, 8),),
    unwritten("num_batches_tracked"),
)
wrong(
    "6a.3",
    "a 0-dim bool beside a near tie",
    lambda x, y, z: (x * y > z, (x > 1e6).any()),
    compared_at_a_tie(8, 8),
    output(torch.logical_not, 1),
)
wrong(
    "6a.3",
    "uint8 sums wrap, one off by one",
    lambda n: n * 3 + 1,
    lambda: (torch.randint(0, 256, (64,), dtype=torch.uint8),),
    output(at(5, lambda v: v + 1)),
)


# ---- 6a.7: what rounding decides is bounded


def cancels(x: Tensor) -> Tensor:
    return torch.relu((x * x).mean() - x.mean() ** 2 + 1e-3)


wrong(
    "6a.7",
    "a variance that cancels, off by 1000",
    cancels,
    lambda: (1000 + r(64, size=0.01),),
    output(plus(1000.0)),
    on=lambda: (r(64),),
)
wrong(
    "6a.7",
    "float64: a variance that cancels, off by 1e6",
    cancels,
    lambda: (1e8 + r(64, dtype=f64, size=0.01),),
    output(plus(1e6)),
    on=lambda: (r(64, dtype=f64),),
)
wrong(
    "6a.7",
    "rounded at a half, off by 500",
    lambda x, y: (x * y).round(),
    lambda: (torch.full((8,), 0.1), torch.full((8,), 25.0)),
    output(plus(500.0)),
    on=lambda: (torch.full((8,), 0.1), torch.full((8,), 23.0)),
)
wrong(
    "6a.7",
    "bfloat16: floor at an edge, off by 100",
    lambda x, y: (x * y + 1).floor(),
    lambda: (torch.full((8,), 0.1, dtype=bf16), torch.full((8,), 10.0, dtype=bf16)),
    output(plus(100.0)),
)
wrong(
    "6a.7",
    "1 or 2 by a near tie, 1e6 there",
    lambda x, y, z: torch.where(x * y > z, 1.0, 2.0),
    compared_at_a_tie(8, 8),
    output(plus(1e6)),
)
wrong(
    "6a.7",
    "the value at a near tie's argmax, neither of the two",
    lambda x, y, z, v: v.gather(1, (x * y + z).argmax(1, keepdim=True)),
    lambda: (*rows_with_a_tie(8, 8)(), r(8, 8)),
    output(at(0, plus(50.0))),
)
wrong(
    "6a.7",
    "the gradient of a relu at its edge, 100 for 0 or 1",
    lambda x, y, z: (x * y - z).relu(),
    lambda: tuple(map(trained, compared_at_a_tie(8, 8)())),
    gradient(plus(100.0), 2),
)
wrong(
    "6a.7",
    "an input after the call: sign at a tie, 50 for 1 or -1",
    lambda x, y, z: z.copy_((x * y - z).sign()).sum(),
    compared_at_a_tie(8, 8),
    after(lambda a, b: a + 50.0, 2),
)
wrong(
    "6a.7",
    "float32 residual off by 1e-2 beside errors of 1e-6",
    lambda a, x, b: a @ x - b,
    lambda: ((a := r(64, 64)), (x := r(64)), (a * x).sum(1)),
    output(plus(1e-2)),
)


# ---- 6a.8: the imaginary direction of a complex backward


def real_part_alone(grad: Tensor) -> Tensor:
    return grad.real.to(grad.dtype)


for name, program, dtype in (
    ("x * 2, complex64", lambda x: x * 2, c64),
    ("x * x, complex128", lambda x: x * x, c128),
    ("exp, complex64", lambda x: x.exp(), c64),
    ("x @ x.mT, complex128", lambda x: x @ x.mT, c128),
    ("fft, complex64", lambda x: torch.fft.fft(x), c64),
    ("fft of reals", lambda x: torch.fft.fft(x), f32),
    ("complex of two reals", lambda x: torch.complex(x, x * 2), f64),
):
    wrong(
        "6a.8",
        f"the cotangent's imaginary part is lost: {name}",
        program,
        lambda dtype=dtype: (trained(r(8, 8, dtype=dtype)),),
        cotangent(real_part_alone),
        by=cotangent(times(1.5)),
    )
wrong(
    "6a.8",
    "the cotangent is conjugate: x * 2, complex128",
    lambda x: x * 2,
    lambda: (trained(r(8, 8, dtype=c128)),),
    cotangent(torch.conj_physical),
)
wrong(
    "6a.8",
    "through real and imaginary parts",
    lambda x: torch.view_as_real(x * 2),
    lambda: (trained(r(8, 8, dtype=c64)),),
    cotangent(lambda g: g * torch.tensor([1.0, 0.0])),
)


# ---- beside these: what has few elements, or none


wrong(
    "few",
    "a 0-dim sum off by a hundredth",
    lambda x: x.exp().sum(),
    lambda: (r(64),),
    output(times(1.01)),
)
wrong(
    "few",
    "an empty output beside one that is wrong",
    lambda x: (x[:0] * 2, x * 2),
    lambda: (r(8),),
    output(times(2.0), 1),
)
wrong(
    "few",
    "a mean of nothing is not zero",
    lambda x: x[:0].mean(),
    lambda: (r(8),),
    output(torch.nan_to_num),
)
wrong(
    "few",
    "one element of 4096 with the wrong sign",
    lambda x, w: x @ w,
    lambda: (r(64, 64), r(64, 64)),
    output(only(nearest_size(5.0), times(-1.0))),
)
wrong(
    "few",
    "a cumulative sum begins one late",
    lambda x: x.cumsum(0),
    lambda: (r(4096),),
    output(lambda v: v.roll(1)),
)


# ---- an own error that is smaller than any tolerance, and cotangents that are nobody's data


class Count(nn.Module):
    """A count of calls as a float, beside which one more is little."""

    def __init__(self, number: float) -> None:
        super().__init__()
        self.register_buffer("calls", torch.tensor(number))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        return x * 2


def step_of(rate: float) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    def step(p: Tensor, x: Tensor, g: Tensor) -> Tensor:
        p.sub_(rate * g)
        return x * 2

    return step


def numbers_of_seed_0() -> tuple[Any, ...]:
    torch.manual_seed(0)
    return torch.randn(16, 8), trained(torch.ones(8, 8))


wrong(
    "exact",
    "a float64 gradient off by 1e-6",
    lambda x: x.sin().sum(),
    lambda: (trained(r(40, dtype=f64)),),
    gradient(times(1 + 1e-6)),
    by=gradient(times(1.5)),
)
wrong(
    "exact",
    "a float64 weight's gradient off by 3e-6",
    lambda x, w: (x @ w).square().mean(),
    lambda: (r(16, 8, dtype=f64), trained(r(8, 8, dtype=f64))),
    gradient(times(1 + 3e-6), 1),
)
wrong(
    "exact",
    "a complex128 gradient off by 2e-6",
    lambda x: (x * x).abs().sum(),
    lambda: (trained(r(32, dtype=c128)),),
    gradient(times(1 + 2e-6)),
)
wrong(
    "exact",
    "a weight's gradient transposed, on the numbers of seed 0",
    lambda x, w: x @ w,
    numbers_of_seed_0,
    gradient(lambda grad: grad.t().contiguous(), 1),
    on=lambda: (r(16, 8), trained(torch.ones(8, 8))),
)
wrong(
    "exact",
    "a count of 200,000 calls that is not written",
    partial(Count, 2e5),
    lambda: (r(8),),
    unwritten("calls"),
    plainly=partial(Count, 2.0),
)
wrong(
    "exact",
    "a step of 1e-5 that is not written",
    step_of(1e-5),
    lambda: (torch.ones(64, 8), r(4), r(64, 8)),
    unwritten(0),
    plainly=step_of(0.1),
)
wrong(
    "exact",
    "a count of elements off by one",
    lambda x: (x > 0).float().sum(),
    lambda: (r(200_000),),
    output(plus(1.0)),
    by=output(times(2.0)),
)
wrong(
    "exact",
    "counts of classes, one off by one",
    lambda x: x.eq(torch.arange(5).unsqueeze(1)).sum(1).float(),
    lambda: (torch.arange(100_000) % 5,),
    output(lambda counts: counts + F.one_hot(torch.tensor(1), 5)),
)
wrong(
    "exact",
    "an element of a long range off by one",
    lambda x: torch.arange(70_000.0) + 0 * x.sum(),
    lambda: (r(3),),
    output(at(69_990, plus(1.0))),
)
wrong(
    "exact",
    "a bfloat16 product off by a twentieth",
    torch.mul,
    lambda: (r(30, 30, dtype=bf16), r(30, 30, dtype=bf16)),
    output(times(1.05)),
)
wrong(
    "exact",
    "an element of a float16 exp off by a twentieth",
    torch.exp,
    lambda: (r(30, 30, dtype=f16),),
    output(only(nearest_size(5.0), times(1.05))),
)


# ---- 6b.1: quantities that are rounding alone, in float64


def chunks(value: Tensor, dim: int = 0, size: int = 7) -> Tensor:
    """The sum along a dimension, part by part from its end."""
    total = torch.zeros_like(value.select(dim, 0))
    for part in reversed(value.split(size, dim)):
        total = total + part.sum(dim)
    return total


def backwards(value: Tensor, dim: int = -1) -> Tensor:
    return value.flip(dim).sum(dim)


def one_by_one(value: Tensor) -> Tensor:
    """The sum of a vector, in a running sum."""
    return value.cumsum(0)[-1]


def split_matmul(a: Tensor, b: Tensor, parts: int = 8) -> Tensor:
    total = torch.zeros(a.shape[0], b.shape[1], dtype=a.dtype)
    for left, right in zip(a.chunk(parts, 1), b.chunk(parts, 0), strict=True):
        total = total + left @ right
    return total


def softmax_by_hand(a: Tensor, dim: int = -1) -> Tensor:
    powers = (a - a.amax(dim, keepdim=True)).exp()
    return powers / powers.flip(dim).sum(dim, keepdim=True)


def d(*shape: int, dtype: torch.dtype = f64) -> Callable[[], tuple[Any, ...]]:
    return lambda: (r(*shape, dtype=dtype),)


def energy(q: Tensor, p: Tensor) -> Tensor:
    return (p * p / 2 + q * q / 2 + q**4 / 4).sum()


def drift(q: Tensor, p: Tensor) -> Tensor:
    """Of the energy over some steps of leapfrog with a step so small that the drift is rounding."""
    before = energy(q, p)
    for _ in range(8):
        p = p - 5e-7 * (q + q**3)
        q = q + 1e-6 * p
        p = p - 5e-7 * (q + q**3)
    return energy(q, p) - before


def drift_fused(q: Tensor, p: Tensor) -> Tensor:
    def total(q: Tensor, p: Tensor) -> Tensor:
        return chunks(0.5 * (p * p) + 0.5 * (q * q) + 0.25 * (q * q * q * q))

    before = total(q, p)
    for _ in range(8):
        p = torch.addcmul(p, q, q * q + 1, value=-5e-7)
        q = torch.add(q, p, alpha=1e-6)
        p = torch.addcmul(p, q, q * q + 1, value=-5e-7)
    return total(q, p) - before


def given_product() -> tuple[Any, ...]:
    return (a := r(64, 64, dtype=f64)), (x := r(64, dtype=f64)), (a * x).flip(1).sum(1)


def orthogonal(dtype: torch.dtype) -> Callable[[], tuple[Any, ...]]:
    return lambda: (torch.linalg.qr(r(32, 32, dtype=f64))[0].to(dtype),)


healthy(
    "6b.1",
    "softmax sums minus one",
    lambda a: a.softmax(1).sum(1) - 1,
    d(64, 64),
    instead(lambda a: (backwards(softmax_by_hand(a)) - 1,)),
)
healthy(
    "6b.1",
    "softmax sums minus one, their gradient",
    lambda a: a.softmax(1).sum(1) - 1,
    lambda: (trained(r(16, 16, dtype=f64)),),
    instead(lambda a: (backwards(softmax_by_hand(a)) - 1,)),
)
healthy(
    "6b.1",
    "a centred sum",
    lambda a: (a - a.mean()).sum(),
    d(4096),
    instead(lambda a: (chunks(a - backwards(a) / 4096),)),
)
healthy(
    "6b.1",
    "centred columns, one by one",
    lambda a: (a - a.mean(0)).mean(0),
    d(257, 8),
    instead(lambda a: (backwards(a - chunks(a) / 257, 0) / 257,)),
)
healthy(
    "6b.1",
    "a residual A @ x - b",
    lambda a, x, b: a @ x - b,
    given_product,
    instead(lambda a, x, b: (chunks(a * x, 1) - b,)),
)
healthy(
    "6b.1",
    "the norm of a residual",
    lambda a, x, b: (a @ x - b).norm(),
    given_product,
    instead(lambda a, x, b: ((chunks(a * x, 1) - b).square().sum().sqrt(),)),
)
healthy(
    "6b.1",
    "a norm minus one",
    lambda v: (v / v.norm(dim=1, keepdim=True)).norm(dim=1) - 1,
    d(32, 64),
    instead(lambda v: (backwards((v / backwards(v * v)[:, None].sqrt()).square()).sqrt() - 1,)),
)
healthy(
    "6b.1",
    "the cosine of a vector with itself minus one",
    lambda v: F.cosine_similarity(v, v * 3, 1) - 1,
    d(32, 64),
    instead(
        lambda v: (backwards(v * (v * 3)) / (backwards(v * v).sqrt() * backwards((v * 3) ** 2).sqrt()) - 1,)
    ),
)
healthy(
    "6b.1",
    "energy drift of a small integrator",
    drift,
    lambda: (r(32, dtype=f64), r(32, dtype=f64)),
    instead(lambda q, p: (drift_fused(q, p),)),
)
healthy(
    "6b.1",
    "the variance of constants",
    lambda v: (v - v.mean(1, keepdim=True)).square().mean(1),
    lambda: (torch.full((8, 100), 0.1, dtype=f64) * torch.arange(1, 9, dtype=f64)[:, None],),
    instead(lambda v: ((v - chunks(v, 1)[:, None] / 100).square().mean(1),)),
)
healthy(
    "6b.1",
    "a difference of logsumexps",
    lambda v: v.logsumexp(1) - (v - 3.0).logsumexp(1) - 3.0,
    d(32, 64),
    instead(lambda v: (backwards(v.exp()).log() - backwards((v - 3.0).exp()).log() - 3.0,)),
)
healthy(
    "6b.1",
    "shares of a whole minus the whole",
    lambda v: (v / v.sum()).sum() - 1,
    lambda: (torch.rand(1000, dtype=f64),),
    instead(lambda v: (chunks(v / backwards(v)) - 1,)),
)
healthy(
    "6b.1",
    "orthogonality Q.T @ Q - I",
    lambda q: q.T @ q - torch.eye(32, dtype=f64),
    orthogonal(f64),
    instead(lambda q: (split_matmul(q.T, q) - torch.eye(32, dtype=f64),)),
)
healthy(
    "6b.1",
    "a round trip of fft in complex128",
    lambda z: torch.fft.ifft(torch.fft.fft(z)) - z,
    d(8, 60, dtype=c128),
    instead(lambda z: (torch.fft.ifft(torch.fft.fft(z.real + 0j) + 1j * torch.fft.fft(z.imag + 0j)) - z,)),
)
healthy(
    "6b.1",
    "a cumulative sum's end minus the sum",
    lambda v: v.cumsum(0)[-1] - v.sum(),
    d(5000),
    instead(lambda v: (one_by_one(v) - backwards(v),)),
)
healthy(
    "6b.1",
    "the layer norm of constant rows",
    lambda v: F.layer_norm(v, (100,)),
    lambda: (torch.full((4, 100), 0.1, dtype=f64) * torch.arange(1, 5, dtype=f64)[:, None],),
    instead(
        lambda v: (
            (v - chunks(v, 1)[:, None] / 100)
            / ((v - chunks(v, 1)[:, None] / 100).square().mean(1, keepdim=True) + 1e-5).sqrt(),
        )
    ),
)
healthy(
    "6b.1",
    "a linear's bias before a batch norm, float64",
    lambda x, w, b: F.batch_norm(x @ w + b, None, None, training=True),
    lambda: (r(64, 8, dtype=f64), trained(r(8, 8, dtype=f64)), trained(r(8, dtype=f64))),
    instead(lambda x, w, b: (normalized_by_hand(x @ w + b),)),
)
healthy(
    "6b.1",
    "sine and cosine squared minus one",
    lambda v: v.sin() ** 2 + v.cos() ** 2 - 1,
    d(1000),
    instead(lambda v: (torch.addcmul(v.cos() ** 2 - 1, v.sin(), v.sin()),)),
)
healthy(
    "6b.1",
    "trace(AB) minus trace(BA)",
    lambda a, b: (a @ b).trace() - (b @ a).trace(),
    lambda: (r(32, 32, dtype=f64), r(32, 32, dtype=f64)),
    instead(
        lambda a, b: (one_by_one(split_matmul(a, b).diagonal()) - backwards(split_matmul(b, a).diagonal()),)
    ),
)
healthy(
    "6b.1",
    "the variance in two ways",
    lambda v: v.var(correction=0) - ((v * v).mean() - v.mean() ** 2),
    lambda: (r(1000, dtype=f64) + 10,),
    instead(
        lambda v: (
            (v - chunks(v) / 1000).square().mean() - (chunks(v * v) / 1000 - (backwards(v) / 1000) ** 2),
        )
    ),
)
healthy(
    "6b.1",
    "a running residual in a buffer",
    lambda a, e: e.add_(a.softmax(1).sum(1) - 1).sum(),
    lambda: (r(64, 64, dtype=f64), torch.zeros(64, dtype=f64)),
    instead(lambda a, e: (e.add_(backwards(softmax_by_hand(a)) - 1).sum(),)),
)
healthy(
    "6b.1",
    "numbers and their negatives",
    lambda v: torch.cat([v, -v * 1.0]).sum(),
    d(1001),
    instead(lambda v: (one_by_one(torch.cat([-v, v])),)),
)
healthy(
    "6b.1",
    "phases of modulus one, complex128",
    lambda z: (z / z.abs()).abs() - 1,
    d(500, dtype=c128),
    instead(lambda z: (((z.real / z.abs()) ** 2 + (z.imag / z.abs()) ** 2).sqrt() - 1,)),
)
healthy(
    "6b.1",
    "a solved system's residual",
    lambda a, b: a @ torch.linalg.solve(a, b) - b,
    lambda: (r(16, 16, dtype=f64), r(16, 4, dtype=f64)),
    instead(lambda a, b: (split_matmul(a, torch.linalg.inv(a) @ b) - b,)),
)
healthy(
    "6b.1",
    "commutator of rotations",
    lambda a, b: (a * b) * 3.7 - a * (b * 3.7),
    lambda: (r(500, dtype=f64), r(500, dtype=f64)),
    instead(lambda a, b: (torch.addcmul(a * (b * -3.7), a * 3.7, b),)),
)
healthy(
    "6b.1",
    "small float64 leaf that is rounding alone, beside a large one",
    lambda a: (a * 1e3, a.softmax(1).sum(1) - 1),
    d(32, 32),
    instead(lambda a: (a * 1e3, backwards(softmax_by_hand(a)) - 1)),
)


# ---- other rounding in float32 and below


def normalized_by_hand(x: Tensor) -> Tensor:
    mean = chunks(x) / x.shape[0]
    return (x - mean) * (chunks((x - mean) ** 2) / x.shape[0] + 1e-5).rsqrt()


def fused(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """x * y + z with one rounding."""
    return (x.double() * y.double() + z.double()).to(x.dtype)


def stream(x: Tensor, w: Tensor) -> Tensor:
    for _ in range(8):
        x = x + 0.1 * torch.tanh(F.layer_norm(x, x.shape[-1:]) @ w)
    return x


def stream_in_blocks(x: Tensor, w: Tensor) -> tuple[Tensor]:
    """One rounding to the stream's dtype in each block, as a fusing compiler does."""
    for _ in range(8):
        wide = F.layer_norm(x.float(), x.shape[-1:]).to(x.dtype)
        x = (x.float() + 0.1 * torch.tanh((wide @ w).float())).to(x.dtype)
    return (x,)


def moved(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    return x * y + z


healthy(
    "rounding",
    "a near tie of argmax",
    lambda x, y, z: moved(x, y, z).argmax(1),
    rows_with_a_tie(32, 16),
    instead(lambda x, y, z: (fused(x, y, z).argmax(1),)),
)
healthy(
    "rounding",
    "a near tie of topk",
    lambda x, y, z: moved(x, y, z).topk(4, 1),
    rows_with_a_tie(32, 16),
    instead(lambda x, y, z: tuple(fused(x, y, z).topk(4, 1))),
)
healthy(
    "rounding",
    "a near tie of sort",
    lambda x, y, z: moved(x, y, z).sort(1),
    rows_with_a_tie(16, 8),
    instead(lambda x, y, z: tuple(fused(x, y, z).sort(1))),
)
healthy(
    "rounding",
    "near ties of argmax in bfloat16",
    lambda x, w: (x @ w).argmax(1),
    lambda: (r(128, 64, dtype=bf16), r(64, 512, dtype=bf16)),
    instead(lambda x, w: ((x.float() @ w.float()).argmax(1),)),
)
healthy(
    "rounding",
    "near ties of sort in bfloat16",
    lambda x, y, z: moved(x, y, z).sort(1),
    lambda: (r(16, 64, dtype=bf16), r(16, 64, dtype=bf16), r(16, 64, dtype=bf16)),
    instead(lambda x, y, z: tuple(fused(x, y, z).sort(1))),
)
healthy(
    "rounding",
    "near ties of topk in bfloat16, gathered",
    lambda x, w, v: v[(x @ w).topk(3, 1).indices],
    lambda: (r(64, 32, dtype=bf16), r(32, 128, dtype=bf16), r(128)),
    instead(lambda x, w, v: (v[(x.float() @ w.float()).topk(3, 1).indices],)),
)
healthy(
    "rounding",
    "a bool at a near tie",
    lambda x, y, z: x * y > z,
    compared_at_a_tie(8, 8),
    instead(lambda x, y, z: (x.double() * y.double() > z.double(),)),
)
healthy(
    "rounding",
    "a count at a near tie",
    lambda x, y, z: (x * y > z).sum(),
    compared_at_a_tie(64, 64),
    instead(lambda x, y, z: ((x.double() * y.double() > z.double()).sum(),)),
)
healthy(
    "rounding",
    "relu at its edge, with gradients",
    lambda x, y, z: (x * y - z).relu(),
    lambda: tuple(map(trained, compared_at_a_tie(8, 8)())),
    instead(lambda x, y, z: (fused(x, y, -z).relu(),)),
)
healthy(
    "rounding",
    "floor at an edge",
    lambda x, y: (x * y + 1).floor(),
    lambda: (torch.full((8,), 0.1), torch.full((8,), 10.0)),
    instead(lambda x, y: (fused(x, y, torch.ones(8)).floor(),)),
)
healthy(
    "rounding",
    "round at a half",
    lambda x, y, z: (x * y - z).round(),
    lambda: (torch.full((8,), 0.1), torch.full((8,), 5.0), torch.zeros(8)),
    instead(lambda x, y, z: (fused(x, y, z).round(),)),
)
healthy(
    "rounding",
    "int8 at a half",
    lambda x, y, z: (x * y - z).round().to(torch.int8),
    lambda: (torch.full((8,), 0.1), torch.full((8,), 25.0), torch.zeros(8)),
    instead(lambda x, y, z: (fused(x, y, z).round().to(torch.int8),)),
)
healthy(
    "rounding",
    "a variance that cancels",
    cancels,
    lambda: (1000 + r(64, size=0.01),),
    instead(lambda x: (torch.relu(one_by_one(x * x) / 64 - (backwards(x) / 64) ** 2 + 1e-3),)),
)
healthy(
    "rounding",
    "float64: a variance that cancels",
    cancels,
    lambda: (1e8 + r(64, dtype=f64, size=0.01),),
    instead(lambda x: (torch.relu(one_by_one(x * x) / 64 - (backwards(x) / 64) ** 2 + 1e-3),)),
)
healthy(
    "rounding",
    "float32: softmax sums minus one",
    lambda a: a.softmax(1).sum(1) - 1,
    d(64, 64, dtype=f32),
    instead(lambda a: (backwards(softmax_by_hand(a)) - 1,)),
)
healthy(
    "rounding",
    "float32: a small leaf that is rounding alone",
    lambda a: (a * 1e3, a.softmax(1).sum(1) - 1),
    d(32, 32, dtype=f32),
    instead(lambda a: (a * 1e3, backwards(softmax_by_hand(a)) - 1)),
)
healthy(
    "rounding",
    "float32: a small leaf written in place that is rounding alone",
    lambda a, e: e.copy_(a.softmax(1).sum(1) - 1).sum() * 0 + a,
    lambda: (r(32, 32), torch.zeros(32)),
    instead(lambda a, e: (e.copy_(backwards(softmax_by_hand(a)) - 1).sum() * 0 + a,)),
)
healthy(
    "rounding",
    "bfloat16: softmax sums minus one",
    lambda a: a.softmax(1).sum(1) - 1,
    d(64, 64, dtype=bf16),
    instead(lambda a: (softmax_by_hand(a.float()).sum(1).to(bf16) - 1,)),
)
healthy(
    "rounding",
    "a sum of a million",
    lambda v: v.sum(),
    d(1_000_000, dtype=f32),
    instead(lambda v: (one_by_one(v),)),
)
healthy(
    "rounding",
    "a mean of a million near a thousand",
    lambda v: v.mean(),
    lambda: (r(1_000_000) + 1000,),
    instead(lambda v: (chunks(v, size=10_007) / 1_000_000,)),
)
healthy(
    "rounding",
    "a cumulative sum of 1e5, in blocks",
    lambda v: v.cumsum(0),
    d(100_000, dtype=f32),
    instead(
        lambda v: (
            (
                v.reshape(100, 1000).cumsum(1)
                + F.pad(v.reshape(100, 1000).sum(1).cumsum(0)[:-1], (1, 0))[:, None]
            ).reshape(-1),
        )
    ),
)
healthy(
    "rounding",
    "a matmul of 4096 terms, 1e5 results",
    lambda a, b: a @ b,
    lambda: (r(320, 4096), r(4096, 320)),
    instead(lambda a, b: (split_matmul(a, b, 64),)),
)
healthy(
    "rounding",
    "a float16 matmul of 1024 terms",
    lambda a, b: a @ b,
    lambda: (r(128, 1024, dtype=f16), r(1024, 128, dtype=f16)),
    instead(lambda a, b: ((a.float() @ b.float()).half(),)),
)
healthy(
    "rounding",
    "a bfloat16 matmul split in two, each rounded",
    lambda a, b: a @ b,
    lambda: (r(64, 256, dtype=bf16), r(256, 64, dtype=bf16)),
    instead(lambda a, b: (split_matmul(a, b, 2),)),
)
healthy(
    "rounding",
    "a residual stream in bfloat16",
    stream,
    lambda: (r(32, 64, dtype=bf16), r(64, 64, dtype=bf16, size=0.2)),
    instead(stream_in_blocks),
)
healthy(
    "rounding",
    "a residual stream in bfloat16, with gradients",
    stream,
    lambda: (trained(r(32, 64, dtype=bf16)), trained(r(64, 64, dtype=bf16, size=0.2))),
    instead(stream_in_blocks),
)
healthy(
    "rounding",
    "attention by hand in float32",
    lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
    lambda: tuple(trained(r(2, 4, 16, 8, dtype=bf16)) for _ in range(3)),
    instead(
        lambda q, k, v: ((softmax_by_hand(q.float() @ k.float().mT / math.sqrt(8)) @ v.float()).to(bf16),)
    ),
)
healthy(
    "rounding",
    "a linear's bias before a batch norm",
    lambda x, w, b: F.batch_norm(x @ w + b, None, None, training=True),
    lambda: (r(64, 8), trained(r(8, 8)), trained(r(8))),
    instead(lambda x, w, b: (normalized_by_hand(x @ w + b),)),
)
healthy(
    "rounding",
    "gradients that are zero but for rounding",
    lambda a: a.softmax(1).sum(),
    lambda: (trained(r(32, 32)),),
    instead(lambda a: (chunks(backwards(softmax_by_hand(a))),)),
)
healthy(
    "rounding",
    "such gradients beside others",
    lambda a, w: a.softmax(1).sum() + (w * w).sum(),
    lambda: (trained(r(32, 32)), trained(r(32))),
    instead(lambda a, w: (chunks(backwards(softmax_by_hand(a))) + one_by_one(w * w),)),
)
healthy(
    "rounding",
    "a layer norm of constant rows",
    lambda v: F.layer_norm(v, (100,)),
    lambda: (torch.full((4, 100), 0.1) * torch.arange(1, 5)[:, None],),
    instead(
        lambda v: (
            (v - chunks(v, 1)[:, None] / 100)
            / ((v - chunks(v, 1)[:, None] / 100).square().mean(1, keepdim=True) + 1e-5).sqrt(),
        )
    ),
)
healthy(
    "rounding",
    "dropout that is off, with gradients",
    lambda x, w: F.dropout(x @ w, 0.5, training=False).tanh(),
    lambda: (r(32, 64), trained(r(64, 32))),
    instead(lambda x, w: (split_matmul(x, w).tanh(),)),
)
healthy(
    "rounding",
    "a mask of -1e9, then softmax",
    lambda x, m: (x * 1.7 + m * LARGE_MASK).softmax(1),
    lambda: (r(64, 64), mask(64, 64)),
    instead(lambda x, m: (softmax_by_hand(fused(m, torch.tensor(LARGE_MASK), x * 1.7)),)),
)
healthy(
    "rounding",
    "a mask of -1e9, the scores",
    masked,
    lambda: (r(64, 64), mask(64, 64)),
    instead(lambda x, m: (fused(m, torch.tensor(LARGE_MASK), x),)),
)
healthy(
    "rounding",
    "a table with a column of 3e6",
    lambda x: x * 1.1 + 0.3,
    lambda: (with_large(r(64, 16), (slice(None), 0), 3e6),),
    instead(lambda x: (fused(x, torch.tensor(1.1), torch.tensor(0.3)),)),
)
healthy(
    "rounding",
    "a range from e-30 to e30",
    lambda x: (x * 10).exp(),
    lambda: (r(64, 64),),
    instead(lambda x: ((x.double() * 10).exp().float(),)),
)
healthy(
    "rounding",
    "Adam with other rounding",
    adam,
    adam_state,
    instead(
        lambda p, g, v: (
            v.copy_(fused(v, torch.tensor(0.999), 0.001 * (g * g))),
            p.sub_(0.01 * (g / (v.sqrt() + 1e-8))),
            one_by_one(p.flatten()),
        )[-1:]
    ),
)
healthy(
    "rounding",
    "float8 of a product, at edges",
    lambda x, y: (x * y + x).to(torch.float8_e4m3fn).float(),
    lambda: (r(64, 64), r(64, 64)),
    instead(lambda x, y: (fused(x, y, x).to(torch.float8_e4m3fn).float(),)),
)
healthy(
    "rounding",
    "float8 of a bfloat16 matmul, at edges",
    lambda x, w: (x @ w).to(torch.float8_e5m2).float(),
    lambda: (r(64, 64, dtype=bf16), r(64, 64, dtype=bf16)),
    instead(lambda x, w: ((x.float() @ w.float()).to(torch.float8_e5m2).float(),)),
)
healthy(
    "rounding",
    "uint8 of a blurred image, at edges",
    lambda x: F.avg_pool2d(x, 3).mul(255).to(torch.uint8),
    lambda: (torch.randint(0, 256, (1, 1, 48, 48)) / 255,),
    instead(
        lambda x: ((backwards(F.unfold(x, 3, stride=3), 1) / 9 * 255).to(torch.uint8).reshape(1, 1, 16, 16),)
    ),
)
healthy(
    "rounding",
    "complex64: a matmul by its parts",
    lambda a, b: a @ b,
    lambda: (r(32, 128, dtype=c64), r(128, 32, dtype=c64)),
    instead(
        lambda a, b: (
            torch.complex(
                split_matmul(a.real, b.real) - split_matmul(a.imag, b.imag),
                split_matmul(a.real, b.imag) + split_matmul(a.imag, b.real),
            ),
        )
    ),
)
healthy(
    "rounding",
    "complex64: gradients by parts",
    lambda a, b: a * b,
    lambda: (trained(r(32, dtype=c64)), trained(r(32, dtype=c64))),
    instead(
        lambda a, b: (torch.complex(a.real * b.real - a.imag * b.imag, a.real * b.imag + a.imag * b.real),)
    ),
)
healthy(
    "rounding",
    "a gelu of one rounding",
    lambda x: F.gelu(x, approximate="tanh"),
    lambda: (trained(r(64, 64)),),
    instead(lambda x: (F.gelu(x.double(), approximate="tanh").float(),)),
)
healthy(
    "rounding",
    "a quotient kept as it is, then floor",
    lambda x, y: (x / y).floor(),
    lambda: (torch.arange(1.0, 65.0), torch.full((64,), 3.0)),
    instead(lambda x, y: (torch.floor(x / y),)),
)
healthy(
    "rounding",
    "batch norm's statistics in another order",
    partial(nn.BatchNorm1d, 8),
    lambda: (trained(r(64, 8)),),
    in_float64,
)
healthy(
    "rounding",
    "empty and 0-dim results",
    lambda x: (x[:0] * 2, x.exp().sum(), x[0] * 3),
    lambda: (r(64),),
    instead(lambda x: (x[:0] * 2, backwards(x.exp()), x[0] * 3)),
)


# ---- 6b.2: short of memory is not a verdict


@torch.library.custom_op("verdict::fits_once", mutates_args=())
def fits_once(x: Tensor) -> Tensor:
    """The identity, for which the memory does not suffice in float64."""
    if x.dtype is f64:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    return x.clone()


@fits_once.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


healthy(
    "6b.2",
    "a float32 residual whose float64 run does not fit",
    lambda a, x, b: fits_once(a) @ x - b,
    lambda: ((a := r(64, 64)), (x := r(64)), (a * x).sum(1)),
    instead(lambda a, x, b: (chunks(a * x, 1) - b,)),
)
healthy(
    "6b.2",
    "centred sums whose float64 run does not fit",
    lambda a: (fits_once(a) - a.mean(0)).sum(0),
    lambda: (r(500, 16),),
    instead(lambda a: (backwards(a - a.mean(0), 0),)),
)
healthy(
    "6b.2",
    "a bfloat16 stream whose float64 run does not fit",
    lambda x, w: stream(fits_once(x), w),
    lambda: (r(32, 64, dtype=bf16), r(64, 64, dtype=bf16, size=0.2)),
    instead(stream_in_blocks),
)


# ---- 7: what hides a result, found by an attack


def language_model(x: Tensor, w: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    logits = x @ w
    return F.cross_entropy(logits.float(), targets), logits


def tokens(dtype: torch.dtype) -> Callable[[], tuple[Any, ...]]:
    return lambda: (
        r(512, 32, dtype=dtype),
        trained(r(32, 64, dtype=dtype, size=0.2)),
        torch.randint(64, (512,)),
    )


def saturated(value: Tensor) -> Tensor:
    info = torch.finfo(value.dtype)
    return value.nan_to_num(nan=math.nan, posinf=info.max, neginf=info.min)


def without_history(run: Run, names: list[str], args: list[Any]) -> Any:
    """The first input is written to as if nothing needed a gradient."""
    place = place_of(0, names)
    written, args[place] = args[place], args[place].clone()
    outputs = run(*args)
    with torch.no_grad():
        written.copy_(args[place].detach())
    return outputs


def scaled_in_place(buffer: Tensor, w: Tensor) -> Tensor:
    buffer.mul_(w)
    return w * 3


for dtype in (bf16, f32):
    wrong(
        "7.1",
        f"the gradient of a loss beside its logits, {dtype}",
        language_model,
        tokens(dtype),
        cotangent(torch.neg),
        plainly=lambda x, w, targets: language_model(x, w, targets)[0],
    )
for dtype in (f16, bf16, f32, f64):
    wrong(
        "7.2",
        f"infinities of a mask are the largest number, {dtype}",
        lambda m: m.log(),
        lambda dtype=dtype: (mask(64, dtype=dtype),),
        output(saturated),
    )
wrong(
    "7.2",
    "a row that is masked whole is 0, not NaN",
    lambda s, m: (s + m.log()).softmax(-1),
    lambda: (r(8, 8), mask(8, 8).index_fill_(0, torch.tensor(2), 0)),
    output(lambda value: value.nan_to_num(nan=0.0)),
)
wrong("7.3", "a write without its history", scaled_in_place, lambda: (r(4), trained(r(4))), without_history)
wrong(
    "7.8",
    "scales that are powers of two, doubled",
    lambda x: (x.abs().amax(-1) / 6).to(torch.float8_e8m0fnu),
    lambda: (r(32, 16),),
    output(lambda value: (value.float() * 2).to(value.dtype)),
)
healthy(
    "7.c1",
    "topk unsorted, in another order",
    lambda x: (x.topk(5, sorted=False)[0], x * 2),
    lambda: (r(16),),
    output(lambda value: value.flip(0)),
)
healthy(
    "7.c3",
    "places in steps of a tenth",
    lambda x: torch.arange(0.0, 100.0, 0.1) >= x,
    lambda: (torch.arange(0.0, 100.0, 0.1),),
    "aot_eager_decomp_partition",
)
healthy(
    "6b.2",
    "powers of ten by an exponential",
    lambda x: (10.0**x).long(),
    lambda: (torch.arange(1.0, 8.0),),
    instead(lambda x: ((x * math.log(10)).exp().long(),)),
)

# ---- 8: at the edge of a threshold, where no run of eager has gone; small results of half precision


def quantized(x: Tensor, w: Tensor) -> Tensor:
    y = x @ w
    return (y / (y.abs().amax(-1, keepdim=True) / 127)).round().clamp(-128, 127).to(torch.int8)


def quantized_by_one_kernel(x: Tensor, w: Tensor) -> tuple[Tensor]:
    y = (x @ w).float()
    return ((y / (y.abs().amax(-1, keepdim=True) / 127)).round().clamp(-128, 127).to(torch.int8),)


def of_residual(act: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    return lambda x, w, rest: act(F.linear(x, w) * 0.3 + rest)


def of_residual_by_one_kernel(act: Callable[[Tensor], Tensor]) -> Bug:
    return instead(lambda x, w, rest: (act(F.linear(x, w).float() * 0.3 + rest.float()).to(x.dtype),))


for dtype in (bf16, f16):
    healthy(
        "8.1",
        f"whole numbers of a product, {dtype}",
        quantized,
        lambda dtype=dtype: (r(256, 64, dtype=dtype), r(64, 256, dtype=dtype)),
        instead(quantized_by_one_kernel),
    )
    wrong(
        "8.4",
        f"small results have another sign, {dtype}",
        lambda x, w: x * w,
        lambda dtype=dtype: (r(20_000, dtype=dtype), r(20_000, dtype=dtype)),
        output(lambda value: torch.where(value.abs() < 1e-2, -value, value)),
        on=lambda dtype=dtype: (r(500, dtype=dtype), r(500, dtype=dtype)),
    )
for act in (torch.relu, F.relu6, torch.round):
    healthy(
        "8.1",
        f"a {act.__name__} of a residual sum",
        of_residual(act),
        lambda: (r(1024, 64, dtype=bf16), r(512, 64, dtype=bf16), r(1024, 512, dtype=bf16)),
        of_residual_by_one_kernel(act),
    )
healthy(
    "8.1",
    "a mask of a residual sum",
    of_residual(lambda value: value > 0),
    lambda: (r(1024, 64, dtype=bf16), r(512, 64, dtype=bf16), r(1024, 512, dtype=bf16)),
    instead(lambda x, w, rest: (F.linear(x, w).float() * 0.3 + rest.float() > 0,)),
)
wrong(
    "8.1",
    "a mask that is wrong in a row, beside what rounding decides",
    of_residual(lambda value: value > 0),
    lambda: (r(1024, 64, dtype=bf16), r(512, 64, dtype=bf16), r(1024, 512, dtype=bf16)),
    output(at(7, torch.logical_not)),
)
wrong(
    "8.1",
    "a relu that lets a number through",
    of_residual(torch.relu),
    lambda: (r(1024, 64, dtype=bf16), r(512, 64, dtype=bf16), r(1024, 512, dtype=bf16)),
    output(lambda value: value.index_put((torch.tensor(3), torch.tensor(5)), torch.tensor(1.0, dtype=bf16))),
)
wrong(
    "8.1",
    "the last block of whole numbers is off by more than rounding",
    quantized,
    lambda: (r(192, 64, dtype=bf16), r(64, 128, dtype=bf16)),
    output(at((-1, slice(-8, None)), lambda value: value + 3)),
)
wrong(
    "8.1",
    "an index that is none",
    lambda x, w: (x @ w).argmax(-1),
    lambda: (r(1024, 64, dtype=bf16), r(64, 128, dtype=bf16)),
    output(at(-1, lambda value: value * 0 - 5)),
)

# ---- 9: which of equal elements is documented; what no rounding decides


def last_of_equal(pick: Callable[[Tensor], Tensor]) -> Bug:
    return instead(lambda x: (x.shape[-1] - 1 - pick(x.flip(-1)),))


for index_of in (torch.argmax, torch.argmin):
    wrong(
        "9.1",
        f"{index_of.__name__} of equal elements: the last one",
        lambda x, index_of=index_of: index_of(x, -1),
        lambda: (torch.randint(0, 4, (32, 16)),),
        last_of_equal(lambda x, index_of=index_of: index_of(x, -1)),
    )
for extreme in (torch.max, torch.min):
    wrong(
        "9.1",
        f"the index of {extreme.__name__} of equal elements: the last one",
        lambda x, extreme=extreme: extreme(x, -1)[1],
        lambda: (torch.randint(0, 4, (32, 16)).float(),),
        last_of_equal(lambda x, extreme=extreme: extreme(x, -1)[1]),
    )
healthy(
    "9.1",
    "the first maximum of numbers that bfloat16 makes equal",
    lambda x, w: (x @ w).max(-1),
    lambda: (r(512, 64, dtype=bf16), r(64, 512, dtype=bf16)),
    instead(
        lambda x, w: tuple(
            v.to(x.dtype) if v.is_floating_point() else v for v in (x.float() @ w.float()).max(-1)
        )
    ),
)
wrong(
    "9.6",
    "halves of an exact quotient, rounded away from zero",
    lambda x: (x * 0.25).round(),
    lambda: (r(512, size=4.0, dtype=bf16).mul(4).round().div(4),),
    instead(lambda x: (((x.float() * 0.25).abs() + 0.5).floor().copysign(x.float()).to(x.dtype),)),
)

# ---- 10: rounding decides whether there is a number


def beyond_the_sphere(x: Tensor) -> Tensor:
    return (1 - F.normalize(x).pow(2).sum(-1)).sqrt()


def between_points(x: Tensor) -> Tensor:
    squares = x.pow(2).sum(-1)
    return (squares[:, None] - 2 * x @ x.T + squares).sqrt()


for backend in ("inductor", "aot_eager_decomp_partition"):
    for name, near_nothing in {
        "the root of 1 less a norm of 1": beyond_the_sphere,
        "distances of points from themselves": between_points,
        "an angle of 0": lambda x: torch.acos(F.cosine_similarity(x, x * 2)),
        "the logarithm of 1 less a sum of shares": lambda x: (1 - x.softmax(-1).sum(-1)).log(),
    }.items():
        healthy("10.3", f"{name}, {backend}", near_nothing, lambda: (r(200, 33),), backend)
wrong(
    "10.3",
    "a row has no numbers, where rounding takes some away",
    between_points,
    lambda: (r(64, 33),),
    output(at(7, lambda value: value * math.nan)),
)
wrong(
    "10.3",
    "distances beside those that may have no number are doubled",
    between_points,
    lambda: (r(64, 33),),
    output(times(2.0)),
)

# ---- 11: what a usual tolerance hides: small steps of an update, float32 in float64, a loss beside many numbers


def many_tokens() -> tuple[Any, ...]:
    return r(1024, 32, dtype=bf16), trained(r(32, 512, dtype=bf16, size=0.2)), torch.randint(512, (1024,))


def step_with_decay(p: Tensor, g: Tensor) -> Tensor:
    p.mul_(1 - 1e-5)
    p.add_(g.sign(), alpha=-1e-3)
    return g * 2


def step_without_decay(run: Run, names: list[str], args: list[Any]) -> Any:
    p, g = (args[place_of(index, names)] for index in (0, 1))
    p.add_(g.sign(), alpha=-1e-3)
    return (g * 2,)


class TrainedNorm(nn.Sequential):
    def __init__(self) -> None:
        convs = (nn.Conv2d(inner, 16, 3, padding=1) for inner in (3, 16))
        super().__init__(*(layer for conv in convs for layer in (conv, nn.BatchNorm2d(16), nn.ReLU())))


wrong(
    "11.1",
    "the gradient of a loss beside half a million logits",
    language_model,
    many_tokens,
    cotangent(lambda grad: grad * 0),
)
wrong(
    "11.5",
    "an optimizer's step without its weight decay",
    step_with_decay,
    lambda: (r(64, 64), r(64, 64)),
    step_without_decay,
)
for name, program in {
    "seconds of today": lambda x: x + 0.5,
    "a product and a sum": lambda x: x * 1.1 + 1,
}.items():
    wrong(
        "11.6",
        f"{name}, one op in float32",
        program,
        lambda: (torch.linspace(1.7e9, 1.7e9 + 1e5, 1000, dtype=f64),),
        instead(lambda x, program=program: (program(x.float()).double(),)),
    )
for size in (20, 54, 64):
    healthy(
        "11.8",
        f"pixels of {size} lines, of 32",
        lambda x, size=size: F.interpolate(x, (size, size), mode="bilinear"),
        lambda: (torch.randint(0, 256, (1, 3, 32, 32), dtype=torch.uint8),),
        "aot_eager_decomp_partition",
    )
for dtype in (bf16, f16):
    healthy(
        "11.9",
        f"between two numbers that cancel, {dtype}",
        lambda m, g: m.lerp(g, 0.1),
        lambda dtype=dtype: (r(2000, size=0.1, dtype=dtype), r(2000, dtype=dtype)),
        "aot_eager_decomp_partition",
    )
healthy("11.5", "statistics of a batch", partial(TrainedNorm), lambda: (r(8, 3, 24, 24) + 3,), "inductor")

# ---- 12: lazy conjugates, a gradient that is none, steps of float8; what one kernel rounds once


def background_less(a: Tensor, b: Tensor) -> Tensor:
    return a.sub_(b, alpha=0.9).sum()


wrong(
    "12.1",
    "a conjugate lost in a product",
    lambda z, w: z.mH @ w,
    lambda: (r(32, 32, dtype=c64), r(32, 32, dtype=c64)),
    instead(lambda z, w: (z.mT @ w,)),
)
wrong(
    "12.2",
    "a mean's gradient for what is detached",
    lambda z, q: F.mse_loss(z, q.detach()),
    lambda: (trained(r(1024, 1024)), trained(r(1024, 1024))),
    instead(lambda z, q: (F.mse_loss(z, q),)),
)
for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
    wrong(
        "12.3",
        f"a scale of {dtype} off by 6 %",
        lambda x, dtype=dtype: x.to(dtype),
        lambda: (r(64, 64),),
        instead(lambda x, dtype=dtype: ((x * 1.06).to(dtype),)),
    )
for dtype in (f32, f64):
    for name, cancels_by_kernels in {
        "distances of points from themselves": lambda x, y: torch.cdist(x, x).topk(5, largest=False)[0],
        "a background less its share": background_less,
        "a square less itself": lambda x, y: torch.addcmul(
            torch.ones_like(x), 1 + x / 1e3, 1 - x / 1e3, value=-1
        ),
        "a trace that cancels": lambda x, y: (
            torch.trace(x.mT @ x - (x.mT @ x).diag().mean() * torch.eye(8, dtype=x.dtype)) * 2
        ),
    }.items():
        healthy(
            "12.4",
            f"{name}, {dtype}",
            cancels_by_kernels,
            lambda dtype=dtype: (r(80, 8, dtype=dtype) * 100, r(80, 8, dtype=dtype) * 100),
            "inductor",
        )
