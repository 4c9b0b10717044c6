"""Runs in children: what kills the child, or never comes back, is an Outcome like any other.

A hang is only known by its length, and each question that shows it costs all of its time limit:
that is made of what a healthy call takes with the same backend, which must stay far below it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import fx

from minidbg import workers
from minidbg.backends import is_pickled
from minidbg.core.errors import BackendUnreachable, CannotWrite, DeviceInUse
from minidbg.core.machine import NEVER, Deadline, memory_limit
from minidbg.core.outcome import Outcome, Signature, Verdict
from minidbg.fx.case import Case
from minidbg.fx.effects import is_call
from minidbg.judge.death import died_by, outcome_of_death
from minidbg.judge.suspects import suspects_in_stack
from minidbg.oracle.parcel import ANSWER, packed, unpacked, warmup_for
from minidbg.torch_internals.devices import devices_of, is_exclusive, place_of
from minidbg.workers import Ended, Request, Submit
from minidbg.workers.kernel_cache import CACHE_VARIABLE, remove_unfinished

log = logging.getLogger("minidbg")


def ask(case: Case, *, seconds: float, **more: Any) -> Outcome:
    """As ``ask_all`` of one case."""
    return ask_all([(case, seconds)], **more)[0]


def ask_all(
    questions: Sequence[tuple[Case, float]],
    *,
    memory_bytes: int | None = None,
    to_the_end: bool = True,
    deadline: Deadline = NEVER,
    submit: Submit = workers.submit,
) -> list[Outcome]:
    """Have children run ``execute(case)``, each for so many seconds, and wait for the outcomes: in
    forks of this process's server where the backend answers in one. All are put, then finished.

    A child that dies, or passes its seconds or ``memory_bytes`` (by default its share of four
    fifths of what is free), is an outcome of kind crash or hang. One that does so in eager is
    invalid. A hang is not waited for to the end of ``seconds`` when healthy calls are much shorter;
    and what may be only slow gets more. ``to_the_end`` is ``execute``'s. Nothing that is waited for
    passes the ``deadline``: a question that it cuts off looks like a hang. Raises OSError
    when no process can be made, DeviceInUse where no child can open the case's device, and
    BackendUnreachable where the child could not unpickle the case's backend, or died of it: that is
    no answer.
    """
    memory_bytes = memory_bytes or memory_limit(len(questions))

    def put(case: Case, seconds: float) -> Future[Ended]:
        with contextlib.ExitStack() as files:
            argument = {"case": files.enter_context(packed(case)), "to_the_end": to_the_end}
            asked = submit(Request(
                call=ANSWER, argument=argument, seconds=deadline.left(seconds), deadline=deadline,
                memory_bytes=memory_bytes, fork=forked_from(case),
            ))  # fmt: skip
            until_its_end = files.pop_all()
        asked.add_done_callback(lambda _: until_its_end.close())
        return asked

    def outcome_of(case: Case, seconds: float, *begun: Future[Ended]) -> Outcome:
        first = list(begun)

        def once() -> Outcome:
            try:
                asked = first.pop() if first else put(case, seconds)
                return outcome_of_question(case, asked.result(), deadline)
            except CannotWrite as refusal:
                return Outcome(Verdict.INVALID, reason=str(refusal))

        return unless_the_machine_failed(once, expected=case.signature, deadline=deadline)

    def finished(case: Case, seconds: float, forked: bool, *begun: Future[Ended]) -> Outcome:
        outcome = outcome_of(case, seconds, *begun)
        if is_hang(outcome) and not case.spec.traits.endless:
            enough = time_for(case, seconds, outcome_of, deadline)
            if forked and forked_from(case) is None:
                return outcome_of(case, seconds)
            if case.kind is None and enough > seconds:
                return outcome_of(case, enough)
        return outcome

    asked: list[tuple[Any, ...]] = []
    try:
        for case, seconds in questions:
            if case.spec.traits.endless:
                seconds = min(seconds, max(LEAST_S, time_for(case, seconds, outcome_of, deadline)))
            asked.append((case, seconds, forked_from(case) is not None))
            with contextlib.suppress(CannotWrite, OSError):  # it is put again when it is waited for
                asked[-1] = (*asked[-1], put(case, seconds))
        return [finished(*question) for question in asked]
    finally:
        for _, _, _, *begun in asked:
            for future in begun:
                future.cancel()  # on Ctrl-C


def is_hang(outcome: Outcome) -> bool:
    return outcome.signature is not None and outcome.signature.kind.traits.endless


def outcome_of_question(case: Case, done: Ended, deadline: Deadline) -> Outcome:
    """What a child answers about ``case``, or its death. Raises BackendUnreachable, DeviceInUse."""
    if done.answered and "refused" in done.value:
        raise BackendUnreachable(done.value["refused"])
    if done.answered:
        return Outcome.from_json(done.value).judged_against(case.signature)
    if is_pickled(case.backend) and not done.note and not deadline.is_over:  # it came no further
        raise BackendUnreachable(f"unpickling it ended a process: {died_by(done)}")
    if device := taken_device(case, done):
        raise DeviceInUse(device)
    if done.error:
        reason = "the oracle itself failed: " + done.error.strip().rpartition("\n")[2]
        return Outcome(Verdict.INVALID, reason=reason, message=done.error)
    calls = filter(is_call, case.graph_module.graph.nodes)
    outcome = outcome_of_death(done, case.spec)
    return replace(outcome, suspects=suspects_in_stack(done.stderr_tail, calls))


IN_USE = re.compile(
    r"(?im)^(?! ).*(\bEBUSY\b|(?<!file )\bbusy\b"
    r"|(?<!memory )(?<!address )(?<!address already )\bin use\b)"
)
"""How the last lines of a traceback look from opening a device that another process has: neither
full memory nor a port of a network is meant."""


def taken_device(case: Case, done: Ended) -> str:
    """The accelerator that another process has, so that a child could not put ``case`` there; else
    empty. Once the child has the case, what it says is about the backend, or eager."""
    device = place_of(case.inputs)
    has_case = f", in {unpacked.__name__}\n" not in done.error
    return "" if device == "cpu" or has_case or not IN_USE.search(done.error) else device


# ---- how long a hang is waited for ---------------------------------------------------------------


LEAST_S = 2.0
MOST_S = 600.0
TIMES = 10.0
"""The limit is so many times the healthy time."""
NODES = 50
"""A graph with so many nodes more is expected to take twice as long."""
ADDITION_S = MOST_S / TIMES
"""For one addition, whose healthy time nobody knows yet."""
Key = tuple[str, ...]
HEALTHY: dict[Key, float | None] = {}
"""Seconds of a healthy call, by backend and call path; None where even one addition fails."""
NOT_IN_FORKS: set[Key] = set()
"""Backends that hang in a fork even at one addition: those with a pool of threads, for one."""


def time_for(case: Case, seconds: float, ask: Callable[[Case, float], Outcome], deadline: Deadline) -> float:
    """Seconds after which ``case`` hangs, by ``ask``, a run with a limit in seconds; ``seconds``
    when the backend did not do even one addition here. One that hangs there in a fork is asked in
    fresh interpreters from then on."""
    key = key_of(case)
    if key not in HEALTHY:
        outcome = ask(one_addition(case), ADDITION_S)
        if is_hang(outcome) and not deadline.is_over and key not in NOT_IN_FORKS:
            NOT_IN_FORKS.add(key)
            log.warning(
                "minidbg: %s hangs in a fork of a clean interpreter, even at one addition:"
                " each question is a fresh interpreter, which takes longer",
                case.backend.name,
            )
            outcome = ask(one_addition(case), ADDITION_S)
        if outcome.verdict is not Verdict.GONE and deadline.is_over:
            return seconds  # cut off, which says nothing
        HEALTHY[key] = outcome.seconds if outcome.verdict is Verdict.GONE else None
    if (healthy := HEALTHY[key]) is None:
        return seconds
    return min(MOST_S, healthy * TIMES * (1 + len(case.graph_module.graph.nodes) / NODES))


def key_of(case: Case) -> Key:
    backend = case.backend
    return backend.expression, repr(backend.options), str(backend.mode), str(case.spec.call)


def forked_from(case: Case) -> workers.Warmup | None:
    """What a question has its fork from; None where the case's backend hangs in each."""
    return None if key_of(case) in NOT_IN_FORKS else warmup_for(case)


