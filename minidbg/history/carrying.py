"""A history carried from run to run and from machine to machine: written as one JSON document, merged by content.

Numbers of sweeps mean nothing elsewhere, so a merge takes the union of what both histories say, in the order of time, and
counts anew. Merging the same document again changes nothing, and the order in which documents are merged does not matter.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from minidbg.history.records import Environment, ReproState, Revision
from minidbg.history.store import History, state_of
from minidbg.words.errors import MinidbgError
from minidbg.words.outcome import Outcome, Verdict

FORMAT = 1
SweepKey: TypeAlias = tuple[float, str]
"""When a sweep began, and the digest of its code."""
StateKey: TypeAlias = tuple[str, str, str]
"""Repro, device and environment."""
Row: TypeAlias = tuple[Any, ...]

SWEEPS = "started, code, ended, end, files, revisions"
RESULTS = "sweep, repro, device, at, seconds, verdict, purpose, stale, script, environment, torch, outcome"
FLIPS = "sweep, last_before, repro, device, at, kind, before, after"


@dataclass(slots=True)
class HistoryContents:
    """All that a history says, without its numbers."""

    sweeps: dict[SweepKey, Row] = field(default_factory=dict)
    results: set[Row] = field(default_factory=set)
    """The first column is the key of the sweep."""
    flips: dict[Row, int] = field(default_factory=dict)
    """Its columns, the first two as keys of sweeps -> whether people were told."""
    states: dict[StateKey, tuple[ReproState, SweepKey | None]] = field(default_factory=dict)
    environments: dict[str, str] = field(default_factory=dict)

    def sizes(self) -> dict[str, int]:
        return {name: len(items) for name, items in self.items().items()}

    def items(self) -> dict[str, set[Any]]:
        """What can be new in a merge. A sweep whose end or revisions were not known is another one with them."""
        return {
            "sweeps": set(self.sweeps.items()), "runs": self.results, "flips": set(self.flips),
            "verdicts": set(self.states.items()),
        }  # fmt: skip


def contents_of(history: History) -> HistoryContents:
    ask = history.connection.execute
    keys: dict[int | None, SweepKey] = {}
    found = HistoryContents(environments=dict(ask("select key, facts from environments")))
    for number, *row in ask(f"select id, {SWEEPS} from sweeps"):
        key = keys[number] = (row[0], row[1])
        found.sweeps[key] = tuple(row)
    found.results = {(keys[sweep], *row) for sweep, *row in ask(f"select {RESULTS} from results")}
    for told, sweep, last_before, *row in ask(f"select announced, {FLIPS} from flips"):
        found.flips[keys[sweep], keys.get(last_before), *row] = told
    for state in history.every_state():
        found.states[state.repro, state.device, state.environment] = state, keys.get(state.last_sweep)
    return found


def to_json(found: HistoryContents) -> dict[str, Any]:
    """As a document: sweeps in the order of time, and everything else by their places in it."""
    place = {key: index for index, key in enumerate(sorted(found.sweeps))}
    return {
        "minidbg_history": FORMAT,
        "sweeps": [found.sweeps[key] for key in place],
        "results": sorted([place[sweep], *row] for sweep, *row in found.results),
        "flips": sorted(
            ([place[sweep], place.get(before, -1), *row] for sweep, before, *row in found.flips),
            key=lambda row: (row[4], row),
        ),
        "states": [
            {**asdict(state), "last_sweep": place.get(sweep, -1) if sweep else -1}
            for _, (state, sweep) in sorted(found.states.items())
        ],
        "environments": dict(sorted(found.environments.items())),
    }


def from_json(data: Mapping[str, Any]) -> HistoryContents:
    """A document's contents. Raises ValueError, TypeError, KeyError or IndexError for what is none."""
    if data["minidbg_history"] != FORMAT:
        raise ValueError(f"format {data['minidbg_history']!r}, here {FORMAT}")
    keys = [(float(row[0]), str(row[1])) for row in data["sweeps"]]
    found = HistoryContents(
        environments={str(key): str(facts) for key, facts in data["environments"].items()}
    )
    for key, row in zip(keys, data["sweeps"], strict=True):
        started, code, ended, end, files, revisions = row
        json.loads(files)
        for revision in json.loads(revisions).values():
            Revision(**revision)
        found.sweeps[key] = (started, code, ended, str(end), files, revisions)
    for place, *row in data["results"]:
        Verdict(row[4]), Outcome.from_json(json.loads(row[-1]))
        found.results.add((keys[place], *row))
    for place, before, *row in data["flips"]:
        Verdict(row[4]), Verdict(row[5])
        found.flips[keys[place], keys[before] if before >= 0 else None, *row] = 1
    for table in data["states"]:
        state, place = state_of(table), table["last_sweep"]
        sweep = keys[place] if place >= 0 else None
        found.states[state.repro, state.device, state.environment] = state, sweep
    for facts in found.environments.values():
        Environment(**json.loads(facts))
    return found


