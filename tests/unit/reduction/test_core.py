"""``reduce_graph``: hints, answers, progress, and special graphs."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from graphs_to_reduce import Needs, answers, call_count, call_names, chain, graph_of, row
from torch import Tensor, fx

from minidbg.fx.copying import capture_by_dynamo
from minidbg.reduction.candidate import OracleAnswer
from minidbg.reduction.core import reduce_graph
from minidbg.reduction.result import UNLIMITED


@pytest.mark.parametrize(
    ("needed", "given", "calls"),
    [
        (["op_321"], {"hints": ("nonsense", "op_321")}, 1),
        (["op_321", "op_322"], {"hints": ("op_321",)}, 8),
        (["op_321"], {"frames": lambda: (("op_321",), ("op_10", "op_321"))}, 1),
    ],
    ids=["the hint", "its neighbourhood", "a frame"],
)
def test_nodes_that_hints_and_frames_name_take_few_calls(
    needed: list[str], given: dict[str, Any], calls: int
) -> None:
    result = reduce_graph(*chain(500), answers(needs := Needs(*needed)), **given)
    assert call_names(result.graph_module) == needed
    assert needs.calls <= calls


@pytest.mark.parametrize("given", [{"hints": ("op_20",)}, {"frames": lambda: (("buf0",), ("op_20",))}])
def test_hints_and_frames_that_are_wrong_do_no_harm(given: dict[str, Any]) -> None:
    result = reduce_graph(*chain(200), answers(Needs("op_150")), **given)
    assert call_names(result.graph_module) == ["op_150"]
    assert result.certified


def test_op_named_by_a_hint_takes_few_calls_whatever_the_size() -> None:
    graph_module, inputs = chain(500)
    node = next(node for node in graph_module.graph.nodes if node.name == "op_321")
    node.target = torch.erf
    graph_module.recompile()
    result = reduce_graph(graph_module, inputs, answers(needs := Needs("op_321")), hints=("erf", "lowering"))
    assert call_names(result.graph_module) == ["op_321"]
    assert needs.calls <= 6


def test_kind_of_op_that_always_fails_is_found_as_an_island() -> None:
    def relu_fails(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> bool:
        return any(node.target is torch.relu for node in graph_module.graph.nodes)

    for calls in (30, 300, 3000):
        result = reduce_graph(*chain(calls), answers(relu_fails))
        assert call_count(result.graph_module) == 1
        assert result.oracle_calls <= 6


def test_other_failures_do_not_count() -> None:
    """A second bug at op_10 hides the first one where both are."""

    def ask(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> OracleAnswer:
        names = call_names(graph_module)
        if "op_150" in names:
            return OracleAnswer.INTERESTING
        return OracleAnswer.OTHER if "op_10" in names else OracleAnswer.NOT

    result = reduce_graph(*chain(200), ask)
    assert call_names(result.graph_module) == ["op_150"]
    assert {attempt.answer for attempt in result.history} >= {OracleAnswer.OTHER, OracleAnswer.INTERESTING}


def test_every_call_is_in_the_history_and_told() -> None:
    told: list[tuple[str, int, int]] = []
    result = reduce_graph(
        *chain(100), answers(needs := Needs("op_60")), on_progress=lambda *said: told.append(said)
    )
    assert len(result.history) == len(told) == needs.calls == result.oracle_calls
    phases, nodes, rest = zip(*told, strict=True)
    assert nodes[-1] == 1 < nodes[0]
    assert list(nodes) == sorted(nodes, reverse=True)
    assert {*phases} <= {"islands", "bisect", "nodes"}
    assert rest[-1] < rest[0]


def test_smallest_passing_neighbour_is_kept() -> None:
    result = reduce_graph(*chain(50), answers(Needs("op_10", "op_30")))
    assert call_count(result.neighbour[0]) == 1


def test_nothing_smaller_leaves_no_steps() -> None:
    graph_module, inputs = chain(4)
    result = reduce_graph(graph_module, inputs, answers(Needs("op_0", "op_1", "op_2", "op_3")))
    assert result.steps == ()
    assert call_count(result.graph_module) == 4
    assert result.certified


def test_whole_that_does_not_fail_after_all_ends_the_reduction_soon() -> None:
    result = reduce_graph(*chain(1000), answers(lambda graph_module, inputs: False))
    assert result.whole_passed
    assert not result.certified
    assert result.steps == ()
    assert result.oracle_calls < 20


def test_budget_of_no_calls_asks_nothing() -> None:
    result = reduce_graph(*chain(20), answers(needs := Needs("op_1")), limits=replace(UNLIMITED, max_calls=0))
    assert needs.calls == 0
    assert not result.certified


# --- special graphs ---


def test_two_of_fifty_outputs_stay() -> None:
    graph_module = graph_of(
        lambda g, x: tuple(g.create_node("call_function", torch.sin, (x,), name=f"op_{n}") for n in range(50))
    )
    result = reduce_graph(graph_module, [torch.ones(2)], answers(needs := Needs("op_7", "op_41")))
    assert call_names(result.graph_module) == ["op_7", "op_41"]
    assert needs.calls < 25


def test_outputs_that_are_used_as_well_are_dropped_unless_needed() -> None:
    graph_module = graph_of(lambda graph, x: tuple(row(graph, x, 10)))

    def returns_inner(candidate: fx.GraphModule, inputs: Sequence[Any]) -> bool:
        returned = [node.name for node in candidate.graph.output_node().all_input_nodes]
        return "op_4" in returned and any(
            node.name == "op_5" and node.args[0].name == "op_4" and node.args[0].op != "placeholder"
            for node in candidate.graph.nodes
        )

    result = reduce_graph(graph_module, [torch.ones(2)], answers(returns_inner))
    assert call_names(result.graph_module) == ["op_4", "op_5"]
    assert [node.name for node in result.graph_module.graph.output_node().all_input_nodes] == ["op_4", "op_5"]


def test_of_two_outputs_the_one_that_only_the_other_needs_goes() -> None:
    graph_module = graph_of(lambda graph, x: tuple(row(graph, x, 2)))
    result = reduce_graph(graph_module, [torch.ones(2)], answers(Needs("op_0", "op_1")))
    assert [node.name for node in result.graph_module.graph.output_node().all_input_nodes] == ["op_1"]


def test_an_output_that_is_an_input_goes_too() -> None:
    graph_module = graph_of(lambda graph, x: (x, row(graph, x, 1)[0]))
    result = reduce_graph(graph_module, [torch.ones(2)], answers(Needs("op_0")))
    assert [node.name for node in result.graph_module.graph.output_node().all_input_nodes] == ["op_0"]


def test_nodes_between_culprits_that_must_be_connected_are_bypassed() -> None:
    def connected(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> bool:
        seen: set[str] = set()
        for node in graph_module.graph.nodes:
            above = any(source.name in seen for source in node.all_input_nodes)
            if node.op.startswith("call") and (node.name == "op_5" or above):
                seen.add(node.name)
                if node.name == "op_90":
                    return True
        return False

    result = reduce_graph(*chain(100), answers(connected))
    assert call_names(result.graph_module) == ["op_5", "op_90"]
    assert result.oracle_calls < 40


def test_write_through_a_view_is_reduced_to_the_view_and_the_write() -> None:
    def function(x: Tensor) -> Tensor:
        for _ in range(10):
            x = x.sin()
        view = x.view(-1)
        view.mul_(2)
        for _ in range(10):
            x = x.cos()
        return x

    def fails(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> bool:
        return any(
            node.target == "mul_" and node.args[0].target == "view" and node.args[0].op == "call_method"
            for node in graph_module.graph.nodes
        )

    x = torch.ones(2, 2)
    result = reduce_graph(fx.symbolic_trace(function), [x], answers(fails))
    assert call_names(result.graph_module) == ["view", "mul_"]
    assert torch.equal(x, torch.ones(2, 2))


def test_result_never_needs_a_part_of_a_tuple_that_nobody_asked_for() -> None:
    def build(graph: fx.Graph, x: fx.Node) -> tuple[fx.Node, ...]:
        parts = graph.call_method("split", (x, 1))
        return tuple(graph.call_function(operator.getitem, (parts, number)) for number in range(4))

    result = reduce_graph(graph_of(build), [torch.ones(4, 2)], answers(Needs("split")))
    assert call_names(result.graph_module) == ["split"]


def with_cond(x: Tensor, y: Tensor) -> Tensor:
    for _ in range(4):
        x = x.sin()

    def one(a: Tensor, b: Tensor) -> Tensor:
        for _ in range(4):
            a = (a.cos() + b).tanh()
        return a.relu() * 2

    z = torch.cond(x.sum() > 0, one, lambda a, b: (a - b).exp().neg(), (x, y))
    for _ in range(4):
        z = z.sin() + y
    return z


def every_target(graph_module: fx.GraphModule) -> set[str]:
    found = set()
    for node in graph_module.graph.nodes:
        found.add(getattr(node.target, "__name__", str(node.target)))
        inner = getattr(graph_module, str(node.target), None) if node.op == "get_attr" else None
        if isinstance(inner, fx.GraphModule):
            found |= every_target(inner)
    return found


@pytest.mark.parametrize(
    ("needed", "outer"), [({"relu"}, ["relu"]), ({"cond", "relu"}, ["cond"]), ({"cond"}, ["cond"])]
)
def test_branch_is_entered(needed: set[str], outer: list[str]) -> None:
    graph_module, inputs = capture_by_dynamo(with_cond, (torch.ones(4, 4), torch.ones(4, 4)))
    result = reduce_graph(graph_module, inputs, answers(lambda found, _: needed <= every_target(found)))
    assert call_names(result.graph_module) == outer
    left = every_target(result.graph_module) - {"output"}
    assert needed <= left
    assert not left & {"cos", "tanh", "sin", "exp", "neg"}
    result.graph_module(*result.inputs)


# --- frames, clusters, small graphs, patience ---


def test_outer_frames_are_asked_when_the_innermost_holds_too_little() -> None:
    names = [f"op_{number}" for number in (100, 150, 200)]
    result = reduce_graph(*chain(500), answers(needs := Needs(*names)), frames=lambda: (names[:1], names))
    assert call_names(result.graph_module) == names
    assert len(needs.asked[1]) == 3
    assert needs.calls <= 9


def test_what_an_op_that_fails_when_it_runs_was_given_is_followed_back_to_where_it_went_wrong() -> None:
    """A long trunk and a branch of 12 calls meet in an op that notices what is wrong with the branch since its beginning."""
    branch = [f"branch_{number}" for number in range(12)]

    def build(graph: fx.Graph, x: fx.Node) -> Any:
        trunk = wrong = x
        for number in range(150):
            trunk = graph.create_node("call_function", torch.sin, (trunk,), name=f"trunk_{number}")
        for name in branch:
            wrong = graph.create_node("call_function", torch.cos, (wrong,), name=name)
        joined = graph.create_node("call_function", torch.add, (trunk, wrong), name="joined")
        last = graph.create_node("call_function", torch.relu, (joined,), name="noticed")
        return (row(graph, last, 150)[-1],)

    calls = []
    for at_run_time in (False, True):
        needs = Needs(*branch, "joined", "noticed")
        result = reduce_graph(
            graph_of(build),
            [torch.ones(4)],
            answers(needs),
            frames=lambda: (("joined", "noticed"),),
            fails_when_it_runs=at_run_time,
        )
        assert set(call_names(result.graph_module)) == needs.names
        calls.append(needs.calls)
        first = next(asked for asked in needs.asked if needs.names <= set(asked))
    assert not any(name.startswith("op_") for name in first), "what runs after it was never reached"
    assert len(first) <= 40
    assert calls[1] <= calls[0] - 12


def test_calls_between_where_values_go_wrong_and_where_it_is_noticed_are_bypassed_first() -> None:
    """Each is needed to carry the value on, and none for what it computes."""
    graph_module, inputs = chain(24)
    nodes = {node.name: node for node in graph_module.graph.nodes}
    nodes["op_3"].target, nodes["op_20"].target = torch.erf, torch.exp

    def fails(candidate: fx.GraphModule, inputs: Sequence[Any]) -> bool:
        asked.append(call_count(candidate))
        ends = {node.target: node for node in candidate.graph.nodes if node.op == "call_function"}
        if not {torch.erf, torch.exp} <= ends.keys():
            return False
        value = ends[torch.exp]
        while value.args and value is not ends[torch.erf]:
            value = value.args[0]
        return value is ends[torch.erf]

    counts = []
    for at_run_time in (False, True):
        asked: list[int] = []
        result = reduce_graph(graph_module, inputs, answers(fails), fails_when_it_runs=at_run_time)
        assert call_count(result.graph_module) == 2
        counts.append(len(asked))
    assert counts[1] < counts[0] - 8


def test_an_op_that_text_and_frames_name_is_asked_by_itself_first() -> None:
    frames = (("op_148", "op_149", "op_150"), ("op_147", "op_148", "op_149", "op_150"))
    needs = Needs("op_149")
    graph_module, inputs = chain(300)
    (node,) = (node for node in graph_module.graph.nodes if node.name == "op_149")
    node.target = torch.erf
    reduce_graph(graph_module, inputs, answers(needs), frames=lambda: frames, hints=("erf", "failed"))
    assert needs.asked == [["op_149"]]


def test_what_an_outer_frame_adds_is_asked_by_itself() -> None:
    """The innermost frame holds what the op is given, the one around it the op as well."""
    frames = (("op_148", "op_149"), ("op_148", "op_149", "op_150"))
    needs = Needs("op_150")
    reduce_graph(*chain(300), answers(needs), frames=lambda: frames)
    assert needs.asked == [["op_148", "op_149"], ["op_150"]]


def test_ops_of_two_frames_are_asked_together_with_what_lies_between_them_bypassed() -> None:
    """A compiler fails to join two ops: one frame holds the one, another frame the other, and neither what lies between."""
    first, last = ["op_100", "op_101"], ["op_104"]
    between = [f"op_{number}" for number in range(102, 104)]
    needs = Needs(*first, *last)

    def fails(candidate: fx.GraphModule, inputs: Sequence[Any]) -> bool:
        """Only where the last one takes what the first ones make, or something that was made of it."""
        if not needs(candidate, inputs):
            return False
        node = next(node for node in candidate.graph.nodes if node.name == last[0])
        return node.all_input_nodes[0].op != "placeholder"

    frames = (first, [*first, *between, *last], last)
    result = reduce_graph(
        *chain(300), answers(fails), frames=lambda: frames if not needs.asked else (first, last)
    )
    assert call_names(result.graph_module) == [*first, *last]
    assert needs.asked[:4] == [first, [*first, *between, *last], [*first, *last], [*first, *last]]


def test_the_only_op_of_a_name_in_the_text_is_asked_before_what_others_take() -> None:
    graph_module, inputs = chain(300)
    (node,) = (node for node in graph_module.graph.nodes if node.name == "op_149")
    node.target = torch.erf
    needs = Needs("op_149")
    hints = ("erf", "sin", "failed")
    reduce_graph(graph_module, inputs, answers(needs), frames=lambda: (("op_20",),), hints=hints)
    assert needs.asked[:2] == [["op_20"], ["op_149"]]


def test_frames_of_a_smaller_failure_are_followed() -> None:
    """A failure of which nothing was known at first: the frames of the first smaller one name its node."""
    needs = Needs("op_301")

    def frames() -> tuple[tuple[str, ...], ...]:
        return (("op_301",),) if needs.asked and "op_301" in needs.asked[-1] else ()

    result = reduce_graph(*chain(500), answers(needs), frames=frames)
    assert call_names(result.graph_module) == ["op_301"]
    assert {attempt.phase for attempt in result.history} >= {"frames"}


def test_constants_and_writes_stay_inside_with_what_a_frame_names() -> None:
    def build(graph: fx.Graph, x: fx.Node) -> tuple[fx.Node]:
        value = row(graph, x, 40)[-1]
        mask = graph.create_node("call_function", torch.full, ((4,), 2.0), name="mask")
        graph.create_node("call_function", operator.setitem, (mask, 0, 0.0), name="write")
        return (graph.create_node("call_function", torch.add, (value, mask), name="total"),)

    needs = Needs("mask", "write", "total")

    def fails(candidate: fx.GraphModule, inputs: Sequence[Any]) -> bool:
        """Gone where the mask is returned."""
        returned = [node.name for node in candidate.graph.output_node().all_input_nodes]
        return needs(candidate, inputs) and "mask" not in returned

    result = reduce_graph(graph_of(build), [torch.ones(4)], answers(fails), frames=lambda: (("total",),))
    assert call_names(result.graph_module) == ["mask", "write", "total"]
    assert needs.calls <= 6


@pytest.mark.parametrize("size", [5, 12, 20])
@pytest.mark.parametrize("first", [40, 195])
def test_a_cluster_of_neighbours_takes_few_calls(size: int, first: int) -> None:
    names = [f"op_{number}" for number in range(first, first + size)]
    result = reduce_graph(*chain(400), answers(needs := Needs(*names)))
    assert call_names(result.graph_module) == names
    assert result.certified
    sixths = 6 if size > 16 else 0
    assert needs.calls <= 25 + 2 * size + sixths, "two a node, those that find it, one for each sixth"


@pytest.mark.parametrize("needed", [range(9), (0, 1, 2, 4, 5, 7, 8, 10, 11), (3, 4, 5, 9, 10, 11, 12, 13)])
def test_a_cluster_with_branches_is_thinned_out_by_the_way_it_hangs_together(needed: Sequence[int]) -> None:
    """Blocks of a residual stream: four calls on the way of each sum, which are needed all or not at all."""

    def build(graph: fx.Graph, value: fx.Node) -> fx.Node:
        for block in range(40):
            branch = value
            for n in range(4):
                branch = graph.create_node("call_function", torch.sin, (branch,), name=f"op_{5 * block + n}")
            value = graph.create_node("call_function", torch.add, (value, branch), name=f"op_{5 * block + 4}")
        return value

    names = [f"op_{100 + number}" for number in needed]
    result = reduce_graph(graph_of(build), [torch.ones(4)], answers(Needs(*names)))
    assert call_names(result.graph_module) == names
    assert result.certified
    assert len(names) in [attempt.nodes for attempt in result.history[:30]]


@pytest.mark.parametrize("needed", [1, 2, 5, 9, 12])
def test_a_small_graph_takes_two_calls_a_node_at_most(needed: int) -> None:
    names = [f"op_{number}" for number in range(12)][:: 12 // needed][:needed]
    result = reduce_graph(*chain(12), answers(needs := Needs(*names)))
    assert call_names(result.graph_module) == names
    assert result.certified
    assert needs.calls <= 24


def test_a_pass_without_progress_gives_way_after_a_third_of_the_budget() -> None:
    """Most nodes are needed, whichever: no window and no culprit stands out, and single nodes can go."""

    def fails(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> bool:
        return call_count(graph_module) >= 190

    result = reduce_graph(*chain(200), answers(fails), limits=replace(UNLIMITED, max_calls=90))
    phases = [attempt.phase for attempt in result.history]
    assert phases.count("bisect") <= 40
    assert "nodes" in phases
    assert call_count(result.graph_module) == 190