def one_addition(case: Case) -> Case:
    """The smallest case for the same backend, on the same device, in the same modes."""
    graph = fx.Graph()
    graph.output((graph.call_function(torch.ops.aten.add.Tensor, (graph.placeholder("x"), 1)),))
    return replace(
        case.with_spec(signature=None, dynamic=False, dynamic_dims=(), backward=False),
        graph_module=fx.GraphModule(torch.nn.Module(), graph),
        inputs=(torch.ones(3, device=next(iter(devices_of(case.inputs)), "cpu")),),
    )


# ---- failures of the machine, no answers: unfinished libraries, a full disk, a killed compiler


PAUSES_S = (0.2, 1.0, 4.0)
"""Before a question that the machine answered is asked again: what others write is then there."""
MACHINE_FAILURES = {
    "a library in the kernel cache was unfinished": (
        r"(ImportError|OSError): (?P<file>\S+): (cannot open shared object file|file too short"
        r"|invalid ELF header|ELF load command|cannot read file data|failed to map segment)"
    ),
    "a file in the kernel cache was gone": r"FileNotFoundError: \[Errno 2\][^\n]*'(?P<file>[^'\n]+)'",
    "no space was left on the device": r"No space left on device|Errno 28\b|\bENOSPC\b|Disk quota exceeded",
    "the compiler was killed": (
        r"Killed signal terminated program|terminated with signal 9|internal compiler error: Killed"
        r"|CalledProcessError: [^\n]*died with <Signals.SIGKILL"
    ),
    "no process could be made": r"BlockingIOError: \[Errno 11\]|\bf?v?fork: [^\n]*Resource temporarily unavailable",
}
"""Failures of what a question is asked with, not of the backend: why, and how their text looks.
``file`` must lie in the kernel cache; the same of another file is the backend's own."""


