"""The history of a repro folder: what sweeps come to goes into it, and people ask for it.

Decisions are stored and then told; a flip is told once, also when we were killed in between.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from minidbg.history import NAME, Flip, History, Observation, Revision, State
from minidbg.watch.announce import Announcer
from minidbg.watch.events import Flipped, Json, Judged, in_words
from minidbg.watch.repros import Repro, hidden_path, home_of, living_holder, name_of, read_repro, read_repros
from minidbg.watch.states import FAILING, NOT_JUDGED, Decision
from minidbg.words.errors import MinidbgError
from minidbg.words.files import LOG_LIMIT_BYTES, read_regular
from minidbg.words.json_lines import json_objects
from minidbg.words.outcome import Verdict, is_expected
from minidbg.words.script_header import HIDDEN
from minidbg.words.text import moment, plural, printable

VERIFIED = "verified.jsonl"
"""Written by ``repro.folder``, which needs torch."""
MESSAGE_CHARACTERS = 1000


@dataclass(slots=True)
class Recorder:
    """Writes what sweeps come to, and keeps the present states in memory."""

    history: History
    announce: Announcer
    states: dict[tuple[str, str], State] = field(default_factory=dict)
    torch: str = ""
    """Its version, stored with each result."""

    def commit(self, decisions: Sequence[Decision], repros: Mapping[str, Repro], sweep: int) -> None:
        with self.history.transaction():
            flips = [flip for decision in decisions if (flip := self.store(decision)) is not None]
        for decision in decisions:
            self.tell_verdict(decision, repros[decision.job.repro], sweep)
        for flip in flips:
            self.tell_flip(flip, repros.get(flip.repro))

    def store(self, decision: Decision) -> Flip | None:
        for run in decision.runs:
            self.store_run(run)
        state, flip = decision.state, decision.flip
        if state is not None and decision.runs:
            self.history.put_state(state)
            self.states[state.repro, state.device] = state
        return replace(flip, id=self.history.add_flip(flip)) if flip else None

    def store_run(self, run: Observation) -> None:
        outcome = replace(run.outcome, message=run.outcome.message[:MESSAGE_CHARACTERS])
        self.history.add_observation(replace(run, outcome=outcome, torch=self.torch))

    def tell_verdict(self, decision: Decision, repro: Repro, sweep: int) -> None:
        state, runs = decision.state, decision.runs
        verdict = state.verdict if state and runs else None
        if runs and decision.transition in NOT_JUDGED:
            verdict = runs[-1].verdict
        if state is not None and state.verdict is not verdict:
            state = None  # the verdict told is not the one that stands
        self.announce(Judged(
            sweep, repro.name, decision.job.device, decision.transition, verdict,
            seconds=round(runs[0].seconds, 3) if runs else 0.0, runs=len(runs), reason=decision.reason,
            message=runs[-1].outcome.message[:MESSAGE_CHARACTERS] if runs else "",
            expected=is_expected(state.verdict, repro.expect) if state else None, since=state.since if state else None,
        ))  # fmt: skip

    def tell_flip(self, flip: Flip, repro: Repro | None) -> None:
        """Announce a flip, and note that it was told."""
        path = str(repro.path) if repro else flip.repro
        self.announce(replace(flipped(self.history, flip), path=path, torch=self.torch))
        self.history.mark_announced(flip.id)

    def tell_forgotten_flips(self, repros: Mapping[str, Repro]) -> None:
        """Announce the flips that a killed daemon had stored and not told."""
        for flip in reversed(self.history.flips(announced=False)):
            self.tell_flip(flip, repros.get(flip.repro))


def flipped(history: History, flip: Flip) -> Flipped:
    """A flip with the two sweeps and revisions that it lies between, and which files had changed."""
    after, before = history.sweep(flip.sweep), history.sweep(flip.last_before)
    return Flipped(
        flip.repro, flip.device, flip.kind, flip.before, flip.after, flip.sweep, flip.last_before,
        files=tuple(after.files[:20]) if after else (),
        last_before=revision_text(before.revisions if before else {}),
        first_after=revision_text(after.revisions if after else {}),
        at=flip.at,
    )  # fmt: skip


def revision_text(revisions: Mapping[str, Revision]) -> str:
    """``1a2b3c4d5e+0f1e2d3c`` for one repository; of several, with their names."""
    if len(revisions) == 1:
        return str(next(iter(revisions.values())))
    return ", ".join(f"{Path(root).name} {revision}" for root, revision in sorted(revisions.items()))


# What the decisions of a sweep come to


def exit_status(decisions: Iterable[Decision], repros: dict[str, Repro], *, unexpected_only: bool) -> int:
    """What ``--once`` exits with: see DESIGN's table; with ``unexpected_only`` 1 when a header is contradicted."""
    states = judged_states(decisions)
    verdicts = {state.verdict for state in states}
    if not verdicts:
        return 125
    if unexpected_only:
        return 1 if contradictions(states, repros) else 0
    return 1 if verdicts & {Verdict.REPRODUCES, Verdict.FLAKY} else 3 if verdicts & FAILING else 0


