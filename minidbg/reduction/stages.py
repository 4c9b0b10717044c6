"""Which stage of compiling a repro's failure belongs to, and where the answer lies.

The same graph goes through torch.compile with one stage more each time; for inductor, torch's own bisector then. It is asked
for (``minidbg stages``, or a bug report): no announced script is changed, the answer lies in ``.minidbg/stages``.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from minidbg import asking, backends, repro, torch_internals, workers
from minidbg.fx.case import Case
from minidbg.repro import Header
from minidbg.repro.folder import HIDDEN, hidden
from minidbg.words.deadline import Deadline
from minidbg.words.errors import NotReproduced
from minidbg.words.files import NOTE_LIMIT_BYTES, read_regular, replace_file
from minidbg.words.outcome import Outcome, Verdict
from minidbg.words.run_spec import DAMAGE, CallPath, Level
from minidbg.words.script_header import SCRIPT_LIMIT_BYTES
from minidbg.words.text import ordinal

FAILING = frozenset({"reproduces", "flaky", "changed", "crashed", "timeout"})
"""Verdicts of a stage at which the graph fails, in the same way or another."""

EARLIER = ("eager", "aot_eager", "aot_eager_decomp_partition")
"""Stages before a compiler: dynamo alone, with AOTAutograd, with decompositions and the partitioner."""

WHAT = {
    "eager": "dynamo's own graph fails without any backend, so torch.compile's frontend is at fault",
    "aot_eager": "it fails in AOTAutograd already, before any compiler",
    "aot_eager_decomp_partition": "it fails with decompositions and the partitioner already, before any compiler",
}


@dataclass(frozen=True, slots=True)
class StageReport:
    """What the stages said."""

    verdicts: Mapping[str, Verdict]
    """Stage -> verdict, in the order of compiling; the last one is the repro's own backend."""
    backend: str
    subsystem: str = ""
    """Of inductor: without it the failure is gone. ``lowerings``, ``post_grad_passes``, ``inductor_cse``."""
    number: int | None = None
    """Which application of the subsystem, counted from 0, brings the failure; None for one that is on or off."""
    detail: str = ""
    """What the bisector says of that application: a pass, a node."""
    seconds: float = 0.0
    torch: str = ""
    notes: tuple[str, ...] = field(default=())
    """Why something could not be found out."""

    @property
    def guilty(self) -> str:
        """The first stage that fails; an empty text when none does."""
        return next((name for name, verdict in self.verdicts.items() if verdict in FAILING), "")

    @property
    def sentence(self) -> str:
        return "; ".join((self._stage(), *self.notes))

    def _stage(self) -> str:
        passing = [name for name, verdict in self.verdicts.items() if verdict is Verdict.GONE]
        listed = " and ".join(filter(None, (", ".join(passing[:-1]), *passing[-1:])))
        passed = f"{listed} pass{'es' if len(passing) == 1 else ''}" if passing else ""
        if not self.guilty:
            return f"no stage fails through torch.compile ({passed or 'none could be judged'})"
        if self.guilty in WHAT and self.guilty != self.backend:
            return WHAT[self.guilty] + (f"; {passed}" if passed else "")
        fails = f"{self.guilty} fails{self._culprit()}"
        return f"{passed}; {fails}" if passed else fails

    def _culprit(self) -> str:
        if not self.subsystem:
            return ""
        if self.number is None:
            return f", and passes with {self.subsystem} changed"
        told = f" ({self.detail})" if self.detail else ""
        return f", and passes when the {ordinal(self.number + 1)} of its {self.subsystem}{told} is skipped"

    def to_table(self) -> dict[str, Any]:
        """Plain values for the header; ``from_table`` reads them back."""
        told: dict[str, Any] = {"subsystem": self.subsystem, "number": self.number, "detail": self.detail}
        table: dict[str, Any] = {"guilty": self.guilty, "backend": self.backend}
        table |= {name: value for name, value in told.items() if value not in ("", None)}
        table |= {"seconds": round(self.seconds, 1), "torch": self.torch}
        table |= {"notes": list(self.notes)} if self.notes else {}
        return {**table, "verdicts": {name: str(verdict) for name, verdict in self.verdicts.items()}}

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> StageReport:
        """Read ``to_table`` back. Raises KeyError, ValueError or TypeError on a damaged table."""
        return cls(
            verdicts={str(name): Verdict(verdict) for name, verdict in table["verdicts"].items()},
            backend=str(table["backend"]),
            subsystem=str(table.get("subsystem", "")),
            number=None if table.get("number") is None else int(table["number"]),
            detail=str(table.get("detail", "")),
            seconds=float(table.get("seconds", 0.0)),
            torch=str(table.get("torch", "")),
            notes=tuple(map(str, table.get("notes", ()))),
        )


# --- where the answer lies ---


def kept_file(path: Path) -> Path:
    """The answer about the repro at ``path``."""
    return repro.folder_of(path) / HIDDEN / "stages" / f"{path.stem}.json"


