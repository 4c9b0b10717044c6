"""Random graphs of a few ops with adventurous inputs, as plain data: drawn by hypothesis, valid since eager runs each op as it is drawn.

A program is ``{"inputs": [...], "steps": [[target, args, kwargs], ...], "outputs": [...], "dynamic": bool}``. Its values are
numbered, inputs first; an argument ``{"v": 3}`` is value 3, and a target ``torch.sort[1]`` the second result. So a program outlives this process, and other versions of hypothesis.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from minidbg import _torch
from minidbg.case import Case
from minidbg.errors import MinidbgError
from minidbg.failure import Kind, Outcome, Verdict
from minidbg.graphs.capture import capture_by_dynamo
from minidbg.oracle import execute

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn

Program = dict[str, Any]
LEAST_STEPS, MOST_STEPS = 2, 12
MOST_ELEMENTS = 1 << 20
SIZES = (0, 1, 2, 3, 4, 5, 7, 8, 16, 17, 33, 64)
HUGE = 70_001
FLOATS = ("float32", "float64", "bfloat16", "float16")
INTEGERS = ("int64", "int32", "uint8", "int8", "int16")
INPUT_DTYPES = ("float32",) * 8 + ("float64", "bfloat16", "float16", "int64", "int64", "int32", "uint8", "int8", "bool", "bool", "complex64")  # fmt: skip
LAYOUTS = ("contiguous",) * 6 + (
    "transposed",
    "expanded",
    "sliced",
    "channels_last",
    "overlapping",
    "conj",
    "neg",
)
VALUES = ("normal",) * 6 + ("zeros", "special", "large", "tiny")


# ---- from a program to a graph


def built(program: Program) -> tuple[fx.GraphModule, tuple[Any, ...], bool]:
    """The graph that dynamo makes of the program, its inputs, and whether their sizes are symbolic."""
    inputs = [made(spec) for spec in program["inputs"]]
    gm, values = capture_by_dynamo(as_module(program), inputs, dynamic=program["dynamic"])
    return gm, values, program["dynamic"]


def as_module(program: Program) -> fx.GraphModule:
    """The program as dynamo may trace it."""
    graph = fx.Graph()
    values: list[Any] = [graph.placeholder(f"x{number}") for number in range(len(program["inputs"]))]
    for text, args, kwargs in program["steps"]:
        given, named = with_values(args, values), with_values(kwargs, values)
        target, place = parts_of(text)
        if target.startswith("."):
            result = graph.call_method(target[1:], tuple(given), named)
        else:
            result = graph.call_function(function_named(target), tuple(given), named)
        values.append(result if place is None else graph.call_function(operator.getitem, (result, place)))
    graph.output(tuple(values[number] for number in program["outputs"]))
    return fx.GraphModule(torch.nn.Module(), graph)


def run_step(step: Sequence[Any], values: Sequence[Any]) -> Any:
    """The result of one step in eager."""
    text, args, kwargs = step
    given, named = with_values(args, values), with_values(kwargs, values)
    target, place = parts_of(text)
    if target.startswith("."):
        result = getattr(given[0], target[1:])(*given[1:], **named)
    else:
        result = function_named(target)(*given, **named)
    return result if place is None else result[place]


def parts_of(target: str) -> tuple[str, int | None]:
    """The function's name and which of its results is meant; None for its only one."""
    name, bracket, rest = target.partition("[")
    return name, int(rest[:-1]) if bracket else None


def function_named(target: str) -> Callable[..., Any]:
    """``torch.add``, ``operator.getitem``."""
    found: Any = {"torch": torch, "operator": operator}[target.partition(".")[0]]
    for part in target.split(".")[1:]:
        found = getattr(found, part)
    return found  # type: ignore[no-any-return]  # by its name


def with_values(arguments: Any, values: Sequence[Any]) -> Any:
    """Plain data as arguments: references and dtypes looked up."""
    if isinstance(arguments, dict):
        if "v" in arguments:
            return values[arguments["v"]]
        if "dtype" in arguments and len(arguments) == 1 and isinstance(arguments["dtype"], str):
            return getattr(torch, arguments["dtype"])
        if "slice" in arguments:
            return slice(*arguments["slice"])
        return {name: with_values(value, values) for name, value in arguments.items()}
    if isinstance(arguments, list):
        return [with_values(value, values) for value in arguments]
    return arguments


