"""Programs whose results torch leaves open, or rounding decides: what another backend may give for them, and what it may not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from minidbg.judge.compare import DEFAULT_SPEC, comparison_of


@dataclass(frozen=True)
class Open:
    """A program, what another backend may give for it, and what it may not."""

    name: str
    program: Callable[..., Any]
    inputs: tuple[Any, ...]
    legal: Any
    wrong: Any

    def judged(self, result: Any, notes: list[str] | None = None) -> dict[str, Any] | None:
        """How ``result``, which a backend gives, differs from eager."""
        return judged(self.program, self.inputs, result, notes)


def judged(
    program: Callable[..., Any], inputs: tuple[Any, ...], result: Any, notes: list[str] | None = None
) -> dict[str, Any] | None:
    """How ``result``, which a backend gives, differs from eager."""

    def eager(change: Callable[[Any], Any] = lambda value: value, seed: int = 0, **_: Any) -> Any:
        torch.manual_seed(seed)
        values = change(tuple(value.clone() for value in inputs))
        return only(change(program)(*values))

    runs = comparison_of(only(result), eager(), eager, DEFAULT_SPEC)
    difference = runs.difference()
    if notes is not None:
        notes += runs.notes()
    return difference


def only(outputs: Any) -> dict[str, Any]:
    """What a run left behind that gave ``outputs`` and nothing else."""
    return {"outputs": outputs, "inputs_after": {}, "gradients": {}}
