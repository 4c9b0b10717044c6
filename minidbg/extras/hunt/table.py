"""What a hunt found, for people and machines: the table of op by dtype, totals, the heat map, and the comparison with a baseline."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from minidbg.extras.hunt.samples import DTYPES
from minidbg.extras.hunt.states import SHOWN, CellState, HuntFolder
from minidbg.repro.header import write_lines
from minidbg.words.errors import BadSetting
from minidbg.words.files import replace_file

GRAPHS = "random graphs"
LETTERS: Mapping[str, str] = {
    "ok": "·", "unsupported": "u", "handed back": "b", "fails": "F", "wrong": "W", "crashed": "C", "hangs": "H", "skipped": " ",
}  # fmt: skip
"""Of each state, in the table and on the page."""


@dataclass(slots=True)
class OpCell:
    """An op in one dtype on one device: the worst state of its samples."""

    op: str
    dtype: str
    device: str
    counts: Counter[CellState] = field(default_factory=Counter)
    text: str = ""
    """What was said about the worst of them."""

    @property
    def state(self) -> CellState:
        return max(self.counts, key=lambda state: state.rank)

    def to_json(self) -> dict[str, Any]:
        return {
            "op": self.op, "dtype": self.dtype, "device": self.device, "state": str(self.state),
            "samples": {str(state): count for state, count in self.counts.items()}, "text": self.text,
        }  # fmt: skip


def cells_of(store: HuntFolder) -> list[OpCell]:
    """The cells that were tried, by op; all random graphs are one cell."""
    cells: dict[tuple[str, str, str], OpCell] = {}
    for record in store.results.values():
        candidate, state = record["candidate"], store.state(record)
        if state is CellState.NONE:
            continue
        if "op" in candidate:
            key = (candidate["op"], candidate["dtype"], candidate["device"])
        else:
            key = (GRAPHS, "", "")
        cell = cells.setdefault(key, OpCell(*key))
        if not cell.counts or state.rank > cell.state.rank:
            text = str(record.get("message") or record.get("reason") or "")
            cell.text = text.partition("\n")[0][:200]
        cell.counts[state] += 1
    places = {dtype: place for place, dtype in enumerate(DTYPES)}
    return sorted(cells.values(), key=lambda cell: (cell.op, cell.device, places.get(cell.dtype, 99)))


def totals(cells: Sequence[OpCell]) -> dict[CellState, int]:
    """How many cells are in each state, those that occur."""
    counts = Counter(cell.state for cell in cells if cell.op != GRAPHS)
    return {state: counts[state] for state in SHOWN if counts[state]}


def rows_of(cells: Sequence[OpCell]) -> dict[tuple[str, str], dict[str, OpCell]]:
    """Op and device -> dtype -> cell."""
    rows: dict[tuple[str, str], dict[str, OpCell]] = {}
    for cell in cells:
        if cell.op != GRAPHS:
            rows.setdefault((cell.op, cell.device), {})[cell.dtype] = cell
    return rows


# ---- the baseline


@dataclass(frozen=True, slots=True)
class Compared:
    """A hunt against what was known."""

    new: Sequence[str]
    """What is new or worse, a sentence each."""
    fixed: Sequence[str]

    @property
    def line(self) -> str:
        return f"{len(self.new)} new or worse, {len(self.fixed)} fixed"


def write_baseline(path: Path, store: HuntFolder, backend: str) -> None:
    """Write what is known now: each cell that is not ok, and each distinct failure. Raises OSError."""
    known: dict[str, dict[str, str]] = {}
    for cell in cells_of(store):
        if cell.op != GRAPHS and cell.state.rank > CellState.OK.rank:
            known.setdefault(cell.op, {})[place_of(cell)] = str(cell.state)
    failures = {found.key: f"{found.state}: {found.text}"[:200] for found in store.cases()}
    lines = [
        "# What minidbg hunt knew. Compare with: minidbg hunt BACKEND --baseline THIS",
        *write_lines({"backend": backend, "torch": torch.__version__}),
        *("", "[failures]", *write_lines(failures)),
        *("", "[ops]", *write_lines(known)),
    ]
    replace_file(path, ("\n".join(lines) + "\n").encode())


def compare(path: Path, store: HuntFolder, backend: str) -> Compared:
    """The hunt against the baseline at ``path``. Only what was tried counts. Raises BadSetting."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        known = {
            op: {place: CellState(state) for place, state in row.items()} for op, row in table["ops"].items()
        }
        failures = dict(table["failures"])
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, KeyError, ValueError, AttributeError) as error:
        raise BadSetting(
            f"{path} is no baseline of minidbg hunt: {type(error).__name__}: {error}; delete it to have it written anew"
        ) from error
    if table.get("backend") != backend:
        raise BadSetting(
            f"{path} is the baseline of {table.get('backend')!r}, not of {backend!r}; name another file"
        )
    cells = cells_of(store)
    return Compared([*worse(cells, known), *unknown(store, failures)], list(better(cells, known)))


def worse(cells: Sequence[OpCell], known: Mapping[str, Mapping[str, CellState]]) -> Iterator[str]:
    """Cells whose state is worse than it was: handed back and unsupported too, where the op used to work."""
    for cell in cells:
        before = known.get(cell.op, {}).get(place_of(cell), CellState.OK)
        if cell.op != GRAPHS and cell.state.rank > max(before.rank, CellState.OK.rank):
            yield f"{cell.op} {place_of(cell)}: {cell.state}, was {before}: {cell.text}"


def unknown(store: HuntFolder, failures: Mapping[str, str]) -> Iterator[str]:
    """Failures that the baseline does not have."""
    for found in store.cases():
        if found.key not in failures:
            where = f"; {found.repro}" if found.repro else ""
            yield f"new failure ({', '.join(list(found.ops)[:3])}): {found.state}: {found.text}{where}"


def better(cells: Sequence[OpCell], known: Mapping[str, Mapping[str, CellState]]) -> Iterator[str]:
    now = {(cell.op, place_of(cell)): cell.state for cell in cells}
    for op, row in known.items():
        for place, before in row.items():
            state = now.get((op, place))
            if state is not None and state is not CellState.SKIPPED and state.rank < before.rank:
                yield f"{op} {place}: {state}, was {before}"


def place_of(cell: OpCell) -> str:
    """``float32``, or ``float32 on cuda:0``."""
    return cell.dtype if cell.device == "cpu" else f"{cell.dtype} on {cell.device}"