def made(spec: dict[str, Any]) -> torch.Tensor:
    """The input that ``spec`` describes: the same tensor each time."""
    dtype, shape, layout = getattr(torch, spec["dtype"]), list(spec["shape"]), spec["layout"]
    generator = torch.Generator().manual_seed(spec["seed"])
    if layout == "transposed" and shape:
        value = filled(shape[::-1], dtype, spec["values"], generator).permute(*range(len(shape) - 1, -1, -1))
    elif layout == "expanded" and shape:
        value = filled([1, *shape[1:]], dtype, spec["values"], generator).expand(*shape)
    elif layout == "sliced" and shape:
        value = filled([*shape[:-1], 2 * shape[-1] + 1], dtype, spec["values"], generator)[..., 1::2]
    elif layout == "overlapping" and shape and shape[0] and shape[-1]:
        flat = filled([sum(shape) - len(shape) + 1], dtype, spec["values"], generator)
        value = flat.as_strided(shape, [1] * len(shape))
    else:
        value = filled(shape, dtype, spec["values"], generator)
        if layout == "channels_last" and len(shape) == 4:
            value = value.contiguous(memory_format=torch.channels_last)
        elif layout == "conj" and dtype.is_complex:
            value = value.conj()
        elif layout == "neg" and (dtype.is_complex or dtype.is_floating_point):
            value = _torch.negated_view(value)
    return value.detach().requires_grad_(spec["grad"])


def filled(shape: list[int], dtype: torch.dtype, values: str, generator: torch.Generator) -> torch.Tensor:
    """A contiguous tensor with values of a kind."""
    if values == "zeros":
        return torch.zeros(shape, dtype=dtype)
    if dtype is torch.bool:
        return torch.rand(shape, generator=generator) < 0.5
    if not (dtype.is_floating_point or dtype.is_complex):
        bounds = torch.iinfo(dtype)
        low, high = (bounds.min, bounds.max) if values == "large" else (max(bounds.min, -8), 9)
        return torch.randint(low, high, shape, generator=generator, dtype=torch.int64).to(dtype)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    result = torch.randn(shape, generator=generator, dtype=wide)
    if values in ("large", "tiny"):
        result *= 1e4 if values == "large" else 1e-6
    if values == "special":
        chosen = torch.randint(0, 12, shape, generator=generator)
        for number, special in enumerate((float("nan"), float("inf"), -float("inf"), 0.0, -0.0)):
            result = torch.where(chosen == number, torch.full_like(result, special), result)
    return result.to(dtype)


def unless_unsteady(case: Case, outcome: Outcome) -> Outcome:
    """``outcome``, or an invalid one when eager in a little lower precision differs from itself as much: rounding that a graph blows up.

    A comparison or a floor after a rounding error gives another integer, in eager as in the backend.
    """
    if outcome.signature is None or outcome.signature.kind is not Kind.ACCURACY:
        return outcome
    again = execute(replace(case, tolerances="tf32"))
    if again.verdict is not Verdict.GONE:
        return outcome
    return replace(
        outcome, verdict=Verdict.INVALID, signature=None, reason="rounding errors explain the difference"
    )


# ---- drawing programs


class NoHypothesis(MinidbgError):
    """hypothesis is not installed."""


def drawn(seed: int, count: int) -> list[Program]:
    """``count`` programs, or a few less; the same for the same seed. Raises NoHypothesis."""
    try:
        import hypothesis
        from hypothesis import strategies
    except ImportError as error:
        raise NoHypothesis(
            f"random graphs need hypothesis ({error}); pip install 'minidbg[hunt]', or hunt with --no-graphs"
        ) from error
    found: list[Program] = []

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(strategies.composite(program)())
    def keep(one: Program | None) -> None:
        if one is not None:
            found.append(one)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        keep()
    return found


