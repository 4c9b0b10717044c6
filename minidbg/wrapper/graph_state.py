"""One graph of the user's program: compiled by the links of a chain until one works, run with care
until it has run well, and then left alone.

``GraphState`` is that for dynamo's graphs; ``wrapper.AtenGraph`` for those of AOTAutograd.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import fx

from minidbg import torch_internals
from minidbg.core.foreign import fence, first_line_of, is_of_a_signal_handler
from minidbg.core.outcome import Direction
from minidbg.core.run_spec import BackendRef, CompiledFn, Context, Level, RunSpec
from minidbg.core.settings import OnFailure, Settings
from minidbg.fx.context import current_context
from minidbg.fx.copying import copy_graph_module
from minidbg.fx.effects import graph_texts, is_handed_back
from minidbg.fx.mutation import mutated_placeholders, written_attributes
from minidbg.fx.randomness import may_draw
from minidbg.fx.ranks import is_waiting_in_vain
from minidbg.repro.crash_records import Step
from minidbg.torch_internals import devices
from minidbg.torch_internals.thread_state import thread_state
from minidbg.wrapper import handle
from minidbg.wrapper.capture import Failure
from minidbg.wrapper.chain import Link, compile_at_run_time
from minidbg.wrapper.crash_record import CrashRecord, During
from minidbg.wrapper.process import PROCESS, GraphFacts, Report, add_line, own_report, set_report
from minidbg.wrapper.rollback import NOTHING, Kept, capturing_device_graph, keep, tensors_among
from minidbg.wrapper.verify import Verification, alone, calls_compared, reason_of
from minidbg.wrapper.verify_runs import declared_otherwise, refusal, snapshot_of

ABSENT_RANK = (
    "a collective of this graph waited in vain for another rank, "
    "which is no failure of the backend; "
    "what that rank printed, or its record in .minidbg/crash_records, says why it did not come"
)
NOT_ASKED = "verify='never'"
GUARDS = "the backend returned, and dynamo could build no guards from what it had done to the ShapeEnv"
STALE = "the graph writes to its inputs and had run before; the values are those after the failing call"


class GraphState:
    """The state of one graph; ``compile`` gives what the backend's result would have been.

    It is *settled* once it has run well: then a call costs an attribute look-up. Until then tensors
    it writes to and the RNG streams are kept before each call, and put back when the call fails.
    """

    level = Level.DYNAMO
    origin: tuple[str, ...] = ()
    """Notes for the capture: which graph this is."""

    def __init__(self, gm: fx.GraphModule, links: Sequence[Link], settings: Settings) -> None:
        self.untouched = copy_graph_module(gm)  # backends edit the graph that they are given
        for node in self.untouched.graph.find_nodes(op="placeholder"):
            node.meta.pop(
                "grapharg", None
            )  # dynamo's own, which holds numbers and NumPy arrays that were passed
            if "val" in node.meta:  # what AOTAutograd knows of a value, as dynamo's graphs have it
                node.meta.setdefault("example_value", node.meta["val"])
        self.links = tuple(links)
        self.settings = settings
        self.mutated = mutated_placeholders(self.untouched)
        self.held = tuple(written_attributes(self.untouched))
        """What the graph itself holds and a run may write to."""
        self.facts = GraphFacts()
        PROCESS.graphs.append(self.facts)
        self.position = 0
        """Of the link in use; ``len(links)`` is eager."""
        self.compiled_fn: CompiledFn = self.untouched.forward
        self.boxed = False
        """Whether ``compiled_fn`` takes its inputs in one list, which it may clear."""
        self.record = CrashRecord(self.untouched, settings)
        self.written: list[tuple[Any, Any]] = []
        """Inputs that the backend has written to while it compiled, and copies, for one call."""
        self.good_calls = 0
        self.settled = False
        self.comparing: set[int] = set()
        """The thread that compares a call with eager; other threads' calls go by meanwhile."""
        self.has_backward = False
        """Whether a backward that AOTAutograd compiled for it is listened to."""
        self.aot_ids_from = torch_internals.next_aot_id()
        """AOTAutograd's number for the first graph that this one's compilers make."""

    # ---- compiling

    def compile(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
        """Compile by the first link that works, report failures of those before; what to call.

        What keeps dynamo from building its guards is a failure of the link too, and nothing is left
        to go on from. Raises what the last link raised, or dynamo would have, when no link works
        and eager is not wanted.
        """
        kept = self.keep(example_inputs) if self.can_go_on() else NOTHING
        is_dynamos = self.level is Level.DYNAMO
        error_of_guards = torch_internals.guards_to_come() if is_dynamos else lambda: None
        for position, link in enumerate(self.links):
            self.position, notes = position, tuple[str, ...]()
            before = None
            if is_dynamos and calls_compared(self.settings.verify):
                with fence("copies_failed"), torch_internals.outside_tracing():
                    if not refusal(self.untouched, example_inputs, self.mutated, self.settings):
                        before = snapshot_of(self.untouched, example_inputs, self.mutated, "")
            try:
                with During(self.record, Step.COMPILE, link, example_inputs):
                    compiled_fn = link.compiler(gm, example_inputs)
                    if not callable(compiled_fn):
                        raise AssertionError("compiler_fn did not return callable")  # dynamo's text
                if (guard_error := error_of_guards()) is not None:
                    notes = (GUARDS,)
                    raise guard_error
            except Exception as error:
                self.facts.restarted = torch_internals.is_control_flow(error)
                is_put_off = not is_dynamos and torch_internals.compiles_backward_early()
                if self.facts.restarted or is_put_off or is_of_a_signal_handler(error):
                    raise
                failure = Failure(self.untouched, example_inputs, link, "compile", error, notes)
                report = self.report_on(failure)
                del before  # the traceback holds this frame
                if notes or not self.can_go_on():
                    raise
                self.put_back(kept)
                self.warn(failure, report)
                gm = copy_graph_module(self.untouched)
            else:
                with fence("copies_failed"), torch_internals.outside_tracing():
                    self.written = before.changed_since(example_inputs) if before else []
                if is_dynamos and is_handed_back(compiled_fn, gm, lambda: graph_texts(self.untouched)):
                    self.facts.handed_back = f"{link.name} gave it back unchanged, so eager runs it"
                return self.called_as(compiled_fn)
        return self.called_as_eager()

    def called_as(self, compiled_fn: CompiledFn) -> CompiledFn:
        """``compiled_fn`` behind the care of an unsettled graph, in its own calling convention."""
        if torch_internals.is_serializable_callable(compiled_fn):
            self.facts.not_verified("dynamo stores what the backend gave for other processes, by its type")
            return compiled_fn
        self.compiled_fn = torch_internals.without_lazy_recompile(compiled_fn)
        self.boxed = self.level is Level.ATEN and bool(getattr(compiled_fn, "_boxed_call", False))

        def run_boxed_graph(args: list[Any]) -> Any:
            # Not answered once settled: who remembers the inputs would keep them from being freed.
            return self.compiled_fn(args) if self.settled else self.run_compiled_graph(*args)

        if not self.boxed:
            return self.run_compiled_graph
        run_boxed_graph._boxed_call = True  # type: ignore[attr-defined]  # torch's own mark
        return run_boxed_graph

    def called_as_eager(self) -> CompiledFn:
        """The untouched graph itself, from now on, with its inputs one by one."""
        self.position = len(self.links)
        self.settled = True
        forward: CompiledFn = torch_internals.without_lazy_recompile(self.untouched.forward)
        self.compiled_fn = (lambda args: forward(*args)) if self.boxed else forward
        return forward

    # ---- running

    def call(self, args: Sequence[Any]) -> Any:
        return self.compiled_fn([*args]) if self.boxed else self.compiled_fn(*args)

    def run_compiled_graph(self, *values: Any) -> Any:
        """What dynamo calls. A graph that has not yet run well is called with care: keep what it
        writes to, run it, compare it with eager, report a failure."""
        if self.settled:
            try:
                return self.call(values)
            except Exception as error:
                again = self.after_failure(error, values, None, self.declared_otherwise(values))
                if again is None:
                    raise
            return again(*values)
        if handle.is_handling() or any(torch_internals.is_fake(value) for value in values):
            return self.call(values)  # our own work, or a tracer asks for shapes and nothing runs
        synchronize_devices(values)  # an error of what ran before is not one of this graph
        kept = self.keep(values)
        undeclared = self.declared_otherwise(values)  # before the backend can change them
        verification, put_state_back = None, thread_state()
        step = During(self.record, Step.RUN, self.links[self.position], values)
        try:
            with step:
                verification = self.begin(values, kept)
                result = self.call(values)
                synchronize_devices(values, result)
        except Exception as error:
            as_left = thread_state()
            put_state_back()  # a level of vmap left open would have a part in all that follows
            begun = step.collectives is not None and step.collectives.begun
            again = self.after_failure(error, values, kept, undeclared, begun=begun)
            if again is None:
                as_left()
                del kept, verification, values, step  # the traceback holds this frame
                raise
        else:
            failure = verification.judge(result, values, undeclared) if verification else None
            if verification is None or failure is None:
                self.went_well(result, values)
                return result
            wrong, report = failure.error, self.report_on(failure)
            restored = self.put_back(kept)
            verification.before.put_back(values)  # which may be from before the compile
            if not self.can_go_on():
                self.say_why_it_is_raised(wrong, report)
                raise wrong
            if not restored:  # nothing may run on what the call has left
                self.warn(failure, report, "these results, and eager in later calls")
                self.called_as_eager()
                return result
            self.warn(failure, report)
            again = self.next_that_compiles(wrong, values, kept)
            if again is None:
                raise wrong
        finally:
            self.comparing.discard(threading.get_ident())
        del kept, verification, step
        return again(*values)

    def declared_otherwise(self, args: Sequence[Any]) -> str:
        """What dynamo declared of ``args`` and did not keep to."""
        is_dynamos = self.level is Level.DYNAMO
        return declared_otherwise(self.untouched, args, self.mutated) if is_dynamos else ""

    def begin(self, args: tuple[Any, ...], kept: Kept) -> Verification | None:
        """What is needed to judge a coming call with ``args``; None when it will not be judged."""
        settings, (written, self.written) = self.settings, (self.written, [])
        calls = calls_compared(settings.verify)
        if self.good_calls >= calls or self.position >= len(self.links):
            self.facts.why_not = self.facts.why_not or NOT_ASKED
            return None
        if self.comparing:
            return None
        self.comparing.add(threading.get_ident())
        link = self.links[self.position]
        why: str | None = "what it writes to cannot be copied"
        if kept.complete:
            why = refusal(self.untouched, args, self.mutated, settings)
        if any(copied is None for _, copied in written):
            why = f"{link.name} has written to an input while it compiled, too large for a copy"
        if why:
            self.facts.not_verified(why)
            return None
        # a copy that cannot be made keeps nobody from his own call
        with fence("verification_failed", lambda error: self.facts.not_verified(reason_of(error))):
            own = [next((copy for old, copy in written if old is arg), arg) for arg in args]
            with torch_internals.outside_tracing():
                copies = snapshot_of(self.untouched, own, self.mutated, settings.golden)
            ref, judge, golden = BackendRef(link.name, "..."), settings.judge, settings.golden
            spec = RunSpec(ref, tolerances=settings.allowed, golden=golden, judge=judge)
            begun = Verification(copies, link, spec, self.facts)
            if copies.wants_backward():
                # a backend may wait for threads that call graphs of ours
                others = alone() if may_draw(self.untouched) else contextlib.nullcontext()
                with others, torch_internals.restoring_random_numbers(args):
                    begun.take_gradients(self.call, kept)
            return begun
        return None

    def went_well(self, result: Any, args: tuple[Any, ...]) -> None:
        """Settle the graph, and have failures of its backward answered.

        They show in the user's ``loss.backward()``, long after the call. Inputs are remembered by
        weak references. Only backwards that AOTAutograd compiled since this graph came can be
        the backend's fault. Of what the graph has written to, inputs have its backward too.
        """
        self.good_calls += 1
        self.settled |= self.good_calls >= max(1, calls_compared(self.settings.verify))
        if self.level is Level.DYNAMO and torch.is_grad_enabled() and not self.has_backward:
            link, tensors = self.links[self.position], tensors_among([(result, args)])
            inputs = [weakref.ref(arg) if isinstance(arg, torch.Tensor) else arg for arg in args]
            context = current_context(args, further_env=self.settings.env)
            on_failure = functools.partial(self.after_backward_failure, inputs, link, context)
            around = functools.partial(During, self.record, Step.BACKWARD, link, ())
            for function_class in torch_internals.aot_backward_classes(tensors, self.aot_ids_from):
                torch_internals.guard_backward(function_class, on_failure, around)
                self.has_backward = True
        if self.settled and not self.has_backward:
            self.record.close()  # after it, nothing of this graph can end the process

    def after_failure(
        self,
        error: Exception,
        args: tuple[Any, ...],
        kept: Kept | None,
        undeclared: str,
        *,
        begun: bool = False,
    ) -> CompiledFn | None:
        """What to call instead; None when ``error`` is to be raised. ``kept`` is None once settled.

        ``undeclared`` says what dynamo declared otherwise of ``args``: then no backend is to blame.
        ``begun``: a collective has taken place; other ranks would not take part in it again.
        """
        if self.position >= len(self.links) or handle.is_handling():
            return None
        if torch_internals.is_of_a_saved_tensor_hook(error) or is_of_a_signal_handler(error):
            return None
        left = self.keep(args) if kept is not None else NOTHING
        restored, again = self.put_back(kept), None
        link, stale = self.links[self.position], () if restored else (STALE,)
        failure = Failure(self.untouched, args, link, "runtime", error, stale)
        is_programs = False
        if is_waiting_in_vain(error, self.untouched, args):
            undeclared, begun = ABSENT_RANK, True
        elif restored and own_report(error) is None and not devices.in_error(args):
            is_programs = handle.eager_fails_too(failure, os.environ)
            self.put_back(kept)
        if not is_programs:
            report = Report(undeclared) if undeclared else self.report_on(failure)
            if begun or not (restored and self.can_go_on()):
                self.say_why_it_is_raised(error, report)
            else:
                self.warn(failure, report)
                again = self.next_that_compiles(error, args, kept)
        if again is None:
            self.put_back(left)  # who catches the error finds what the backend left, as without us
        return again

    def put_back(self, kept: Kept | None) -> bool:
        if kept is None:
            return not self.mutated and not self.held
        try:
            return kept.restore()
        except RuntimeError:  # a device in error refuses every call
            return False

    def next_that_compiles(
        self, error: Exception, args: tuple[Any, ...], kept: Kept | None
    ) -> CompiledFn | None:
        self.good_calls, self.settled, self.written = 0, False, []
        for position, link in [*enumerate(self.links)][self.position + 1 :]:
            self.position = position
            try:
                self.compiled_fn = compile_at_run_time(link, self.untouched, args)
            except Exception as another:  # noqa: BLE001 - answered like the previous link's failure
                failure = Failure(self.untouched, args, link, "compile", another)
                report = self.report_on(failure)
                self.put_back(kept)
                if self.can_go_on():
                    self.warn(failure, report)
            else:
                return self.run_compiled_graph
        if self.settings.on_failure is OnFailure.FALLBACK:
            return self.called_as_eager()
        self.position = 0
        self.say_why_it_is_raised(error, own_report(error) or Report("no link of the chain works"))
        return None

    def after_backward_failure(
        self, inputs: list[Any], link: Link, context: Context, error: Exception
    ) -> None:
        """Answer what a compiled backward raises. No result can stand for the exception: only later
        calls can go on in eager."""
        with fence("answering_failed"):  # our fault must not replace what the backward raises
            phase = torch_internals.backward_phase(error)
            if phase is None or own_report(error) is not None or handle.is_handling():
                return
            graph = self.untouched
            alive = [value() if isinstance(value, weakref.ref) else value for value in inputs]
            placeholders = graph.graph.find_nodes(op="placeholder")
            values = [
                node.meta.get("example_value") if value is None else value
                for node, value in zip(placeholders, alive, strict=True)
            ]
            failure = Failure(graph, values, link, phase, error, (), Direction.BACKWARD, context)
            report = self.report_on(failure)
            add_line(error, report)
            if self.settings.on_failure is OnFailure.FALLBACK and self.position < len(self.links):
                self.warn(failure, report, "eager in later calls")
                self.called_as_eager()

    # ---- handling

    def can_go_on(self) -> bool:
        return self.position + 1 < len(self.links) or self.settings.on_failure is OnFailure.FALLBACK

    def keep(self, values: Sequence[Any]) -> Kept:
        return keep(values, self.mutated, self.held, limit_bytes=self.settings.value_limit_bytes)

    def report_on(self, failure: Failure) -> Report:
        """``handle.handle`` the failure, and attach the report to its error; one that a wrapper
        below has attached stays."""
        report = own_report(failure.error)
        if report is None:
            self.facts.failed = True
            failure = replace(failure, notes=(*failure.notes, *self.origin))
            report = handle.handle(failure, self.settings)
            set_report(failure.error, report)
        return report

    def warn(self, failure: Failure, report: Report, then: str = "") -> None:
        """Say once that a backend has failed and what the program goes on with."""
        later = [*(link.name for link in self.links[self.position + 1 :]), "eager"]
        handle.log.warning(
            "minidbg: %s %s a graph (%s); going on with %s. %s",
            failure.link.name,
            failure.kind.traits.warning,
            first_line_of(failure.error),
            then or later[0],
            report.line,
        )

    def say_why_it_is_raised(self, error: Exception, report: Report) -> None:
        """Put the report's line on ``error``; of AOTAutograd's graphs into the log, too, where
        dynamo wraps it and hides notes."""
        add_line(error, report)
        hides = not torch_internals.dynamo_keeps_type(error) and torch_internals.in_a_backend()
        if self.level is Level.ATEN and hides:
            handle.log.warning("minidbg: %s", report.line)


G = TypeVar("G", bound=GraphState)


def state_of(make: Callable[[], G]) -> G | None:
    """The state of a graph; None while minidbg works, and, with a warning, where none can be made.

    The backend is then called unwrapped: our bug must not keep the user's program from compiling.
    """
    warning = "minidbg: a graph is not wrapped (%s: %s)"
    with fence(
        "wrapping_failed", lambda trouble: handle.log.warning(warning, type(trouble).__name__, trouble)
    ):
        return None if handle.is_handling() else make()
    return None


def synchronize_devices(args: Sequence[Any], result: Any = ()) -> None:
    """Wait for a call's devices, which may raise late; not while a device graph is recorded."""
    values = tensors_among([args, result])
    if any(value.device.type != "cpu" for value in values) and not capturing_device_graph():
        devices.synchronize(values)