def judged_states(decisions: Iterable[Decision]) -> list[State]:
    return [one.state for one in decisions if one.state is not None and one.transition not in NOT_JUDGED]


def contradictions(states: Iterable[State], repros: Mapping[str, Repro]) -> list[State]:
    return [state for state in states if not is_expected(state.verdict, repros[state.repro].expect)]


# What people ask of the history while the daemon runs, or when none does. Nothing here writes or runs anything.


@contextmanager
def history_in(folder: Path) -> Iterator[History | None]:
    try:
        opened = History(hidden_path(folder) / NAME, readonly=True)
    except FileNotFoundError:
        yield None
        return
    with opened:
        yield opened


def rows_of(folder: Path, kinds: Collection[str] = ()) -> list[Json]:
    """One row for each repro, or those of these ``kinds``, and device; a repro that was never run has one without a verdict."""
    home = home_of([folder])
    seen: dict[str, list[State | None]] = {}
    with history_in(home) as found:
        for (name, _), state in sorted(found.states().items()) if found else ():
            seen.setdefault(name, []).append(state)
    verified = verified_in(home)
    return [
        row_of(repro, state, verified.get(name))
        for name, repro in read_repros([folder], home).items()
        for state in seen.get(name, [None])
        if not kinds or (not repro.damage and repro.spec.expected.kind in kinds)
    ]


def states_of(path: Path) -> list[State]:
    home = home_of([path])
    repro = read_repro(path, name_of(path, home))
    with history_in(home) as found:
        states = found.states().values() if found is not None and repro is not None else ()
        return [one for one in states if repro and (one.repro, one.script) == (repro.name, repro.digest)]


