"""Which stage of compiling a repro's failure belongs to: found out after the repro was announced, kept in its header.

The same graph goes through torch.compile with one stage more each time; for inductor, torch's own bisector then. Nobody waits
for it, neither the exception nor the program's end: a process of its own and of lowest priority does it, which waits while
the machine is busy, works for a minute at most, and ends when its repro is gone.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
import torch

from minidbg import asking, backends, repro, torch_internals, workers
from minidbg.fx.case import Case
from minidbg.repro import Header
from minidbg.repro.header import header_of, script_text, write_value
from minidbg.repro.wording import USAGE, escaped
from minidbg.words import environment
from minidbg.words.errors import NotReproduced, UnreadableRepro
from minidbg.words.files import replace_file
from minidbg.words.outcome import Kind, Outcome, Verdict
from minidbg.words.run_spec import CallPath, Level
from minidbg.words.script_header import BLOCK, metadata_of, table_in

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
        return f", and passes without number {self.number} of its {self.subsystem}{told}"

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
            number=table.get("number"),
            detail=str(table.get("detail", "")),
            seconds=float(table.get("seconds", 0.0)),
            torch=str(table.get("torch", "")),
            notes=tuple(map(str, table.get("notes", ()))),
        )


# --- how a script comes to hold it ---


def stages_of(header: Header) -> StageReport | None:
    """What the repro's header says about the stages; None when nobody has asked yet, or it was damaged by hand."""
    try:
        return StageReport.from_table(header.stages) if header.stages else None
    except (KeyError, ValueError, TypeError, AttributeError):
        return None


LINE = re.compile(r"(?m)^Stages: .*\n\n?")


def keep_stages(path: Path | str, report: StageReport) -> None:
    """Write ``report`` into the script at ``path``, in place of an earlier one; all else stays as it is.

    A reader sees the old script or the new one. A docstring that a person has rewritten is left alone. Raises
    UnreadableRepro when the script is none of ours, and OSError.
    """
    path = Path(path)
    old = script_text(path)
    before = without_stages(old, path)
    new = with_line(with_table(old, report), report)
    if without_stages(new, path) != before:
        raise UnreadableRepro(f"{path}: its header has a form in which nothing can be added to it")
    ast.parse(new)
    replace_file(path, new.encode())


def without_stages(text: str, path: Path) -> dict[str, Any]:
    """All else that the header says. Raises UnreadableRepro."""
    header_of(text, path)
    return {**table_in(metadata_of(text)), "stages": None}


def with_table(text: str, report: StageReport) -> str:
    """``text`` with ``stages = {...}`` as the first line of ``[tool.minidbg]``."""
    block = BLOCK.search(text)
    assert block is not None, "header_of has read it"
    kept, inside = [], False
    for line in block["content"].rstrip("\n").split("\n"):
        if line.startswith("# ["):
            inside = line.startswith(("# [tool.minidbg.stages]", "# [tool.minidbg.stages."))
        if not inside and not line.startswith("# stages = "):
            kept.append(line)
            if line == "# [tool.minidbg]":
                kept.append(f"# stages = {write_value(report.to_table())}")
    return text[: block.start("content")] + "\n".join(kept) + "\n" + text[block.end("content") :]


def with_line(text: str, report: StageReport) -> str:
    """``text`` whose docstring says the report's sentence before the exit statuses."""
    usage = text.find("\n" + USAGE.partition("\n")[0])
    if usage < 0:
        return text
    docstring, rest = text[: usage + 1], text[usage + 1 :]
    line = escaped(f"Stages: {report.sentence}.")
    return LINE.sub("", docstring) + f"{line}\n{rest}"


# --- how it is found out ---

CALL_SECONDS = 20.0
"""Time limit of one run."""
BACKGROUND_SECONDS = 60.0
"""Of work, in the background."""
MOST_WAITING_S = 5.0
"""For a busy machine, before each run; then the run takes what others leave."""
LONGEST_S = 600.0
"""From the start to the end of the process, waits and starved runs included."""
BUSY_PERCENT = 70.0
"""Of all processors, used by others while we do nothing."""
LOOK_S = 0.5
LAUNCH = '"$@" >/dev/null 2>&1 </dev/null &'
"""A shell puts the process into the background and ends: no child of ours is left to wait for."""


class TimeIsUp(Exception):
    """The budget ran out inside the bisection."""