def program(draw: DrawFn) -> Program | None:
    """One program; None where hardly any op could follow another."""
    from hypothesis import strategies as some

    def pick(options: Sequence[Any]) -> Any:
        return draw(some.sampled_from(options))

    def number(least: int, most: int) -> int:
        return draw(some.integers(least, most))

    inputs = [input_spec(pick, number) for _ in range(number(1, 3))]
    values: list[Any] = [made(spec) for spec in inputs]
    steps: list[list[Any]] = []
    wanted = number(LEAST_STEPS, MOST_STEPS)
    chooser = Chooser(values, pick, number)
    for _ in range(2 * wanted):
        if len(steps) == wanted:
            break
        step = pick(KINDS)(chooser)
        if step is None:
            continue
        try:
            result = run_step(step, values)
        except Exception:  # noqa: BLE001 - eager says that it is no program
            continue
        if isinstance(result, tuple) and result:
            place = number(0, len(result) - 1)
            step, result = [f"{step[0]}[{place}]", *step[1:]], result[place]
        if not isinstance(result, torch.Tensor) or result.numel() > MOST_ELEMENTS:
            continue
        steps.append(step)
        values.append(result)
    if len(steps) < LEAST_STEPS:
        return None
    used = {reference for _, args, kwargs in steps for reference in references_in([args, kwargs])}
    outputs = [place for place in range(len(inputs), len(values)) if place not in used]
    if len(outputs) < 3 and number(0, 2) == 0:
        outputs.append(number(len(inputs), len(values) - 1))
    outputs = sorted(set(outputs))
    return {"inputs": inputs, "steps": steps, "outputs": outputs, "dynamic": number(0, 3) == 0}


def input_spec(pick: Callable[[Sequence[Any]], Any], number: Callable[[int, int], int]) -> dict[str, Any]:
    dtype = pick(INPUT_DTYPES)
    rank = pick((0, 1, 2, 2, 2, 3, 3, 4))
    shape = [pick(SIZES) for _ in range(rank)]
    if rank and number(0, 19) == 0:
        shape = [1] * (rank - 1) + [HUGE]
    layout = pick(LAYOUTS)
    trains = dtype in FLOATS and layout in ("contiguous", "transposed", "sliced", "channels_last")
    return {
        "dtype": dtype,
        "shape": shape,
        "layout": layout,
        "values": pick(VALUES),
        "grad": trains and number(0, 2) == 0,
        "seed": number(0, 99),
    }


