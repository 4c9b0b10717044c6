"""The line of the user's program that is told for a graph."""

from __future__ import annotations

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
    hunt = frame(samples.__file__, 174, "return self.done(values)")
    assert user_line(graph_of(None, hunt), "") == ("", "")
    assert not any(map(location, graph_of(None, hunt).graph.nodes))


def test_the_text_of_a_line_comes_back_to_nodes_that_were_read_from_a_script() -> None:
    live, read = (fx.symbolic_trace(lambda x: torch.relu(x)) for _ in range(2))
    trace = '  File "/home/me/train.py", line 41, in forward\n    y = torch.relu(x)\n'
    for graph, known in ((live, trace), (read, origins.stack_trace("train.py:41"))):
        for node in graph.graph.find_nodes(op="call_function", target=torch.relu):
            node.meta["stack_trace"] = known
    texts = origins.line_texts(live)
    assert texts == {"train.py:41": "y = torch.relu(x)"}
    origins.put_line_texts(read, texts)
    assert origins.user_line(read, "") == ("train.py:41", "y = torch.relu(x)")
