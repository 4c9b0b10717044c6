"""From how a process ended to what that says about a repro."""

from __future__ import annotations

from dataclasses import dataclass, replace

from minidbg.failure import Outcome, Signature, Verdict
from minidbg.processes import ChildResult, deaths
from minidbg.processes.deaths import last_json, signal_name
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


def outcome_of(repro: Repro, device: str, ended: Ended) -> Outcome:
    """The outcome of a run of ``repro``: what it printed, else what its death says against what its header expects."""
    result = ChildResult(
        exit_status=ended.status, signal=ended.signal, timed_out=ended.timed_out,
        stdout=ended.stdout, stderr_tail=ended.stderr, seconds=ended.seconds,
    )  # fmt: skip
    outcome = deaths.outcome_of(result, expected_signature(repro), limit_s=round(ended.seconds))
    return replace(outcome, device=device)


def expected_signature(repro: Repro) -> Signature | None:
    """The signature in the header; one that only names the kind when it has none."""
    table = repro.table.get("signature")
    try:
        return Signature.from_table(table) if table else Signature(repro.kind)
    except (KeyError, ValueError, TypeError):
        return Signature(repro.kind)


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
