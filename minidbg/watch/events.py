"""What the daemon announces: each event as a value, with its JSON for programs, its words for
people, and what it changes in the matrix.

To add one, write a class here, and announce it where it happens, in ``daemon.py`` mostly:
``self.announce(Class(...))``. No view has to know of it. Its ``name`` and its fields, in this
order, are the JSON object that ``minidbg watch --json`` prints; ``WORDS`` or ``core`` is the line
that people read; ``update`` changes what the terminal and the page draw, which without one do not
show it.
"""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from minidbg.core.outcome import Verdict
from minidbg.core.text import display_path, plural, printable
from minidbg.history import Flip, History, Revision, State
from minidbg.watch.states import Transition

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened. ``at``: when, in seconds since the epoch."""

    name: ClassVar[str]
    WORDS: ClassVar[str] = ""
    """The event as people read it, for ``str.format``; empty when it is not worth a line."""
    at: float = field(default_factory=time.time, kw_only=True, compare=False)

    def words(self) -> str:
        return self.WORDS.format(self)

    def line(self) -> str:
        return printable(self.words())

    def to_json(self) -> Json:
        """Without where everything stood at the start, which ``minidbg list --json`` tells."""
        names = [one.name for one in dataclasses.fields(self) if one.name not in ("at", "states")]
        values = {name: getattr(self, name) for name in names}
        return {"event": self.name, "at": round(self.at, 3), **values}

    def update(self, matrix: Matrix) -> None:
        """Most events change nothing that stays to be seen."""


@dataclass(frozen=True, slots=True)
class Started(Event):
    name = "started"
    pid: int
    home: str
    repros: tuple[str, ...]
    sources: tuple[str, ...]
    files: int
    jobs: int
    states: tuple[State, ...] = ()

    def words(self) -> str:
        repros, files = plural(len(self.repros), "repro"), plural(self.files, "file")
        what = f"{repros} in {display_path(self.home)} and {files}"
        return f"watching {what} in {', '.join(self.sources) or 'no sources'} (process {self.pid})"

    def update(self, matrix: Matrix) -> None:
        matrix.home = self.home
        for state in self.states:
            cell = Cell(state.verdict, state.since, note=state.reason)
            matrix.cells[state.repro, state.device] = cell
        matrix.sort()


@dataclass(frozen=True, slots=True)
class Notice(Event):
    name = "notice"
    WORDS = "{0.text}"
    text: str

    def update(self, matrix: Matrix) -> None:
        matrix.notices.append(self)


@dataclass(frozen=True, slots=True)
class Fault(Notice):
    name = "fault"
    traceback: str


@dataclass(frozen=True, slots=True)
class ReproFileChanged(Event):
    """A repro is new, has changed or has gone. ``change``: a key of ``CHANGES``."""

    name = "repro"
    CHANGES: ClassVar[Mapping[str, str]] = {
        "added": "new repro {0.repro}",
        "edited": "repro {0.repro} was edited",
        "removed": "repro {0.repro} is gone",
        "damaged": "repro {0.repro} cannot be used: {0.reason}",
    }
    change: str
    repro: str
    reason: str = ""

    def words(self) -> str:
        return self.CHANGES[self.change].format(self)

    def to_json(self) -> Json:
        values = Event.to_json(self)
        return values | {"event": f"repro_{values.pop('change')}"}

    def update(self, matrix: Matrix) -> None:
        for device, cell in matrix.of_repro(self.repro).items():
            cell.outdated |= self.change == "edited"
            if self.change == "removed":
                del matrix.cells[self.repro, device]
        if self.change == "damaged":
            matrix.notices.append(self)


# Sweeps and verdicts


@dataclass(frozen=True, slots=True)
class SweepStarted(Event):
    name = "sweep_started"
    sweep: int
    jobs: int
    repros: int
    files: tuple[str, ...]
    """The first of those that changed; ``changed`` is their number."""
    changed: int

    def words(self) -> str:
        changed = f"; {names_of(self.files, 3)} changed" if self.files else ""
        return f"sweep {self.sweep}: {plural(self.jobs, 'run')}{changed}"

    def update(self, matrix: Matrix) -> None:
        matrix.activity, matrix.began = f"sweep {self.sweep}", self.at
        matrix.jobs, matrix.ended, matrix.files = self.jobs, 0, self.files
        for cell in matrix.cells.values():
            cell.outdated, cell.maybe = cell.outdated or bool(self.changed), ""


@dataclass(frozen=True, slots=True)
class SweepFinished(Event):
    name = "sweep_finished"
    sweep: int
    end: str
    """complete, or superseded by a change of the code."""
    seconds: float
    transitions: Mapping[str, int]
    unjudged: int

    def words(self) -> str:
        counts = ", ".join(f"{count} {kind}" for kind, count in sorted(self.transitions.items()))
        rest = f", {self.unjudged} not judged" if self.unjudged else ""
        how = "" if self.end == "complete" else f" ({self.end}: the code changed)"
        return f"sweep {self.sweep} took {self.seconds:.2f} s{how}: {counts or 'no verdict'}{rest}"

    def update(self, matrix: Matrix) -> None:
        matrix.activity = f"waiting; sweep {self.sweep} took {self.seconds:.2f} s"
        matrix.began = None
        for cell in matrix.cells.values():
            cell.outdated |= self.end != "complete"  # the code has changed since
        if not matrix.flips:
            matrix.sort()


@dataclass(frozen=True, slots=True)
class Judged(Event):
    name = "result"
    sweep: int
    repro: str
    device: str
    transition: Transition
    verdict: Verdict | None
    """None when nothing could be judged."""
    seconds: float
    runs: int
    reason: str
    message: str = ""
    expected: bool | None = None
    """Whether the header expects the verdict; ``since`` when it stands; None without a verdict."""
    since: float | None = None

    def words(self) -> str:
        verdict = f" ({self.verdict})" if self.verdict else ""
        failure = self.message.partition("\n")[0] if self.verdict is Verdict.CHANGED else ""
        reason = f": {self.reason or failure}" if self.reason or failure else ""
        return f"  {self.transition:<17} {self.repro} [{self.device}]{verdict}{reason}"

    def update(self, matrix: Matrix) -> None:
        matrix.ended += 1
        cell = Cell(self.verdict or self.transition, self.since, self.seconds, outdated=False)
        cell.note = self.reason or self.message
        matrix.cells[self.repro, self.device] = cell


@dataclass(frozen=True, slots=True)
class Unconfirmed(Event):
    """What a job's first run has shown, which is new: it counts once fresh interpreters show it."""

    name = "unconfirmed"
    sweep: int
    repro: str
    device: str
    before: Verdict
    """The last verdict; of a job that was never judged what the repro's header expects."""
    seen: bool
    """Whether it was ever judged."""
    verdict: Verdict
    seconds: float

    def words(self) -> str:
        known = f"before: {self.before}" if self.seen else f"its header expects {self.before}"
        where = f"{self.repro} [{self.device}]"
        return f"  {self.verdict + '?':<17} {where} {known}; confirming in a fresh interpreter"

    def update(self, matrix: Matrix) -> None:
        matrix.cells.setdefault((self.repro, self.device), Cell()).maybe = self.verdict


