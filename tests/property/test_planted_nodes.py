"""``minidbg nodes``: of a graph of 20 to 400 nodes with one op that is lowered wrongly, the first bad row is the first node of that op."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import fx
from torch.nn import functional as F
from wrong_lowerings import BUGS, lowers

from minidbg.core.run_spec import Context
from minidbg.fx.case import Case
from minidbg.nodes.walk import node_rows
from minidbg.repro.cases import backend_named, case_of

SIZES = (20, 55, 150, 400)
OF_INDUCTOR = {
    f"inductor's own: {op}": (
        op,
        {"torch._inductor.config": {f"cpp.inject_{op}_bug_TESTING_ONLY": "accuracy"}},
    )
    for op in ("relu", "log1p")
}
FILLERS = {
    "sin": torch.sin, "tanh": torch.tanh, "relu": torch.relu, "sigmoid": torch.sigmoid, "neg": torch.neg,
    "add": torch.add, "mul": torch.mul, "maximum": torch.maximum, "matmul": torch.matmul, "linear": F.linear,
    "layer_norm": F.layer_norm, "rms_norm": F.rms_norm, "softmax": torch.softmax, "gelu": F.gelu,
    "cumsum": torch.cumsum, "sum": torch.sum, "log1p": torch.log1p,
}  # fmt: skip
WIDTH = 16


def planted(bug: str, size: int) -> tuple[Case, str]:
    """A graph of about ``size`` nodes, and the name of the first wrong one."""
    op, config = OF_INDUCTOR[bug] if bug in OF_INDUCTOR else (BUGS[bug][0], {})
    chance = random.Random(f"{bug} {size}")
    graph = fx.Graph()
    x, weight, bias = (graph.placeholder(name) for name in ("x", "weight", "bias"))
    values, wrong = [x], ""
    place = chance.randrange(size // 4, size - 4)
    while len(graph.nodes) < size:
        near = values[-3:]
        name = op if len(graph.nodes) >= place and not wrong else chance.choice([*FILLERS])
        if name == op and len(graph.nodes) < place:
            continue
        a, b = chance.choice(near), chance.choice(near)
        arguments: dict[str, tuple[Any, ...]] = {
            "add": (a, b), "mul": (a, b), "maximum": (a, b), "matmul": (a, weight), "linear": (a, weight, bias),
            "layer_norm": (a, (WIDTH,)), "rms_norm": (a, (WIDTH,)), "softmax": (a, -1), "cumsum": (a, -1),
            "sum": (a, -1, True), "log1p": (graph.call_function(torch.square, (a,)) if name == "log1p" else a,),
        }  # fmt: skip
        node = graph.call_function(FILLERS[name], arguments.get(name, (a,)))
        wrong = wrong or (node.name if name == op else "")
        large = name in ("sum", "cumsum", "add", "mul", "matmul")
        node = graph.call_function(torch.tanh, (node,)) if large else node
        values.append(graph.call_function(torch.add, (node, x)))
    graph.output((values[-1],))
    shapes = ((8, WIDTH), (WIDTH, WIDTH), (WIDTH,))
    torch.manual_seed(size)
    inputs = [torch.randn(shape) / 2 for shape in shapes]
    backend = backend_named("inductor" if config else lowers(bug))
    context = Context(grad=False, config=config)
    return case_of(fx.GraphModule({}, graph), inputs, backend, context=context), wrong


def first_bad(case: Case) -> str:
    return next((row.node for row in node_rows(case, seconds=120.0) if row.status.is_bad), "none")


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("bug", [*BUGS, *OF_INDUCTOR])
def test_the_first_bad_row_is_the_first_node_of_the_op(bug: str) -> None:
    graphs = [planted(bug, size) for size in SIZES]
    assert [first_bad(case) for case, _ in graphs] == [wrong for _, wrong in graphs]
