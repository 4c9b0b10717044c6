"""What the history holds, as values. Times are seconds since the epoch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from minidbg.core.outcome import Outcome, Verdict


@dataclass(frozen=True, slots=True)
class Revision:
    """What a repository held: its commit, and a digest of what was uncommitted (empty if clean)."""

    commit: str
    uncommitted: str = ""

    def __str__(self) -> str:
        return self.commit[:10] + (f"+{self.uncommitted[:8]}" if self.uncommitted else "")


@dataclass(frozen=True, slots=True)
class SweepRecord:
    """All jobs after a change of ``files``; ``code`` is a digest of all watched ones. ``end``:
    running, complete, superseded, interrupted or build_failed."""

    id: int
    started: float
    ended: float | None
    end: str
    code: str
    files: tuple[str, ...]
    revisions: Mapping[str, Revision]
    """By the root of the source repository."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One run of one repro on one device: what it showed, on what. ``purpose``: run or confirm."""

    repro: str
    device: str
    at: float
    outcome: Outcome
    purpose: str
    script: str
    """Digest of the repro's files."""
    environment: str
    """A machine's device: verdicts seen on equal ones may be compared, whatever torch it was."""
    torch: str = ""
    """Torch's version, which is code under test rather than part of the machine."""
    stale: bool = False
    """Whether the code changed while it ran: kept for the record, judges nothing."""
    sweep: int = 0
    # What only the sweep itself needs to know, and the history does not keep: see State.
    code: str = ""
    loaded: str = ""
    files: tuple[str, ...] = ()
    fresh: bool = False
    """Whether it ran in a fresh interpreter rather than in a warm worker."""

    @property
    def verdict(self) -> Verdict:
        return self.outcome.verdict

    @property
    def seconds(self) -> float:
        return self.outcome.seconds

    @property
    def reason(self) -> str:
        return self.outcome.reason or self.outcome.message.partition("\n")[0][:200]


@dataclass(frozen=True, slots=True)
class State:
    """The last confirmed verdict of a repro on a device, and what it was seen with."""

    repro: str
    device: str
    verdict: Verdict
    since: float
    """When this verdict was first seen."""
    seen: float
    script: str
    environment: str
    code: str
    """Digest of all watched files at the last run."""
    loaded: str = ""
    """Digest of those watched files that the last run had loaded; empty when not known."""
    files: tuple[str, ...] = ()
    """The watched files that the last run had loaded."""
    seconds: float = 0.0
    last_sweep: int | None = None
    """The last sweep that showed this verdict."""
    runs: int = 0
    """Runs since this verdict was first seen or last contradicted, and how many of them failed."""
    failures: int = 0
    streak: int = 0
    """Of a flaky repro: how many of the last runs in a row gave ``streak_verdict``."""
    streak_verdict: Verdict | None = None
    disagreements: int = 0
    """How many times in a row a warm worker was contradicted by fresh interpreters."""
    reason: str = ""

    @property
    def fresh(self) -> bool:
        """Whether only fresh interpreters are asked, since warm workers do not show the same."""
        return self.disagreements >= 2


@dataclass(frozen=True, slots=True)
class Flip:
    """A confirmed change of a verdict. ``last_before`` and ``sweep``: the sweeps on either side."""

    repro: str
    device: str
    at: float
    kind: str
    before: Verdict
    after: Verdict
    sweep: int
    last_before: int | None
    id: int = 0
