"""A graph that dynamo handed to a backend: the guards that dynamo will build, and the backward that is compiled late.

A failure in a compiled backward shows in the user's ``loss.backward()``, long after the wrapped call. The forward's inputs are remembered
by weak references, so that a healthy program keeps no tensor for longer than it would alone; what is gone when the backward fails is
stood in for. The exception cannot be replaced by a result: it is raised with its report, and only later calls can go on in eager.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import fx

from minidbg import torch_internals
from minidbg.fx.context import current_context
from minidbg.words.foreign import is_of_a_signal_handler
from minidbg.words.kinds import Kind
from minidbg.words.outcome import Direction
from minidbg.words.run_spec import CompiledFn
from minidbg.words.settings import OnFailure
from minidbg.wrapper import handle
from minidbg.wrapper.capture import Failure
from minidbg.wrapper.chain import Link
from minidbg.wrapper.graph_state import GraphState
from minidbg.wrapper.reports import add_line, own_report
from minidbg.wrapper.rollback import Kept, tensors_in

log = logging.getLogger("minidbg")


def remembered(
    graph_module: fx.GraphModule, link: Link, args: Sequence[Any], further_env: Iterable[str]
) -> Callable[[Exception, str], Failure]:
    """What makes a failure of the backward of this call, with the inputs that are still there: it keeps no tensor alive."""
    inputs = [weakref.ref(value) if isinstance(value, torch.Tensor) else value for value in args]
    context = current_context(args, further_env=further_env)

    def failure(error: Exception, phase: str) -> Failure:
        alive = [value() if isinstance(value, weakref.ref) else value for value in inputs]
        placeholders = graph_module.graph.find_nodes(op="placeholder")
        values = [
            node.meta.get("example_value") if value is None else value
            for node, value in zip(placeholders, alive, strict=True)
        ]
        return Failure(graph_module, values, link, Kind(phase), error, (), Direction.BACKWARD, context)

    return failure


def guard(
    result: Any,
    on_failure: Callable[[Exception, str], None],
    around: Callable[[], AbstractContextManager[object]] = nullcontext,
    *,
    since: int = 0,
) -> bool:
    """Let ``on_failure`` hear, with the phase, when the backward of ``result`` fails; whether there is one to guard.

    ``around`` is entered for each run of it. Only backwards that AOTAutograd compiled can be the backend's fault;
    those with an id below ``since`` (``torch_internals.next_aot_id()`` before the backend was called) are of other graphs.
    ``result`` may hold the inputs too, some of which the graph may have written to: those have the graph's backward.
    """
    found = torch_internals.aot_backward_classes(tensors_in([result]), since)
    for function_class in found:
        torch_internals.guard_backward(function_class, lambda error: heard(error, on_failure), around)
    return bool(found)


def heard(error: Exception, on_failure: Callable[[Exception, str], None]) -> None:
    phase = torch_internals.backward_phase(error)
    if phase is None:
        return
    try:
        on_failure(error, phase)
    except Exception as trouble:  # a fault of ours must not replace what the backward raises
        if is_of_a_signal_handler(trouble):
            raise
        log.debug("answering_failed", exc_info=True)


GUARDS = "the backend returned, and dynamo could build no guards from what it had done to the ShapeEnv or the inputs"


class DynamoGraph(GraphState):
    """A graph that dynamo handed to a backend, with the guards that dynamo will build and the backward that is compiled late."""

    guards: torch_internals.GuardState
    guard_error: Exception | None = None
    has_backward = False
    """Whether a backward that AOTAutograd compiled for it is listened to."""
    aot_ids_from = 0
    """AOTAutograd's number for the first graph that this one's compilers make."""

    def compile(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
        """As any graph; what keeps dynamo from building its guards is a failure of the backend too."""
        self.guards = torch_internals.GuardState(example_inputs)
        self.aot_ids_from = torch_internals.next_aot_id()
        try:
            return super().compile(gm, example_inputs)
        finally:
            self.guard_error = None
            del self.guards  # it holds the inputs

    def compiled_by(self, link: Link, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
        """What ``link`` returns. Raises the error that dynamo would meet after it."""
        compiled_fn = super().compiled_by(link, gm, example_inputs)
        self.guard_error = self.guards.error_of_guards()
        if self.guard_error is not None:
            raise self.guard_error
        return compiled_fn

    def undo_compiling(self, kept: Kept) -> None:
        self.guards.put_back()
        super().undo_compiling(kept)

    def failure(
        self, error: Exception, values: Sequence[Any], kind: Kind, notes: tuple[str, ...] = ()
    ) -> Failure:
        """What failed; the capture says where it was only dynamo that would have."""
        return super().failure(error, values, kind, (GUARDS,) if error is self.guard_error else notes)

    def went_well(self, result: Any, args: tuple[Any, ...]) -> None:
        """One more good call: the graph may settle, and its backward is listened to."""
        super().went_well(result, args)
        if torch.is_grad_enabled() and not self.has_backward:
            self.has_backward = self.guard_backward(result, args)
        if self.settled and not self.has_backward:
            self.record.close()  # after it, nothing of this graph can end the process

    def guard_backward(self, result: Any, args: tuple[Any, ...]) -> bool:
        """Answer what the compiled backward of this graph will raise; whether it has one."""

        def on_failure(error: Exception, phase: str) -> None:
            if own_report(error) is None and not handle.is_handling():
                failure = made_of(error, phase)
                report = self.report_on(failure)
                add_line(error, report)
                if self.settings.on_failure is OnFailure.FALLBACK and self.position < len(self.links):
                    handle.warn_going_on(failure, report, "eager in later calls")
                    self.called_as_eager()

        guarded = guard((result, args), on_failure, self.record.during_backward, since=self.aot_ids_from)
        if guarded:
            link = self.links[self.position]
            made_of = remembered(self.untouched, link, args, self.settings.env)
        return guarded
