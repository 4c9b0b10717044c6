"""From how a process ended that judged a repro to an Outcome: what it printed, else what its death says."""

from __future__ import annotations

import contextlib
import json
import signal as signals
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from minidbg.words.kinds import Kind
from minidbg.words.outcome import Direction, Outcome, Signature, Verdict
from minidbg.workers.child import ChildResult

WORDS_KEPT = 4000


def outcome_of(ended: ChildResult, expected: Signature | None, *, limit_s: float) -> Outcome:
    """The outcome of a run with a time limit of ``limit_s``, judged against the ``expected`` failure."""
    said = last_json(ended.stdout)
    if said is not None:
        with contextlib.suppress(KeyError, ValueError, TypeError, AttributeError):
            return Outcome.from_json(said)
    return replace(without_answer(ended, expected, limit_s), seconds=ended.seconds)


def last_json(text: str) -> Mapping[str, Any] | None:
    """The last line that is a JSON object; scripts and compilers may print other lines."""
    return next(json_objects(reversed(text.splitlines())), None)


def json_objects(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The lines that are JSON objects; others, and those that were cut off by a kill or a full disk, are passed over."""
    for line in lines:
        if line.startswith("{"):
            with contextlib.suppress(ValueError, RecursionError):
                yield json.loads(line)


def last_phase(text: str) -> str:
    """The last phase that a run has named; empty without one."""
    phases = [line.removeprefix("phase ") for line in text.splitlines() if line.startswith("phase ")]
    return phases[-1] if phases else ""


def without_answer(ended: ChildResult, expected: Signature | None, limit_s: float) -> Outcome:
    """What a run that printed no verdict has shown. A run under ``--child`` has said which ``phase`` it was in."""
    phase = last_phase(ended.stdout)
    words = ended.stderr_tail[-WORDS_KEPT:]
    dead = ended.timed_out or ended.signal is not None
    how = f"no answer within {limit_s:g} s" if ended.timed_out else f"died of {signal_name(ended.signal)}"
    if dead and phase == "eager":
        return Outcome(Verdict.INVALID, reason=f"eager itself: {how}", message=words)
    if phase:
        direction = Direction.BACKWARD if phase.endswith("backward") else Direction.FORWARD
    else:
        direction = expected.direction if expected else Direction.FORWARD
    if ended.timed_out:
        found = Outcome(Verdict.TIMEOUT, Signature(Kind.HANG, direction), reason=how, message=words)
        return found.judged_against(expected)
    if ended.signal is not None:
        signature = Signature(Kind.CRASH, direction, types=(signal_name(ended.signal),))
        found = Outcome(Verdict.CRASHED, signature, reason=how, message=words, signal=ended.signal)
        return found.judged_against(expected)
    status = f"exit status {ended.exit_status}"
    if phase and phase != "eager" and expected is not None and expected.kind is Kind.CRASH:
        # a backend that calls exit() under --child has ended the process as surely as a signal would
        signature = Signature(Kind.CRASH, direction, types=(status,))
        return Outcome(Verdict.CRASHED, signature, reason=status).judged_against(expected)
    last = next((line for line in reversed(words.splitlines()) if line.strip()), "")
    reason = f"{status} without a verdict{': ' if last else ''}{last}"[:300]
    return Outcome(
        Verdict.SKIPPED if ended.exit_status == 125 else Verdict.INVALID, reason=reason, message=words
    )


def signal_name(number: int | None) -> str:
    """``SIGSEGV`` for 11."""
    try:
        return signals.Signals(number or 0).name
    except ValueError:
        return f"signal {number}"
