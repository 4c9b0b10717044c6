"""What is done about a captured failure: the capture is written, and then reduced in another process.

Of a failure that no script can hold, a text is written with the graph, the inputs, the backend and the error."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import traceback
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from minidbg import asking, repro, workers
from minidbg.fx.case import Case
from minidbg.reduction import reducing
from minidbg.reduction.result import Limits, Written
from minidbg.words.deadline import Deadline
from minidbg.words.errors import BackendUnreachable, MinidbgError
from minidbg.words.settings import Reduce, Settings
from minidbg.words.text import display_path
from minidbg.wrapper.capture import Failure, case_to_fill_in
from minidbg.wrapper.failures import Report

COPIED_BYTES = 4 << 30
"""Inputs up to this size go to another interpreter with all of their values."""


def on_failure(case: Case, settings: Settings) -> Report:
    """Write the capture of ``case``; reduce it and publish a verified repro when the settings say now.

    Raises CannotWrite when the case has no form in a script, and OSError when the folder cannot be written.
    """
    deadline = Deadline.after(settings.seconds)
    if settings.reduce is Reduce.NOW:  # torch is imported elsewhere while the capture is written
        with contextlib.suppress(OSError):
            reducing.prepare(case)
    return written_and_reduced(case, settings, deadline)


def written_and_reduced(case: Case, settings: Settings, deadline: Deadline) -> Report:
    complaint = ""
    try:
        # the capture may be there, and no more be written
        repro.discard(repro.drafts(settings.repro_dir) / "none")
        capture = captured(case, settings)
    except OSError as refusal:  # a folder that nobody may write to, a full disk
        settings, complaint = with_temporary_folder(settings, refusal)
        capture = captured(case, settings)
    answer = reduced_or_why_not(case, capture, settings, deadline)
    return replace(answer, line=f"{complaint}{answer.line}")


def captured(case: Case, settings: Settings) -> Path:
    return repro.keep_capture(case, settings.repro_dir, value_limit_bytes=settings.value_limit_bytes)


def with_temporary_folder(settings: Settings, error: OSError) -> tuple[Settings, str]:
    """The settings with this user's folder among the temporary files, and a complaint about theirs. Raises OSError."""
    folder = Path(tempfile.gettempdir()) / f"minidbg_repros-{os.getuid()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        folder = Path(tempfile.mkdtemp(prefix="minidbg_repros-"))  # somebody else has put it there
    repro.discard(repro.drafts(folder) / "none")
    why = error.strerror or error
    complaint = f"{settings.repro_dir} cannot be written ({why}), so {folder} is used; "
    return replace(settings, repro_dir=folder), complaint


def reduced_or_why_not(case: Case, capture: Path, settings: Settings, deadline: Deadline) -> Report:
    if settings.reduce is Reduce.LATER:
        why = case.provenance.notes[-1] if case.provenance.notes else "reduce='later'"
        line = f"captured, {why}; run: minidbg reduce {display_path(capture)}"
        return Report(line, capture=capture)
    try:
        written = reduced_elsewhere(case, capture, settings, deadline)
    except MinidbgError as refusal:
        return Report(f"captured in {display_path(capture)}; {refusal}", capture=capture)
    except OSError as trouble:
        line = f"captured; no process can be made to reduce it here ({trouble}); run: minidbg reduce {display_path(capture)}"
        return Report(line, capture=capture)
    if written.path is None:
        return Report(f"{written.line}; captured in {display_path(capture)}", capture=capture)
    return Report(written.line, written.path, capture)


def reduced_elsewhere(case: Case, capture: Path, settings: Settings, deadline: Deadline) -> Written:
    """Reduce in a fork of the forkserver, never in one of this process, which has threads.

    Raises MinidbgError when the reducing process found nothing to reduce, was ended or broke.
    """
    limits = Limits(
        seconds=settings.seconds,
        due=deadline.at,
        max_calls=settings.max_calls,
        memory_bytes=settings.memory_bytes,
        value_limit_bytes=settings.value_limit_bytes,
    )
    with workers.stream_to_the_user() as stream, contextlib.ExitStack() as stack:

        def interrupted() -> None:
            stream.write("\nminidbg: the best so far is verified and written; Ctrl-C again ends it without\n")
            stream.flush()

        path = capture  # has the small values, where all of them would not fit
        with contextlib.suppress(MinidbgError, OSError):
            path = stack.enter_context(asking.packed(case, value_limit_bytes=COPIED_BYTES))
        done = reducing.call_elsewhere(
            case, path, settings.repro_dir, limits, stream, deadline, on_interrupt=interrupted
        )
    return written_by(done)


def written_by(done: workers.ChildResult) -> Written:
    """The answer of a reducing process. Raises MinidbgError that says how it ended when there is none."""
    value = done.value
    if isinstance(value, dict) and "refused" in value:
        raise MinidbgError(str(value["refused"]))
    if isinstance(value, dict):
        return Written.from_json(value)
    if done.timed_out:
        raise MinidbgError(f"the reducing process was ended after {done.seconds:.0f} s")
    last = (done.error or done.stderr_tail).strip().splitlines()[-1:] or ["no message"]
    raise MinidbgError(
        f"the reducing process ended without an answer (exit status {done.exit_status}, signal {done.signal}): {last[0]}"
    )


def keep_what_there_is(failure: Failure, refusal: Exception, settings: Settings) -> Path | None:
    """The file written to the captures, or None where the file system refuses that too: a text, or a script without its backend.

    The same failure gives the same file.
    """
    if isinstance(refusal, BackendUnreachable):
        with contextlib.suppress(MinidbgError, OSError):
            return captured(case_to_fill_in(failure, settings), settings)
    text = "\n".join(parts(failure, refusal))
    graph = str(failure.graph_module.graph).encode("utf-8", "backslashreplace")
    digest = hashlib.sha256(graph).hexdigest()
    try:
        path = repro.captures(settings.repro_dir) / f"incomplete_{failure.kind}_{digest[:6]}.txt"
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError:
        return None
    return path


def parts(failure: Failure, refusal: Exception) -> Iterator[str]:
    """The paragraphs of the text: what is missing first."""
    yield f"{failure.link.name}: a {failure.kind} failure that minidbg cannot write as a script.\n"
    yield f"What is missing: {refusal}\n"
    yield f"torch {torch.__version__}; options {dict(failure.link.options)!r}, mode {failure.link.mode!r}\n"
    yield "The graph:\n"
    yield failure.graph_module.print_readable(print_output=False)
    yield "\nIts inputs:\n"
    placeholders = [node for node in failure.graph_module.graph.nodes if node.op == "placeholder"]
    for node, value in zip(placeholders, failure.inputs, strict=False):
        yield f"  {node.name}: {in_words(value)}"
    yield "\nThe failure:\n"
    yield "".join(traceback.format_exception(failure.error))


def in_words(value: Any) -> str:
    """Type, shape and flags of a tensor, without its values; the type of anything else."""
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if not isinstance(value, torch.Tensor):
        return f"{kind} {value!r}" if isinstance(value, bool | int | float | str | None) else kind
    flags = ", requires_grad" if value.requires_grad else ""
    return f"{kind} {value.dtype} of shape {tuple(value.shape)}, {value.layout}, on {value.device}{flags}"
