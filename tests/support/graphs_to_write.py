"""Graphs made by hand for the tests of writing, and what reads written graphs back."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

from torch import fx

from minidbg import torch_internals
from minidbg.backends import run_as_module
from minidbg.codegen.module_text import ModuleSource, instantiate, write_graph_builder, write_module
from minidbg.codegen.parse import read_module
from minidbg.codegen.size import canonical_text


def graph_of(build: Callable[[fx.Graph], Any], inputs: int = 1, root: Any = None) -> fx.GraphModule:
    """A graph module over ``inputs`` placeholders; ``build(graph, *placeholders)`` returns the output."""
    graph = fx.Graph()
    placeholders = [graph.placeholder("xyzuvw"[index]) for index in range(inputs)]
    graph.output(build(graph, *placeholders))
    return module_of(graph, root)


def module_of(graph: fx.Graph, root: Any = None) -> fx.GraphModule:
    """A graph module that never compiles fx's own text of ``graph``, which some names and arguments break."""
    return torch_internals.lazy_graph_module({} if root is None else root, graph)


def forward_of(source: ModuleSource) -> list[str]:
    """The statements of the outermost ``forward``, without indentation and comments."""
    lines = source.text.rstrip("\n").split("\n")
    start = max(index for index, line in enumerate(lines) if line.startswith("    def forward"))
    body = [line.partition("  # ")[0] for line in lines[start + 1 :]]
    return [line.strip() for line in body if line.startswith("        ") and not line.strip().startswith("#")]


def read(source: ModuleSource) -> fx.GraphModule:
    module = instantiate(source)
    back = read_module(source.text, vars(sys.modules[type(module).__module__]))
    assert back is not None, source.text
    return back


def assert_round_trip(gm: fx.GraphModule) -> ModuleSource:
    """Written, read and written again: the same text and the same graph, as a class and as a builder."""
    source = write_module(gm)
    back = read(source)
    back.graph.lint()
    # a file that is loaded tells the nodes of a builder their lines
    texts = [re.sub(r"(create_node\(.*\))  # .*", r"\1", one.text) for one in (write_module(back), source)]
    assert texts[0] == texts[1]
    assert canonical_text(back) == canonical_text(gm)
    builder = write_graph_builder(gm)
    # GraphModule would compile fx's own text, which cannot say all that ours can
    text = builder.text.replace("torch.fx.GraphModule(root, g)", "lazy(root, g)")
    whole = "\n".join(["import torch", *builder.imports, *builder.kernels.values(), text])
    names = run_as_module("built", whole, constants=builder.constants, lazy=torch_internals.lazy_graph_module)
    assert canonical_text(names["graph"]()) == canonical_text(gm)
    return source
