"""Passes over what is around the reduced graph: modes and settings the failure can do without."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from typing import Any

import torch

from minidbg import torch_internals
from minidbg.core.run_spec import CallPath, Context, Level
from minidbg.fx.case import Case
from minidbg.fx.copying import copy_graph_module


def simplify(case: Case, fails: Callable[[Case], bool]) -> Case:
    """``case`` without the modes and settings that its failure does not need. One run each."""
    for change in CHANGES:
        candidate = change(case)
        if candidate is not case and fails(candidate):
            case = candidate
    context, config = case.spec.context, dict[str, Any]()
    usual = plain_context(context).config  # options that are as in a fresh process go
    for module, options in context.config.items():
        others = {name: value for name, value in options.items() if value != usual[module][name]}
        config |= {module: others} if others else {}
    return case.with_spec(context=replace(context, config=config))


def changed(case: Case, **new: Any) -> Case:
    """``case`` with these fields of its RunSpec; itself where it has them."""
    same = all(getattr(case.spec, name) == value for name, value in new.items())
    return case if same else case.with_spec(**new)


def without_grad(case: Case) -> Case:
    """No input requires grad; and grad mode stays on, as a reader expects of plain code."""
    needs_grad = any(isinstance(arg, torch.Tensor) and arg.requires_grad for arg in case.inputs)
    if case.spec.backward or not needs_grad:
        return case
    inputs = tuple(arg.detach() if isinstance(arg, torch.Tensor) else arg for arg in case.inputs)
    context = replace(case.spec.context, grad=True, inference=False)
    return replace(case.with_spec(context=context), inputs=inputs)


def without_mode(case: Case, name: str) -> Case:
    default = getattr(plain_context(case.spec.context), name)
    return changed(case, context=replace(case.spec.context, **{name: default}))


def plain_context(context: Context) -> Context:
    """Torch's defaults. Its config's options are set to theirs: the user's may be in force."""
    config = {
        module: {name: torch_internals.config_default(module, name) for name in options}
        for module, options in context.config.items()
    }
    return replace(Context(), threads=context.threads, env=context.env, config=config)


def without_unused_numbers(case: Case) -> Case:
    """Without sizes made inputs by dynamo, if no input of that size is needed: it remakes them."""
    graph_module = copy_graph_module(case.graph_module)
    pairs = list(zip(graph_module.graph.find_nodes(op="placeholder"), case.inputs, strict=True))
    unused = [node for node, arg in pairs if not node.users and type(arg) is int]
    if case.spec.call is not CallPath.TORCH_COMPILE or not unused:
        return case
    for node in unused:
        graph_module.graph.erase_node(node)
    graph_module.recompile()
    return case.with_graph(graph_module, tuple(arg for node, arg in pairs if node not in unused))


CHANGES: tuple[Callable[[Case], Case], ...] = (
    # the usual way to the backend again, where only what is gone by now could not go that way
    lambda case: case if case.spec.level is Level.ATEN else changed(case, call=CallPath.TORCH_COMPILE),
    lambda case: changed(case, dynamic=False, dynamic_dims=()),
    without_unused_numbers,
    lambda case: changed(case, backward=False),
    without_grad,
    lambda case: changed(case, context=plain_context(case.spec.context)),
    *(partial(without_mode, name=field.name) for field in fields(Context)),  # where not all can go
    lambda case: changed(case, backend=replace(case.backend, options={}, mode=None)),
)
