"""How long an oracle call may take when the case is a hang: derived from what a healthy call takes with the same backend.

A hang is only known by its length, and each question that shows it costs all of the limit. So the limit must be short, and
still so long that a healthy call on a busy machine stays far below it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from minidbg.case import Case
from minidbg.failure import Outcome, Verdict

LEAST_S = 2.0
MOST_S = 600.0
TIMES = 10.0
"""The limit is so many times the healthy time."""
NODES = 50
"""A graph with so many nodes more is expected to take twice as long."""
HEALTHY: dict[tuple[str, ...], float | None] = {}
"""Seconds of a healthy call, by backend and call path; None where even one addition does not come back well."""

Ask = Callable[[Case, float], Outcome]
"""One oracle call with a limit in seconds."""


def time_for(case: Case, ask: Ask) -> float | None:
    """Seconds after which ``case`` hangs; None when the backend did not do even one addition here."""
    key = (case.backend.expression, repr(case.backend.options), str(case.backend.mode), str(case.call))
    if key not in HEALTHY:
        outcome = ask(one_addition(case), MOST_S / TIMES)
        HEALTHY[key] = outcome.seconds if outcome.verdict is Verdict.GONE else None
    healthy = HEALTHY[key]
    if healthy is None:
        return None
    return min(MOST_S, healthy * TIMES * (1 + len(case.graph_module.graph.nodes) / NODES))


def one_addition(case: Case) -> Case:
    """The smallest case for the same backend, on the same device, in the same modes."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output((graph.call_function(torch.ops.aten.add.Tensor, (x, 1)),))
    return replace(
        case,
        graph_module=fx.GraphModule(torch.nn.Module(), graph),
        inputs=(torch.ones(3, device=main_device(case.inputs)),),
        signature=None,
        dynamic=False,
        dynamic_dims=(),
        backward=False,
    )


def main_device(values: tuple[Any, ...]) -> torch.device:
    """Where most tensors of ``values`` are."""
    devices = [value.device for value in values if isinstance(value, torch.Tensor)]
    return max(devices, key=devices.count, default=torch.device("cpu"))
