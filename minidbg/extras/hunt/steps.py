"""The steps that a random program may take: an op of torch, and the earlier values and numbers that it gets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from minidbg import torch_internals

SIZES = ("half", "mean", "arange", "rows", "square", "padded", "last")
FLOATS = ("float32", "float64", "bfloat16", "float16")
INTEGERS = ("int64", "int32", "uint8", "int8", "int16")


class Chooser:
    """What a step is drawn from: the values so far, preferably the last ones."""

    def __init__(
        self, values: list[Any], pick: Callable[[Sequence[Any]], Any], number: Callable[[int, int], int]
    ) -> None:
        self.values, self.pick, self.number = values, pick, number

    def value(self) -> dict[str, int]:
        last = len(self.values) - 1
        return {"v": last if self.number(0, 2) else self.number(0, last)}

    def tensor(self, reference: dict[str, int]) -> torch.Tensor:
        return self.values[reference["v"]]  # type: ignore[no-any-return]

    def dim(self, of: dict[str, int]) -> int:
        rank = self.tensor(of).dim()
        return self.number(-rank, max(0, rank - 1)) if rank else self.pick((0, -1))

    def scalar(self) -> float | int:
        return self.pick((0, 1, 2, -1, 3, 0.5, -0.5, 2.5, 1e-3))  # type: ignore[no-any-return]

    def permutation(self, length: int) -> list[int]:
        left = list(range(length))
        return [left.pop(self.number(0, len(left) - 1)) for _ in range(length)]


Step = list[Any]
UNARY = [
    "abs", "neg", "exp", "log1p", "sqrt", "rsqrt", "sin", "cos", "tanh", "sigmoid", "relu", "floor", "ceil", "round", "trunc",
    "sign", "sgn", "isnan", "isinf", "isfinite", "logical_not", "bitwise_not", "reciprocal", "square", "exp2", "erf", "log",
    "expm1", "atan", "sinh", "angle", "conj", "real", "imag", "clone", "nan_to_num", "digamma", "lgamma", "frac", "deg2rad",
    "signbit", "nn.functional.gelu", "nn.functional.silu", "nn.functional.softplus", "nn.functional.elu",
    "nn.functional.hardswish", "nn.functional.mish", "view_as_real", "ravel", "t", "fliplr", "flipud",
]  # fmt: skip
BINARY = [
    "add", "sub", "mul", "div", "true_divide", "maximum", "minimum", "pow", "remainder", "fmod", "floor_divide", "atan2",
    "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor", "bitwise_and", "bitwise_or",
    "bitwise_xor", "copysign", "hypot", "ldexp", "nextafter", "heaviside", "logaddexp", "fmax", "fmin", "xlogy",
    "bitwise_left_shift", "bitwise_right_shift",
]  # fmt: skip
WITH_DIM = [
    "sum", "mean", "prod", "amax", "amin", "any", "all", "cumsum", "cumprod", "logsumexp", "softmax", "log_softmax", "var",
    "std", "argmax", "argmin", "cummax", "cummin", "count_nonzero", "logcumsumexp", "nansum", "median", "mode", "sort",
    "topk", "max", "min", "aminmax", "unbind", "var_mean",
]  # fmt: skip
IN_PLACE = [
    "add_", "mul_", "sub_", "relu_", "sigmoid_", "neg_", "zero_", "copy_", "fill_", "clamp_", "abs_", "square_", "exp_",
    "masked_fill_",
]  # fmt: skip


def unary(some: Chooser) -> Step:
    return [f"torch.{some.pick(UNARY)}", [some.value()], {}]


def binary(some: Chooser) -> Step:
    other = some.value() if some.number(0, 2) else some.scalar()
    return [f"torch.{some.pick(BINARY)}", [some.value(), other], {}]


def reduction(some: Chooser) -> Step | None:
    name, value = some.pick(WITH_DIM), some.value()
    extra: dict[str, Any] = {"dim": some.dim(value)}
    if name in ("sum", "mean", "prod", "amax", "amin", "any", "all", "logsumexp", "var", "std", "argmax"):
        extra["keepdim"] = bool(some.number(0, 1))
    if name in ("cumsum", "sum", "prod", "softmax") and some.number(0, 3) == 0:
        extra["dtype"] = {"dtype": some.pick((*FLOATS, "int64", "int32"))}
    if name == "topk":
        return ["torch.topk", [value, some.number(0, 3)], extra]
    return [f"torch.{name}", [value], extra]


def shape_change(some: Chooser) -> Step:
    value, name = some.value(), some.pick(SHAPES)
    tensor = some.tensor(value)
    rank = tensor.dim()
    size = tensor.shape[0] if rank else 0

    def narrowed() -> list[Any]:
        start = some.number(0, max(0, size - 1))
        return [0, start, some.number(0, size - start)]

    arguments: dict[str, Callable[[], list[Any]]] = {
        ".permute": lambda: some.permutation(rank),
        ".transpose": lambda: [some.dim(value), some.dim(value)],
        ".unsqueeze": lambda: [some.dim(value)],
        ".squeeze": lambda: [some.dim(value)],
        ".expand": lambda: [some.pick((1, 2, 3)), *([-1] * rank)],
        "torch.flip": lambda: [[some.dim(value)]],
        "torch.roll": lambda: [some.number(-2, 3), some.dim(value)],
        "torch.narrow": narrowed,
        "torch.select": lambda: [0, some.number(0, max(0, size - 1))],
        "operator.getitem": lambda: [{"slice": [some.pick((None, 0, 1, -2)), None, some.pick((None, 1, 2))]}],
        ".reshape": lambda: [some.pick(([-1], [-1, 1], [1, -1], [2, -1], [-1, 3]))],
        ".unfold": lambda: [some.dim(value), some.pick((1, 2, 3)), some.pick((1, 2))],
        ".repeat": lambda: [2, *([1] * rank)],
    }
    return [name, [value, *arguments.get(name, list)()], {}]


SHAPES = (
    ".permute", ".transpose", ".unsqueeze", ".squeeze", ".expand", "torch.flip", "torch.roll", "torch.narrow",
    "torch.select", "operator.getitem", ".reshape", "torch.diff", "torch.triu", "torch.tril", "torch.diagonal", ".unfold",
    ".repeat", ".contiguous", ".flatten", "torch.nonzero", ".detach",
)  # fmt: skip


def joined(some: Chooser) -> Step:
    values = [some.value() for _ in range(some.number(1, 3))]
    return [some.pick(("torch.cat", "torch.stack", "torch.hstack")), [values], {}]


def cast(some: Chooser) -> Step:
    dtype = some.pick((*FLOATS, *INTEGERS, "bool", "complex64"))
    return [some.pick((".to", ".to", ".to", ".view")), [some.value(), {"dtype": dtype}], {}]


def in_place(some: Chooser) -> Step:
    name, value = some.pick(IN_PLACE), some.value()
    rest: list[Any] = []
    if name in ("add_", "mul_", "sub_", "copy_", "masked_fill_"):
        rest.append(some.value())
    if name in ("fill_", "masked_fill_"):
        rest.append(some.scalar())
    if name == "clamp_":
        rest = [-0.5, some.pick((None, 0.5, 1))]
    return [f".{name}", [value, *rest], {}]


def indexed(some: Chooser) -> Step:
    value, index = some.value(), some.value()
    arguments: dict[str, Callable[[], list[Any]]] = {
        "torch.gather": lambda: [value, some.dim(value), index],
        "torch.index_select": lambda: [value, some.dim(value), index],
        "torch.take": lambda: [value, index],
        "operator.getitem": lambda: [value, index],
        "torch.where": lambda: [some.value(), value, index],
        "torch.masked_fill": lambda: [value, index, some.scalar()],
    }
    name = some.pick(tuple(arguments))
    return [name, arguments[name](), {}]


def product(some: Chooser) -> Step:
    return [
        some.pick(("torch.matmul", "torch.mm", "torch.bmm", "torch.outer", "torch.dot")),
        [some.value(), some.value()],
        {},
    ]


def clamped(some: Chooser) -> Step:
    return ["torch.clamp", [some.value()], {"min": some.scalar(), "max": some.scalar()}]


def neural(some: Chooser) -> Step:
    value = some.value()
    last = some.tensor(value).shape[-1] if some.tensor(value).dim() else 1
    return some.pick(  # type: ignore[no-any-return]
        (
            ["torch.nn.functional.layer_norm", [value, [last]], {}],
            ["torch.nn.functional.pad", [value, [1, 2]], {"value": some.scalar()}],
            ["torch.nn.functional.avg_pool1d", [value, 2], {}],
            ["torch.nn.functional.max_pool2d", [value, 2], {}],
            ["torch.nn.functional.normalize", [value], {}],
            ["torch.nn.functional.interpolate", [value], {"scale_factor": 2}],
            ["torch.nn.functional.pad", [value, [1, 1]], {"mode": "reflect"}],
            ["torch.nn.functional.conv1d", [value, value], {}],
            ["torch.nn.functional.embedding", [some.value(), value], {}],
            ["torch.nn.functional.one_hot", [value, 9], {}],
        )
    )


def created(some: Chooser) -> Step:
    value = some.value()
    return some.pick(  # type: ignore[no-any-return]
        (
            ["torch.zeros_like", [value], {}],
            ["torch.ones_like", [value], {}],
            ["torch.full_like", [value, some.scalar()], {}],
            ["torch.arange", [some.number(0, 9)], {}],
            ["torch.tensor", [some.scalar()], {}],
            [".new_full", [value, [2, 3], some.scalar()], {}],
        )
    )


def control(some: Chooser) -> Step:
    value, name = some.value(), some.pick(("cond", "while_loop", "mapped", "scanned"))
    chains = [
        [some.pick(KEEPING) for _ in range(some.number(1, 2))] for _ in range(2 if name == "cond" else 1)
    ]
    return [f"steps.{name}", [value, *chains], {}]


def with_sizes(some: Chooser) -> Step:
    return ["steps.sized", [some.value(), some.pick(SIZES)], {}]


KEEPING = ("sin", "neg", "relu", "abs", "square", "tanh", "clone")
"""Ops that keep the shape, and the dtype of floats."""

KINDS = (
    unary, unary, unary, binary, binary, binary, reduction, reduction, shape_change, shape_change, shape_change, joined,
    cast, in_place, indexed, product, clamped, neural, created, control, with_sizes,
)  # fmt: skip


# ---- steps that are more than one op: control flow, and arithmetic on sizes
#
# Each is a Python function into which dynamo traces: a program's graph then has torch's own control-flow ops, and symbolic
# sizes where sizes are symbolic. In eager the same values come from plain Python.

ROUNDS_OF_LOOP = 3


def chain(value: torch.Tensor, names: Sequence[str]) -> torch.Tensor:
    """``value`` through ops that keep shape and dtype."""
    for name in names:
        value = getattr(torch, name)(value)
    return value


def cond(value: torch.Tensor, one: Sequence[str], other: Sequence[str]) -> torch.Tensor:
    """One chain or the other, by the sum of the values."""
    positive = value.sum() > 0
    if torch.compiler.is_dynamo_compiling():
        return torch.cond(  # type: ignore[no-any-return]
            positive, lambda value: chain(value, one), lambda value: chain(value, other), (value,)
        )
    return chain(value, one if positive else other)


def while_loop(value: torch.Tensor, names: Sequence[str]) -> torch.Tensor:
    """The chain, a few times."""
    if torch.compiler.is_dynamo_compiling():
        start = torch.zeros((), dtype=torch.int64)
        loop = torch_internals.loop_functions()["while_loop"]
        return loop(  # type: ignore[no-any-return]
            lambda turn, value: turn < ROUNDS_OF_LOOP,
            lambda turn, value: (turn + 1, chain(value, names)),
            (start, value),
        )[1]
    for _ in range(ROUNDS_OF_LOOP):
        value = chain(value, names).clone()
    return value


def mapped(value: torch.Tensor, names: Sequence[str]) -> torch.Tensor:
    """The chain over each row."""
    if torch.compiler.is_dynamo_compiling():
        return torch_internals.loop_functions()["map"](lambda row: chain(row, names), value)  # type: ignore[no-any-return]
    return torch.stack([chain(row, names) for row in value.unbind(0)])


def scanned(value: torch.Tensor, names: Sequence[str]) -> torch.Tensor:
    """The sums of the rows so far, each through the chain."""
    if torch.compiler.is_dynamo_compiling():

        def step(carry: torch.Tensor, row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            result = chain(carry + row, names)
            return result, result.clone()

        return torch_internals.loop_functions()["scan"](step, torch.zeros_like(value[0]), value)[1]  # type: ignore[no-any-return]
    rows, carry = [], torch.zeros_like(value[0])
    for row in value.unbind(0):
        carry = chain(carry + row, names)
        rows.append(carry)
    return torch.stack(rows)


def sized(value: torch.Tensor, what: str) -> torch.Tensor:
    """Something that is made with the sizes of ``value``."""
    rows = value.size(0)
    if what == "half":
        return value[: rows // 2]
    if what == "mean":
        return value.sum(0) / rows
    if what == "arange":
        return torch.arange(value.numel()).reshape(value.shape)
    if what == "rows":
        return value.reshape(rows, value.numel() // rows)
    if what == "square":
        return value.new_ones(rows, rows).tril()
    if what == "padded":
        return torch.nn.functional.pad(value, (0, rows))
    return value.narrow(0, rows - 1, 1)
