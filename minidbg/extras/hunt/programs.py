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

from minidbg import torch_internals
from minidbg.asking.execute import execute
from minidbg.extras.hunt import steps as kinds_of_steps
from minidbg.extras.hunt.steps import FLOATS, KINDS, Chooser
from minidbg.fx.case import Case
from minidbg.fx.copying import capture_by_dynamo
from minidbg.words.errors import MinidbgError
from minidbg.words.outcome import Outcome, Verdict
from minidbg.words.run_spec import in_precision

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn

Program = dict[str, Any]
LEAST_STEPS, MOST_STEPS = 2, 12
MOST_ELEMENTS = 1 << 20
SIZES = (0, 1, 2, 3, 4, 5, 7, 8, 16, 17, 33, 64)
HUGE = 70_001
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


def writes_over_itself(step: Sequence[Any], values: Sequence[Any]) -> bool:
    """Whether a step writes to a tensor of which several elements may be one place in memory: what is there then, torch leaves open."""
    if not parts_of(step[0])[0].endswith("_"):
        return False
    written, reach = with_values(step[1], values)[0], 0
    for stride, size in sorted(zip(written.stride(), written.shape, strict=True)):
        if size > 1 and stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def parts_of(target: str) -> tuple[str, int | None]:
    """The function's name and which of its results is meant; None for its only one."""
    name, bracket, rest = target.partition("[")
    return name, int(rest[:-1]) if bracket else None


def function_named(target: str) -> Callable[..., Any]:
    """``torch.add``, ``operator.getitem``, ``steps.cond``."""
    module, _, name = target.partition(".")
    return operator.attrgetter(name)({"torch": torch, "operator": operator, "steps": kinds_of_steps}[module])  # type: ignore[no-any-return]  # by its name


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
            value = torch_internals.negated_view(value)
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
    if outcome.signature is None or not outcome.signature.kind.traits.compares:
        return outcome
    again = execute(case.with_spec(tolerances=in_precision("tf32")))
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
        if step is None or writes_over_itself(step, values):
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