@dataclass(frozen=True, slots=True)
class Flipped(Event):
    """The revisions and files are those between the last sweep before it and the first after it.
    ``watched``: whether a daemon was there in between."""

    name = "flip"
    repro: str
    device: str
    kind: str
    before: Verdict
    after: Verdict
    sweep: int
    last_before_sweep: int | None
    files: tuple[str, ...]
    last_before: str
    first_after: str
    path: str
    watched: bool = True

    def words(self) -> str:
        """What matters most comes first: the end of a long line is cut off."""
        verdicts = "" if self.kind in ("FIXED", "REGRESSED") else f" {self.before} -> {self.after}"
        files = "no watched file changed" if self.watched else "nobody watched in between"
        files = f"{names_of(self.files, 2)} changed" if self.files else files
        revisions = dict.fromkeys(filter(None, (self.last_before, self.first_after)))
        cause = "; ".join(filter(None, [files, " -> ".join(revisions)]))
        return f"{self.kind} {Path(self.repro).stem} [{self.device}]{verdicts}  {cause}"

    def update(self, matrix: Matrix) -> None:
        matrix.flips.appendleft(self)


def flip_event(history: History, flip: Flip, home: Path) -> Flipped:
    after, before = history.sweep(flip.sweep), history.sweep(flip.last_before)
    return Flipped(
        flip.repro, flip.device, flip.kind, flip.before, flip.after, flip.sweep, flip.last_before,
        files=after.files or () if after else (), watched=after is None or after.files is not None,
        last_before=revision_text(before.revisions if before else {}),
        first_after=revision_text(after.revisions if after else {}),
        path=str(home / flip.repro), at=flip.at,
    )  # fmt: skip


def revision_text(revisions: Mapping[str, Revision]) -> str:
    """``1a2b3c4d5e+0f1e2d3c`` for one repository, a commit and a digest of what was not committed;
    of several, with their names."""
    if len(revisions) == 1:
        return str(next(iter(revisions.values())))
    in_order = sorted(revisions.items())
    return ", ".join(f"{Path(root).name} {revision}" for root, revision in in_order)