def unless_the_machine_failed(
    ask: Callable[[], Outcome],
    *,
    expected: Signature | None,
    deadline: Deadline = NEVER,
    pause: Callable[[float], object] = time.sleep,
) -> Outcome:
    """The outcome of ``ask()``, which is called again where the machine failed and not the backend;
    where it goes on failing, or the ``deadline`` is over, invalid. A failure that is ``expected``
    is the answer, whatever it looks like. Raises OSError when no process can be made."""
    for seconds in (*PAUSES_S, None):
        try:
            outcome = ask()
            why = machine_failure(outcome, expected)
        except (OSError, DeviceInUse) as error:
            is_ours = isinstance(error, DeviceInUse) and not is_exclusive(error.device)
            if seconds is None or deadline.is_over or is_ours:
                raise
        else:
            if why is None:
                return outcome
            if seconds is None or deadline.is_over:
                break
            with contextlib.suppress(KeyError, OSError):
                remove_unfinished(Path(os.environ[CACHE_VARIABLE]))
        pause(deadline.left(seconds))
    reason = f"{why}, again and again"
    return replace(outcome, verdict=Verdict.INVALID, signature=None, reason=reason)


def machine_failure(outcome: Outcome, expected: Signature | None) -> str | None:
    """Which failure of the machine ``outcome`` tells of, unless it was ``expected``; else None."""
    unexpected = outcome.verdict in (Verdict.CHANGED, Verdict.INVALID)
    if not unexpected and (expected is not None or outcome.verdict is not Verdict.REPRODUCES):
        return None
    folder = os.environ.get(CACHE_VARIABLE)
    for why, pattern in MACHINE_FAILURES.items():
        if (match := re.search(pattern, outcome.message)) is not None:
            file = match.groupdict().get("file")
            if file is None or (folder is not None and Path(file).is_relative_to(folder)):
                return why
    return None
