"""Backends whose answer depends on how often they were asked: what a failure looks like where chance decides.

Each call of a graph with relu writes a byte into a file of the folder that ``BY_CHANCE`` names, from whichever process.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx

CompiledFn = Callable[..., Any]
HANGS_S = 600.0


def turn() -> int:
    """How many calls there were before this one."""
    with Path(os.environ["BY_CHANCE"], "turns").open("ab") as file:
        file.write(b".")
        return file.tell() - 1


def has(graph_module: fx.GraphModule, target: Any) -> bool:
    return any(node.target is target for node in graph_module.graph.nodes)


def compiled(graph_module: fx.GraphModule) -> CompiledFn:
    return lambda *args: graph_module.forward(*args)  # its own, not the graph handed back


def fails_in_half_of_its_runs(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    def run(*args: Any) -> Any:
        if has(graph_module, torch.relu) and turn() % 2 == 0:
            raise RuntimeError("it went wrong")
        return graph_module.forward(*args)

    return run


def failed_once(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    if has(graph_module, torch.relu) and turn() == 0:
        raise ValueError("no kernel")
    return compiled(graph_module)


def hung_once(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    """As a slow compile looks on a busy machine."""
    if has(graph_module, torch.relu) and turn() == 0:
        time.sleep(HANGS_S)
    return compiled(graph_module)


def has_two_bugs(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    if has(graph_module, torch.relu):
        raise ValueError("no kernel for one")
    if has(graph_module, torch.sin):
        raise TypeError("the other has no kernel either")
    return compiled(graph_module)
