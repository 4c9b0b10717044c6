"""What people ask of a repro folder beside the daemon or without one: list, history.
Nothing here writes or runs anything."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from pathlib import Path

from minidbg.core.errors import MinidbgError
from minidbg.core.outcome import is_expected
from minidbg.core.script_header import HIDDEN
from minidbg.core.text import moment, plural, printable
from minidbg.history import HISTORY_FILE, History, Observation, State
from minidbg.watch.events import Flipped, Json, flip_event
from minidbg.watch.repros import home_of, read_repros, repro_name


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
        standing = "damaged" if row["kind"] is None else row["verdict"] or "not seen"
        verdict = standing + (" (before an edit)" if row.get("outdated") else "")
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


# history


def history_of(path: Path, limit: int) -> tuple[list[Flipped], list[Observation]]:
    """The flips in a folder, or of a repro, then its runs; newest first. Raises MinidbgError."""
    home = home_of([path])
    name = None if path.is_dir() else repro_name(path, home)
    with history_in(home) as found:
        if found is None:
            raise MinidbgError(f"no history in {home}; 'minidbg watch {home}' begins one")
        flips = [flip_event(found, flip, home) for flip in found.flips(name, limit=limit)]
        return flips, found.observations(name, limit=limit) if name is not None else []


def history_rows(flips: Sequence[Flipped], runs: Sequence[Observation]) -> list[Json]:
    names = ("at", "repro", "device", "sweep", "verdict", "purpose", "reason", "environment", "torch")  # fmt: skip
    return [
        *({"entry": "flip", **flip.to_json()} for flip in flips),
        *({"entry": "run", **{name: getattr(run, name) for name in names}, "seconds": round(run.seconds, 3)} for run in runs),
    ]  # fmt: skip


def history_text(flips: Sequence[Flipped], runs: Sequence[Observation]) -> str:
    """Flips one a line, as told; then runs, those in a row with the same verdict on one line."""
    lines = [f"{moment(flip.at)}  {flip.line()}" for flip in flips] or [plural(0, "flip")]
    for _, group in itertools.groupby(runs, lambda run: (run.verdict, run.device)):
        run, *others = group
        what = f"the last of {len(others) + 1} runs" if others else run.purpose
        where = f"{run.repro} [{run.device}] sweep {run.sweep}"
        lines.append(f"{moment(run.at)}  {run.verdict:<11} {where}, {what}")
    return printable("\n".join(lines))
