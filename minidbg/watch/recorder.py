"""Answers go into the history and are then told; a flip is told once, also when we were killed in between."""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from minidbg.failure import Verdict
from minidbg.history import Flip, History, ReproState, Result, Revision
from minidbg.watch.announce import Announcer
from minidbg.watch.repros import Repro
from minidbg.watch.states import FAILING, NOT_JUDGED, Seen, is_expected, is_fallback
from minidbg.watch.sweep import JobAnswer

HOOK_SECONDS = 60.0
HOOK_GRACE_S = 5.0
TRY_DISK_S = 30.0
MESSAGE_CHARACTERS = 1000


@dataclass(slots=True)
class Recorder:
    """Writes what sweeps come to, and keeps the present states in memory."""

    history: History
    announce: Announcer
    commands: tuple[str, ...] = ()
    """Shell commands that are given each flip."""
    hook_folder: Path = field(default_factory=Path.cwd)
    states: dict[tuple[str, str], ReproState] = field(default_factory=dict)
    torch: str = ""
    """Its version, stored with each result."""
    torches: dict[str, str] = field(default_factory=dict)
    """Of machines that have another one, by the key of their environment."""
    hooks: list[threading.Thread] = field(default_factory=list)
    next_try: float | None = None
    """When to try to write the history again; None while it can be written."""

    def commit(
        self, answers: Iterable[JobAnswer], repros: Mapping[str, Repro], sweep: int, *, quiet: bool = False
    ) -> None:
        """Store the answers, then tell them, flips last; with ``quiet`` the flips alone."""
        answers = list(answers)
        flips = self.history.atomically(
            lambda: [flip for answer in answers if (flip := self.store(answer)) is not None]
        )
        for answer in () if quiet else answers:
            self.tell(answer, repros[answer.job.repro], sweep)
        for flip in flips:
            self.tell_flip(flip, repros.get(flip.repro))

    def store(self, answer: JobAnswer) -> Flip | None:
        """Write one answer; its flip, if it has one."""
        for seen in answer.runs:
            self.store_run(answer.job.repro, answer.job.device, seen, stale=False)
        state, flip = answer.settled.state, answer.settled.flip
        if state is not None and answer.runs:
            self.history.put_state(state)
            self.states[state.repro, state.device] = state
        return replace(flip, id=self.history.add_flip(flip)) if flip else None

    def store_run(self, repro: str, device: str, seen: Seen, *, stale: bool) -> None:
        outcome = replace(seen.outcome, message=seen.outcome.message[:MESSAGE_CHARACTERS])
        result = Result(
            repro, device, seen.at, outcome, str(seen.purpose), seen.script, seen.environment,
            self.torches.get(seen.environment, self.torch), stale,
        )  # fmt: skip
        self.history.add_result(seen.sweep, result)

    def tell(self, answer: JobAnswer, repro: Repro, sweep: int) -> None:
        settled, runs = answer.settled, answer.runs
        verdict = settled.state.verdict if settled.state and runs else None
        if runs and settled.standing in NOT_JUDGED:
            verdict = None if is_fallback(runs[-1].outcome) else runs[-1].verdict
        data: dict[str, Any] = {
            "sweep": sweep, "repro": answer.job.repro, "device": answer.job.device, "standing": str(settled.standing),
            "verdict": str(verdict) if verdict else None, "seconds": round(runs[0].seconds, 3) if runs else 0.0,
            "runs": len(runs), "muted": repro.muted, "reason": answer.reason,
            "message": runs[-1].outcome.message[:MESSAGE_CHARACTERS] if runs else "",
        }  # fmt: skip
        if settled.state and verdict is settled.state.verdict:
            data["expected"] = is_expected(settled.state.verdict, repro.expect)
            data["since"] = settled.state.since
        self.announce("result", **data)

    def tell_flip(self, flip: Flip, repro: Repro | None) -> None:
        """Announce a flip, run the hook, and note that it was told."""
        path, muted = (str(repro.path), repro.muted) if repro else (flip.repro, "")
        event = {**flip_facts(self.history, flip), "path": path, "muted": muted, "torch": self.torch}
        self.announce("flip", **event)
        self.hooks = [thread for thread in self.hooks if thread.is_alive()]
        self.hooks += [run_hook(one, event, self.hook_folder) for one in self.commands if not muted]
        self.history.mark_announced(flip.id)

    def take_up(self, environments: Collection[str]) -> None:
        """Go on from what was last seen in these environments, where what was seen last of all was in another."""
        for state in self.history.every_state():
            key = state.repro, state.device
            if state.environment in environments and self.states[key].environment not in environments:
                self.states[key] = state

    def tell_forgotten_flips(self, repros: Mapping[str, Repro]) -> None:
        """Announce the flips that a killed daemon had stored and not told."""
        for flip in reversed(self.history.flips(unannounced=True)):
            self.tell_flip(flip, repros.get(flip.repro))

    def lost_its_disk(self, now: float) -> bool:
        """Say when the history cannot be written, and when it can again; in between all is kept in memory. Whether that began now."""
        if self.next_try is None and self.history.trouble:
            self.next_try = now + TRY_DISK_S
            self.announce("disk_full", path=str(self.history.path), reason=self.history.trouble)
            return True
        if self.next_try is not None and now >= self.next_try:
            self.next_try = None if self.history.write_back() else now + TRY_DISK_S
            if self.next_try is None:
                text = f"{self.history.path} can be written again; nothing was lost"
                self.announce("notice", text=text)
        return False

    def close(self) -> None:
        """Give hooks that have just begun a moment to end, and write what could not be written."""
        for thread in self.hooks:
            thread.join(timeout=HOOK_GRACE_S)
        if self.history.trouble and not self.history.write_back():
            text = f"what was seen since the disk was full is lost: {self.history.path}"
            self.announce("notice", text=text)
        self.history.close()


