"""The only importer of torch's private names. Each function says in which versions its names were seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def autocast_functions() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The calls by which a graph enters and leaves ``torch.autocast``. Seen in 2.13."""
    from torch.amp.autocast_mode import _enter_autocast, _exit_autocast

    return _enter_autocast, _exit_autocast


def inference_mode_functions() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The calls by which a graph enters and leaves ``torch.inference_mode``. Seen in 2.13."""
    from torch.autograd.grad_mode import _enter_inference_mode, _exit_inference_mode

    return _enter_inference_mode, _exit_inference_mode


def lazy_graph_module(root: Any, graph: torch.fx.Graph, class_name: str = "GraphModule") -> torch.fx.GraphModule:
    """A GraphModule that writes its forward only when it is called or printed. Seen in 2.13."""
    from torch.fx._lazy_graph_module import _LazyGraphModule

    return _LazyGraphModule(root, graph, class_name)
