"""Nine kinds of failure, planted at one op: each must be captured, reduced to that op, verified, and shown by its script."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from parts.context import Context, Done, Failed, Figures, Row, ended_with, last_json, need

RAISED = (
    "compile_failure",
    "run_time_failure",
    "wrong_result",
    "wrong_gradient",
    "not_a_number",
    "out_of_memory",
)
IN_ERROR = ("illegal_memory_access", "device_side_assert")
"""After these the device refuses every call of the process."""
PROGRAM = Path(__file__).resolve().parents[1] / "flow_program.py"
ROW_S = 150.0
HUNG_S = 20.0
"""How long the program with the endless kernel is looked at before it is killed."""
QUESTION_S = 8.0
"""A run that takes longer hangs, where the kernel is endless."""
MOST_HANGS_S = 240.0
"""What the reduction of the endless kernel gets, where the part has it."""
MOST_LINES = 120


def rows(context: Context) -> Iterator[tuple[str, Row]]:
    for fault in (*RAISED[:5], *IN_ERROR, "endless_kernel", RAISED[5]):
        yield fault.replace("_", " "), partial(row, context, fault)


def row(context: Context, fault: str) -> tuple[Figures, str]:
    if fault == "illegal_memory_access" and context.device != "acme":
        need("triton")
    folder, began = context.place(fault), time.monotonic()
    if fault == "endless_kernel":
        found = reduced_after_a_kill(context, folder)
    else:
        found = reduced_in_the_program(context, fault, folder)
    path = folder / found["repro"]
    limit = {"MINIDBG_TIME_LIMIT_S": f"{QUESTION_S:g}"} if fault == "endless_kernel" else {}
    with context.beside(
        path, "--device", "cpu", cwd=context.place(f"{fault}_on_the_cpu"), limit=60
    ) as on_the_cpu:
        again = context.python(path, cwd=folder, limit=60, **limit)
        there = on_the_cpu()
    figures = figures_in(found["line"], path, began)
    if again.status != 1:
        raise Failed(f"its script ends with {again.status} instead of 1: {again.tail}")
    if there.status != 0:
        raise Failed(f"its script ends with {there.status} on the CPU, where nothing is wrong: {there.tail}")
    if figures["nodes left"] != 1:
        raise Failed(f"{figures['nodes left']} nodes are left, and 1 is wrong: {found['line']}")
    if figures["lines"] > MOST_LINES:
        raise Failed(f"the script has {figures['lines']} lines")
    return figures, found["line"]


def reduced_in_the_program(context: Context, fault: str, folder: Path, **variables: str) -> dict[str, Any]:
    """The report on the exception that the program met: its line, and the repro. Raises Failed."""
    done = context.python(PROGRAM, context.device, fault, cwd=folder, limit=ROW_S, **variables)
    if done.status is None:
        raise Failed(f"the program did not end within {done.seconds:.0f} s: {done.tail}")
    answer = last_json(done.out) if done.status == 0 else {"report": None, "said": done.tail}
    if answer.get("path"):
        return {"line": answer["report"], "repro": answer["path"]}
    if answer["report"] is None:
        raise Failed(f"minidbg said nothing; the program ended with {done.status}: {answer.get('said')}")
    if fault == "out_of_memory":
        return reduced_later(context, folder, 100.0)
    raise Failed(f"no repro: {answer['report']}")


def reduced_after_a_kill(context: Context, folder: Path) -> dict[str, Any]:
    """What a person does whose program stands still: kill it, and ask for its last graph."""
    began = time.monotonic()
    program = context.started(PROGRAM, context.device, "endless_kernel", cwd=folder)
    with ended_with(program), contextlib.suppress(TimeoutError):
        waited_for(folder / "minidbg_repros" / ".minidbg" / "crash_records", HUNG_S)
        time.sleep(HUNG_S / 2)
        if program.poll() is not None:
            raise Failed(
                f"the program ended by itself: {context.done(program, program.returncode, folder, began).tail}"
            )
    limit = f"{QUESTION_S:g}"
    seconds = max(
        60.0, min(MOST_HANGS_S, context.left - 40)
    )  # each question that hangs takes all of its time
    return reduced_later(context, folder, seconds, MINIDBG_TIME_LIMIT_S=limit)


def reduced_later(context: Context, folder: Path, seconds: float, **variables: str) -> dict[str, Any]:
    """The repro of a capture that waits, or of what a dead program left. Raises Failed."""
    words = ("reduce", "--json", "--seconds", f"{seconds:.0f}")
    done = context.minidbg(*words, cwd=folder, limit=seconds + 30, **variables)
    answer = last_json(done.out)
    if not answer.get("path"):
        raise Failed(f"no repro: {done.tail}")
    return {"line": f"afterwards: {last_words(done)}", "repro": answer["path"]}


def waited_for(folder: Path, seconds: float) -> None:
    """Until a record is in ``folder``. Raises TimeoutError."""
    until = time.monotonic() + seconds
    while not any(folder.glob("*.py")):
        if time.monotonic() > until:
            raise TimeoutError
        time.sleep(0.2)


def last_words(done: Done) -> str:
    return next((line for line in reversed(done.err.splitlines()) if "nodes" in line), done.tail)


def figures_in(line: str, path: Path, began: float) -> Figures:
    """What minidbg says of the reduction, and the script's length. Raises Failed."""
    return {
        **reduction_in(line), "s with all processes": time.monotonic() - began, "lines": len(path.read_text().splitlines()),
    }  # fmt: skip


def reduction_in(line: str) -> Figures:
    """The figures in ``11 -> 1 nodes, 3 runs, 4.4 s; run: ...``. Raises Failed where it says something else."""
    said = re.search(r"(\d+) -> (\d+) nodes, (\d+) runs?, ([\d.]+) s\b", line)
    if said is None:
        raise Failed(f"no figures of a reduction: {line}")
    before, left, questions = map(int, said.groups()[:3])
    return {"s": float(said[4]), "questions": questions, "nodes before": before, "nodes left": left}
