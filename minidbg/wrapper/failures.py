"""Answering a failure: capture it, have it reduced, and tell the user on his own exception.

Nothing here may hide that exception. Whatever goes wrong on our side becomes a report that says so.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from minidbg import torch_internals
from minidbg.fx.case import Case
from minidbg.fx.context import default_device, enabled_autocasts
from minidbg.words import environment
from minidbg.words.errors import AccuracyError, MinidbgError, TorchNameMissing
from minidbg.words.outcome import Kind, Signature
from minidbg.words.settings import Layout, Reduce, Settings
from minidbg.wrapper import capture
from minidbg.wrapper.capture import Failure
from minidbg.wrapper.standing import (
    PROCESS,
    chain_of,
    is_of_a_signal_handler,
    is_out_of_memory,
    several_ranks,
)

log = logging.getLogger("minidbg")
ATTRIBUTE = "minidbg_report"


@dataclass(frozen=True, slots=True, repr=False)
class Report:
    """What became of a failure. A notebook and IPython show it with the script."""

    line: str
    """The result for people, one line: ``812 -> 1 nodes, 14 oracle calls, 3.2 s; run: python ...``; or why nothing was written."""
    path: Path | None = None
    """The verified repro."""
    capture: Path | None = None
    """The unreduced capture."""

    def __repr__(self) -> str:
        return f"<minidbg report: {self.line}>"

    def _repr_markdown_(self) -> str:
        # Markdown rather than HTML: the notebook brings the highlighting, in the reader's own colours.
        script = self.script()
        return f"**minidbg**: {self.line}" + (f"\n\n```python\n{script}\n```" if script else "")

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        script = self.script()
        printer.text(f"minidbg: {self.line}" + (f"\n\n{script}" if script else ""))

    def script(self) -> str:
        """The part of the repro that is about the failure; empty when there is none, or it has gone."""
        from minidbg.words.script_header import DIVIDER

        try:
            text = self.path.read_text(encoding="utf-8") if self.path else ""
        except OSError:
            return ""
        return text.split(DIVIDER)[0].rstrip()


ANSWERING: ContextVar[bool] = ContextVar("minidbg_answering", default=False)


def is_answering() -> bool:
    """Whether the caller is minidbg itself at work on a failure, so that a wrapper must not answer again."""
    return ANSWERING.get() or environment.is_judging()


def report_of(error: BaseException | None) -> Report | None:
    """What minidbg wrote about ``error``, or about the exception that it wraps or was raised from; else None.

    ``.path`` is the verified repro (None when there is none), ``.capture`` the unreduced capture, ``.line`` the result in
    one line. As the last value of a notebook's cell it shows the script.
    """
    return next((report for one in chain_of(error) if (report := own_report(one)) is not None), None)


def own_report(error: BaseException) -> Report | None:
    """The report on ``error`` itself: what it was raised from may have failed, and been reported, before."""
    report = getattr(error, ATTRIBUTE, None)
    return report if isinstance(report, Report) else None


def set_report(error: BaseException, report: Report) -> None:
    """Make ``report`` readable from the exception that the user catches, and from the one that it wraps."""
    for one in (error, getattr(error, "inner_exception", None)):
        if isinstance(one, BaseException):
            # exceptions that are frozen dataclasses refuse a plain assignment
            object.__setattr__(one, ATTRIBUTE, report)


def add_line(error: BaseException, report: Report) -> None:
    """Let the report's line be the last thing that is printed for ``error``; once."""
    note = f"minidbg: {report.line}"
    if note not in getattr(error, "__notes__", ()):
        with contextlib.suppress(AttributeError, TypeError):  # an exception that refuses notes stays without
            error.add_note(note)


LISTENERS: list[Callable[[Failure, Report], object]] = []
"""Called with each failure and what became of it."""


def answer(failure: Failure, settings: Settings) -> Report:
    """What became of ``failure``; the listeners hear it. Never raises an ordinary exception."""
    report = report_of_failure(failure, settings)
    for listener in LISTENERS:
        listener(failure, report)
    return report


def report_of_failure(failure: Failure, settings: Settings) -> Report:
    """What became of ``failure``, as ``answer`` gives it."""
    try:
        with answering(failure.inputs):
            return capture_and_reduce(failure, settings)
    except MinidbgError as refusal:
        return kept_in_words(failure, refusal, settings)
    except OSError as error:
        return Report(f"not captured, the file system refused: {error}; repro_dir= names another folder")
    except Exception as trouble:
        if is_of_a_signal_handler(trouble):
            raise
        # The user's exception must arrive, whatever goes wrong here.
        log.debug("answering_failed", exc_info=True)
        return Report(
            f"could not capture this failure ({type(trouble).__name__}: {trouble}); that is a bug in minidbg"
        )


def kept_in_words(failure: Failure, refusal: Exception, settings: Settings) -> Report:
    """The report on a failure that no script can hold."""
    path = None
    with contextlib.suppress(TorchNameMissing), answering(failure.inputs):
        from minidbg.wrapper.respond import keep_what_there_is  # late, as in respond

        path = keep_what_there_is(failure, refusal, settings)
    kept = f"; the graph and what else is known are in {path}" if path else ""
    if path is not None and path.suffix == ".py":
        kept = f"; the graph is in {path}: fill in its backend(), then minidbg reduce {path}"
    return Report(f"not captured: {refusal}{kept}", capture=path)


