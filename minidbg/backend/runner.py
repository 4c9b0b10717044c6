"""One graph of the user's program: compiled by the links of a chain until one works, run with care until it has run
well, and then left alone."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from minidbg import _torch, devices
from minidbg.backend import backward, failures, flight, standing, verify
from minidbg.backend.capture import Failure
from minidbg.backend.chain import Link, compile_at_run_time
from minidbg.backend.failures import Report
from minidbg.backend.kept import NOTHING, Kept, capturing_device_graph, keep, tensors_in
from minidbg.case import CompiledFn
from minidbg.failure import Kind
from minidbg.graphs.copying import copy_graph_module
from minidbg.graphs.mutation import mutated_placeholders, written_attributes
from minidbg.graphs.ranks import is_waiting_in_vain
from minidbg.repro.flights import Step
from minidbg.settings import OnFailure, Settings

GUARDS = "the backend returned, and dynamo could build no guards from what it had done to the ShapeEnv or the inputs"
ABSENT_RANK = (
    "a collective of this graph waited in vain for another rank, which is no failure of the backend; "
    "what that rank printed, or its record in .minidbg/flight, says why it did not come"
)
STALE = "the graph writes to its inputs and had run before; the values are those after the failing call"


class WrappedGraph:
    """The state of one graph; ``compile`` gives what the backend's result would have been.

    It is *settled* once it has run well: from then on a call costs one attribute look-up. Until then the tensors
    it writes to and the RNG streams are kept before each call, and put back when the call fails.
    """

    def __init__(self, gm: fx.GraphModule, links: Sequence[Link], settings: Settings) -> None:
        self.untouched = copy_graph_module(gm)  # backends edit the graph that they are given
        self.links = tuple(links)
        self.settings = settings
        self.mutated = mutated_placeholders(self.untouched)
        self.held = tuple(written_attributes(self.untouched))
        """What the graph itself holds and a run may write to."""
        self.standing = standing.of_new_graph()
        self.position = 0
        """Of the link in use; ``len(links)`` is eager."""
        self.compiled_fn: CompiledFn = self.untouched.forward
        self.record = flight.Record(self.untouched, settings)
        self.aot_ids_from = 0
        """AOTAutograd's number for the first graph that this one's compilers make."""
        self.good_calls = 0
        self.settled = False
        self.comparing: set[int] = set()
        """The thread that compares a call with eager; other threads' calls go by meanwhile."""

    # ---- compiling

    def compile(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
        """What dynamo is to call. Raises what the last link raised, when no link works and eager is not wanted."""
        kept = self.keep(example_inputs) if self.can_go_on() else NOTHING
        guards = _torch.GuardState(example_inputs)
        self.aot_ids_from = _torch.next_aot_id()
        for position, link in enumerate(self.links):
            self.position = position
            notes: tuple[str, ...] = ()
            try:
                with self.record.during(Step.COMPILE, link, example_inputs):
                    compiled_fn = compiled_by(link, gm, example_inputs)
                error_of_guards = guards.error_of_guards()
                if error_of_guards is not None:
                    notes = (GUARDS,)
                    raise error_of_guards
            except Exception as error:
                if _torch.is_control_flow(error):
                    raise
                report = self.answered(error, example_inputs, Kind.COMPILE, notes)
                if not self.can_go_on():
                    raise
                guards.put_back()
                self.put_back(kept)  # some backends run the graph to compile it
                self.warn(error, example_inputs, Kind.COMPILE, report)
                gm = copy_graph_module(self.untouched)
            else:
                verify.tell_if_nothing_was_done(link, self.untouched, gm, compiled_fn)
                return self.called_as(compiled_fn)
        return self.called_as_eager()

    def called_as(self, compiled_fn: CompiledFn) -> CompiledFn:
        """``compiled_fn`` behind the care that an unsettled graph takes."""
        if _torch.is_serializable_callable(compiled_fn):
            self.standing.not_verified("dynamo stores what the backend gave for other processes, by its type")
            return compiled_fn
        self.compiled_fn = _torch.settled_forward(compiled_fn)

        def run_compiled_graph(*args: Any) -> Any:
            if not self.settled:
                return self.careful_call(args)
            try:
                return self.compiled_fn(*args)
            except Exception as error:
                again = self.after_failure(error, args, None)
                if again is None:
                    raise
            return again(*args)

        return run_compiled_graph

    def called_as_eager(self) -> CompiledFn:
        """The untouched graph itself, from now on."""
        self.position = len(self.links)
        self.settled = True
        self.compiled_fn = _torch.settled_forward(self.untouched.forward)
        return self.compiled_fn

    # ---- running

    def careful_call(self, args: tuple[Any, ...]) -> Any:
        """A call of a graph that has not yet run well."""
        if any(_torch.is_fake(arg) for arg in args):
            return self.compiled_fn(*args)  # a tracer above us asks for shapes; nothing runs
        at_rest(args)  # an error of what ran before is not one of this graph
        kept = self.keep(args)
        verification = None
        try:
            verification = self.verification(args, kept)
            with self.record.during(Step.RUN, self.links[self.position], args):
                result = self.compiled_fn(*args)
                at_rest(args, result)
        except Exception as error:
            again = self.after_failure(error, args, kept)
            del kept, verification  # the traceback holds this frame
            if again is None:
                raise
        else:
            failure = verification.judge(result, args) if verification is not None else None
            if verification is None or failure is None:
                self.went_well(result, args)
                return result
            verification.before.put_back(args)
            del verification
            again = self.after_wrong_results(failure, result, args, kept)
        finally:
            self.comparing.discard(threading.get_ident())
        return again(*args)

    def verification(self, args: tuple[Any, ...], kept: Kept) -> verify.Verification | None:
        """What will judge this call; None when it is not compared, or another thread is at it."""
        most = verify.calls_compared(self.settings.verify)
        if (most is not None and self.good_calls >= most) or self.position >= len(self.links):
            self.standing.why_not = self.standing.why_not or standing.NOT_ASKED
            return None
        if self.comparing or failures.is_answering():
            return None
        self.comparing.add(threading.get_ident())
        link = self.links[self.position]
        with self.record.during(Step.RUN, link, args):
            return verify.begin(
                self.untouched, self.compiled_fn, link, args, self.mutated, kept, self.settings, self.standing
            )

    def went_well(self, result: Any, args: tuple[Any, ...]) -> None:
        """One more good call: the graph may settle, and its backward is listened to."""
        self.good_calls += 1
        self.settled = verify.is_settled(self.good_calls, self.settings.verify)
        first = self.good_calls == 1 and torch.is_grad_enabled()
        has_backward = first and self.guard_backward(result, args)
        if self.settled and not has_backward:
            self.record.close()

    def after_wrong_results(
        self, failure: Failure, result: Any, args: tuple[Any, ...], kept: Kept
    ) -> CompiledFn:
        """What to call instead. Raises the failure's error when nothing is left, or may run on what the call has left."""
        error = failure.error
        report = failures.own_report(error) or self.answer(failure)
        failures.set_report(error, report)
        restored = self.put_back(kept)
        if not self.can_go_on():
            failures.add_line(error, report)
            raise error
        later = [link.name for link in self.links[self.position + 1 :]]
        if not restored:
            failures.warn_going_on(failure, report, "these results, and eager in later calls")
            self.called_as_eager()
            return lambda *args: result
        failures.warn_going_on(failure, report, later[0] if later else "eager")
        again = self.next_that_compiles(error, args, kept)
        if again is None:
            raise error
        return again

    def after_failure(self, error: Exception, args: tuple[Any, ...], kept: Kept | None) -> CompiledFn | None:
        """What to call instead, or None when ``error`` is to be raised. ``kept`` is None for a settled graph."""
        if self.position >= len(self.links) or failures.is_answering():
            return None
        restored = self.put_back(kept)
        report = self.run_time_report(error, args, kept, restored)
        if report is None:
            return None
        if not (restored and self.can_go_on()):
            failures.add_line(error, report)
            return None
        self.warn(error, args, Kind.RUNTIME, report)
        return self.next_that_compiles(error, args, kept)

    def put_back(self, kept: Kept | None) -> bool:
        """Whether the graph's inputs are as before the call, so that it may run again."""
        if kept is None:
            return not self.mutated and not self.held
        try:
            return kept.restore()
        except RuntimeError:  # a device in error refuses every call
            return False

    def run_time_report(
        self, error: Exception, args: tuple[Any, ...], kept: Kept | None, restored: bool
    ) -> Report | None:
        """What became of the failure; None when eager fails on the same inputs, which is the program's own error."""
        known = failures.own_report(error)
        if known is not None:
            return known
        if is_waiting_in_vain(error, self.untouched, args):
            absent = failures.NoReport(ABSENT_RANK)
            failures.set_report(error, absent)
            return absent
        notes = () if restored else (STALE,)
        failure = self.failure(error, args, Kind.RUNTIME, notes)
        if restored and not devices.in_error(args):
            blameless = failures.eager_fails_too(failure, os.environ)
            self.put_back(kept)
            if blameless:
                return None
        report = self.answer(failure)
        failures.set_report(error, report)
        return report

    def next_that_compiles(
        self, error: Exception, args: tuple[Any, ...], kept: Kept | None
    ) -> CompiledFn | None:
        """The next link that compiles the graph for ``args``, else eager where it is wanted, else None."""
        self.good_calls, self.settled = 0, False
        for position in range(self.position + 1, len(self.links)):
            self.position = position
            try:
                self.compiled_fn = compile_at_run_time(self.links[position], self.untouched, args)
            except Exception as another:  # noqa: BLE001 - answered like the failure of the link before
                report = self.answered(another, args, Kind.COMPILE)
                self.put_back(kept)
                self.warn(another, args, Kind.COMPILE, report)
            else:
                return lambda *args: self.careful_call(args)
        if self.settings.on_failure is OnFailure.FALLBACK:
            return self.called_as_eager()
        self.position = 0
        failures.add_line(
            error, failures.own_report(error) or failures.NoReport("no link of the chain works")
        )
        return None

    # ---- backward

    def guard_backward(self, result: Any, args: tuple[Any, ...]) -> bool:
        """Answer what the compiled backward of this graph will raise; whether it has one."""

        def on_failure(error: Exception, phase: str) -> None:
            if failures.own_report(error) is None and not failures.is_answering():
                failure = call.failure(error, phase)
                report = self.answer(failure)
                failures.set_report(error, report)
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

    # ---- answering

    def can_go_on(self) -> bool:
        """Whether something is left to go on with when the link in use fails."""
        return self.position + 1 < len(self.links) or self.settings.on_failure is OnFailure.FALLBACK

    def keep(self, values: Sequence[Any]) -> Kept:
        """The state that a call with ``values`` may change."""
        return keep(values, self.mutated, self.held, limit_bytes=self.settings.value_limit_bytes)

    def answered(
        self, error: Exception, values: Sequence[Any], kind: Kind, notes: tuple[str, ...] = ()
    ) -> Report:
        """The report on ``error``, which is then readable from it. One that a wrapper below made is kept."""
        known = failures.own_report(error)
        if known is not None:
            return known
        report = self.answer(self.failure(error, values, kind, notes))
        failures.set_report(error, report)
        return report

    def answer(self, failure: Failure) -> Report:
        """What became of ``failure``, which counts against this graph."""
        self.standing.failed = True
        return failures.answer(failure, self.settings)

    def failure(
        self, error: Exception, values: Sequence[Any], kind: Kind, notes: tuple[str, ...] = ()
    ) -> Failure:
        """What failed."""
        return Failure(self.untouched, tuple(values), self.links[self.position], kind, error, notes)

    def warn(self, error: Exception, values: Sequence[Any], kind: Kind, report: Report) -> None:
        """Tell what the program goes on with."""
        later = self.links[self.position + 1 :]
        then = later[0].name if later else "eager"
        failures.warn_going_on(self.failure(error, values, kind), report, then)


def at_rest(args: Sequence[Any], result: Any = ()) -> None:
    """Wait for the devices of a call, which may raise late; not while a device graph is recorded."""
    values = tensors_in([*args, *(result if isinstance(result, list | tuple) else (result,))])
    if any(value.device.type != "cpu" for value in values) and not capturing_device_graph():
        devices.synchronize(values)


def written_by(result: Any, args: Sequence[Any]) -> list[Any]:
    """All that a call left behind: its results, and its inputs, some of which it may have written to."""
    return [*(result if isinstance(result, list | tuple) else (result,)), *args]


def compiled_by(link: Link, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    """What the backend returns for the very objects that it would get without us."""
    compiled_fn = link.compiler(gm, example_inputs)
    if not callable(compiled_fn):
        raise AssertionError("compiler_fn did not return callable")  # as dynamo says it
    return compiled_fn