def verified_in(home: Path) -> Mapping[str, Mapping[str, Any]]:
    """When the repros of ``home`` were published, and the digest of what was: each had just failed in a fresh interpreter."""
    try:
        lines = read_regular(home / HIDDEN / VERIFIED, LOG_LIMIT_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return {}
    kinds = {"repro": str, "at": float, "digest": str}
    sound = (
        one for one in json_objects(lines) if all(type(one.get(name)) is kind for name, kind in kinds.items())
    )
    return {one["repro"]: one for one in sound}


def row_of(repro: Repro, state: State | None, verified: Mapping[str, Any] | None = None) -> Json:
    row: Json = {
        "repro": repro.name, "path": str(repro.path), "device": state.device if state else repro.spec.device,
        "kind": None if repro.damage else str(repro.spec.expected.kind), "backend": repro.spec.backend.name,
        "expect": str(repro.expect), "verdict": None, "since": None, "seen": None, "reason": repro.damage,
    }  # fmt: skip
    if state is not None and not repro.damage:
        row |= {
            "verdict": str(state.verdict), "since": state.since, "seen": state.seen, "runs": state.runs,
            "failures": state.failures, "expected": is_expected(state.verdict, repro.expect),
            "outdated": state.script != repro.digest, "reason": state.reason,
        }  # fmt: skip
    elif verified is not None and not repro.damage:
        row |= {"verified": verified["at"], "outdated": verified["digest"] != repro.digest}
    return row


def list_text(rows: Sequence[Json]) -> str:
    if not rows:
        return "no repros"
    table = [row_cells(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [
        "  ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True) if width).rstrip()
        for cells in table
    ]
    return printable("\n".join(lines))


def row_cells(row: Json) -> tuple[str, ...]:
    verdict = IN_LIST.get(standing := standing_of(row), standing)
    if row.get("outdated"):
        verdict += " (before an edit)"
    since = f"since {moment(row['since'])}" if row["since"] else ""
    since = f"at {moment(row['verified'])}" if row.get("verified") else since
    unexpected = "" if row.get("expected", True) else f"; header expects {row['expect']}"
    what = f"{row['kind'] or ''} in {row['backend']}" if row["kind"] else row["reason"]
    return row["repro"], row["device"], verdict, since, f"{what}{unexpected}"


def standing_of(row: Json) -> str:
    """The verdict of a row, or why it has none: nobody has run the repro since it was verified, and written."""
    if row["kind"] is None:
        return "damaged"
    return row["verdict"] or ("verified" if row.get("verified") else "not seen")


def status_of(folder: Path) -> Json:
    home = home_of([folder])
    holder = living_holder(home)
    counts: dict[str, int] = {}
    for row in rows_of(home):
        verdict = standing_of(row)
        counts[verdict] = counts.get(verdict, 0) + 1
    with history_in(home) as found:
        sweeps = found.sweeps(1) if found else []
    last = sweeps[0] if sweeps else None
    end = "interrupted" if last and last.end == "running" and not holder else last and last.end
    return {
        "folder": str(home), "running": bool(holder), "stopped": bool(holder.get("stopped")),
        **{name: holder.get(name) for name in ("pid", "host", "started")},
        "verdicts": counts,
        "last_sweep": last and last.id, "last_sweep_started": last and last.started, "last_sweep_end": end,
        "revision": revision_text(last.revisions) if last else "",
    }  # fmt: skip


def status_text(found: Json) -> str:
    if found["running"]:
        head = f"{found['folder']} is watched by process {found['pid']} on {found['host']} since {moment(found['started'])}"
        if found["stopped"]:
            head += f", which is stopped: nothing is judged until it goes on ('kill -CONT {found['pid']}')"
    else:
        head = f"{found['folder']} is not watched; start with: minidbg watch {found['folder']}"
    lines = [head]
    if found["last_sweep"] is not None:
        at = f" at {in_words(found['revision'])}" if found["revision"] else ""
        lines.append(
            f"last sweep: {found['last_sweep']}, {moment(found['last_sweep_started'])}, {found['last_sweep_end']}{at}"
        )
    counts = ", ".join(counted(count, verdict) for verdict, count in sorted(found["verdicts"].items()))
    lines.append(f"repros: {counts or 'none'}")
    return printable("\n".join(lines))


def counted(count: int, standing: str) -> str:
    """``4 still reproduce``, ``1 gone``: so many repros and where they stand."""
    one, many = IN_COUNTS.get(standing, (standing, standing))
    return f"{count:,} {one if count == 1 else many}"


NOT_SEEN = "not seen yet"
IN_LIST = {"not seen": NOT_SEEN}
"""What ``list`` calls a standing that is no verdict."""
IN_COUNTS = {
    "reproduces": ("still reproduces", "still reproduce"),
    "crashed": ("crashes", "crash"),
    "verified": ("verified when written", "verified when written"),
    "not seen": (NOT_SEEN, NOT_SEEN),
}


def flips_of(folder: Path, limit: int, name: str | None = None) -> list[Flipped]:
    with history_in(folder) as found:
        if found is None:
            raise MinidbgError(f"no history in {folder}; 'minidbg watch {folder}' begins one")
        return [flipped(found, flip) for flip in found.flips(name, limit=limit)]


Past = tuple[list[Flipped], list[Observation]]
"""Flips, and runs; the newest first."""


def history_of(path: Path, limit: int) -> Past:
    home = home_of([path])
    name = None if path.is_dir() else name_of(path, home)
    flips = flips_of(home, limit, name)
    with history_in(home) as found:
        return flips, found.observations(name, limit=limit) if found and name is not None else []


def history_rows(past: Past) -> list[Json]:
    flips, runs = past
    return [*(flip.history_row() for flip in flips), *(run.history_row() for run in runs)]


def history_text(past: Past) -> str:
    """Flips one a line, then runs, those that follow each other with the same verdict on one line."""
    flips, runs = past
    lines = [flip.history_line() for flip in flips] or [plural(0, "flip")]
    for _, group in itertools.groupby(runs, lambda run: (run.verdict, run.device, run.stale)):
        run, *others = group
        stale = ", stale: the code changed meanwhile" if run.stale else ""
        what = f"the last of {len(others) + 1} runs" if others else run.purpose
        where = f"{run.repro} [{run.device}]"
        lines.append(f"{moment(run.at)}  {run.verdict:<11} {where} sweep {run.sweep}, {what}{stale}")
    return printable("\n".join(lines))