@contextlib.contextmanager
def answering(values: Sequence[Any]) -> Iterator[None]:
    """A block of our own work on ``values``: no live tracing context, no wrapper that answers, the program's random numbers as before."""
    token = ANSWERING.set(True)
    try:
        with torch_internals.random_numbers_put_back(values), torch_internals.outside_tracing():
            yield
    finally:
        ANSWERING.reset(token)


@contextlib.contextmanager
def plain_modes() -> Iterator[None]:
    """A block in torch's default modes: each run of the case enters those that the case has."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))  # turns grad mode on, too
        # a mode, under which dynamo writes other graphs: only where one is on
        if default_device() is not None:
            stack.enter_context(torch.device("cpu"))
        for device, _, _ in enabled_autocasts():
            stack.enter_context(torch.autocast(device, enabled=False))
        yield


def capture_and_reduce(failure: Failure, settings: Settings) -> Report:
    """Capture ``failure`` and have it answered, unless this very one was before."""
    case = capture.case_of(failure, settings)
    key = (case.signature, case.backend.name, capture.digest(failure), settings)
    known = PROCESS.reports.get(key)
    if isinstance(known, Report):
        return known
    granted, why = PROCESS.grant(bug_of(case, failure.error), failure.error, settings)
    if why:
        story = replace(case.provenance, notes=(*case.provenance.notes, f"not reduced at once: {why}"))
        case = replace(case, provenance=story)
    started = time.monotonic()
    try:
        with plain_modes():
            report = respond(case, granted)
    finally:
        if granted.reduce is Reduce.NOW:
            PROCESS.spend(time.monotonic() - started)
    PROCESS.reports[key] = report
    return report


def respond(case: Case, settings: Settings) -> Report:
    """Write the capture, reduce, publish."""
    from minidbg.wrapper import respond  # late: a run in which nothing fails needs none of it

    return respond.on_failure(case, settings)


def bug_of(case: Case, error: Exception) -> Signature | None:
    """What is reduced once in a process. Wrong results have signatures that say little: the backend and the op count too."""
    if case.signature is None or not isinstance(error, AccuracyError):
        return case.signature
    return replace(case.signature, frames=(case.backend.name,), types=(error.op,))


def eager_fails_too(failure: Failure, environ: Mapping[str, str]) -> bool:
    """Whether the graph fails in eager on the same inputs, so that the backend is not to blame.

    The caller puts back what the graph writes. Gradients are on or off as in the failed call: autograd refuses to save an inference
    tensor, and to write to a leaf. What has a history is copied, so that it keeps that one. Not asked (False) of compile-time failures, after memory has run
    out, nor in a job of several ranks, where a collective would wait for the others.
    """
    if failure.kind is not Kind.RUNTIME or is_out_of_memory(failure.error) or several_ranks(environ):
        return False
    try:
        with answering(failure.inputs):
            inputs = [
                value.clone() if isinstance(value, torch.Tensor) and value.grad_fn is not None else value
                for value in failure.inputs
            ]
            # a lazy forward would print what is raised
            torch_internals.settled_forward(failure.graph_module.forward)(*inputs)
    except Exception as error:
        if is_of_a_signal_handler(error):
            raise
        return True
    return False


def is_layout_alone(error: BaseException, settings: Settings) -> bool:
    """Whether ``error`` says no more than that strides differ, which is no failure under these settings."""
    return (
        isinstance(error, AccuracyError)
        and error.category == "stride"
        and settings.layout is not Layout.RAISE
    )


def warn_of_layout(failure: Failure, settings: Settings) -> None:
    """Say once for each graph that its results lie otherwise in memory, and keep the capture."""
    if PROCESS.is_new(f"layout: {failure.link.name} {capture.digest(failure)}"):
        log.warning(
            "minidbg: %s; the program goes on with this result (layout=%s). %s",
            failure.error,
            '"raise" makes it a failure, "ignore" is silent',
            report_of_failure(failure, settings).line,
        )


def warn_going_on(failure: Failure, report: Report, then: str) -> None:
    """Say once that a backend has failed and what the program goes on with."""
    what = "failed to compile" if failure.kind is Kind.COMPILE else "failed to run"
    what = "gives wrong results for" if failure.kind is Kind.ACCURACY else what
    first = str(failure.error).strip().partition("\n")[0]
    log.warning(
        "minidbg: %s %s a graph (%s: %s); going on with %s. %s%s",
        failure.link.name,
        what,
        type(failure.error).__name__,
        first[:200],
        then,
        report.line,
        known_workaround(report),
    )


def known_workaround(report: Report) -> str:
    """``; until it is mended: ...``, when ``minidbg workaround`` has found something for this repro; else nothing."""
    if report.path is None:
        return ""
    from minidbg.repro.known_workaround import (
        best_of,  # late: nothing else of it is needed while a program runs
    )

    best = best_of(report.path)
    return f"; until it is mended: {best}" if best else ""
