"""What people ask of a repro folder beside the daemon or without one: list, status, history.
Nothing here writes or runs anything."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from minidbg.core.errors import MinidbgError
from minidbg.core.outcome import is_expected
from minidbg.core.script_header import HIDDEN
from minidbg.core.text import moment, plural, printable
from minidbg.history import HISTORY_FILE, History, Observation, State
from minidbg.watch.events import Flipped, Json, flip_event, revision_text
from minidbg.watch.repros import home_of, living_holder, read_repros, repro_name


def history_in(folder: Path) -> contextlib.AbstractContextManager[History | None]:
    try:
        return History(folder / HIDDEN / HISTORY_FILE, readonly=True)
    except FileNotFoundError:
        return contextlib.nullcontext()


# list


def status_rows(folder: Path) -> list[Json]:
    """One row for each repro and device; a repro that was never run has one without a verdict."""
    home = home_of([folder])
    seen: dict[str, list[State | None]] = {}
    with history_in(home) as found:
        for (name, _), known in sorted(found.states().items()) if found else ():
            seen.setdefault(name, []).append(known)
    rows: list[Json] = []
    for name, repro in read_repros([folder], home, parsed=False).items():
        for state in seen.get(name, [None]):
            row: Json = {
                "repro": name, "path": str(repro.path),
                "device": state.device if state else repro.spec.device,
                "kind": None if repro.damage else str(repro.spec.expected.kind),
                "backend": repro.spec.backend.name, "expect": str(repro.expect), "verdict": None,
                "since": None, "seen": None, "reason": repro.damage,
            }  # fmt: skip
            rows.append(row)
            if state is not None and not repro.damage:
                row |= {
                    "verdict": str(state.verdict), "since": state.since, "seen": state.seen,
                    "runs": state.runs, "failures": state.failures,
                    "expected": is_expected(state.verdict, repro.expect),
                    "outdated": state.script != repro.digest, "reason": state.reason,
                }  # fmt: skip
            elif not repro.damage:
                with contextlib.suppress(OSError):
                    row["written"] = repro.path.stat().st_mtime
    return rows


def list_text(rows: Sequence[Json]) -> str:
    table = []
    for row in rows:
        verdict = standing_of(row) + (" (before an edit)" if row.get("outdated") else "")
        since = f"since {moment(row['since'])}" if row["since"] else ""
        since = f"written {moment(row['written'])}" if row.get("written") else since
        unexpected = "" if row.get("expected", True) else f"; header expects {row['expect']}"
        what = f"{row['kind']} in {row['backend']}" if row["kind"] else row["reason"]
        table.append((row["repro"], row["device"], verdict, since, f"{what}{unexpected}"))
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [
        "  ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True) if width).rstrip()
        for cells in table
    ]
    return printable("\n".join(lines)) or "no repros"


def standing_of(row: Json) -> str:
    if row["kind"] is None:
        return "damaged"
    return row["verdict"] or "not seen"


# status


def status_of(folder: Path) -> Json:
    home = home_of([folder])
    holder = living_holder(home)
    with history_in(home) as found:
        last = next(iter(found.sweeps(1)), None) if found else None
    end = "interrupted" if last and last.end == "running" and not holder else last and last.end
    return {
        "folder": str(home), "running": bool(holder), "stopped": bool(holder.get("stopped")),
        **{name: holder.get(name) for name in ("pid", "host", "started")},
        "verdicts": dict(Counter(map(standing_of, status_rows(home)))),
        "last_sweep": last and last.id, "last_sweep_started": last and last.started,
        "last_sweep_end": end, "revision": revision_text(last.revisions) if last else "",
    }  # fmt: skip


def status_text(found: Json) -> str:
    if found["running"]:
        pid, since = found["pid"], moment(found["started"])
        head = f"{found['folder']} is watched by process {pid} on {found['host']} since {since}"
        if found["stopped"]:
            head += f", which is stopped: nothing is judged until it goes on ('kill -CONT {pid}')"
    else:
        head = f"{found['folder']} is not watched; start with: minidbg watch {found['folder']}"
    lines = [head]
    if found["last_sweep"] is not None:
        at = f" at {found['revision']}" if found["revision"] else ""
        started = moment(found["last_sweep_started"])
        lines.append(f"last sweep: {found['last_sweep']}, {started}, {found['last_sweep_end']}{at}")
    counts = ", ".join(f"{count:,} {name}" for name, count in sorted(found["verdicts"].items()))
    return printable("\n".join([*lines, f"repros: {counts or 'none'}"]))


# history


PastRows = tuple[list[Flipped], list[Observation]]
"""Flips, and runs; the newest first."""


def history_of(path: Path, limit: int) -> PastRows:
    """What has flipped in a folder, or of one repro, and then its runs too. Raises MinidbgError
    where there is no history."""
    home = home_of([path])
    name = None if path.is_dir() else repro_name(path, home)
    with history_in(home) as found:
        if found is None:
            raise MinidbgError(f"no history in {home}; 'minidbg watch {home}' begins one")
        flips = [flip_event(found, flip, home) for flip in found.flips(name, limit=limit)]
        return flips, found.observations(name, limit=limit) if name is not None else []


def history_rows(past: PastRows) -> list[Json]:
    flips, runs = past
    names = ("at", "repro", "device", "sweep", "verdict", "purpose", "reason", "environment", "torch")  # fmt: skip
    return [
        *({"entry": "flip", **flip.to_json()} for flip in flips),
        *({"entry": "run", **{name: getattr(run, name) for name in names}, "seconds": round(run.seconds, 3)} for run in runs),
    ]  # fmt: skip


def history_text(past: PastRows) -> str:
    """Flips one a line, as told; then runs, those in a row with the same verdict on one line."""
    flips, runs = past
    lines = [f"{moment(flip.at)}  {flip.line()}" for flip in flips] or [plural(0, "flip")]
    for _, group in itertools.groupby(runs, lambda run: (run.verdict, run.device)):
        run, *others = group
        what = f"the last of {len(others) + 1} runs" if others else run.purpose
        where = f"{run.repro} [{run.device}] sweep {run.sweep}"
        lines.append(f"{moment(run.at)}  {run.verdict:<11} {where}, {what}")
    return printable("\n".join(lines))
