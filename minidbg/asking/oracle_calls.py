"""One oracle call in a child: what kills the child, or never comes back, is an Outcome like any other.

How long such a call may take when the case is a hang is derived from what a healthy call takes with the same backend. A hang is
only known by its length, and each question that shows it costs all of the limit. So the limit must be short, and still so long
that a healthy call on a busy machine stays far below it.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import fx

from minidbg import torch_internals, workers
from minidbg.asking.execute import execute
from minidbg.asking.fork_safety import LOST, fork_refusal, say_once
from minidbg.asking.packing import packed, warmth
from minidbg.fx import ranks
from minidbg.fx.case import Case
from minidbg.fx.effects import is_call
from minidbg.judge.child import death_name, died, memory_limit
from minidbg.judge.embed import settings_of
from minidbg.judge.suspects import suspects_in_stack
from minidbg.torch_internals import devices
from minidbg.words.deadline import NEVER, Deadline
from minidbg.words.errors import CannotWrite
from minidbg.words.outcome import Kind, Outcome, Signature, Verdict
from minidbg.workers import ChildResult
from minidbg.workers.kernel_cache import VARIABLE, remove_unfinished

BACKEND_QUESTION_S = 20.0
"""For one addition in a fork, with a backend that nobody has seen work in one."""
WORKS_IN_FORKS: dict[tuple[int, str], bool] = {}
"""By process and backend."""


class Way(Protocol):
    """Runs a case in a process that it may kill. Raises OSError where none can be had."""

    def __call__(
        self, case: Case, seconds: float, memory_bytes: int | None, *, to_the_end: bool
    ) -> Outcome: ...


ELSEWHERE: list[Way] = []
"""The way to processes on other machines, while there is one."""


@contextlib.contextmanager
def asked_elsewhere(way: Way) -> Iterator[None]:
    """Within the block ``submit`` asks in this way."""
    ELSEWHERE.append(way)
    try:
        yield
    finally:
        ELSEWHERE.remove(way)


def submit(
    case: Case,
    *,
    seconds: float,
    memory_bytes: int | None = None,
    to_the_end: bool = True,
    deadline: Deadline = NEVER,
) -> Outcome:
    """The outcome of ``execute(case)`` in a child, judged against the case's signature.

    The child is a fork of this process, or of a fresh interpreter where that is unsafe or ``MINIDBG_WORKERS`` says so.

    A child that dies, or passes ``seconds`` or ``memory_bytes`` (by default four fifths of what is free), is an outcome of
    kind crash or hang. One that does so in eager is invalid. A hang is not waited for to the end of ``seconds`` when healthy
    calls are much shorter; and what may be only slow gets more. ``to_the_end`` is ``execute``'s. Nothing that is waited for
    passes the ``deadline``: a question that it cuts off looks like a hang. Raises OSError when no process can be made.
    """

    memory_bytes = memory_bytes or memory_limit()

    def ask(case: Case, seconds: float) -> Outcome:
        def run() -> Outcome:
            way: Way = in_a_fork
            if ELSEWHERE:
                way = ELSEWHERE[-1]
            elif must_spawn(case, deadline):
                way = partial(in_a_zygote, deadline=deadline)
            return way(case, deadline.left(seconds), memory_bytes, to_the_end=to_the_end)

        return unless_the_machine_failed(run, expected=case.signature, deadline=deadline)

    if case.kind is Kind.HANG:
        enough = time_for(case, ask, deadline)
        return ask(case, seconds if enough is None else min(seconds, max(LEAST_S, enough)))
    outcome = ask(case, seconds)
    if case.kind is None and outcome.signature is not None and outcome.signature.kind is Kind.HANG:
        enough = time_for(case, ask, deadline)
        if enough is not None and enough > seconds:
            return ask(case, enough)
    return outcome


# ---- the way to a child ----------------------------------------------------------------------------


def must_spawn(case: Case, deadline: Deadline = NEVER) -> bool:
    """Whether ``case`` must be asked in another interpreter than a fork of this process. A refusal is said once."""
    refusal = why_not_in_a_fork(case, deadline)
    if refusal is not None and refusal != ASKED_FOR:
        say_once(
            f"{refusal}; questions are asked in forks of a fresh interpreter, "
            "which costs some seconds once, for its imports, and a copy of the inputs for each question"
        )
    return refusal is not None


ASKED_FOR = "the setting 'workers' is 'spawn'"


def why_not_in_a_fork(case: Case, deadline: Deadline = NEVER) -> str | None:
    """Why ``case`` cannot run in a fork of this process; None when it can, or ``MINIDBG_WORKERS`` says so."""
    wanted = os.environ.get("MINIDBG_WORKERS", "")
    if wanted in ("spawn", "fork"):
        return ASKED_FOR if wanted == "spawn" else None
    if ranks.has_real_group() and ranks.needs_group(case.graph_module, case.inputs):
        return "this process is connected to other ranks, which no fork of it may talk to"
    return fork_refusal(autograd=may_use_autograd(case)) or hang_in_forks(case, deadline)


def may_use_autograd(case: Case) -> bool:
    """Whether a run of ``case`` may run autograd: AOTAutograd does for each graph with an input that requires grad."""
    modules = [one for one in case.graph_module.modules() if isinstance(one, fx.GraphModule)]
    values = [*case.inputs, *case.graph_module.parameters()]
    return (
        case.backward
        or any(isinstance(value, torch.Tensor) and value.requires_grad for value in values)
        or any(AUTOGRAD.search(f"{node.target}") for one in modules for node in one.graph.nodes)
    )


AUTOGRAD = re.compile(r"autograd|grad_|_grad|backward|jvp|vjp|checkpoint")
"""In the targets of nodes that may run autograd, or make tensors that do."""


def hang_in_forks(case: Case, deadline: Deadline = NEVER) -> str | None:
    """Why a backend that is not torch's own needs an interpreter of its own: not even one addition ends in a fork.

    Its own threads, started in this process, are missing in each fork of it.
    """
    if not case.backend.modules or case.backend.name in ("inductor", "aot_eager", "eager"):
        return None
    key = (os.getpid(), f"{case.backend.expression} {case.backend.embedded}")
    if key not in WORKS_IN_FORKS:
        outcome = in_a_fork(one_addition(case), deadline.left(BACKEND_QUESTION_S), None)
        hangs = outcome.signature is not None and outcome.signature.kind is Kind.HANG
        if hangs and deadline.is_over:
            return f"no time is left to find out whether {case.backend.name} works in a fork"
        WORKS_IN_FORKS[key] = not hangs
    if WORKS_IN_FORKS[key]:
        return None
    return f"{case.backend.name} did not end one addition in a fork of this process in {BACKEND_QUESTION_S:.0f} s"


def in_a_zygote(
    case: Case,
    seconds: float,
    memory_bytes: int | None,
    *,
    to_the_end: bool = True,
    deadline: Deadline = NEVER,
) -> Outcome:
    """One run in a fork of a fresh interpreter, of another one where that has lost its accelerators. Raises OSError."""
    for last in (False, True):
        try:
            with packed(case) as path:
                done = workers.call_in_zygote(
                    "minidbg.asking.packing:answer",
                    {"path": str(path), "margin": case.margin, "to_the_end": to_the_end},
                    seconds=seconds,
                    deadline=deadline,
                    memory_bytes=memory_bytes,
                    **warmth(case),
                )
        except CannotWrite as refusal:
            return Outcome(Verdict.INVALID, reason=str(refusal))
        lost = done.value.get("lost") if isinstance(done.value, dict) else None
        if lost is None or last:
            break
        workers.end_zygote()
    if lost is not None:
        return Outcome(Verdict.INVALID, reason=f"no fork of a fresh interpreter can use {lost}")
    if done.answered:
        return Outcome.from_json(done.value).judged_against(case.signature)
    return outcome_of(case, done, memory_bytes)


def in_a_fork(case: Case, seconds: float, memory_bytes: int | None, *, to_the_end: bool = True) -> Outcome:
    """One run in a fork; in a fresh interpreter's when this process has lost its forks since it was last asked for one."""
    note = workers.Notes()

    def answer() -> dict[str, Any]:
        lost = devices.lost_in_fork()
        return {"lost": lost} if lost else execute(case, note=note, to_the_end=to_the_end).to_json()

    done = workers.call_in_fork(answer, seconds=seconds, memory_bytes=memory_bytes, note=note)
    if isinstance(done.value, dict) and "lost" in done.value:
        LOST[os.getpid()] = done.value["lost"]
        return in_a_zygote(case, seconds, memory_bytes, to_the_end=to_the_end)
    if done.answered:
        return Outcome.from_json(done.value)
    return outcome_of(case, done, memory_bytes)