def stages_of(header: Header) -> StageReport | None:
    """What was found out about the repro as it is now; None when nobody has asked yet, or the answer is damaged.

    Scripts of earlier versions have it in their header.
    """
    with contextlib.suppress(OSError, *DAMAGE):
        kept = json.loads(read_regular(kept_file(header.path), NOTE_LIMIT_BYTES))
        if kept["digest"] == digest_of(header.path):
            return StageReport.from_table(kept)
    with contextlib.suppress(*DAMAGE):
        return StageReport.from_table(header.stages) if header.stages else None
    return None


def keep_stages(path: Path, report: StageReport) -> None:
    """Keep ``report`` for the script at ``path``, in place of an earlier one. Raises OSError."""
    hidden(repro.folder_of(path), "stages")
    table = {"digest": digest_of(path), **report.to_table()}
    replace_file(kept_file(path), json.dumps(table).encode())


def digest_of(path: Path) -> str:
    """Of the script alone: a graph of another text may fail at another stage."""
    return hashlib.sha1(read_regular(path, SCRIPT_LIMIT_BYTES), usedforsecurity=False).hexdigest()


# --- how it is found out ---

CALL_SECONDS = 20.0
"""Time limit of one run."""


class TimeIsUp(Exception):
    """The budget ran out inside the bisection."""


def find_stages(
    path: Path | str, *, seconds: float = 120.0, note: Callable[[str], object] = str
) -> StageReport:
    """Run the repro's graph through each stage, in child processes, for at most about ``seconds``.

    ``note`` hears what is run next.

    Runs the script's code. Raises UnreadableRepro, NotReproduced for a graph that reaches no torch.compile (one of
    AOTAutograd's, for a compiler alone), and whatever loading the script's backend raises.
    """
    began = time.monotonic()
    case = repro.load(path)
    if case.spec.level is Level.ATEN:
        raise NotReproduced(
            f"{path}: this graph is AOTAutograd's own, called with the compiler alone; there are no stages before it"
        )
    until = Deadline.after(seconds)
    with workers.own_kernel_cache():
        report = in_children(case, until, note)
    return replace(report, seconds=time.monotonic() - began)


def in_children(case: Case, until: Deadline, note: Callable[[str], object]) -> StageReport:
    def run(stage: str | None) -> Outcome:
        note(f"running it with {stage or case.backend.name}")
        return at_stage(case, stage, until)

    report = reported(case, until, run)
    bisectable = (
        case.backend.expression.strip("'\"") == "inductor"
        and not case.spec.traits.dies
        and report.guilty == report.backend
        and report.verdicts[report.guilty] is Verdict.REPRODUCES
    )
    if not bisectable:
        return report
    note("inductor's passes, lowerings and options are bisected")
    return bisected(case, report, until)


def reported(case: Case, until: Deadline, run: Callable[[str | None], Outcome]) -> StageReport:
    """What each stage does, as far as there is time; ``run`` gets its name, and None for the case's own backend, which is always run."""
    verdicts: dict[str, Verdict] = {}
    own = case.backend.name
    for name in (*EARLIER, own):
        if name not in verdicts and (name == own or not until.is_over):
            verdict = run(name if name != own else None).verdict
            late = verdict is Verdict.TIMEOUT and not case.spec.traits.endless  # slow, or a busy machine
            verdicts[name] = Verdict.SKIPPED if late else verdict
    return StageReport(verdicts, own, torch=torch.__version__)


def at_stage(case: Case, stage: str | None, until: Deadline, bisection: str = "") -> Outcome:
    """The case through torch.compile with ``stage`` as its backend, None for its own; within the ``bisection`` of that folder."""
    case = case.with_spec(call=CallPath.TORCH_COMPILE)
    if stage is not None:
        case = replace(case.with_spec(backend=backends.find(stage)), compiler=stage)
    return asking.submit(case, seconds=max(5.0, min(CALL_SECONDS, until.left())), bisection=bisection)


def bisected(case: Case, report: StageReport, until: Deadline) -> StageReport:
    """The report with the pass, lowering or option of inductor without which the failure is gone."""

    def fails(bisection: str) -> bool:
        if until.is_over:
            raise TimeIsUp
        verdict = at_stage(case, None, until, bisection).verdict
        if verdict is Verdict.TIMEOUT:
            raise TimeIsUp
        if verdict in (Verdict.INVALID, Verdict.SKIPPED):
            raise RuntimeError(f"a run was {verdict}")
        return verdict is not Verdict.GONE  # failing otherwise is not passing

    try:
        found = torch_internals.bisect_inductor(fails)
    except TimeIsUp:
        return replace(report, notes=("the bisection of inductor ran out of time",))
    except (RuntimeError, ImportError) as error:  # raised when answers contradict each other
        return replace(report, notes=(f"torch's bisector gave up: {str(error).splitlines()[0][:200]}",))
    if found is None:
        return replace(report, notes=("torch's bisector found no stage at fault",))
    stage, subsystem, number, detail = found
    if stage != report.guilty:
        return replace(report, notes=(f"torch's bisector says {stage}",))
    if subsystem is None:
        return replace(report, notes=("no single pass, lowering or option of it is at fault",))
    return replace(report, subsystem=subsystem, number=number, detail=detail)
