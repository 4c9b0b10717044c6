"""Capture a failure, have it reduced in another process, attach the result to the user's exception.

Nothing here may hide that exception. Whatever goes wrong on our side becomes a report that says so.
Of a failure that no script can hold, a text is written with the graph, the inputs, the backend and
the error.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import tempfile
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from minidbg import oracle, repro, torch_internals, workers
from minidbg.codegen.size import canonical_text
from minidbg.core import environment
from minidbg.core.errors import AccuracyError, MinidbgError, TorchNameMissing
from minidbg.core.files import replace_file
from minidbg.core.foreign import fence, first_line_of, is_of_a_signal_handler, is_out_of_memory
from minidbg.core.machine import Deadline
from minidbg.core.run_spec import how_to_supply_backend
from minidbg.core.settings import Reduce, Settings
from minidbg.core.text import display_path
from minidbg.fx.case import Case
from minidbg.fx.context import without_modes
from minidbg.reduction.reducing import REDUCE
from minidbg.reduction.result import ReductionResult
from minidbg.torch_internals import devices
from minidbg.wrapper.capture import Failure, case_of_failure, lost_note
from minidbg.wrapper.process import PROCESS, Report, had_by_the_program, several_ranks

log = logging.getLogger("minidbg")
SHARE = 0.5
"""Of free memory or disk: what the values of the inputs may take on their way to the reduction."""
REDUCTION_GRACE_S = 5.0
"""What the reducing process may take over its budget to end what it started, before it is ended."""
NOT_AT_ONCE = "not reduced at once"
CTRL_C = "\nminidbg: the best so far is verified and written; Ctrl-C again ends it without"
HANDLING: ContextVar[bool] = ContextVar("minidbg_handling", default=False)


def is_handling() -> bool:
    """Whether the caller is minidbg at work on a failure: a wrapper must not handle one again."""
    return HANDLING.get() or environment.is_judging()


def handle(failure: Failure, settings: Settings) -> Report:
    """Make ``failure`` a case, ask the budget, ``respond``, tell listeners; the report: the first
    one, if it was seen before. Raises no ordinary exception."""
    budget, report = PROCESS.budget, None
    try:
        with handling(failure.inputs):
            case = case_of_failure(failure, settings)
            digest = hashlib.sha256(canonical_text(failure.graph_module).encode()).hexdigest()
            key = (case.signature, case.backend.name, digest, settings)
            if (report := PROCESS.reports.get(key)) is None:
                bug = case.signature
                # the signatures of wrong results say little: the backend and the op count too
                if bug is not None and isinstance(failure.error, AccuracyError):
                    bug = replace(bug, frames=(case.backend.name,), types=(failure.error.op,))
                place = devices.place_of(case.inputs)
                granted, why = budget.grant(bug, failure.error, settings, place)
                if why:
                    notes = (*case.provenance.notes, f"{NOT_AT_ONCE}: {why}")
                    case = replace(case, provenance=replace(case.provenance, notes=notes))
                same_as, started = budget.repro_of(bug) if why else None, PROCESS.clock()
                try:
                    with without_modes():
                        report = (PROCESS.responder or respond)(case, granted, same_as)
                finally:
                    if granted.reduce is Reduce.NOW:
                        repro = report.path if report else None
                        budget.spend(PROCESS.clock() - started, bug, repro)
                PROCESS.reports[key] = report
    except MinidbgError as refusal:
        report = report_without_script(failure, refusal, settings)
    except Exception as trouble:  # the user's exception must arrive, whatever goes wrong here
        if is_of_a_signal_handler(trouble):
            raise
        why = first_line_of(trouble)
        line = f"could not capture this failure ({why}); that is a bug in minidbg"
        if isinstance(trouble, OSError):
            line = f"not captured, the file system refused: {trouble}; repro_dir= names another folder"
        report = Report(line)
        log.debug("answering_failed", exc_info=True)
    with fence("listener_failed"):
        for listener in PROCESS.listeners:
            listener(failure, report)
    return report


@contextlib.contextmanager
def handling(values: Sequence[Any]) -> Iterator[None]:
    """A block of our own work on ``values``: no live tracing context, no wrapper that handles a
    failure, the program's random numbers as before."""
    token = HANDLING.set(True)
    try:
        with torch_internals.restoring_random_numbers(values), torch_internals.outside_tracing():
            yield
    finally:
        HANDLING.reset(token)


