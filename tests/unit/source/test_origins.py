"""The line of the user's program that is told for a graph."""

from __future__ import annotations

import json
import os

import torch
from torch import fx

from minidbg.extras.hunt import samples
from minidbg.source import origins
from minidbg.source.origins import location, user_line

TORCH = os.path.join(os.path.dirname(torch.__file__), "nn", "functional.py")


def graph_of(*traces: str | None) -> fx.GraphModule:
    """A chain of sin, one for each stack trace."""
    graph = fx.Graph()
    value = graph.placeholder("x")
    for trace in traces:
        value = graph.call_function(torch.sin, (value,))
        value.meta["stack_trace"] = trace
    graph.output((value,))
    return fx.GraphModule(torch.nn.Module(), graph)


def frame(file: str, line: int, text: str) -> str:
    return f'  File "{file}", line {line}, in forward\n    {text}\n'


def test_a_frame_of_torch_is_not_the_users() -> None:
    gm = graph_of(frame("/home/me/train.py", 7, "y = f(x)") + frame(TORCH, 99, "return sin(x)"))
    assert user_line(gm, "") == ("train.py:7", "y = f(x)")


def test_a_node_without_a_users_frame_leaves_it_to_another() -> None:
    inside = frame(TORCH, 99, "return sin(x)")
    gm = graph_of(inside, frame("<eval_with_key>", 3, "sin = x"), None, frame("/a/train.py", 8, "z = g(y)"))
    assert user_line(gm, "") == ("train.py:8", "z = g(y)")


def test_a_graph_that_knows_no_line_of_the_users_tells_none() -> None:
    assert user_line(graph_of(None, frame(TORCH, 99, "return sin(x)")), "") == ("", "")
    hunt = frame(samples.__file__, 105, "return self.function(*args, **kwargs)")
    assert user_line(graph_of(None, hunt), "") == ("", "")
    assert not any(map(location, graph_of(None, hunt).graph.nodes))


def test_the_users_lines_travel_to_the_same_graph_in_another_process() -> None:
    """Of a trace the user's innermost frame; each node has its own, those of nested graphs too."""
    deep = frame("/home/me/main.py", 3, "train()") + frame("/home/me/train.py", 41, "y = torch.relu(x)")
    live, read = (graph_of(deep + frame(TORCH, 9, "return sin(x)"), None, deep) for _ in range(2))
    for outer in (live, read):
        outer.inner = graph_of(frame("/home/me/net.py", 7, "z = sin(y)"))
    for module in (read, read.inner):
        for node in module.graph.nodes:
            node.meta.clear()
    origins.put_traces(read, json.loads(json.dumps(origins.traces_of(live))))
    known = [node.meta.get("stack_trace") for node in read.graph.nodes]
    line = frame("train.py", 41, "y = torch.relu(x)")
    assert known == [None, line, None, line, None]
    assert user_line(read, "") == ("train.py:41", "y = torch.relu(x)")
    assert user_line(read.inner, "") == ("net.py:7", "z = sin(y)")
