"""From how a process ended to what that says about a repro."""

from __future__ import annotations

import json
import signal as signals
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from minidbg.failure import Direction, Kind, Outcome, Signature, Verdict
from minidbg.watch.pool import Ended
from minidbg.watch.repros import Repro


@dataclass(frozen=True, slots=True)
class CanaryAnswer:
    """Whether a backend handles any single op. ``answer``: passes, missing or broken."""

    answer: str
    reason: str = ""
    fallback: bool = False
    """Whether the backend gave even the single op back for eager to run."""


def is_fallback(outcome: Outcome) -> bool:
    """Whether the backend gave the graph back as it was: eager ran it, and neither failed nor fixed anything."""
    return outcome.verdict is Verdict.GONE and outcome.reason.startswith("fallback:")


def last_json(text: str) -> Mapping[str, Any] | None:
    """The last line that is a JSON object; scripts and compilers may print other lines."""
    for line in reversed(text.splitlines()):
        if line.startswith("{"):
            try:
                found = json.loads(line)
            except ValueError:
                continue
            if isinstance(found, dict):
                return found
    return None


def outcome_of(repro: Repro, device: str, ended: Ended) -> Outcome:
    """The outcome of a run of ``repro``: what it printed, else what its death says."""
    said = last_json(ended.stdout)
    if said is not None and not ended.timed_out:
        try:
            return replace(Outcome.from_json(said), device=device)
        except (KeyError, ValueError, TypeError, AttributeError):
            pass
    return replace(without_answer(repro, ended), seconds=ended.seconds, device=device)


def without_answer(repro: Repro, ended: Ended) -> Outcome:
    """What a run that printed no verdict has shown, against what its header expects."""
    phases = [line.removeprefix("phase ") for line in ended.stdout.splitlines() if line.startswith("phase ")]
    words = ended.stderr[-4000:]
    died_of = "no answer in time" if ended.timed_out else f"died of {signal_name(ended.signal)}"
    expected = expected_signature(repro)
    if (ended.timed_out or ended.signal is not None) and phases[-1:] == ["eager"]:
        return Outcome(Verdict.INVALID, reason=f"eager itself: {died_of}", message=words)
    direction = Direction.BACKWARD if phases and phases[-1].endswith("backward") else Direction.FORWARD
    if ended.timed_out:
        signature = Signature(Kind.HANG, direction)
        found = Outcome(
            Verdict.TIMEOUT, signature, reason=f"no answer within {ended.seconds:.0f} s", message=words
        )
        return found.judged_against(expected)
    if ended.signal is not None:
        signature = Signature(Kind.CRASH, direction, types=(signal_name(ended.signal),))
        found = Outcome(Verdict.CRASHED, signature, reason=died_of, message=words, signal=ended.signal)
        return found.judged_against(expected)
    if phases and phases[-1] != "eager" and repro.kind is Kind.CRASH:
        # a backend that calls exit() under --child has ended the process as surely as a signal would
        signature = Signature(Kind.CRASH, direction, types=(f"exit status {ended.status}",))
        return Outcome(Verdict.CRASHED, signature, reason=f"exit status {ended.status}").judged_against(
            expected
        )
    last = next((line for line in reversed(words.splitlines()) if line.strip()), "")
    verdict = Verdict.SKIPPED if ended.status == 125 else Verdict.INVALID
    return Outcome(
        verdict, reason=f"exit status {ended.status} without a verdict: {last}"[:300], message=words
    )


def expected_signature(repro: Repro) -> Signature | None:
    """The signature in the header; one that only names the kind when it has none."""
    table = repro.table.get("signature")
    try:
        return Signature.from_table(table) if table else Signature(repro.kind)
    except (KeyError, ValueError, TypeError):
        return Signature(repro.kind)


def signal_name(number: int | None) -> str:
    """``SIGSEGV`` for 11."""
    try:
        return signals.Signals(number or 0).name
    except ValueError:
        return f"signal {number}"


def canary_of(ended: Ended) -> CanaryAnswer:
    """What a run of ``canary_script`` says."""
    said = last_json(ended.stdout)
    if said is not None and not ended.timed_out and "canary" in said:
        return CanaryAnswer(str(said["canary"]), str(said.get("reason", "")), bool(said.get("fallback")))
    if ended.timed_out:
        return CanaryAnswer("broken", f"a single op did not come back within {ended.seconds:.0f} s")
    if ended.signal is not None:
        return CanaryAnswer("broken", f"a single op died of {signal_name(ended.signal)}")
    return CanaryAnswer("broken", f"a single op ended with exit status {ended.status}")
