"""What the frames of a failure name: nodes in local variables, generated lines, the stack of a dead process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx

from minidbg.core.outcome import Kind, Outcome, Signature
from minidbg.core.run_spec import BackendRef, RunSpec
from minidbg.fx.case import Case
from minidbg.judge.suspects import Suspects, renamed, suspects_in_stack, suspects_of, telling
from minidbg.oracle.execute import execute

GENERATED = """
# from torch._inductor.runtime import helpers
def call(args):
    # Topologically Sorted Source Nodes: [x_3], Original ATen: [aten.add]
    buf0 = args[0] + 1
    # Topologically Sorted Source Nodes: [x_7, x_8], Original ATen: [aten.mm]
    buf1 = buf0
    raise Refused
"""


class Refused(Exception):
    """What the planted compilers raise."""


def chain(calls: int = 40) -> fx.GraphModule:
    graph = fx.Graph()
    value = graph.placeholder("x")
    for number in range(calls):
        op = torch.relu if number == 7 else torch.sin
        value = graph.create_node("call_function", op, (value,), name=f"x_{number}")
    graph.output((value,))
    return fx.GraphModule(torch.nn.Module(), graph)


def calls_of(graph_module: fx.GraphModule) -> list[fx.Node]:
    return [node for node in graph_module.graph.nodes if node.op == "call_function"]


def named(raises: Callable[[fx.GraphModule], object]) -> Suspects:
    """What the frames of what ``raises`` raises over a graph name of it."""
    graph_module = chain()

    def call_user_compiler() -> None:
        raises(graph_module)

    calls = calls_of(graph_module)
    with pytest.raises(Refused) as caught:
        call_user_compiler()
    return suspects_of(caught.value, calls)


def refuse_relu(graph_module: fx.GraphModule) -> None:
    for node in graph_module.graph.nodes:
        if node.target is torch.relu:
            raise Refused


def test_the_node_of_a_backends_loop_is_named() -> None:
    assert named(refuse_relu) == (("x_7",),)


def test_the_innermost_frame_comes_first() -> None:
    def lower(node: fx.Node) -> None:
        raise Refused(node)

    def fuse(group: list[fx.Node]) -> None:
        lower(group[1])

    def schedule(graph_module: fx.GraphModule) -> None:
        fuse(list(graph_module.graph.nodes)[4:7])

    assert named(schedule) == (("x_4",), ("x_3", "x_4", "x_5"))


def test_a_frame_that_holds_a_quarter_of_the_graph_tells_nothing() -> None:
    def schedule(graph_module: fx.GraphModule) -> None:
        nodes = list(graph_module.graph.nodes)[1:12]
        raise Refused(len(nodes))

    assert named(schedule) == ()


def test_what_a_compiler_made_from_a_node_is_named_by_that_node() -> None:
    def lower(graph_module: fx.GraphModule) -> None:
        source = next(node for node in graph_module.graph.nodes if node.name == "x_9")
        made = fx.Graph().create_node("call_function", torch.ops.aten.sin.default, (), name="sin_2")
        made.meta["from_node"] = [fx.traceback.NodeSource(source)]
        del source
        raise Refused

    assert named(lower) == (("x_9",),)


def test_objects_that_break_when_they_are_looked_at_do_no_harm() -> None:
    class Broken:
        def __getattribute__(self, name: str) -> Any:
            raise RuntimeError(name)

    def lower(graph_module: fx.GraphModule) -> None:
        broken, node = Broken(), list(graph_module.graph.nodes)[1]  # noqa: F841 - looked at from outside
        raise Refused

    assert named(lower) == (("x_0",),)


def test_the_comment_above_a_generated_line_names_its_nodes(tmp_path: Path) -> None:
    path = tmp_path / "generated.py"
    path.write_text(GENERATED)

    def run(graph_module: fx.GraphModule) -> None:
        namespace: dict[str, Any] = {"Refused": Refused}
        exec(compile(GENERATED, str(path), "exec"), namespace)
        namespace["call"]([1])

    assert named(run) == (("x_7", "x_8"),)


def test_the_stack_of_a_dead_process_names_nodes_by_its_generated_line(tmp_path: Path) -> None:
    path = tmp_path / "generated.py"
    path.write_text(GENERATED)
    stderr = (
        "Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007f (most recent call first):\n"
        f'  File "{path}", line 5 in call\n  File "/lib/torch/_inductor/output_code.py", line 7 in __call__\n'
    )
    calls = calls_of(chain())
    assert suspects_in_stack(stderr, calls) == (("x_3",),)
    assert suspects_in_stack("no stack", calls) == ()


def test_the_line_of_a_graphs_own_code_names_its_node() -> None:
    """A backend that runs the graph node by node, and fails in one of them."""

    def run(graph_module: fx.GraphModule) -> None:
        made = chain()
        (node,) = (node for node in made.graph.nodes if node.name == "x_7")
        node.target = refusing_relu
        made.recompile()
        made(torch.ones(2))

    assert named(run)[0] == ("x_7",)


def refusing_relu(value: torch.Tensor) -> None:
    """Its frame holds no node."""
    raise Refused


def test_renaming_leaves_out_what_has_no_name() -> None:
    assert renamed((("a", "b"), ("c",)), {"a": "x"}) == (("x",),)


def refuses_relu(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
    refuse_relu(graph_module)
    return graph_module.forward


def test_a_question_answers_with_suspects_by_the_names_of_its_own_graph() -> None:
    ref, signature = BackendRef("planted", "planted"), Signature(Kind.COMPILE)
    case = Case(chain(), (torch.ones(2),), RunSpec(ref, signature=signature), compiler=refuses_relu)
    outcome = execute(case)
    assert outcome.suspects == (("x_7",),)
    assert Outcome.from_json(outcome.to_json()).suspects == outcome.suspects


@pytest.mark.parametrize(
    ("groups", "nodes", "expected"),
    [
        ([{"a"}], 1, ()),
        ([{"a"}], 2, (("a",),)),
        ([set()], 9, ()),
        ([set("abcdefgh")], 9, (tuple("abcdefgh"),)),
        ([set("abcdefghi")], 12, ()),
        ([set("abcdefghi")], 36, (tuple("abcdefghi"),)),
        ([{"b"}, {"a"}, {"b"}], 9, (("b",), ("a",))),
        ([{one} for one in "abcdefgh"], 9, tuple((one,) for one in "abcdef")),
    ],
    ids=["all", "one of two", "nothing", "eight", "nine of few", "nine of many", "again", "the first six"],
)
def test_a_group_tells_something_where_it_is_few_of_the_nodes(
    groups: list[set[str]], nodes: int, expected: Suspects
) -> None:
    assert telling(groups, nodes) == expected


def test_an_error_that_was_never_raised_names_nothing() -> None:
    assert suspects_of(Refused(), []) == ()


def test_a_container_of_hundreds_of_nodes_tells_nothing_apart() -> None:
    def lower(graph_module: fx.GraphModule) -> None:
        node = list(graph_module.graph.nodes)[3]
        many, few = [node] * 257, [node] * 256
        del node
        if keeps_few:
            del many
        else:
            del few
        raise Refused

    keeps_few = True
    assert named(lower) == (("x_2",),)
    keeps_few = False
    assert named(lower) == ()


def test_another_op_that_has_the_name_of_a_node_is_not_that_node() -> None:
    """A compiler names its own nodes after ops, as dynamo does."""

    def lower(graph_module: fx.GraphModule) -> None:
        made = fx.Graph().create_node("call_function", torch.cos, (), name="x_9")  # noqa: F841
        raise Refused

    assert named(lower) == ()


def refuse(value: torch.Tensor) -> None:
    raise Refused


def test_a_line_of_a_graphs_code_that_runs_another_op_names_no_node() -> None:
    def run(graph_module: fx.GraphModule) -> None:
        graph = fx.Graph()
        made = graph.create_node("call_function", refuse, (graph.placeholder("x"),), name="x_9")
        graph.output(made)
        del made
        fx.GraphModule(torch.nn.Module(), graph)(torch.ones(2))

    assert named(run) == ()


def test_a_node_without_a_known_source_stands_for_those_of_its_line_in_the_program() -> None:
    graph_module = chain()
    line = '  File "train.py", line 3, in step\n    y = x.sin()\n'
    for node in graph_module.graph.nodes:
        if node.name in ("x_3", "x_4"):
            node.meta["stack_trace"] = line
    calls = calls_of(graph_module)

    def lower(op: str) -> None:
        made = fx.Graph().create_node(op, torch.cos if op == "call_function" else "x", (), name="decomposed")
        made.meta["stack_trace"] = line
        raise Refused

    for op, expected in (("call_function", (("x_3", "x_4"),)), ("placeholder", ())):
        with pytest.raises(Refused) as caught:
            lower(op)
        assert suspects_of(caught.value, calls) == expected


def test_the_stacks_of_other_threads_than_the_one_that_died_name_nothing(tmp_path: Path) -> None:
    path = tmp_path / "generated.py"
    path.write_text(GENERATED)
    of_this_line = f'  File "{path}", line 5 in call\n'
    stderr = f"Thread 0x00a (most recent call first):\n{of_this_line}\nCurrent thread 0x00b (most recent call first):\n"
    calls = calls_of(chain())
    assert suspects_in_stack(stderr, calls) == ()
    assert suspects_in_stack(stderr + of_this_line, calls) == (("x_3",),)


@pytest.mark.parametrize("spoiled", ["no such file", "a short one", "not inductor's"])
def test_a_stack_that_names_no_generated_line_names_no_node(tmp_path: Path, spoiled: str) -> None:
    path = tmp_path / "generated.py"
    if spoiled == "a short one":
        path.write_text("# inductor\n")
    elif spoiled == "not inductor's":
        path.write_text(GENERATED.replace("inductor", "acme"))
    stderr = f'Current thread 0x00b (most recent call first):\n  File "{path}", line 5 in call\n'
    calls = calls_of(chain())
    assert suspects_in_stack(stderr, calls) == ()
