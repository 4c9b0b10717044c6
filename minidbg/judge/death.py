"""What the end of a process says that judged a case: the Outcome that it printed, else what its
death shows. Needs no torch.

A process that judges says in which phase it is (``compile forward``, ``runtime backward``): by a
note that outlives it, or on stdout as ``phase compile forward``. What ends it in eager is no
failure of the backend.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable
from dataclasses import replace

from minidbg.core.kinds import Kind
from minidbg.core.outcome import Direction, Outcome, Signature, Verdict
from minidbg.core.run_spec import RunSpec
from minidbg.core.text import abridged, last_json, last_phase, signal_name
from minidbg.judge.signature import CALLS_BACKEND, CARRIERS, failure
from minidbg.workers import Ended

STDERR_KEPT = 12_000  # a stack of a hundred frames begins with the innermost


def outcome_of_run(ended: Ended, spec: RunSpec, *, limit_s: float) -> Outcome:
    """The outcome of a script's run with a time limit of ``limit_s``: what it printed, else what
    its end shows, with a reason."""
    said = last_json(ended.stdout)
    if said is not None:
        with contextlib.suppress(KeyError, ValueError, TypeError, AttributeError):
            return Outcome.from_json(said)
    found = outcome_of_death(ended, spec, tells_phases=spec.expected.kind.traits.dies)
    by = died_by(ended)
    how = f"died of {by}" if ended.signal is not None else by
    if ended.timed_out:
        how = f"no answer within {limit_s:g} s"
    elif ended.out_of_memory:
        how = "ended, for it took more memory than it may"
    both = found.message if found.signature else "", found.stderr
    message = "\n".join(filter(None, both)) or found.message
    return replace(found, reason=found.reason or how, message=message, stderr="")


def outcome_of_death(ended: Ended, spec: RunSpec, *, tells_phases: bool = True) -> Outcome:
    """The outcome of a process that ended without an answer, by the phase that it was in.

    One that named no phase is no failure of the backend if it ``tells_phases``; else one if killed.
    """
    by, phase, stderr = died_by(ended), ended.note or last_phase(ended.stdout), ended.stderr_tail
    kind = Kind.HANG if ended.timed_out else Kind.CRASH
    words, tail, seconds = last_words(stderr), stderr[-STDERR_KEPT:], ended.seconds
    was_ended = ended.signal is not None or ended.timed_out or ended.out_of_memory
    if not phase and not was_ended:
        last = next((line for line in reversed(tail.splitlines()) if line.strip()), "")
        reason = abridged(f"{by} without a verdict{': ' if last else ''}{last}", 300)
        verdict = Verdict.SKIPPED if ended.exit_status == 125 else Verdict.INVALID
        return Outcome(verdict, reason=reason, message=tail, seconds=seconds)
    if phase == "eager" or (phase, kind) == ("compare", Kind.HANG) or (tells_phases and not phase):
        who = {"": "the process", "eager": "eager itself"}.get(phase, "the comparison with eager")
        reason = f"{who} {'did not come back in time' if kind is Kind.HANG else f'died ({by})'}"
        return Outcome(Verdict.INVALID, reason=reason, message=words, stderr=tail, seconds=seconds)
    what, _, way = phase.partition(" ")
    direction = Direction(way or "forward") if phase else spec.expected.direction
    stack = stack_in(stderr)
    compiles = any(function in (*CALLS_BACKEND, "get_or_compile") for _, function in stack)
    if stack and what == "compile" and not compiles:
        what = "runtime"  # torch.compile compiles and runs in one call: the stack tells
    frames = tuple(f"{module}:{function}" for module, function in outside_carriers(stack)[:4])
    types = (by,) if kind is Kind.CRASH else (what,) if what else ()
    where = f"while {'compiling' if what == 'compile' else 'running'} {direction}"
    said = f"{by} {where}" + (f": {words}" if words else "")
    message = said if kind is Kind.CRASH else f"no end {where}"
    killed = None if ended.timed_out or ended.out_of_memory else ended.signal
    signature = Signature(kind, direction, types, frames)
    found = failure(signature, spec, message, stderr=tail, signal=killed)
    return replace(found, seconds=seconds)


def shown_in(attempts: int, judge: Callable[[], Outcome]) -> Outcome:
    for run in range(1, attempts + 1):
        outcome = judge()
        if outcome.verdict is Verdict.REPRODUCES and run > 1:
            return replace(outcome, verdict=Verdict.FLAKY, reproduced=1, runs=run)
        if outcome.verdict is not Verdict.GONE:
            return outcome
    return replace(outcome, runs=attempts, reproduced=0) if attempts > 1 else outcome


def died_by(ended: Ended) -> str:
    """How the process ended: ``SIGSEGV``, ``exit status 7``, ``timeout``, ``memory limit``."""
    if ended.timed_out:
        return "timeout"
    if ended.out_of_memory:
        return "memory limit"
    if ended.signal is not None:
        return signal_name(ended.signal)
    return "unknown death" if ended.exit_status is None else f"exit status {ended.exit_status}"


def last_words(stderr: str) -> str:
    """The last lines before the stack that faulthandler wrote, and its own first line."""
    before, fatal, after = stderr.partition("Fatal Python error: ")
    lines = [line.strip() for line in before.splitlines() if line.strip()][-3:]
    return "\n".join([*lines, *after.splitlines()[:1]] if fatal else lines)[-2000:]


def stack_in(stderr: str) -> list[tuple[str, str]]:
    """Module and function of frames in faulthandler's last stack, innermost first; at most 100."""
    stacks = re.split(r"(?m)^(?=(?:Current thread|Thread) 0x)", stderr)
    current = [stack for stack in stacks if stack.startswith("Current thread")] or stacks[-1:]
    frames = re.findall(r'(?m)^  File "(.*)", line \d+ in (.*)$', current[-1])
    cut_off = [("", CALLS_BACKEND[0])] if re.search(r"(?m)^  \.\.\.$", current[-1]) else []
    return [(module_of_file(file), function) for file, function in frames] + cut_off


def outside_carriers(stack: list[tuple[str, str]]) -> list[tuple[str, str]]:
    kept = []
    for module, function in stack:
        where = f"{module}:{function}"
        if function in (*CALLS_BACKEND, "call_compiled") or where == "torch._dynamo.eval_frame:_fn":
            break
        if not module.startswith((*CARRIERS, "minidbg", "<")) and where != "torch:__call__":
            kept.append((module, function))
    return kept


def module_of_file(file: str) -> str:
    folders = (folder.rstrip("/") + "/" for folder in sys.path if folder)
    around = max(filter(file.startswith, folders), key=len, default=f"{os.path.dirname(file)}/")
    return file.removeprefix(around).removesuffix(".py").removesuffix("/__init__").replace("/", ".")