def respond(case: Case, settings: Settings, same_as: Path | None = None, ask: Any = None) -> Report:
    """Write ``case``'s capture; reduce it and publish a verified repro when the settings say now;
    the report, which says why where there is no repro.

    ``same_as`` is the repro that the same failure has already; ``ask`` stands for the server's.
    Raises CannotWrite when the case has no form in a script, and OSError when no folder can be
    written.
    """
    deadline = Deadline.after(settings.seconds)
    if settings.reduce is Reduce.NOW:  # torch is imported elsewhere while the capture is written
        ahead = repro.standby_plan(case.backend.name, without=case.spec.context.env)
        with contextlib.suppress(OSError):
            workers.start_server().prepare(REDUCE, oracle.warmup_for(case), ahead)
    limit, remark = settings.value_limit_bytes, ""
    try:
        # the capture may be there, and no more be written
        repro.discard(repro.drafts(settings.repro_dir) / "none")
        capture = repro.keep_capture(case, settings.repro_dir, value_limit_bytes=limit)
    except OSError as refusal:  # a folder that nobody may write to, a full disk
        if is_of_a_signal_handler(refusal):
            raise
        folder, reason = spare_folder(), refusal.strerror or refusal
        remark = f"{settings.repro_dir} cannot be written ({reason}), so {folder} is used; "
        settings = replace(settings, repro_dir=folder)
        repro.discard(repro.drafts(folder) / "none")
        capture = repro.keep_capture(case, folder, value_limit_bytes=limit)
    shown = display_path(capture)

    def report(line: str, path: Path | None = None, missing_backend: Path | None = None) -> Report:
        return Report(f"{remark}{line}", path, capture, missing_backend)

    if same_as is not None:
        return report(f"same failure as {display_path(same_as)}; this graph is kept in {shown}")
    lacking = case.backend.missing_backend
    lacks = f"a {how_to_supply_backend(capture, lacking)}" if lacking else ""
    then = lacks or f"run: minidbg reduce {shown}"
    if settings.reduce is Reduce.LATER:
        why = [note for note in case.provenance.notes if note.startswith(NOT_AT_ONCE)]
        return report("; ".join([*(why or [f"{NOT_AT_ONCE}: reduce='later'"]), then]))
    kept_in = lacks or f"the capture is in {shown}"
    try:
        with (
            oracle.pickled_for_children(case) as sent,
            oracle.packed(sent, share=SHARE) as package,
            workers.stream_to_the_user() as stream,
        ):
            if left_out := package["left_out_bytes"]:
                size = f"{left_out / 1e9:.3g} GB" if left_out >= 1e9 else f"{left_out / 1e6:.3g} MB"
                instead = "values of the same distribution stood in"
                remark += f"its {size} of inputs were not sent, {instead}; "
            request = request_to_reduce(sent, package, settings, deadline, stream.fileno())
            asked = (ask or workers.start_server().ask)(request)
            done = asked.result(on_interrupt=lambda: print(CTRL_C, file=stream, flush=True))
    except MinidbgError as refusal:
        return report(f"{refusal}; {kept_in}")
    except OSError as trouble:
        if is_of_a_signal_handler(trouble):
            raise
        is_none = trouble.errno is not None  # else there was a process, whose end is told
        what = f"no process can be started for it here ({trouble})" if is_none else trouble
        return report(f"not reduced: {what}; {then}")
    if device := oracle.taken_device(case, done):  # by this process
        devices.EXCLUSIVE.add(device.partition(":")[0])
        return report(f"{NOT_AT_ONCE}: {had_by_the_program(device)}; {then}")
    if not isinstance(done.value, dict):
        return report(f"not reduced: {done.why_no_answer}; {kept_in}")
    if "refused" in done.value:
        return report(f"{done.value['refused']}; {kept_in}")
    written = ReductionResult.from_json(done.value)
    if written.path is None:
        return report(f"{written.line}; {kept_in}")
    if written.lacking:
        return report(written.line, missing_backend=written.path)
    return report(written.line, written.path)


