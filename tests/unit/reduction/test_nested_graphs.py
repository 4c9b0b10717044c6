"""Graphs in the graph keep no call that their failure does not need, and nothing that compilers refuse."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from fails_on import all_nodes, name_of
from functorch.experimental.control_flow import map as map_rows
from torch import Tensor, fx
from torch._higher_order_ops import scan, while_loop
from torch.utils.checkpoint import checkpoint

from minidbg.codegen.size import targets_of_calls
from minidbg.fx.copying import capture_by_dynamo
from minidbg.reduction.driver import Minimized, minimize

Program = Callable[[Tensor], Any]


def calls(*names: str) -> Callable[[fx.GraphModule, Sequence[Any]], bool]:
    """Fails where all of these ops are called, at any depth."""
    return lambda graph_module, inputs: set(names) <= {name_of(node) for node in all_nodes(graph_module)}


def reduced(program: Program, *names: str) -> Minimized:
    graph_module, inputs = capture_by_dynamo(program, (torch.randn(4, 4),))
    result = minimize(graph_module, inputs, calls(*names))
    assert result.certified
    result.graph_module.graph.lint()
    result.graph_module(*result.inputs)
    return result


def leaves(value: Any) -> list[Any]:
    return [leaf for part in value for leaf in leaves(part)] if isinstance(value, tuple | list) else [value]


def scans(x: Tensor) -> Any:
    def combine(carry: Any, row: Any) -> Any:
        a, b = carry
        return (a + row[0], b * row[1] * x[0]), (row[0].cos(), a.sin())

    return scan(combine, (torch.zeros(4), torch.ones(4)), (x.sin(), x.tanh()))[1][0].exp()


def maps(x: Tensor) -> Any:
    return map_rows(lambda row, y: (row.sin() + y, row.cos()), x, x.sum(0))[0].exp()


def maps_tanh(x: Tensor) -> Any:
    return map_rows(lambda row, y: (row.tanh() + y).t().clone(), x.view(2, 2, 4), x[:2, :2].sum()).exp()


def nested(x: Tensor) -> Any:
    """A loop in a branch, which carries what nothing needs."""

    def one(a: Tensor, b: Tensor) -> Any:
        start = (torch.tensor(0), a, b)
        return while_loop(lambda i, a, b: i < 3, lambda i, a, b: (i + 1, a.sin(), b.tanh() * a), start)[1]

    return torch.cond(x.sum() > 0, one, lambda a, b: a.cos() + b, (x.sinh(), x.exp())).exp()


@pytest.mark.parametrize(
    ("program", "op", "calls_left"),
    [(scans, "scan", ("operator.add", "operator.mul", ".cos", ".sin")), (maps, "map_impl", (".sin", ".cos"))],
)
def test_of_an_op_over_rows_the_graph_keeps_a_call_for_each_result(
    program: Program, op: str, calls_left: tuple[str, ...]
) -> None:
    """A body may not return what it is given, nor one value twice: compilers refuse that in words of their own."""
    result = reduced(program, op)
    assert targets_of_calls(result.graph_module) == (*calls_left, f"torch.ops.higher_order.{op}")


def two_carries(x: Tensor) -> Any:
    def combine(carry: Any, row: Any) -> Any:
        return (carry[0].tanh() + row, carry[1] * row.cos()), row.sin()

    return scan(combine, (torch.zeros(4), x[0].exp()), x.sinh())[0][1].exp()


def scan_of_scans(x: Tensor) -> Any:
    def rows(carry: Any, row: Any) -> Any:
        inner = scan(lambda c, v: (c + v.tanh(), c * v), carry.cos(), row.view(2, 4))
        return inner[0].sin(), inner[1].relu()

    return scan(rows, torch.ones(4), x.view(2, 8))[1].exp()


def loop_in_a_branch(x: Tensor) -> Any:
    return nested(x).sum() + torch.cond(
        x.sum() > 9, lambda a: a.tanh().view(16), lambda a: a.view(16).cos(), (x,)
    )


region = torch.compiler.nested_compile_region(lambda a, b: (a.tanh() + b).view(2, 8).cos())


def regions(x: Tensor) -> Any:
    return region(region(x.sinh(), x).view(4, 4), x.exp()).exp()


def checkpointed(x: Tensor) -> Any:
    return checkpoint(lambda a, b: (a.tanh().add_(b), b.sin()), x.sinh(), x.exp(), use_reentrant=False)[
        0
    ].exp()


def refused_by_compilers(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> bool:
    """Whether a graph in the graph gives an input, or one memory twice, or is given one memory twice; asked of values."""
    found = []

    def look(_: Any, given: Any, result: Any) -> None:
        held = [value.untyped_storage().data_ptr() for value in leaves([given, result])]
        found.append(len(held) > len(set(held)))

    graphs = [module for module in graph_module.modules() if isinstance(module, fx.GraphModule)]
    hooks = [inner.register_forward_hook(look) for inner in graphs[1:]]
    graph_module(*inputs)
    for hook in hooks:
        hook.remove()
    return any(found)


@pytest.mark.parametrize(
    ("program", "op"),
    [
        (two_carries, "scan"),
        (maps_tanh, "map_impl"),
        (scan_of_scans, "scan"),
        (loop_in_a_branch, "cond"),
        (loop_in_a_branch, "while_loop"),
        (regions, "invoke_subgraph"),
        (checkpointed, "tag_activation_checkpoint"),
    ],
)
def test_what_is_left_fails_for_the_reason_of_the_program(program: Program, op: str) -> None:
    """Not as a graph that no compiler takes, which is refused in the same words."""
    graph_module, inputs = capture_by_dynamo(program, (torch.randn(4, 4),))
    assert not refused_by_compilers(graph_module, inputs)
    fails = calls(op, "tanh", "exp")
    result = minimize(graph_module, inputs, lambda *case: fails(*case) or refused_by_compilers(*case))
    assert result.certified
    assert not refused_by_compilers(result.graph_module, result.inputs)
    assert fails(result.graph_module, result.inputs)
