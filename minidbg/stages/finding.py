"""The same graph through torch.compile with one stage more each time; for inductor, torch's own bisector then."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import torch

from minidbg import _torch, references, repro, workers
from minidbg.case import CallPath, Case, Level
from minidbg.errors import NotReproduced
from minidbg.failure import Kind, Outcome, Verdict
from minidbg.stages.report import EARLIER, FAILING, StageReport

CALL_SECONDS = 60.0
"""Time limit of one run."""


class TimeIsUp(Exception):
    """The budget ran out inside the bisection."""


def find_stages(path: Path | str, *, seconds: float = 120.0) -> StageReport:
    """Run the repro's graph through each stage, in child processes, for at most about ``seconds``.

    Runs the script's code. Raises UnreadableRepro, NotReproduced for a graph that reaches no torch.compile (one of
    AOTAutograd's, for a compiler alone), and whatever loading the script's backend raises.
    """
    began = time.monotonic()
    case = repro.load(path)
    if case.level is Level.ATEN:
        raise NotReproduced(
            f"{path}: this graph is AOTAutograd's own, called with the compiler alone; there are no stages before it"
        )
    deadline = began + seconds
    if workers.fork_refusal() is None:
        with workers.own_kernel_cache():
            report = in_forks(case, deadline)
    else:
        report = in_new_processes(Path(path), case, deadline)
    return replace(report, seconds=time.monotonic() - began)


def in_forks(case: Case, deadline: float) -> StageReport:
    """Each run in a fork of this process."""
    verdicts: dict[str, Verdict] = {}
    own = case.backend.name
    for name in (*EARLIER, own):
        if name in verdicts or (name != own and time.monotonic() > deadline):
            continue
        verdicts[name] = at_stage(case, name if name != own else None, deadline).verdict
    report = StageReport(verdicts, own, torch=torch.__version__)
    bisectable = case.backend.expression.strip("'\"") == "inductor" and case.kind not in (
        Kind.CRASH,
        Kind.HANG,
    )
    if report.guilty == own and verdicts[own] is Verdict.REPRODUCES and bisectable:
        return bisected(case, report, deadline)
    return report


def at_stage(case: Case, stage: str | None, deadline: float) -> Outcome:
    """The case through torch.compile with ``stage`` as its backend, None for its own."""
    case = replace(case, call=CallPath.TORCH_COMPILE)
    if stage is not None:
        case = replace(case, backend=references.find(stage), compiler=stage)
    return workers.submit(case, seconds=max(5.0, min(CALL_SECONDS, deadline - time.monotonic())))


def bisected(case: Case, report: StageReport, deadline: float) -> StageReport:
    """The report with the pass, lowering or option of inductor without which the failure is gone."""

    def fails() -> bool:
        if time.monotonic() > deadline:
            raise TimeIsUp
        verdict = at_stage(case, None, deadline).verdict
        if verdict is Verdict.TIMEOUT:
            raise TimeIsUp
        if verdict in (Verdict.INVALID, Verdict.SKIPPED):
            raise RuntimeError(f"a run was {verdict}")
        return verdict is not Verdict.GONE  # failing otherwise is not passing

    try:
        found = _torch.bisect_inductor(fails)
    except TimeIsUp:
        return replace(report, notes=("the bisection of inductor ran out of time",))
    except (
        RuntimeError,
        ImportError,
    ) as error:  # what the bisector raises when answers contradict each other
        return replace(report, notes=(f"torch's bisector gave up: {str(error).splitlines()[0][:200]}",))
    if found is None:
        return replace(report, notes=("torch's bisector found no stage at fault",))
    stage, subsystem, number, detail = found
    if stage != report.guilty:
        return replace(report, notes=(f"torch's bisector says {stage}",))
    if subsystem is None:
        return replace(report, notes=("no single pass, lowering or option of it is at fault",))
    return replace(report, subsystem=subsystem, number=number, detail=detail)


def in_new_processes(path: Path, case: Case, deadline: float) -> StageReport:
    """Each run in a fresh interpreter, where this process cannot be forked; without the bisection."""
    verdicts: dict[str, Verdict] = {}
    own = case.backend.name
    for name in (*EARLIER, own):
        left = deadline - time.monotonic()
        if name not in verdicts and (name == own or left > 0):
            backend = None if name == own else name
            verdicts[name] = repro.run(path, backend=backend, seconds=max(30.0, left)).verdict
    note = "passes and lowerings were not bisected: this process cannot be forked"
    report = StageReport(verdicts, own, torch=torch.__version__)
    return replace(report, notes=(note,)) if own == "inductor" and verdicts[own] in FAILING else report
