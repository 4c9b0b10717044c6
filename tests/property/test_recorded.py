"""Recorded reductions: what each ends in, and in how many questions.

``recorded.json`` has them. Who changes a pass writes them anew (``MINIDBG_WRITE_RECORDED=1``) where the new numbers are a good
bargain on the whole; the names of the nodes that are left may not change without a reason.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from fails_on import all_nodes, name_of
from functorch.experimental.control_flow import map as map_rows
from random_graphs import GraphMaker, calls, random_predicate
from torch import Tensor, fx
from torch._higher_order_ops import scan, while_loop
from torch.utils.checkpoint import checkpoint

from minidbg.fx.copying import capture_by_dynamo
from minidbg.reduction.driver import Minimized, minimize

RECORDED = Path(__file__).with_name("recorded.json")
Fails = Callable[[fx.GraphModule, Sequence[Any]], bool]
Question = tuple[fx.GraphModule, list[Any], Fails]

FEATURES: dict[str, dict[str, bool]] = {
    "plain": {},
    "writes": {"writes": True},
    "modes": {"modes": True},
    "both": {"writes": True, "modes": True},
}


def random_one(seed: int, features: str) -> Question:
    graph_module, inputs = GraphMaker(seed, calls=5 + 7 * seed % 60, **FEATURES[features]).finish()
    return graph_module, list(inputs), random_predicate(seed, graph_module, inputs)


def loop(x: Tensor) -> Any:
    def body(i: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        return i + 1, a.sin(), b.tanh().cos()

    return while_loop(lambda i, a, b: i < 3, body, (torch.tensor(0), x.exp(), x.sinh()))[2].tan()


def rows(x: Tensor) -> Any:
    def combine(carry: Any, row: Any) -> Any:
        return (carry[0].tanh() + row, carry[1] * row.cos()), row.sin()

    return scan(combine, (torch.zeros(4), x[0].exp()), x.sinh())[0][1].exp()


def mapped(x: Tensor) -> Any:
    return map_rows(lambda row, y: (row.tanh() + y).t().clone(), x.view(2, 2, 4), x[:2, :2].sum()).exp()


def branch(x: Tensor) -> Any:
    with torch.no_grad():
        y = x.cosh()
    return torch.cond(x.sum() > 0, lambda a: a.sin().tanh().exp(), lambda a: a.cos(), (y,)).exp()


def saved(x: Tensor) -> Any:
    return checkpoint(lambda a, b: (a.tanh().add(b), b.sin()), x.sinh(), x.exp(), use_reentrant=False)[
        0
    ].exp()


def captured(program: Callable[..., Any], *ops: str) -> Question:
    """The graph that dynamo makes of the program, which fails where all of these ops are called, at any depth."""
    graph_module, inputs = capture_by_dynamo(program, (torch.linspace(-1, 2, 16).view(4, 4),))
    return graph_module, list(inputs), lambda one, _: set(ops) <= {name_of(node) for node in all_nodes(one)}


NESTED: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "a loop": (loop, ("while_loop",)),
    "an op in a loop": (loop, ("while_loop", "tanh")),
    "scan": (rows, ("scan", "tanh")),
    "map": (mapped, ("map_impl", "tanh")),
    "cond": (branch, ("cond", "tanh")),
    "cond and what follows": (branch, ("cond", "exp")),
    "out of a branch": (branch, ("tanh",)),
    "checkpoint": (saved, ("tag_activation_checkpoint", "tanh")),
}

ROWS: dict[str, Callable[[], Question]] = {
    **{
        f"{features} {seed}": lambda seed=seed, features=features: random_one(seed, features)
        for features, seeds in zip(FEATURES, (range(12), range(8), range(8), range(6)), strict=True)
        for seed in seeds
    },
    **{name: lambda row=row: captured(row[0], *row[1]) for name, row in NESTED.items()},
}


def summary(result: Minimized) -> dict[str, Any]:
    return {
        "nodes": [node.name for node in calls(result.graph_module)],
        "inputs": [list(getattr(value, "shape", ())) for value in result.inputs],
        "questions": result.oracle_calls,
        "certified": result.certified,
    }


@pytest.mark.parametrize(
    "simplify",
    [pytest.param(False, marks=pytest.mark.slow, id="cut out"), pytest.param(True, id="made plain")],
)
def test_a_recorded_reduction_ends_as_it_did(simplify: bool) -> None:
    now = {}
    for name, row in ROWS.items():
        torch._dynamo.reset()
        graph_module, inputs, fails = row()
        now[name] = summary(minimize(graph_module, inputs, fails, simplify=simplify))
    mode = "made plain" if simplify else "cut out"
    recorded = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    if os.environ.get("MINIDBG_WRITE_RECORDED"):
        rows_of = {name: json.dumps(one) for name, one in now.items()}
        before = {key: {name: json.dumps(one) for name, one in of.items()} for key, of in recorded.items()}
        parts = (
            f"{json.dumps(key)}: {{\n"
            + ",\n".join(f"{json.dumps(name)}: {line}" for name, line in of.items())
            + "\n}"
            for key, of in {**before, mode: rows_of}.items()
        )
        RECORDED.write_text("{\n" + ",\n".join(parts) + "\n}\n")
        return
    differing = [
        f"{name}: {recorded[mode].get(name)}, now {one}"
        for name, one in now.items()
        if one != recorded[mode].get(name)
    ]
    assert not differing, "\n".join(differing)
