"""Higher-order ops keep no value that their failure does not need: operand, inputs of the nested graphs and result go together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from fails_on import all_nodes, name_of
from functorch.experimental.control_flow import map as map_rows
from torch import Tensor, fx
from torch._higher_order_ops import associative_scan, scan, while_loop
from torch.nn.attention.flex_attention import flex_attention
from torch.utils.checkpoint import checkpoint

from minidbg.reduction.core import Minimized, minimize
from minidbg.source.size import call_nodes, call_targets

Program = Callable[[Tensor], Any]


def captured(program: Program, x: Tensor) -> tuple[fx.GraphModule, list[Any]]:
    """The graph that dynamo makes of the program, and its inputs."""
    found: list[tuple[fx.GraphModule, list[Any]]] = []

    def keep(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        found.append((graph_module, list(inputs)))
        return graph_module.forward

    torch.compile(program, backend=keep, fullgraph=True)(x)
    ((graph_module, inputs),) = found
    return graph_module, inputs


def calls(*names: str) -> Callable[[fx.GraphModule, Sequence[Any]], bool]:
    """Fails where all of these ops are called, at any depth."""
    return lambda graph_module, inputs: set(names) <= {name_of(node) for node in all_nodes(graph_module)}


def reduced(program: Program, *names: str, x: Tensor | None = None) -> Minimized:
    graph_module, inputs = captured(program, torch.randn(4, 4) if x is None else x)
    result = minimize(graph_module, inputs, calls(*names))
    assert result.certified
    result.graph_module.graph.lint()
    result.graph_module(*result.inputs)
    return result


def ends(result: Minimized) -> list[tuple[int, int]]:
    """Inputs and results of each nested graph, outer ones first."""
    graphs = [module.graph for module in result.graph_module.modules() if isinstance(module, fx.GraphModule)]
    return [
        (len(graph.find_nodes(op="placeholder")), len(leaves(graph.output_node().args[0])))
        for graph in graphs[1:]
    ]


def leaves(value: Any) -> list[Any]:
    return [leaf for part in value for leaf in leaves(part)] if isinstance(value, tuple | list) else [value]


def carries_three(x: Tensor) -> Any:
    def body(i: Tensor, a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        return i + 1, a.sin(), b.cos(), c.tanh()

    start = (torch.tensor(0), x.exp(), x.sinh(), x * 2)
    return sum(while_loop(lambda i, a, b, c: i < 3, body, start)[1:])


def carries_a_ring(x: Tensor) -> Any:
    """Each carried value is made of the others, and of a value from outside."""
    w = x.cosh()

    def body(i: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        return i + 1, b * w, a + b

    return while_loop(lambda i, a, b: i < 3, body, (torch.tensor(0), x.exp(), x.sinh()))[2].tan()


def scans(x: Tensor) -> Any:
    def combine(carry: Any, row: Any) -> Any:
        a, b = carry
        return (a + row[0], b * row[1] * x[0]), (row[0].cos(), a.sin())

    return scan(combine, (torch.zeros(4), torch.ones(4)), (x.sin(), x.tanh()))[1][0].exp()


def scans_associatively(x: Tensor) -> Any:
    def combine(one: Any, two: Any) -> Any:
        return one[0] + two[0], one[1] * two[1]

    return associative_scan(combine, (x, x.exp()), 0, combine_mode="pointwise")[0].cos()


def branches(x: Tensor) -> Any:
    one, other = lambda a, b: (a.sin(), b.cos(), a + b), lambda a, b: (a.cos(), b.sin(), a - b)
    return torch.cond(x.sum() > 0, one, other, (x, x * 2))[1].exp()


def maps(x: Tensor) -> Any:
    return map_rows(lambda row, y: (row.sin() + y, row.cos()), x, x.sum(0))[0].exp()


def checkpoints(x: Tensor) -> Any:
    w, v = x.exp(), x.tanh()
    return checkpoint(lambda a, b: (a.sin() + w, b * v), x, x.cos(), use_reentrant=False)[0].exp()


region = torch.compiler.nested_compile_region(lambda a, b: (a.sin() + b, b.cos()))


def regions(x: Tensor) -> Any:
    """Two calls of one graph."""
    first, second = region(x, x * 2), region(x.cos(), x)
    return first[0] + second[0] * second[1]


class Saves(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Any:
        ctx.save_for_backward(x, y)
        return x.sin() + y, y.cos()

    @staticmethod
    def backward(ctx: Any, one: Tensor, other: Tensor) -> Any:
        x, y = ctx.saved_tensors
        return one * x.cos(), other * y


def saves(x: Tensor) -> Any:
    return Saves.apply(x, x.exp())[0].tan()


def scores(x: Tensor) -> Any:
    bias, weight = x.sin(), x.cos()
    q = x.reshape(1, 1, 16, 16)
    return flex_attention(q, q, q, score_mod=lambda s, b, h, i, j: s + bias[i, j] * weight[i, j]).exp()


def nested(x: Tensor) -> Any:
    """A loop in a branch, which carries what nothing needs."""

    def one(a: Tensor, b: Tensor) -> Any:
        start = (torch.tensor(0), a, b)
        return while_loop(lambda i, a, b: i < 3, lambda i, a, b: (i + 1, a.sin(), b.tanh() * a), start)[1]

    return torch.cond(x.sum() > 0, one, lambda a, b: a.cos() + b, (x.sinh(), x.exp())).exp()


@pytest.mark.parametrize(
    ("program", "op", "nodes", "inside"),
    [
        (carries_three, "while_loop", 3, [(1, 1), (1, 1)]),
        (carries_a_ring, "while_loop", 3, [(1, 1), (1, 1)]),
        (scans, "scan", 1, [(1, 1)]),
        pytest.param(
            scans_associatively,
            "associative_scan",
            1,
            [(2, 1)],
            marks=pytest.mark.skipif(
                torch.__version__ < "2.14", reason="torch 2.13 has it on accelerators only"
            ),
        ),
        (branches, "cond", 1, [(1, 1), (1, 1)]),
        (maps, "map_impl", 1, [(1, 1)]),
        (checkpoints, "tag_activation_checkpoint", 1, [(1, 1)]),
        (regions, "invoke_subgraph", 1, [(1, 1)]),
        (saves, "autograd_function_apply", 1, [(1, 1), (1, 1)]),
    ],
)
def test_an_op_keeps_nothing_that_nothing_needs(
    program: Program, op: str, nodes: int, inside: list[tuple[int, int]]
) -> None:
    x = torch.randn(4, 4, requires_grad=program in (checkpoints, saves))
    result = reduced(program, op, x=x)
    assert (call_nodes(result.graph_module), ends(result)) == (nodes, inside)
    assert len(result.inputs) == (2 if op == "cond" else 1)


INSIDE_A_BRANCH = [
    *("{", "{", "{", "{", "}", "}", "}", "}"),
    "torch.tensor", "operator.lt", "operator.add", "torch.ops.higher_order.while_loop", "operator.getitem",
    "torch.ops.higher_order.cond",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("taken", [True, False])
def test_an_op_in_a_nested_graph_keeps_nothing_either(taken: bool) -> None:
    """Nor does a loop that is never run become one without end."""
    result = reduced(nested, "cond", "while_loop", x=torch.full((4, 4), 1.0 if taken else -1.0))
    # what the loop's end is told by, and the one value that the branch gives
    assert sorted(call_targets(result.graph_module)) == sorted(INSIDE_A_BRANCH)
    assert ends(result) == [(1, 1), (2, 1), (2, 2), (1, 1)]


def test_attention_keeps_no_buffer_of_its_score_that_nothing_needs() -> None:
    result = reduced(scores, "flex_attention", x=torch.randn(16, 16))
    assert ends(result) == [(5, 1), (4, 1)]


def test_what_the_failure_needs_stays_with_all_that_belongs_to_it() -> None:
    """The third value, in its place among fewer."""
    result = reduced(carries_three, "while_loop", "tanh")
    assert call_nodes(result.graph_module) == 4
    assert ends(result) == [(2, 1), (2, 2)]
