"""One oracle call in a child: what kills the child, or never comes back, is an Outcome like any other."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from minidbg.case import Case
from minidbg.failure import Kind, Outcome, Verdict
from minidbg.graphs.effects import is_call
from minidbg.oracle import execute
from minidbg.oracle.child import death_name, died, memory_limit
from minidbg.oracle.embed import settings_of
from minidbg.oracle.suspects import suspects_in_stack
from minidbg.workers import limits
from minidbg.workers.fork import Notes, call_in_fork
from minidbg.workers.result import ChildResult
from minidbg.workers.safety import fork_refusal


def submit(
    case: Case, *, seconds: float, memory_bytes: int | None = None, to_the_end: bool = True
) -> Outcome:
    """The outcome of ``execute(case)`` in a child, judged against the case's signature.

    The child is a fork of this process, or an interpreter of its own where forking is unsafe or settings say so.

    A child that dies, or passes ``seconds`` or ``memory_bytes`` (by default four fifths of what is free), is an outcome of
    kind crash or hang. One that does so in eager is invalid. A hang is not waited for to the end of ``seconds`` when healthy
    calls are much shorter; and what may be only slow gets more. ``to_the_end`` is ``execute``'s. Raises OSError when no process can be made.
    """

    memory_bytes = memory_bytes or memory_limit()

    def ask(case: Case, seconds: float) -> Outcome:
        if TRAVEL and must_spawn():
            return in_a_spawned_worker(case, seconds, memory_bytes)
        return in_a_fork(case, seconds, memory_bytes, to_the_end=to_the_end)

    if case.kind is Kind.HANG:
        enough = limits.time_for(case, ask)
        return ask(case, seconds if enough is None else min(seconds, max(limits.LEAST_S, enough)))
    outcome = ask(case, seconds)
    if case.kind is None and outcome.signature is not None and outcome.signature.kind is Kind.HANG:
        enough = limits.time_for(case, ask)
        if enough is not None and enough > seconds:
            return ask(case, enough)
    return outcome


Travel: TypeAlias = Callable[[Case, float, int | None], Outcome | ChildResult]
TRAVEL: list[Travel] = []
"""How a case gets to another interpreter; the room that writes scripts knows, which is above this one."""


def use_for_travel(travel: Travel) -> None:
    """Have cases sent to spawned workers by ``travel``."""
    TRAVEL[:] = [travel]


def must_spawn() -> bool:
    """Whether children must be interpreters of their own."""
    wanted = os.environ.get("MINIDBG_WORKERS", "")
    return wanted == "spawn" or (wanted != "fork" and fork_refusal() is not None)


def in_a_spawned_worker(case: Case, seconds: float, memory_bytes: int | None) -> Outcome:
    """One run in an interpreter of its own."""
    ended = TRAVEL[0](case, seconds, memory_bytes)
    return ended if isinstance(ended, Outcome) else outcome_of(case, ended, memory_bytes)


def in_a_fork(case: Case, seconds: float, memory_bytes: int | None, *, to_the_end: bool = True) -> Outcome:
    """One run in a fork."""
    note = Notes()
    done = call_in_fork(
        lambda: execute(case, note=note, to_the_end=to_the_end).to_json(),
        seconds=seconds,
        memory_bytes=memory_bytes,
        note=note,
    )
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
    names = {node.name for node in case.graph_module.graph.nodes if is_call(node)}
    outcome = replace(outcome, suspects=suspects_in_stack(done.stderr_tail, names))
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
