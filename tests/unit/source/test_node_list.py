"""The list of nodes that a capture carries: what dynamo and the program call them, as data that nothing has to run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx

from minidbg.fx.copying import capture_by_dynamo
from minidbg.source.module_text import ModuleSource, write_graph_builder, write_module
from minidbg.source.node_list import MARK, ListedNode, node_lines, read_nodes, without_nodes


def listed(gm: fx.GraphModule, inputs: tuple[Any, ...], source: ModuleSource) -> tuple[ListedNode, ...]:
    return read_nodes(f"the script\n{node_lines(gm, source.node_names, inputs)}")


class Program(torch.nn.Module):
    def forward(self, x: Tensor, index: Tensor) -> Tensor:
        first, second = x.chunk(2)
        first.add_(1)
        with torch.autocast("cpu"):
            product = first @ second
        return torch.cond(index[0] > 0, lambda y: torch.sin(y), lambda y: y.cos(), (product,))


def captured() -> tuple[fx.GraphModule, tuple[Any, ...]]:
    return capture_by_dynamo(Program(), (torch.ones(4, 2), torch.tensor([1])))


def test_each_node_has_the_script_s_name_its_op_what_it_reads_its_value_and_the_program_s_line() -> None:
    gm, inputs = captured()
    source = write_module(gm)
    nodes = {node.name: node for node in listed(gm, inputs, source)}
    assert nodes["x"].op == "input"
    assert (nodes["x"].value, nodes["index"].value) == ("float32[4, 2]", "int64[1]")
    product = nodes["product"]
    assert (product.op, product.reads, product.value) == ("matmul", "first, second", "bfloat16[2, 2]")
    assert product.line == "product = first @ second"
    assert f"product = first @ second  # {product.place}" in source.text
    assert nodes["chunk"].value == "(float32[2, 2], float32[2, 2])"


def test_calls_without_a_name_and_nodes_of_nested_graphs_are_listed_too() -> None:
    gm, inputs = captured()
    nodes = listed(gm, inputs, write_module(gm))
    assert [node.op for node in nodes if not node.name] == ["add_", "_exit_autocast"]
    assert [(node.op, node.graph) for node in nodes[-2:]] == [("sin", "cond_true_0"), ("cos", "cond_false_0")]
    assert sum(node.op == "input" for node in nodes) == len(inputs)


def test_symbolic_sizes_and_overloads_are_told_and_every_node_of_a_builder_has_a_name() -> None:
    gm, inputs = capture_by_dynamo(torch.nn.ReLU(), (torch.ones(4, 2),), dynamic=True)
    assert "float32[s" in next(
        node.value for node in listed(gm, inputs, write_module(gm)) if node.op == "relu"
    )
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.call_function(torch.ops.aten.add_.Tensor, (x, x))
    graph.output(x)
    built = fx.GraphModule(torch.nn.Module(), graph)
    nodes = listed(built, (torch.ones(2, dtype=torch.int8),), write_graph_builder(built))
    assert nodes == (
        ListedNode("x", "input", value="int8[2]"),
        ListedNode("add__tensor", "aten.add_.Tensor", "x"),
    )


def test_no_input_is_too_odd_to_be_listed() -> None:
    gm = fx.symbolic_trace(lambda x: x + 1)
    for value in (
        torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        torch.empty(2, device="meta"),
        7,
    ):
        (x, _) = listed(gm, (value,), write_module(gm))
        assert x.value in ("float32", "float32[2]", "")


def test_lines_of_the_program_cannot_leave_their_line_of_the_script(tmp_path: Path) -> None:
    gm = fx.symbolic_trace(lambda x: torch.relu(x))
    evil = "y\r\x85\u2028'''\x1b[2J\udcff"
    for node in gm.graph.nodes:
        node.meta["stack_trace"] = f'  File "/a/train.py", line 7, in forward\n    {evil}\n'
    lines = node_lines(gm, write_module(gm).node_names, ())
    assert lines.isascii()
    assert len(lines.splitlines()) == 3
    node = listed(gm, (), write_module(gm))[-1]
    assert node.place == "train.py:7"
    assert node.line.isprintable()


@pytest.mark.parametrize(
    "below", ["", "# [1]\n", "# null\n", '# ["a"]\n', "# " + "[" * 100_000 + "\n", "print(1)\n"]
)
def test_a_damaged_list_is_none(below: str) -> None:
    assert read_nodes(f"the script\n{MARK}\n{below}") == ()
    assert read_nodes("the script\n") == ()


def test_the_script_is_what_stands_above_the_list() -> None:
    gm = fx.symbolic_trace(lambda x: torch.relu(x))
    text = f"# {MARK}\nthe script\n\n"
    assert without_nodes(text + node_lines(gm, write_module(gm).node_names, ())) == text.removesuffix("\n")
    assert without_nodes(text) == text