def spare_folder() -> Path:
    """Where a capture goes that the asked folder does not take: this user's own, in the system's."""
    folder = Path(tempfile.gettempdir()) / f"minidbg_repros-{os.getuid()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():  # somebody else has put it there
        return Path(tempfile.mkdtemp(prefix="minidbg_repros-"))
    return folder


def request_to_reduce(
    case: Case, package: Mapping[str, Any], settings: Settings, deadline: Deadline, stream: int
) -> workers.Request:
    """Of a fork of the server, since this process has threads: ``case``, as ``package``. It is
    ended by the ``deadline``, after some seconds to end what it has started."""
    names = ("seconds", "max_calls", "memory_bytes", "value_limit_bytes")
    limits = {"due": deadline.at, **{name: getattr(settings, name) for name in names}}
    folder, level = str(settings.repro_dir.absolute()), log.getEffectiveLevel()
    return workers.Request(
        call=REDUCE,
        argument={"case": package, "folder": folder, "limits": limits, "level": level},
        seconds=deadline.left() + REDUCTION_GRACE_S,
        deadline=deadline.earlier(-REDUCTION_GRACE_S),
        fork=oracle.warmup_for(case),
        stream=stream,
        asks=True,
        interrupts=True,
    )


def report_without_script(failure: Failure, refusal: Exception, settings: Settings) -> Report:
    """Write to the captures what is known of a failure that no script can hold: a text, whose name
    is the same for the same graph; and say so."""
    missing = "; ".join([str(refusal), *lost_note(failure)])
    line, link = f"not captured: {missing}", failure.link
    with contextlib.suppress(TorchNameMissing, OSError), handling(failure.inputs):
        placeholders = failure.graph_module.graph.find_nodes(op="placeholder")
        inputs = zip(placeholders, failure.inputs, strict=False)
        text = "\n".join(
            [
                f"{link.name}: a {failure.kind} failure that minidbg cannot write as a script.\n",
                f"What is missing: {missing}\n",
                f"torch {torch.__version__}; options {dict(link.options)!r}, mode {link.mode!r}\n",
                f"The graph:\n\n{failure.graph_module.print_readable(print_output=False)}\n",
                "Its inputs:\n",
                *(f"  {node.name}: {value_text(value)}" for node, value in inputs),
                f"\nThe failure:\n\n{''.join(traceback.format_exception(failure.error))}",
            ]
        )
        graph = str(failure.graph_module.graph).encode("utf-8", "backslashreplace")
        mark = hashlib.sha256(graph).hexdigest()[:6]
        path = repro.captures(settings.repro_dir) / f"incomplete_{failure.kind}_{mark}.txt"
        replace_file(path, text.encode("utf-8", "backslashreplace"), private=True)
        return Report(f"{line}; the graph and what else is known are in {path}", capture=path)
    return Report(line)


def value_text(value: Any) -> str:
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if not isinstance(value, torch.Tensor):
        return f"{kind} {value!r}" if isinstance(value, bool | int | float | str | None) else kind
    flags = ", requires_grad" if value.requires_grad else ""
    shape = tuple(value.shape)
    return f"{kind} {value.dtype} of shape {shape}, {value.layout}, on {value.device}{flags}"


def eager_fails_too(failure: Failure, environ: Mapping[str, str]) -> bool:
    """Whether the graph fails in eager on the same inputs, so that the backend is not to blame.

    The caller puts back what the graph writes. Gradients are on or off as in the failed call:
    autograd refuses to save an inference tensor, and to write to a leaf. What has a history is
    copied, so that it keeps that one. Not asked (False) of compile-time failures, after memory has
    run out, nor in a job of several ranks, where a collective would wait for the others.
    """
    raises_when_run = failure.kind.traits.raises_when_run
    if not raises_when_run or is_out_of_memory(failure.error) or several_ranks(environ):
        return False
    try:
        with handling(failure.inputs):
            inputs = [x.clone() if getattr(x, "grad_fn", None) else x for x in failure.inputs]
            # a lazy forward would print what is raised
            torch_internals.without_lazy_recompile(failure.graph_module.forward)(*inputs)
    except Exception as error:
        if is_of_a_signal_handler(error):
            raise
        return True
    return False
