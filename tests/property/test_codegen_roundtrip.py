"""Random graphs, written and read back: the same text and the same graph."""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.graphs_to_write import assert_round_trip
from torch import fx

from minidbg import torch_internals
from minidbg.codegen.expressions import BINARY, UNARY

ENTER_AUTOCAST, EXIT_AUTOCAST = torch_internals.autocast_functions()
SET_GRAD = torch._C._set_grad_enabled
CHECKPOINT = torch.ops.higher_order.tag_activation_checkpoint

PLAIN_NAMES = "x y L_x_ L_self_modules_h_modules_0_parameters_weight_ l_x_ x_1 relu torch self"
ODD_NAMES = "lambda operator print __x _ 1 device match constants root g"
names = st.one_of(
    st.sampled_from(PLAIN_NAMES.split()), st.sampled_from(ODD_NAMES.split()), st.text(max_size=6)
)
texts = st.one_of(st.sampled_from(["T", "dim", "out", "inplace", "__class__", "__x"]), st.text(max_size=5))
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.complex_numbers(),
    texts,
    st.binary(max_size=3),
    st.sampled_from([Ellipsis, torch.float32, torch.complex64, torch.device("cuda", 1), torch.strided]),
    st.sampled_from([torch.channels_last, torch.relu, int, torch.nn.attention.SDPBackend.MATH]),
)


def arguments(nodes: list[fx.Node]) -> st.SearchStrategy[Any]:
    """Whatever may stand in an argument of a node that comes after ``nodes``."""
    single = st.one_of(st.sampled_from(nodes), leaves)
    return st.recursive(
        single,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.lists(inner, max_size=3).map(tuple),
            st.dictionaries(texts, inner, max_size=2),
            st.tuples(inner, inner, inner).map(lambda parts: slice(*parts)),
            st.integers(0, 5).map(range),
        ),
        max_leaves=4,
    )


@st.composite
def graph_modules(draw: st.DrawFn, depth: int = 1) -> fx.GraphModule:
    """A graph that passes ``lint``; most of them compute nothing sensible."""
    graph, root = fx.Graph(), {}
    nodes = [draw(placeholders(graph)) for _ in range(draw(st.integers(1, 3)))]
    open_blocks: list[fx.Node] = []
    for index in range(draw(st.integers(0, 6))):
        kind = draw(st.sampled_from(KINDS if depth else KINDS[:-1]))
        made = kind(draw, graph, nodes, root, f"a{index}", open_blocks, depth)
        made.meta["stack_trace"] = draw(st.sampled_from([None, '  File "/a/b.py", line 3, in f\n']))
        nodes.append(made)
    graph.output(draw(arguments(nodes)))
    gm = torch_internals.lazy_graph_module(root, graph)
    gm.graph.lint()
    return gm


@st.composite
def placeholders(draw: st.DrawFn, graph: fx.Graph) -> fx.Node:
    target = "a" + draw(st.text("abLx_modules.0", max_size=8))
    return graph.placeholder(draw(st.sampled_from([f"L_{target}_", target])))


def a_call(draw: st.DrawFn, graph: fx.Graph, nodes: list[fx.Node], *_: Any) -> fx.Node:
    targets = [torch.add, torch.ops.aten.add.Tensor, operator.iadd, math.sqrt, SET_GRAD, getattr, int]
    target = draw(st.sampled_from(targets))
    args = tuple(draw(st.lists(arguments(nodes), max_size=3)))
    kwargs = draw(st.dictionaries(texts, arguments(nodes), max_size=2))
    return graph.create_node("call_function", target, args, kwargs, name=draw(names))


def an_operator(draw: st.DrawFn, graph: fx.Graph, nodes: list[fx.Node], *_: Any) -> fx.Node:
    target = draw(st.sampled_from([*BINARY, *UNARY, operator.getitem, getattr]))
    args = [draw(arguments(nodes)) for _ in range(1 if target in UNARY else 2)]
    args[draw(st.integers(0, len(args) - 1))] = draw(st.sampled_from(nodes))
    return graph.create_node("call_function", target, tuple(args), {}, name=draw(names))


def a_method(draw: st.DrawFn, graph: fx.Graph, nodes: list[fx.Node], *_: Any) -> fx.Node:
    target = draw(st.sampled_from(["view", "add_", "__and__", "sum", "T"]))
    args = (draw(st.sampled_from(nodes)), *draw(st.lists(arguments(nodes), max_size=2)))
    return graph.create_node("call_method", target, args, {}, name=draw(names))


def an_assignment(draw: st.DrawFn, graph: fx.Graph, nodes: list[fx.Node], *_: Any) -> fx.Node:
    args = (draw(st.sampled_from(nodes)), draw(arguments(nodes)), draw(arguments(nodes)))
    return graph.call_function(operator.setitem, args)


def a_constant(
    draw: st.DrawFn, graph: fx.Graph, nodes: list[fx.Node], root: dict[str, Any], free: str, *_: Any
) -> fx.Node:
    target = draw(st.sampled_from([free, f"inner.{free}", f"inner.0.{free}", f"{free}.it's"]))
    root[target] = draw(st.sampled_from([torch.ones(2), torch.nn.Parameter(torch.zeros(1)), 3]))
    return graph.get_attr(target)


def a_block(draw: st.DrawFn, graph: fx.Graph, *more: Any) -> fx.Node:
    _, _, _, open_blocks, _ = more
    if open_blocks and draw(st.booleans()):
        return graph.call_function(EXIT_AUTOCAST, (open_blocks.pop(draw(st.sampled_from([0, -1]))),))
    open_blocks.append(graph.call_function(ENTER_AUTOCAST, ("cpu", torch.bfloat16, True, None)))
    return open_blocks[-1]


def a_nested_graph(draw: st.DrawFn, graph: fx.Graph, *more: Any) -> fx.Node:
    nodes, root, free, _, depth = more
    root[free] = draw(graph_modules(depth - 1))
    if draw(st.booleans()):
        return graph.call_module(free, (draw(st.sampled_from(nodes)),))
    return graph.call_function(CHECKPOINT, (graph.get_attr(free), *draw(st.lists(st.sampled_from(nodes)))))


KINDS = [a_call, an_operator, a_method, an_assignment, a_constant, a_block, a_nested_graph]


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(graph_modules())
def test_what_is_written_is_read_back_exactly_and_its_builder_builds_it(gm: fx.GraphModule) -> None:
    assert_round_trip(gm)
