"""Judging what may kill the process that judges it: in a child, whose death says what happened."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from typing import Any

from minidbg.judge.harness import failure
from minidbg.judge.signature import CALLS_BACKEND, CARRIERS
from minidbg.words.kinds import Kind
from minidbg.words.outcome import Direction, Outcome, Signature, Verdict
from minidbg.words.run_spec import RunSpec

START_LIMIT_S = 300.0  # for imports and the eager run
STDERR_KEPT = 4000


def judge_in_child(command: list[str], spec: RunSpec, device: str | None, backend: str | None) -> Outcome:
    """The outcome that ``command`` finds in a process of its own, or what its death says."""
    command = [*command, "--child"]
    command += ["--device", device] if device else []
    command += ["--backend", backend] if backend else []
    began = time.perf_counter()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, no_core_files():
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
        )
        try:
            over = limit_reached(child, out, time_limit(spec))
            if over == "timeout":
                child.send_signal(signal.SIGABRT)  # faulthandler then writes the stack
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(5)
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
            status = child.wait()
        said, tail = (file_text(file) for file in (out, err))
    sys.stderr.write(tail[-4000:])
    notes = [line[6:] for line in said.splitlines() if line.startswith("phase ")]
    answer = next((json.loads(line) for line in said.splitlines() if line.startswith("{")), None)
    if answer is None or over:
        found = died(over or death_name(status), notes[-1] if notes else "", tail, spec)
        found = replace(found, signal=-status if status < 0 and not over else None)
    else:
        found = Outcome.from_json(answer)
    return replace(found, seconds=round(time.perf_counter() - began, 3), device=device or spec.device)


def time_limit(spec: RunSpec) -> float:
    """Seconds for compiling and running: ``MINIDBG_TIME_LIMIT_S``, or what the header says."""
    return float(os.environ.get("MINIDBG_TIME_LIMIT_S") or spec.time_limit_s)


def limit_reached(child: subprocess.Popen[bytes], out: Any, limit: float) -> str:
    """``timeout`` or ``memory limit`` when the child must be ended, else nothing: it has ended.

    ``limit`` seconds begin when the child begins to compile, which it says on stdout.
    """
    deadline, compiling = time.monotonic() + START_LIMIT_S, False
    most_bytes = memory_limit()
    while time.monotonic() < deadline:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(0.1)
            return ""
        if most_bytes is not None and resident_bytes(child.pid) > most_bytes:
            return "memory limit"
        if not compiling and b"phase compile" in os.pread(out.fileno(), 4096, 0):
            deadline, compiling = time.monotonic() + limit, True
    return "timeout"


def memory_limit() -> int | None:
    """Bytes that a run may take: ``MINIDBG_MEMORY_BYTES``, or four fifths of what is free; None where nobody says."""
    given = os.environ.get("MINIDBG_MEMORY_BYTES", "")
    if given.isdecimal():
        return int(given)
    free = []
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/meminfo") as file:
        free += [int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable")]
    with contextlib.suppress(OSError, ValueError):
        free.append(number_in("/sys/fs/cgroup/memory.max") - number_in("/sys/fs/cgroup/memory.current"))
    return min(free) // 5 * 4 if free else None


def number_in(path: str) -> int:
    with open(path) as file:
        return int(file.read())


def resident_bytes(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()
    return 0


def died(died_by: str, phase: str, stderr: str, spec: RunSpec) -> Outcome:
    """The outcome of a process that ended without an answer while it was in ``phase`` (``runtime backward``)."""
    kind, words = Kind.HANG if died_by == "timeout" else Kind.CRASH, last_words(stderr)
    if phase in ("", "eager") or (phase, kind) == ("compare", Kind.HANG):  # none of them is the backend's
        who = {"": "the process", "eager": "eager itself"}.get(phase, "the comparison with eager")
        how = "did not come back in time" if kind is Kind.HANG else f"died ({died_by})"
        reason, tail = f"{who} {how}", stderr[-STDERR_KEPT:]
        return Outcome(Verdict.INVALID, reason=reason, message=words, stderr=tail)
    what, _, way = phase.partition(" ")
    direction = Direction(way or "forward")
    stack = stack_in(stderr)
    compiles = any(function in (*CALLS_BACKEND, "get_or_compile") for _, function in stack)
    if stack and what == "compile" and not compiles:
        what = "runtime"  # torch.compile compiles and runs in one call: the stack tells which it was
    frames = tuple(f"{module}:{function}" for module, function in outside_carriers(stack)[:4])
    signature = Signature(kind, direction, (what if kind is Kind.HANG else died_by,), frames)
    where = f"while {'compiling' if what == 'compile' else 'running'} {direction}"
    said = f"{died_by} {where}" + (f": {words}" if words else "")
    message = said if kind is Kind.CRASH else f"no end {where}"
    return failure(signature, spec, message, stderr=stderr[-STDERR_KEPT:])


def death_name(status: int) -> str:
    """``SIGSEGV``, or ``exit status 7``, from a status as ``subprocess`` gives it."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"


def last_words(stderr: str) -> str:
    """The last lines before the stack that faulthandler wrote, and faulthandler's own first line."""
    before, fatal, after = stderr.partition("Fatal Python error: ")
    lines = [line.strip() for line in before.splitlines() if line.strip()][-3:]
    return "\n".join([*lines, *after.splitlines()[:1]] if fatal else lines)[-2000:]


def stack_in(stderr: str) -> list[tuple[str, str]]:
    """Module and function of the frames in faulthandler's last stack, innermost first. It shows a hundred."""
    stacks = re.split(r"(?m)^(?=(?:Current thread|Thread) 0x)", stderr)
    current = [stack for stack in stacks if stack.startswith("Current thread")] or stacks[-1:]
    frames = re.findall(r'(?m)^  File "(.*)", line \d+ in (.*)$', current[-1])
    cut_off = [("", CALLS_BACKEND[0])] if re.search(r"(?m)^  \.\.\.$", current[-1]) else []
    return [(module_of_file(file), function) for file, function in frames] + cut_off


def outside_carriers(stack: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The frames below the place where the backend or its result was called, as in an exception's signature."""
    kept = []
    for module, function in stack:
        where = f"{module}:{function}"
        if function in (*CALLS_BACKEND, "call_compiled") or where == "torch._dynamo.eval_frame:_fn":
            break
        if not module.startswith((*CARRIERS, "minidbg", "<")) and where != "torch:__call__":
            kept.append((module, function))
    return kept


def module_of_file(file: str) -> str:
    """The dotted name by which the file was imported, as far as the path tells."""
    for folder in sorted(filter(None, sys.path), key=len, reverse=True):
        if file.startswith(folder.rstrip("/") + "/"):
            file = file[len(folder.rstrip("/")) + 1 :]
            break
    else:
        file = os.path.basename(file)
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def file_text(file: Any, most: int = 1 << 20) -> str:
    file.seek(0, os.SEEK_END)
    file.seek(max(0, file.tell() - most))
    return str(file.read().decode(errors="replace"))


@contextlib.contextmanager
def no_core_files() -> Any:
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))
