"""A failure in a compiled backward. It shows in the user's ``loss.backward()``, long after the wrapped call.

The forward's inputs are remembered by weak references, so that a healthy program keeps no tensor for longer than it
would alone; what is gone when the backward fails is stood in for. The exception cannot be replaced by a result:
it is raised with its report, and only later calls of the graph can go on in eager.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from minidbg import _torch
from minidbg.backend.capture import Failure, current_context
from minidbg.backend.chain import Link
from minidbg.backend.kept import tensors_in
from minidbg.case import Context
from minidbg.failure import Direction, Kind

log = logging.getLogger("minidbg")


@dataclass(frozen=True, slots=True)
class ForwardCall:
    """A call whose backward may fail."""

    graph_module: fx.GraphModule
    link: Link
    inputs: tuple[Any, ...]
    """Weak references to tensors, other values as they are."""
    context: Context

    def failure(self, error: Exception, phase: str) -> Failure:
        """What failed, with the inputs that are still there."""
        examples = [
            node.meta.get("example_value")
            for node in self.graph_module.graph.nodes
            if node.op == "placeholder"
        ]
        values = [
            example if value is None else value
            for value, example in zip(map(alive, self.inputs), examples, strict=True)
        ]
        return Failure(
            self.graph_module,
            values,
            self.link,
            Kind(phase),
            error,
            direction=Direction.BACKWARD,
            context=self.context,
        )


def remembered(
    graph_module: fx.GraphModule, link: Link, args: Sequence[Any], further_env: Iterable[str]
) -> ForwardCall:
    """This call, as far as it can be remembered without keeping it alive."""
    inputs = tuple(weakref.ref(value) if isinstance(value, torch.Tensor) else value for value in args)
    return ForwardCall(graph_module, link, inputs, current_context(args, further_env=further_env))


def alive(value: Any) -> Any:
    """The tensor behind a weak reference (None when it is gone), or the value itself."""
    return value() if isinstance(value, weakref.ref) else value


def guard(
    result: Any,
    on_failure: Callable[[Exception, str], None],
    around: Callable[[], AbstractContextManager[object]] = nullcontext,
    *,
    since: int = 0,
) -> bool:
    """Let ``on_failure`` hear, with the phase, when the backward of ``result`` fails; whether there is one to guard.

    ``around`` is entered for each run of it. Only backwards that AOTAutograd compiled can be the backend's fault;
    those with an id below ``since`` (``_torch.next_aot_id()`` before the backend was called) are of other graphs.
    ``result`` may hold the inputs, too: one that the graph writes to has the graph's backward.
    """
    found = _torch.aot_backward_classes(
        tensors_in(result if isinstance(result, list | tuple) else (result,)), since
    )
    for function_class in found:
        _torch.guard_backward(function_class, lambda error: heard(error, on_failure), around)
    return bool(found)


def heard(error: Exception, on_failure: Callable[[Exception, str], None]) -> None:
    """Pass on what the backend is to blame for."""
    phase = _torch.backward_phase(error)
    if phase is None:
        return
    try:
        on_failure(error, phase)
    except Exception:
        log.debug("answering_failed", exc_info=True)