def references_in(arguments: Any) -> set[int]:
    if isinstance(arguments, dict):
        if "v" in arguments:
            return {arguments["v"]}
        arguments = list(arguments.values())
    return (
        {one for item in arguments for one in references_in(item)} if isinstance(arguments, list) else set()
    )


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
    "abs",
    "neg",
    "exp",
    "log1p",
    "sqrt",
    "rsqrt",
    "sin",
    "cos",
    "tanh",
    "sigmoid",
    "relu",
    "floor",
    "ceil",
    "round",
    "trunc",
    "sign",
    "sgn",
    "isnan",
    "isinf",
    "isfinite",
    "logical_not",
    "bitwise_not",
    "reciprocal",
    "square",
    "exp2",
    "erf",
    "log",
    "expm1",
    "atan",
    "sinh",
    "angle",
    "conj",
    "real",
    "imag",
    "clone",
    "nan_to_num",
    "digamma",
    "lgamma",
    "frac",
    "deg2rad",
    "signbit",
    "nn.functional.gelu",
    "nn.functional.silu",
    "nn.functional.softplus",
    "nn.functional.elu",
    "nn.functional.hardswish",
    "nn.functional.mish",
    "view_as_real",
    "ravel",
    "t",
    "fliplr",
    "flipud",
]
BINARY = [
    "add",
    "sub",
    "mul",
    "div",
    "true_divide",
    "maximum",
    "minimum",
    "pow",
    "remainder",
    "fmod",
    "floor_divide",
    "atan2",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "logical_and",
    "logical_or",
    "logical_xor",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "copysign",
    "hypot",
    "ldexp",
    "nextafter",
    "heaviside",
    "logaddexp",
    "fmax",
    "fmin",
    "xlogy",
    "bitwise_left_shift",
    "bitwise_right_shift",
]
WITH_DIM = [
    "sum",
    "mean",
    "prod",
    "amax",
    "amin",
    "any",
    "all",
    "cumsum",
    "cumprod",
    "logsumexp",
    "softmax",
    "log_softmax",
    "var",
    "std",
    "argmax",
    "argmin",
    "cummax",
    "cummin",
    "count_nonzero",
    "logcumsumexp",
    "nansum",
    "median",
    "mode",
    "sort",
    "topk",
    "max",
    "min",
    "aminmax",
    "unbind",
    "var_mean",
]
IN_PLACE = [
    "add_",
    "mul_",
    "sub_",
    "relu_",
    "sigmoid_",
    "neg_",
    "zero_",
    "copy_",
    "fill_",
    "clamp_",
    "abs_",
    "square_",
    "exp_",
    "masked_fill_",
]


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
    value = some.value()
    tensor = some.tensor(value)
    rank, name = tensor.dim(), some.pick(SHAPES)
    if name in (".permute", ".transpose"):
        dims: list[Any] = some.permutation(rank) if name == ".permute" else [some.dim(value), some.dim(value)]
        return [name, [value, *dims], {}]
    if name in (".unsqueeze", ".squeeze"):
        return [name, [value, some.dim(value)], {}]
    if name == ".expand":
        return [name, [value, some.pick((1, 2, 3)), *([-1] * rank)], {}]
    if name in ("torch.flip", "torch.roll"):
        return [
            name,
            [value, [some.dim(value)]]
            if name == "torch.flip"
            else [value, some.number(-2, 3), some.dim(value)],
            {},
        ]
    if name in ("torch.narrow", "torch.select"):
        size = tensor.shape[0] if rank else 0
        start = some.number(0, max(0, size - 1))
        return [
            name,
            [value, 0, start, some.number(0, size - start)] if name == "torch.narrow" else [value, 0, start],
            {},
        ]
    if name == "operator.getitem":
        return [name, [value, {"slice": [some.pick((None, 0, 1, -2)), None, some.pick((None, 1, 2))]}], {}]
    if name == ".reshape":
        return [name, [value, some.pick(([-1], [-1, 1], [1, -1], [2, -1], [-1, 3]))], {}]
    if name in ("torch.diff", "torch.triu", "torch.tril", "torch.diagonal"):
        return [name, [value], {}]
    if name == ".unfold":
        return [name, [value, some.dim(value), some.pick((1, 2, 3)), some.pick((1, 2))], {}]
    if name == ".repeat":
        return [name, [value, 2, *([1] * rank)], {}]
    return [name, [value], {}]


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
    if name in ("add_", "mul_", "sub_", "copy_"):
        return [f".{name}", [value, some.value()], {}]
    if name == "fill_":
        return [".fill_", [value, some.scalar()], {}]
    if name == "clamp_":
        return [".clamp_", [value, -0.5, some.pick((None, 0.5, 1))], {}]
    if name == "masked_fill_":
        return [".masked_fill_", [value, some.value(), some.scalar()], {}]
    return [f".{name}", [value], {}]


def indexed(some: Chooser) -> Step:
    value, index, name = (
        some.value(),
        some.value(),
        some.pick(("gather", "index_select", "take", "getitem", "where", "masked")),
    )
    if name == "where":
        return ["torch.where", [some.value(), value, index], {}]
    if name == "getitem":
        return ["operator.getitem", [value, index], {}]
    if name == "masked":
        return ["torch.masked_fill", [value, index, some.scalar()], {}]
    if name == "take":
        return ["torch.take", [value, index], {}]
    return [f"torch.{name}", [value, some.dim(value), index], {}]


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


KINDS = (
    unary, unary, unary, binary, binary, binary, reduction, reduction, shape_change, shape_change, shape_change, joined,
    cast, in_place, indexed, product, clamped, neural, created,
)  # fmt: skip