def outcome_of(case: Case, done: ChildResult, memory_bytes: int | None) -> Outcome:
    """What the end of a child that gave no answer says about ``case``."""
    if done.error:
        last = done.error.strip().rpartition("\n")[2]
        return Outcome(Verdict.INVALID, reason=f"the oracle itself failed: {last}", message=done.error)
    found = died(died_by(done, memory_bytes), done.note, done.stderr_tail, settings_of(case))
    outcome = Outcome.from_json({**found, "seconds": done.seconds, "signal": done.signal})
    if done.timed_out or done.out_of_memory:
        outcome = replace(outcome, signal=None)  # ours
    calls = [torch_internals.GivenCall.of(node) for node in case.graph_module.graph.nodes if is_call(node)]
    outcome = replace(outcome, suspects=suspects_in_stack(done.stderr_tail, calls))
    return outcome.judged_against(case.signature)


def died_by(done: ChildResult, memory_bytes: int | None) -> str:
    """How a child without an answer ended: ``SIGSEGV``, ``exit status 7``, ``timeout``, ``memory limit``."""
    if done.timed_out:
        return "timeout"
    if done.out_of_memory:
        return "memory limit"
    if done.signal is None and done.exit_status is None:
        return "unknown death"
    return death_name(-done.signal if done.signal is not None else done.exit_status or 0)


