"""The line of the user's program that is told for a graph."""

from __future__ import annotations

import os

import torch
from torch import fx

from minidbg.codegen.origins import user_line

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


INSIDE = frame(TORCH, 99, "return sin(x)")
LINES: tuple[tuple[tuple[str | None, ...], tuple[str, str]], ...] = (
    ((frame("/home/me/train.py", 7, "y = f(x)") + INSIDE,), ("train.py:7", "y = f(x)")),
    (
        (INSIDE, frame("<eval_with_key>", 3, "sin = x"), None, frame("/a/b.py", 8, "z = y")),
        ("b.py:8", "z = y"),
    ),
    ((None, INSIDE), ("", "")),
)


def test_the_line_is_that_of_the_first_node_whose_frames_have_one_of_the_users() -> None:
    for traces, line in LINES:
        assert user_line(graph_of(*traces), "") == line
    inside = graph_of(frame(os.path.join(os.getcwd(), "pkg", "train.py"), 7, "y"))
    assert user_line(inside, "") == (os.path.join("pkg", "train.py:7"), "y"), "others are only named"
