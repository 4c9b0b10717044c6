"""What people ask of the history while the daemon runs, or when none does. Nothing here writes or runs anything."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from minidbg.errors import MinidbgError
from minidbg.history import NAME, History, ReproState, Result
from minidbg.printable import moment, plural, printable
from minidbg.watch.lock import hidden_path, is_stopped, living_holder
from minidbg.watch.recorder import flip_facts, revision_text
from minidbg.watch.repros import Repro, home_of, name_of, read_repros
from minidbg.watch.states import is_expected

Row = dict[str, Any]


@contextmanager
def history_in(folder: Path) -> Iterator[History | None]:
    """The history of a repro folder, None when there is none yet."""
    try:
        opened = History.open(hidden_path(folder) / NAME, readonly=True)
    except FileNotFoundError:
        yield None
        return
    with opened:
        yield opened


def rows_of(folder: Path) -> list[Row]:
    """One row for each repro and device; a repro that was never run has one without a verdict."""
    home = home_of([folder])
    seen: dict[str, list[ReproState | None]] = {}
    with history_in(home) as found:
        for (name, _), state in sorted(found.states().items()) if found else ():
            seen.setdefault(name, []).append(state)
    repros = read_repros([folder], home).items()
    return [row_of(repro, state) for name, repro in repros for state in seen.get(name, [None])]


def row_of(repro: Repro, state: ReproState | None) -> Row:
    """What ``minidbg list`` tells of a repro on a device."""
    row: Row = {
        "repro": repro.name, "path": str(repro.path), "device": state.device if state else repro.device,
        "kind": None if repro.damage else str(repro.kind), "backend": repro.backend, "expect": str(repro.expect),
        "verdict": None, "since": None, "seen": None, "reason": repro.damage,
    }  # fmt: skip
    if state is not None and not repro.damage:
        row |= {
            "verdict": str(state.verdict), "since": state.since, "seen": state.seen, "runs": state.runs,
            "failures": state.failures, "expected": is_expected(state.verdict, repro.expect),
            "outdated": state.script != repro.digest, "reason": state.reason,
        }  # fmt: skip
    return row


def list_text(rows: Sequence[Row]) -> str:
    if not rows:
        return "no repros"
    width, column = (max(len(row[name]) for row in rows) for name in ("repro", "device"))
    lines = []
    for row in rows:
        verdict = "damaged" if row["kind"] is None else row["verdict"] or "not seen yet"
        if row.get("outdated"):
            verdict += " (before an edit)"
        since = f"since {moment(row['since'])}" if row["since"] else ""
        unexpected = "" if row.get("expected", True) else f"  header expects {row['expect']}"
        what = f"{row['kind'] or ''} in {row['backend']}" if row["kind"] else row["reason"]
        lines.append(
            f"{row['repro']:<{width}}  {row['device']:<{column}} {verdict:<13} {since:<23} {what}{unexpected}".rstrip()
        )
    return printable("\n".join(lines))


def status_of(folder: Path) -> Row:
    """Whether a daemon watches the folder, and its figures."""
    home = home_of([folder])
    holder = living_holder(home)
    counts: dict[str, int] = {}
    for row in rows_of(home):
        verdict = "damaged" if row["kind"] is None else row["verdict"] or "not seen"
        counts[verdict] = counts.get(verdict, 0) + 1
    with history_in(home) as found:
        sweeps = found.sweeps(1) if found else []
    last = sweeps[0] if sweeps else None
    end = "interrupted" if last and last.end == "running" and not holder else last and last.end
    return {
        "folder": str(home), "running": bool(holder), "stopped": bool(holder) and is_stopped(holder),
        **{name: holder.get(name) for name in ("pid", "host", "started")},
        "verdicts": counts,
        "last_sweep": last and last.id, "last_sweep_started": last and last.started, "last_sweep_end": end,
        "revision": revision_text(last.revisions) if last else "",
    }  # fmt: skip


def status_text(found: Row) -> str:
    if found["running"]:
        head = f"{found['folder']} is watched by process {found['pid']} on {found['host']} since {moment(found['started'])}"
        if found["stopped"]:
            head += f", which is stopped: nothing is judged until it goes on ('kill -CONT {found['pid']}')"
    else:
        head = f"{found['folder']} is not being watched; 'minidbg watch {found['folder']}' does"
    lines = [head]
    if found["last_sweep"] is not None:
        at = f" at {found['revision']}" if found["revision"] else ""
        lines.append(
            f"last sweep: {found['last_sweep']}, {moment(found['last_sweep_started'])}, {found['last_sweep_end']}{at}"
        )
    counts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(found["verdicts"].items()))
    lines.append(f"repros: {counts or 'none'}")
    return printable("\n".join(lines))


def history_of(path: Path, limit: int) -> list[Row]:
    """The flips below a folder, newest first; of a single repro its runs after them. Raises MinidbgError without a history."""
    home = home_of([path])
    name = None if path.is_dir() else name_of(path, home)
    with history_in(home) as found:
        if found is None:
            raise MinidbgError(f"no history in {home}; 'minidbg watch {home}' begins one")
        flips = [
            {"entry": "flip", "at": flip.at, **flip_facts(found, flip)}
            for flip in found.flips(name, limit=limit)
        ]
        runs = found.results(name, limit=limit) if name is not None else []
        return flips + [result_row(sweep, result) for sweep, result in runs]


def result_row(sweep: int, result: Result) -> Row:
    return {
        "entry": "run", "at": result.at, "repro": result.repro, "device": result.device, "sweep": sweep,
        "verdict": str(result.outcome.verdict), "purpose": result.purpose, "stale": result.stale,
        "seconds": round(result.outcome.seconds, 3), "reason": result.outcome.reason, "environment": result.environment,
        "torch": result.torch,
    }  # fmt: skip


def history_text(entries: Sequence[Row]) -> str:
    """Flips one a line, then runs, those that follow each other with the same verdict on one line."""
    flips = [entry_line(entry) for entry in entries if entry["entry"] == "flip"]
    runs = [entry for entry in entries if entry["entry"] == "run"]
    alike = itertools.groupby(runs, lambda run: (run["verdict"], run["device"], run["stale"]))
    lines = [entry_line(run[0], len(run)) for _, group in alike if (run := list(group))]
    return printable("\n".join([*(flips or [plural(0, "flip")]), *lines]))


def entry_line(entry: Row, times: int = 1) -> str:
    """A flip or some runs in words."""
    at, where = moment(entry["at"]), f"{entry['repro']} [{entry['device']}]"
    if entry["entry"] == "run":
        stale = ", stale: the code changed meanwhile" if entry["stale"] else ""
        what = entry["purpose"] if times == 1 else f"the last of {times} runs"
        return f"{at}  {entry['verdict']:<11} {where} sweep {entry['sweep']}, {what}{stale}"
    text = f"{at}  {entry['kind']:<11} {where} {entry['before']} -> {entry['after']}"
    if entry["first_after"]:
        text += f" between {entry['last_before'] or '?'} and {entry['first_after']}"
    if entry["files"]:
        text += f" ({', '.join(entry['files'][:3])}{', ...' if len(entry['files']) > 3 else ''})"
    return text