def flip_facts(history: History, flip: Flip) -> dict[str, Any]:
    """A flip, the two sweeps and revisions that it lies between, and which files had changed."""
    after, before = history.sweep(flip.sweep), history.sweep(flip.last_before)
    return {
        "repro": flip.repro, "device": flip.device, "kind": flip.kind, "before": str(flip.before), "after": str(flip.after),
        "sweep": flip.sweep, "last_before_sweep": flip.last_before, "files": list(after.files)[:20] if after else [],
        "last_before": revision_text(before.revisions if before else {}),
        "first_after": revision_text(after.revisions if after else {}),
    }  # fmt: skip


def revision_text(revisions: Mapping[str, Revision]) -> str:
    """``1a2b3c4d5e+0f1e2d3c`` for one repository; of several, with their names."""
    if len(revisions) == 1:
        return str(next(iter(revisions.values())))
    return ", ".join(f"{Path(root).name} {revision}" for root, revision in sorted(revisions.items()))


def run_hook(command: str, event: Mapping[str, Any], folder: Path) -> threading.Thread:
    """Give the event to a shell command, beside us; one that fails or hangs is its own affair."""
    data = json.dumps(event).encode()

    def run() -> None:
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            subprocess.run(
                command, shell=True, input=data, cwd=folder, timeout=HOOK_SECONDS, check=False,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip

    thread = threading.Thread(target=run, name="minidbg-hook", daemon=True)
    thread.start()
    return thread


# What the answers of a sweep come to


def exit_status(answers: Iterable[JobAnswer], repros: dict[str, Repro], *, unexpected_only: bool) -> int:
    """What ``--once`` exits with: see DESIGN's table; with ``unexpected_only`` 1 when a header is contradicted."""
    answers = list(answers)
    verdicts = {state.verdict for answer in answers if (state := judged(answer)) is not None}
    if not verdicts:
        return 125
    if unexpected_only:
        return 1 if contradictions(answers, repros) else 0
    return 1 if verdicts & {Verdict.REPRODUCES, Verdict.FLAKY} else 3 if verdicts & FAILING else 0


def judged(answer: JobAnswer) -> ReproState | None:
    """The state that an answer comes to; None when nothing could be said."""
    return None if answer.settled.standing in NOT_JUDGED else answer.settled.state


def contradictions(answers: Iterable[JobAnswer], repros: Mapping[str, Repro]) -> list[ReproState]:
    """The states that are not what the repro's header expects, those of muted repros left out."""
    states = [state for answer in answers if (state := judged(answer)) is not None]
    heard = [state for state in states if not repros[state.repro].muted]
    return [state for state in heard if not is_expected(state.verdict, repros[state.repro].expect)]