def start_in_background(path: Path) -> bool:
    """Have ``minidbg stages`` run for the repro at ``path``, detached and with low priority; whether it was started."""
    if os.name != "posix":
        return False
    command = [sys.executable, "-m", "minidbg", "stages", "--background", str(path.absolute())]
    try:
        done = subprocess.run(
            ["/bin/sh", "-c", LAUNCH, "minidbg", *command], start_new_session=True, check=False, timeout=10,
            env=environment.for_judge(),
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0


def find_in_background(path: Path) -> StageReport:
    """``find_stages`` in a process that exists for nothing else, and that nobody is to notice.

    The process ends, with the child that it may have, when ``path`` is gone, or long after its time.
    """
    os.nice(19)
    end = time.monotonic() + LONGEST_S

    def watch() -> None:
        while path.exists() and time.monotonic() < end:
            time.sleep(LOOK_S)
        os._exit(1)  # forked children die with their parent

    threading.Thread(target=watch, daemon=True).start()
    return find_stages(path, seconds=BACKGROUND_SECONDS, wait=wait_for_idle_machine)


def wait_for_idle_machine() -> float:
    """Seconds waited until others left a processor free, ``MOST_WAITING_S`` at most."""
    began = time.monotonic()
    while psutil.cpu_percent(LOOK_S) > BUSY_PERCENT and time.monotonic() - began < MOST_WAITING_S:
        pass
    return time.monotonic() - began


@dataclass(slots=True)
class Allowance:
    """The time that runs may take, waiting for the machine not counted."""

    deadline: float
    wait: Callable[[], float] = float
    """Called before each run: the seconds that it waited. By default none."""

    def left(self) -> float:
        """Seconds left, after a wait."""
        self.deadline += self.wait()
        return self.deadline - time.monotonic()


def find_stages(
    path: Path | str, *, seconds: float = 120.0, wait: Callable[[], float] = float
) -> StageReport:
    """Run the repro's graph through each stage, in child processes, for at most about ``seconds``.

    ``wait`` is called before each run and tells the seconds that it took, which do not count.

    Runs the script's code. Raises UnreadableRepro, NotReproduced for a graph that reaches no torch.compile (one of
    AOTAutograd's, for a compiler alone), and whatever loading the script's backend raises.
    """
    began = time.monotonic()
    case = repro.load(path)
    if case.spec.level is Level.ATEN:
        raise NotReproduced(
            f"{path}: this graph is AOTAutograd's own, called with the compiler alone; there are no stages before it"
        )
    allowance = Allowance(began + seconds, wait)
    with workers.own_kernel_cache():
        report = in_children(case, allowance)
    return replace(report, seconds=time.monotonic() - began)


def in_children(case: Case, allowance: Allowance) -> StageReport:
    report = reported(case, allowance, lambda stage: at_stage(case, stage, allowance))
    bisectable = (
        case.backend.expression.strip("'\"") == "inductor"
        and case.kind not in (Kind.CRASH, Kind.HANG)
        and report.guilty == report.backend
        and report.verdicts[report.guilty] is Verdict.REPRODUCES
    )
    return bisected(case, report, allowance) if bisectable else report


def reported(case: Case, allowance: Allowance, run: Callable[[str | None], Outcome]) -> StageReport:
    """What each stage does, as far as there is time; ``run`` gets its name, and None for the case's own backend, which is always run."""
    verdicts: dict[str, Verdict] = {}
    own = case.backend.name
    for name in (*EARLIER, own):
        if name not in verdicts and (name == own or time.monotonic() <= allowance.deadline):
            verdicts[name] = run(name if name != own else None).verdict
    return StageReport(verdicts, own, torch=torch.__version__)


def at_stage(case: Case, stage: str | None, allowance: Allowance, bisection: str = "") -> Outcome:
    """The case through torch.compile with ``stage`` as its backend, None for its own; within the ``bisection`` of that folder."""
    case = case.with_spec(call=CallPath.TORCH_COMPILE)
    if stage is not None:
        case = replace(case.with_spec(backend=backends.find(stage)), compiler=stage)
    return asking.submit(case, seconds=max(5.0, min(CALL_SECONDS, allowance.left())), bisection=bisection)


def bisected(case: Case, report: StageReport, allowance: Allowance) -> StageReport:
    """The report with the pass, lowering or option of inductor without which the failure is gone."""

    def fails(bisection: str) -> bool:
        if time.monotonic() > allowance.deadline:
            raise TimeIsUp
        verdict = at_stage(case, None, allowance, bisection).verdict
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
