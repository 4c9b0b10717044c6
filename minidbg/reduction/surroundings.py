"""Around the graph: what the error names before the reduction, which modes the failure can do without after it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch

from minidbg import _torch
from minidbg.case import CallPath, Case, Context, Level
from minidbg.graphs.copying import copy_graph_module

WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]{2,}")


def hints(case: Case) -> tuple[str, ...]:
    """Words of the error that may be nodes or ops of the graph, most telling first; the reducer looks them up.

    The error text is a hint and nothing more: each suspicion is asked of the oracle.
    """
    text = case.provenance.message
    if case.signature is not None:
        text = f"{text} {case.signature.message} {' '.join(case.signature.frames)}"
    return tuple(dict.fromkeys(WORD.findall(text)))


def simplify(case: Case, fails: Callable[[Case], bool], remaining: Callable[[], float]) -> Case:
    """``case`` without the modes and settings that its failure does not need. One oracle call each."""
    for change in CHANGES:
        for candidate in change(case):
            if remaining() > 0 and fails(candidate):
                case = candidate
                break
    return replace(case, context=without_defaults(case.context))


def without_backward(case: Case) -> Iterator[Case]:
    """The forward alone."""
    if case.backward:
        yield replace(case, backward=False)


def without_grad(case: Case) -> Iterator[Case]:
    """No input requires grad; and grad mode stays on, which is what a reader expects of plain code."""
    needs_grad = any(isinstance(value, torch.Tensor) and value.requires_grad for value in case.inputs)
    if needs_grad and not case.backward:
        inputs = tuple(value.detach() if isinstance(value, torch.Tensor) else value for value in case.inputs)
        yield replace(case, inputs=inputs, context=replace(case.context, grad=True, inference=False))


def without_modes(case: Case) -> Iterator[Case]:
    """Plain context, all at once."""
    plain = plain_context(case.context)
    if case.context != plain:
        yield replace(case, context=plain)


def without_mode(case: Case, name: str) -> Iterator[Case]:
    """One mode as it is by default."""
    default = getattr(plain_context(case.context), name)
    if getattr(case.context, name) != default:
        yield replace(case, context=replace(case.context, **{name: default}))


def plain_context(context: Context) -> Context:
    """Torch's defaults. Options of its configuration are set to theirs: this process may still have what the user set."""
    config = {
        module: {name: _torch.config_default(module, name) for name in options}
        for module, options in context.config.items()
    }
    return replace(Context(), threads=context.threads, env=context.env, config=config)


def without_defaults(context: Context) -> Context:
    """``context`` without the options that are as they are in a fresh process."""
    config = {
        module: {
            name: value for name, value in options.items() if value != _torch.config_default(module, name)
        }
        for module, options in context.config.items()
    }
    return replace(context, config={module: options for module, options in config.items() if options})


def without_unused_numbers(case: Case) -> Iterator[Case]:
    """Without sizes that dynamo had made inputs, where the failure needs no input of that size: it makes them again."""
    graph_module = copy_graph_module(case.graph_module)
    placeholders = [node for node in graph_module.graph.nodes if node.op == "placeholder"]
    kept = [
        place for place, node in enumerate(placeholders) if node.users or type(case.inputs[place]) is not int
    ]
    if case.call is CallPath.TORCH_COMPILE and len(kept) < len(placeholders):
        for place, node in enumerate(placeholders):
            if place not in kept:
                graph_module.graph.erase_node(node)
        graph_module.recompile()
        yield case.with_graph(graph_module, tuple(case.inputs[place] for place in kept))


def through_torch_compile(case: Case) -> Iterator[Case]:
    """The usual way to the backend again, where only what is gone by now could not go that way."""
    if case.call is CallPath.DIRECT and case.level is not Level.ATEN:
        yield replace(case, call=CallPath.TORCH_COMPILE)


def without_dynamic(case: Case) -> Iterator[Case]:
    """Static shapes."""
    if case.dynamic is not False or case.dynamic_dims:
        yield replace(case, dynamic=False, dynamic_dims=())


def without_options(case: Case) -> Iterator[Case]:
    """The backend as it comes: without options and mode."""
    if case.backend.options or case.backend.mode:
        yield replace(case, backend=replace(case.backend, options={}, mode=None))


MODES = ("grad", "inference", "autocast", "deterministic", "default_dtype", "matmul_precision", "config")
"""Fields of a context that are tried each for itself when not all can go."""

CHANGES: tuple[Callable[[Case], Iterator[Case]], ...] = (
    through_torch_compile,
    without_dynamic,
    without_unused_numbers,
    without_backward,
    without_grad,
    without_modes,
    *(partial(without_mode, name=name) for name in MODES),
    without_options,
)
