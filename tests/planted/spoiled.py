"""Backends that run a graph in eager and spoil what it leaves behind, or compute it otherwise; and their verdict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn

from minidbg.core.kinds import Kind
from minidbg.core.outcome import Outcome, Verdict
from minidbg.core.run_spec import BackendRef, RunSpec
from minidbg.judge.run import Runnable, judge

Change = Callable[[Tensor], Tensor]
Run = Callable[..., Any]
Bug = Callable[[Run, list[str], list[Any]], Any]
"""``bug(run, names, args)`` is a call of the graph: ``run`` is eager, ``names`` are the placeholders'."""
Answers = Callable[..., tuple[Any, ...]]


class Program(nn.Module):
    """``function``, or a module, of inputs whose names in the graph end in their number."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)


@dataclass(frozen=True, slots=True)
class Row:
    reading: str
    """Which finding it belongs to."""
    name: str
    program: Any
    """A function, or a partial that makes a module."""
    inputs: Callable[[], tuple[Any, ...]]
    """Made after ``torch.manual_seed(0)``; a leaf that requires grad has its gradient judged."""
    way: Bug | str
    """What the backend does, or the name of one that torch has."""

    def __str__(self) -> str:
        return f"{self.reading} {self.name}"

    def outcome(self, way: Bug | str | None = None) -> Outcome:
        torch._dynamo.reset()
        way = way or self.way
        compiler = way if isinstance(way, str) else partial(compiled_by, way)
        spec = RunSpec(BackendRef("planted", "..."), backward=True, dynamic=False)
        program = Runnable(self.model, lambda: unshared(self.inputs()), compiler, spec)
        return judge(program, any_failure=True)

    def model(self) -> nn.Module:
        return Program(self.program() if isinstance(self.program, partial) else self.program)


def unshared(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(value.detach().clone().requires_grad_(value.requires_grad) for value in inputs)


def compiled_by(way: Bug, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Run:
    names = [str(node.target) for node in gm.graph.nodes if node.op == "placeholder"]
    return lambda *args: way(gm.forward, names, list(args))


def is_silent(outcome: Outcome) -> bool:
    return outcome.verdict is Verdict.GONE


def is_wrong_result(outcome: Outcome) -> bool:
    return outcome.signature is not None and outcome.signature.kind is Kind.ACCURACY


def text_of(outcome: Outcome) -> str:
    return f"{outcome.verdict}: {' '.join((outcome.message or outcome.reason).split())[:200]}"


# ---- what is spoiled


def place_of(which: int | str, names: list[str]) -> int:
    """Of the input with this number, or of the parameter or buffer whose name ends so."""
    ending = f"inputs_{which}_" if isinstance(which, int) else f"{which}_"
    return next(index for index, name in enumerate(names) if name.endswith(ending))


def output(change: Change, index: int = 0) -> Bug:
    def spoil(run: Run, names: list[str], args: list[Any]) -> Any:
        outputs = list(run(*args))
        outputs[index] = change(outputs[index])
        return tuple(outputs)

    return spoil


def gradient(change: Change, which: int | str = 0) -> Bug:
    """Of an input or a parameter."""

    def spoil(run: Run, names: list[str], args: list[Any]) -> Any:
        place = place_of(which, names)
        args[place] = ChangedGradient.apply(args[place], change)
        return run(*args)

    return spoil


def cotangent(change: Change, index: int = 0) -> Bug:
    """Of an output, on its way into backward."""
    return output(lambda value: ChangedGradient.apply(value, change), index)


def after(change: Callable[[Tensor, Tensor], Tensor], which: int | str = 0) -> Bug:
    """What an input, parameter or buffer holds after the call: ``change(after, before)``."""

    def spoil(run: Run, names: list[str], args: list[Any]) -> Any:
        value = args[place_of(which, names)]
        before = value.detach().clone()
        outputs = run(*args)
        with torch.no_grad():
            value.data.copy_(change(value.detach().clone(), before))  # autograd does not notice
        return outputs

    return spoil


def unwritten(which: int | str = 0) -> Bug:
    return after(lambda written, before: before, which)


class ChangedGradient(torch.autograd.Function):
    """The identity; its gradient is changed."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, change: Change) -> Tensor:
        ctx.change = change
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.change(grad), None


# ---- how


def times(factor: float) -> Change:
    return lambda value: value * factor


def plus(number: float) -> Change:
    return lambda value: value + number


def zeros(value: Tensor) -> Tensor:
    return torch.zeros_like(value)


def only(where: Callable[[Tensor], Tensor], change: Change) -> Change:
    """At the elements of which ``where`` is true."""
    return lambda value: torch.where(where(value), change(value), value)


def at(index: Any, change: Change) -> Change:
    """At an index, a row, a slice."""

    def changed(value: Tensor) -> Tensor:
        value = value.clone()
        value[index] = change(value[index])
        return value

    return changed


def small(limit: float) -> Callable[[Tensor], Tensor]:
    return lambda value: value.abs() < limit


# ---- another legal way


def instead(answers: Answers) -> Bug:
    """``answers(*inputs)``, in the program's order, in place of the graph."""

    def compute(run: Run, names: list[str], args: list[Any]) -> Any:
        count = sum("inputs_" in name for name in names)
        return answers(*(args[place_of(number, names)] for number in range(count)))

    return compute


def in_float64(run: Run, names: list[str], args: list[Any]) -> Any:
    """The graph on wide inputs, its results rounded to their dtypes; what it writes is eager's."""
    wide = [
        value.to(torch.complex128 if value.is_complex() else torch.float64, copy=True)
        if isinstance(value, Tensor) and (value.is_complex() or value.is_floating_point())
        else value.clone()
        if isinstance(value, Tensor)
        else value
        for value in args
    ]
    usual = run(*args)
    again = run(*wide)
    return tuple(a.to(u.dtype) if isinstance(u, Tensor) else u for a, u in zip(again, usual, strict=True))
