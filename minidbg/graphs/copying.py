"""Cheap copies of graph modules: own graphs, shared tensors."""

from __future__ import annotations

import copy
from typing import Any

from torch import fx

from minidbg import _torch
from minidbg.graphs.collecting import collector_paused
from minidbg.graphs.pieces import copy_node

_OF_ONE_GRAPH = frozenset({"_graph", "_code", "_lineno_map", "_prologue_start", "meta"})
"""Attributes of a GraphModule that belong to its graph, not to the module."""


def copy_graph(graph: fx.Graph) -> fx.Graph:
    """A copy of ``graph`` with the same names and shallow copies of each node's meta."""
    new = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        made = copies[node] = copy_node(new, node, copies.__getitem__)
        # AOTAutograd asserts that _dynamo_source is there when the module has _param_name_to_source
        if "_dynamo_source" in node.__dict__:
            made.__dict__["_dynamo_source"] = node.__dict__["_dynamo_source"]
    new.set_codegen(copy.copy(graph._codegen))
    return new


def copy_graph_module(gm: fx.GraphModule) -> fx.GraphModule:
    """A copy of ``gm`` whose graphs, nested ones included, can be edited without touching ``gm``.

    Tensors and submodules that are no graph modules are shared. Attributes that dynamo has put on the
    module and its nodes come along. The copy writes its Python code only when it is called.
    """
    with collector_paused():
        return _copy(gm, {})


def _copy(gm: fx.GraphModule, done: dict[int, fx.GraphModule]) -> fx.GraphModule:
    if id(gm) in done:
        return done[id(gm)]
    new = done[id(gm)] = _torch.lazy_graph_module(gm, copy_graph(gm.graph), type(gm).__name__)
    new.meta = copy.copy(getattr(gm, "meta", {}))
    for name, value in vars(gm).items():
        if name in ("_parameters", "_buffers", "_modules"):
            kept = vars(new)[name]
            kept.update({key: held for key, held in value.items() if not hasattr(new, key)})
        elif name not in vars(new) and name not in _OF_ONE_GRAPH:
            vars(new)[name] = value
    new.training = gm.training
    _copy_nested(new, done)
    return new


def _copy_nested(module: Any, done: dict[int, fx.GraphModule]) -> None:
    """Replace the graph modules below ``module`` by copies; containers in between are the copy's own."""
    for name, child in list(module._modules.items()):
        if isinstance(child, fx.GraphModule):
            module._modules[name] = _copy(child, done)
        elif child is not None and any(isinstance(inner, fx.GraphModule) for inner in child.modules()):
            own = module._modules[name] = copy.copy(child)
            vars(own)["_modules"] = dict(child._modules)
            _copy_nested(own, done)
