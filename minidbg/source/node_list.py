"""The nodes of a graph as data: a capture carries them below its header, so that its graph is listed without reading its code.

A comment line a node, each a JSON array. What loads a capture, or reads its header, passes over them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

from torch import Tensor, fx

from minidbg import torch_internals
from minidbg.fx.effects import op_name
from minidbg.fx.nested import levels
from minidbg.source.origins import location, user_frames
from minidbg.words.text import printable

MARK = "# The nodes of the graph, for the page of 'minidbg show': name, op, what it reads, value, line, its text, graph."
LONGEST = 160
"""Characters of a value or a line of the program."""


@dataclass(frozen=True, slots=True)
class ListedNode:
    """One node, in texts for people; what is not known is empty."""

    name: str
    """As the script calls it; empty for a call whose value nobody uses."""
    op: str
    """``softmax``, ``aten.add.Tensor``; ``input`` for an input."""
    reads: str = ""
    """``query, key``: the values that it reads."""
    value: str = ""
    """``float32[2, 3]``."""
    place: str = ""
    """``train.py:41``."""
    line: str = ""
    """What stands there."""
    graph: str = ""
    """``cond_true_0``: the attribute that holds its graph, where it is a nested one."""


def node_lines(graph_module: fx.GraphModule, names: Mapping[fx.Node, str], inputs: Sequence[Any]) -> str:
    """The lines for all nodes, those of nested graphs last; ``names`` are the script's."""
    nodes = listed(graph_module, names, inputs)
    return "\n".join([MARK, *(f"# {json.dumps(astuple(node))}" for node in nodes)]) + "\n"


def without_nodes(text: str) -> str:
    """The capture ``text`` without its list."""
    return text.rpartition(f"\n{MARK}\n")[0] or text


def read_nodes(text: str) -> tuple[ListedNode, ...]:
    """The nodes that the capture ``text`` carries; none where it carries no list, or a damaged one."""
    lines = text.rpartition(f"\n{MARK}\n")[2].splitlines() if f"\n{MARK}\n" in text else []
    try:
        return tuple(ListedNode(*map(safe, json.loads(line.removeprefix("# ")))) for line in lines)
    except (ValueError, TypeError, RecursionError):
        return ()


def safe(text: str) -> str:
    """``printable(text)``, quickly where that is ``text`` itself. Raises TypeError for what is no text."""
    return text if str.isprintable(text) else printable(text)


def listed(
    graph_module: fx.GraphModule, names: Mapping[fx.Node, str], inputs: Sequence[Any]
) -> Iterator[ListedNode]:
    values = dict(zip(graph_module.graph.find_nodes(op="placeholder"), inputs, strict=False))
    lines: dict[str, tuple[str, str]] = {}
    for route, graph in levels(graph_module):
        for node in graph.graph.nodes:
            if node.op == "output" or (route and node.op == "placeholder"):
                continue
            trace = str(node.meta.get("stack_trace", ""))
            if trace not in lines:
                lines[trace] = location(node), next((text for _, _, text in user_frames(node)), "")
            place, line = lines[trace]
            yield ListedNode(
                names.get(node, ""),
                op_of(node),
                ", ".join(names.get(one, "") for one in node.all_input_nodes),
                in_words(node.meta.get("example_value", node.meta.get("val", values.get(node))))[:LONGEST],
                place,
                line[:LONGEST],
                ".".join(route),
            )


def op_of(node: fx.Node) -> str:
    if node.op == "placeholder":
        return "input"
    return str(node.target) if torch_internals.is_overload(node.target) else op_name(node)


def in_words(value: Any) -> str:
    """Dtype and sizes of a tensor, or of those in a tuple; no element is read."""
    if isinstance(value, tuple | list):
        return f"({', '.join(map(in_words, value))})"
    if not isinstance(value, Tensor):
        return ""
    try:
        dtype = str(value.dtype).removeprefix("torch.")
        return dtype if value.is_nested else f"{dtype}{list(value.shape)}"
    except Exception:  # noqa: BLE001 - a program's own class of tensors: its capture is one without this text
        return type(value).__name__