# ---- how long a hang is waited for -----------------------------------------------------------------


LEAST_S = 2.0
MOST_S = 600.0
TIMES = 10.0
"""The limit is so many times the healthy time."""
NODES = 50
"""A graph with so many nodes more is expected to take twice as long."""
HEALTHY: dict[tuple[str, ...], float | None] = {}
"""Seconds of a healthy call, by backend and call path; None where even one addition does not come back well."""

Ask = Callable[[Case, float], Outcome]
"""One oracle call with a limit in seconds."""


def time_for(case: Case, ask: Ask, deadline: Deadline = NEVER) -> float | None:
    """Seconds after which ``case`` hangs; None when the backend did not do even one addition here."""
    key = (case.backend.expression, repr(case.backend.options), str(case.backend.mode), str(case.call))
    if key not in HEALTHY:
        outcome = ask(one_addition(case), MOST_S / TIMES)
        if outcome.verdict is not Verdict.GONE and deadline.is_over:
            return None  # cut off, which says nothing
        HEALTHY[key] = outcome.seconds if outcome.verdict is Verdict.GONE else None
    healthy = HEALTHY[key]
    if healthy is None:
        return None
    return min(MOST_S, healthy * TIMES * (1 + len(case.graph_module.graph.nodes) / NODES))


def one_addition(case: Case) -> Case:
    """The smallest case for the same backend, on the same device, in the same modes."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output((graph.call_function(torch.ops.aten.add.Tensor, (x, 1)),))
    return replace(
        case,
        graph_module=fx.GraphModule(torch.nn.Module(), graph),
        inputs=(torch.ones(3, device=main_device(case.inputs)),),
        signature=None,
        dynamic=False,
        dynamic_dims=(),
        backward=False,
    )


def main_device(values: tuple[Any, ...]) -> torch.device:
    """Where most tensors of ``values`` are."""
    found = [value.device for value in values if isinstance(value, torch.Tensor)]
    return max(found, key=found.count, default=torch.device("cpu"))


# ---- failures of the machine, which are no answers: unfinished libraries, a full disk, a killed compiler


PAUSES_S = (0.2, 1.0, 4.0)
"""Before a question is asked again that the machine has answered: what another process is writing is then there."""
MACHINE_FAILURES = {
    "a library in the kernel cache was unfinished": (
        r"(ImportError|OSError): (?P<file>\S+): (cannot open shared object file|file too short|invalid ELF header"
        r"|ELF load command|cannot read file data|failed to map segment)"
    ),
    "a file in the kernel cache was gone": r"FileNotFoundError: \[Errno 2\][^\n]*'(?P<file>[^'\n]+)'",
    "no space was left on the device": r"No space left on device|Errno 28\b|\bENOSPC\b|Disk quota exceeded",
    "the compiler was killed": (
        r"Killed signal terminated program|terminated with signal 9|internal compiler error: Killed"
        r"|CalledProcessError: [^\n]*died with <Signals.SIGKILL"
    ),
    "no process could be made": r"BlockingIOError: \[Errno 11\]|\bf?v?fork: [^\n]*Resource temporarily unavailable",
}
"""Failures of what a question is asked with, never of the backend: why, and what their text looks like.

``file`` must lie in the kernel cache; the same of another file is the backend's own.
"""


def unless_the_machine_failed(
    ask: Callable[[], Outcome], *, expected: Signature | None, deadline: Deadline = NEVER
) -> Outcome:
    """The outcome of ``ask()``, which is called again where the machine failed and not the backend.

    Where the machine goes on failing, or the ``deadline`` is over, the outcome is invalid and says why. A failure that is ``expected`` is the answer,
    whatever it looks like. Raises OSError when no process can be made.
    """
    for pause in (*PAUSES_S, None):
        try:
            outcome = ask()
            why = machine_failure(outcome, expected)
        except OSError:
            if pause is None or deadline.is_over:
                raise
        else:
            if why is None:
                return outcome
            if pause is None or deadline.is_over:
                break
            with contextlib.suppress(KeyError, OSError):
                remove_unfinished(Path(os.environ[VARIABLE]))
        time.sleep(deadline.left(pause))
    return replace(outcome, verdict=Verdict.INVALID, signature=None, reason=f"{why}, again and again")


def machine_failure(outcome: Outcome, expected: Signature | None) -> str | None:
    """Which failure of the machine ``outcome`` tells of, when it is not the failure that was ``expected``; else None."""
    unexpected = outcome.verdict in (Verdict.CHANGED, Verdict.INVALID)
    if not unexpected and (expected is not None or outcome.verdict is not Verdict.REPRODUCES):
        return None
    for why, pattern in MACHINE_FAILURES.items():
        found = re.search(pattern, outcome.message)
        file = found.groupdict().get("file") if found is not None else None
        if found is not None and (file is None or is_in_kernel_cache(file)):
            return why
    return None


def is_in_kernel_cache(file: str) -> bool:
    folder = os.environ.get(VARIABLE)
    return folder is not None and Path(file).is_relative_to(folder)
