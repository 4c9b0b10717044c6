"""Pairs of enter and exit calls that source writes as a ``with`` block."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from minidbg import _torch


@dataclass(frozen=True, slots=True)
class ContextForm:
    """How one kind of block is written: dynamo traces ``manager``, not the enter and exit functions themselves."""

    enter: Callable[..., Any]
    exit: Callable[..., Any]
    manager: Callable[..., Any]


def context_forms() -> tuple[ContextForm, ...]:
    """The known kinds of blocks."""
    enter_autocast, exit_autocast = _torch.autocast_functions()
    enter_inference, exit_inference = _torch.inference_mode_functions()
    return (
        ContextForm(enter_autocast, exit_autocast, torch.autocast),
        ContextForm(enter_inference, exit_inference, torch.inference_mode),
    )


FORMS = context_forms()
FORM_OF_ENTER: Mapping[Any, ContextForm] = {form.enter: form for form in FORMS}
FORM_OF_EXIT: Mapping[Any, ContextForm] = {form.exit: form for form in FORMS}


def paired(graph: fx.Graph) -> dict[fx.Node, ContextForm]:
    """The enter and exit nodes that nest as blocks do, each with its form; others stay plain calls.

    An enter node that has any other user than its exit is not among them.
    """
    pairs: dict[fx.Node, ContextForm] = {}
    open_nodes: list[fx.Node] = []
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        if node.target in FORM_OF_ENTER and not node.kwargs:
            open_nodes.append(node)
        elif node.target in FORM_OF_EXIT and node.args and node.args[0] in open_nodes:
            enter = node.args[0]
            nested = open_nodes[-1] is enter and not node.users and set(enter.users) == {node}
            form = FORM_OF_EXIT[node.target]
            if nested and FORM_OF_ENTER[enter.target] is form and len(node.args) == 1:
                pairs[enter] = pairs[node] = form
            open_nodes.remove(enter)
    return pairs