def names_of(files: Sequence[str], most: int) -> str:
    """Names of the first ``most`` files, without folders; an ``__init__.py`` keeps its folder."""
    names = ["/".join(Path(one).parts[-2 if one.endswith("__init__.py") else -1 :]) for one in files[:most]]
    return ", ".join(names) + (", ..." if len(files) > most else "")


@dataclass(frozen=True, slots=True)
class BackendBroken(Event):
    name = "backend_broken"
    backend: str
    device: str
    reason: str
    repros: int

    def words(self) -> str:
        why = f"{self.reason}; {plural(self.repros, 'repro')} not judged"
        return f"backend {self.backend} is broken on {self.device}: {why}"

    def update(self, matrix: Matrix) -> None:
        matrix.broken[self.backend, self.device] = self.reason


@dataclass(frozen=True, slots=True)
class BackendBack(Event):
    name = "backend_back"
    WORDS = "backend {0.backend} works again on {0.device}"
    backend: str
    device: str

    def update(self, matrix: Matrix) -> None:
        matrix.broken.pop((self.backend, self.device), None)


# Builds


@dataclass(frozen=True, slots=True)
class BuildStarted(Event):
    name = "build_started"
    command: str

    def update(self, matrix: Matrix) -> None:
        matrix.activity, matrix.began, matrix.jobs = f"building: {self.command}", self.at, 0
        matrix.building = True


@dataclass(frozen=True, slots=True)
class BuildFailed(Event):
    """``output``: its last lines; ``error``: the first line that tells of an error."""

    name = "build_failed"
    status: int
    seconds: float
    output: str
    error: str

    def words(self) -> str:
        first = "" if self.error in self.output else f": {self.error}"  # else too far from the end
        return f"build failed with status {self.status}; nothing was judged{first}\n{self.output}"

    def update(self, matrix: Matrix) -> None:
        matrix.activity, matrix.began = "build failed, rows are from before it", None
        matrix.build_failure = self.error


@dataclass(frozen=True, slots=True)
class BuildFinished(Event):
    name = "build_finished"
    WORDS = "built in {0.seconds:.1f} s"
    seconds: float

    def update(self, matrix: Matrix) -> None:
        matrix.activity, matrix.began = "waiting; built", None
        matrix.build_failure, matrix.building = "", False


# What terminal and page draw: repros by devices. ``Event.update`` says what each event changes

URGENCY = ("crashed", "timeout", "changed", "flaky", "reproduces", "invalid", None, "skipped", "gone")
"""Verdicts, those first that need attention."""


@dataclass(slots=True)
class Cell:
    verdict: str | None = None
    since: float | None = None
    seconds: float = 0.0
    note: str = ""
    """The verdict's reason, or what the backend said."""
    outdated: bool = True
    """Whether the code has changed since it was judged; see ``Matrix.is_old``."""
    maybe: str = ""
    """A new verdict that is being confirmed."""


@dataclass(slots=True)
class Matrix:
    home: str = ""
    cells: dict[tuple[str, str], Cell] = field(default_factory=dict)
    """By repro and device; in this order rows are shown. They stay where they are once one has
    flipped: rows that jump cannot be read."""
    flips: deque[Flipped] = field(default_factory=deque)
    """The newest first."""
    notices: deque[Event] = field(default_factory=lambda: deque(maxlen=4))
    broken: dict[tuple[str, str], str] = field(default_factory=dict)
    """Why, by backend and device."""
    building: bool = False
    """Whether a build runs or has failed: nothing was judged on what it builds."""
    build_failure: str = ""
    activity: str = "starting workers"
    files: tuple[str, ...] = ()
    """The first of those whose change the last sweep judges."""
    began: float | None = None
    """When the current sweep or build began; of a sweep also its jobs, and how many have ended."""
    jobs: int = 0
    ended: int = 0

    @property
    def repros(self) -> list[str]:
        return list(dict.fromkeys(repro for repro, _ in self.cells))

    @property
    def devices(self) -> list[str]:
        return sorted({device for _, device in self.cells})

    def of_repro(self, repro: str) -> dict[str, Cell]:
        return {device: cell for (name, device), cell in self.cells.items() if name == repro}

    def is_old(self, cell: Cell) -> bool:
        """Whether the present code was not judged, or not yet."""
        return cell.outdated or self.building

    def sort(self) -> None:
        worst: dict[str, int] = {}
        for (repro, _), cell in self.cells.items():
            rank = URGENCY.index(cell.verdict) if cell.verdict in URGENCY else 0
            worst[repro] = min(rank, worst.get(repro, rank))
        self.cells = dict(sorted(self.cells.items(), key=lambda item: (worst[item[0][0]], item[0])))
