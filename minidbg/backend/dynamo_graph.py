"""A graph that dynamo handed to a backend: the guards that dynamo will build, and the backward that is compiled late."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from minidbg import _torch
from minidbg.backend import backward, failures
from minidbg.backend.capture import Failure
from minidbg.backend.chain import Link
from minidbg.backend.graph_state import GraphState
from minidbg.backend.kept import Kept
from minidbg.case import CompiledFn
from minidbg.failure import Kind
from minidbg.settings import OnFailure

GUARDS = "the backend returned, and dynamo could build no guards from what it had done to the ShapeEnv or the inputs"


class DynamoGraph(GraphState):
    """A graph that dynamo handed to a backend, with the guards that dynamo will build and the backward that is compiled late."""

    guards: _torch.GuardState
    guard_error: Exception | None = None
    aot_ids_from = 0
    """AOTAutograd's number for the first graph that this one's compilers make."""

    def compile(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
        """As any graph; what keeps dynamo from building its guards is a failure of the backend too."""
        self.guards = _torch.GuardState(example_inputs)
        self.aot_ids_from = _torch.next_aot_id()
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
        """The guards' sources too are as before."""
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
        first = self.good_calls == 1 and torch.is_grad_enabled()
        has_backward = first and self.guard_backward(result, args)
        if self.settled and not has_backward:
            self.record.close()  # after it, nothing of this graph can end the process

    def guard_backward(self, result: Any, args: tuple[Any, ...]) -> bool:
        """Answer what the compiled backward of this graph will raise; whether it has one."""

        def on_failure(error: Exception, phase: str) -> None:
            if failures.own_report(error) is None and not failures.is_answering():
                failure = call.failure(error, phase)
                report = self.report_on(failure)
                failures.add_line(error, report)
                if self.settings.on_failure is OnFailure.FALLBACK and self.position < len(self.links):
                    failures.warn_going_on(failure, report, "eager in later calls")
                    self.called_as_eager()

        guarded = backward.guard(
            written_by(result, args), on_failure, self.record.during_backward, since=self.aot_ids_from
        )
        if guarded:
            link = self.links[self.position]
            call = backward.remembered(self.untouched, link, args, self.settings.env)
        return guarded


def written_by(result: Any, args: Sequence[Any]) -> list[Any]:
    """All that a call left behind: its results, and its inputs, some of which it may have written to."""
    return [*(result if isinstance(result, list | tuple) else (result,)), *args]