def merged(one: HistoryContents, other: HistoryContents) -> HistoryContents:
    """The union. Of what both have in different words, the later word stands."""
    found = HistoryContents({**one.sweeps}, one.results | other.results, {**one.flips}, {**one.states})
    for key, row in other.sweeps.items():
        found.sweeps[key] = max(found.sweeps.get(key, row), row, key=finished)
    for flip, told in other.flips.items():
        found.flips[flip] = max(found.flips.get(flip, 0), told)
    for name in sorted({*one.environments, *other.environments}):
        found.environments[name] = max(one.environments.get(name, ""), other.environments.get(name, ""))
    seen_on: dict[Row, set[str]] = {}
    for result in found.results:
        seen_on.setdefault(result[:3], set()).add(result[9])
    for where, known in other.states.items():
        found.states[where] = joined(found.states.get(where, known), known, found.flips, seen_on)
    return found


def finished(row: Row) -> Row:
    """Sort key of a sweep's words: one that has ended, and whose revisions are known, is the later one."""
    _, _, ended, end, files, revisions = row
    return end != "running", ended or 0.0, len(revisions), end, revisions, files


def joined(
    one: tuple[ReproState, SweepKey | None],
    other: tuple[ReproState, SweepKey | None],
    flips: Iterable[Row],
    seen_on: Mapping[Row, set[str]],
) -> tuple[ReproState, SweepKey | None]:
    """The state seen last; it holds since the earlier of both times, unless the repro flipped in between."""
    _, (state, sweep) = sorted((one, other), key=lambda pair: (pair[0].seen, repr(pair)))
    if one[0].verdict is not other[0].verdict or one[0].script != other[0].script:
        return state, sweep
    first, last = sorted((one[0].since, other[0].since))
    flipped = any(
        (repro, device) == (state.repro, state.device)
        and first < at[0]
        and at[0] <= state.seen
        and state.environment in seen_on.get((at, repro, device), {state.environment})
        for at, _, repro, device, *_ in flips
    )
    return replace(state, since=last if flipped else first), sweep


def write(history: History, found: HistoryContents) -> None:
    """Put ``found`` in the place of all that the history holds, in one transaction."""
    numbers: dict[SweepKey | None, int | None] = {
        key: place for place, key in enumerate(sorted(found.sweeps), 1)
    }
    numbers[None] = None

    def rewrite() -> None:
        for table in ("results", "flips", "states", "other_states", "environments", "sweeps"):
            history.connection.execute(f"delete from {table}")
        sweeps = [(numbers[key], *found.sweeps[key]) for key in sorted(found.sweeps)]
        insert(history, "sweeps", f"id, {SWEEPS}", sweeps)
        results = sorted(found.results, key=lambda row: (row[3], row))
        insert(history, "results", RESULTS, [(numbers[sweep], *row) for sweep, *row in results])
        flips = sorted(found.flips.items(), key=lambda item: (item[0][4], repr(item)))
        rows = [(numbers[sweep], numbers.get(before), *row, told) for (sweep, before, *row), told in flips]
        insert(history, "flips", f"{FLIPS}, announced", rows)
        insert(history, "environments", "key, facts", list(found.environments.items()))
        for state, sweep in sorted(found.states.values(), key=lambda pair: (pair[0].seen, repr(pair))):
            history.put_state(replace(state, last_sweep=numbers.get(sweep)))

    history.atomically(rewrite)


def insert(history: History, table: str, columns: str, rows: Sequence[Row]) -> None:
    marks = ", ".join("?" * (columns.count(",") + 1))
    history.connection.executemany(f"insert into {table}({columns}) values({marks})", rows)


def export_history(history: History, path: Path) -> dict[str, int]:
    """Write the document; compressed when the name ends in ``.gz``. Returns how much there was."""
    found = contents_of(history)
    data = json.dumps(to_json(found), separators=(",", ":")).encode()
    draft = path.with_name(f".{path.name}.tmp")
    draft.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
    draft.replace(path)
    return found.sizes()


def import_history(history: History, path: Path) -> dict[str, int]:
    """Merge the document into the history. Returns how much of it was new or said more. Raises MinidbgError for another file."""
    data = path.read_bytes()
    try:
        found = from_json(json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data))
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, OSError, EOFError) as error:
        what = f"{type(error).__name__}: {error}"
        raise MinidbgError(
            f"{path} is no exported history ({what}); 'minidbg history export' writes one"
        ) from error
    before = contents_of(history)
    after = merged(before, found)
    if to_json(after) != to_json(before):
        write(history, after)
    known = before.items()
    return {name: len(items - known[name]) for name, items in after.items().items()}
