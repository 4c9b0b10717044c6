"""How long a person waits on this device: from the exception to the repro, with free memory and beside a program that fills the device."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from parts.context import Context, Failed, Figures, Row, last_json
from parts.flow import reduction_in

PROGRAM = Path(__file__).resolve().parents[1] / "speed_program.py"
FILLED = 0.9
"""The share of what is free that the program takes for itself before it fails."""


def rows(context: Context) -> Iterator[tuple[str, Row]]:
    for fault in ("compile_failure", "wrong_result"):
        yield f"{fault.replace('_', ' ')}, 300 nodes", partial(row, context, fault, 0.0)
    yield "wrong result, device full", partial(row, context, "wrong_result", FILLED)


def row(context: Context, fault: str, filled: float) -> tuple[Figures, str]:
    folder = context.place(f"{fault}-{filled:g}")
    done = context.python(PROGRAM, context.device, fault, f"{filled:g}", cwd=folder, limit=200)
    if done.status != 0:
        raise Failed(f"the program ended with {done.status}: {done.tail}")
    answer = last_json(done.out)
    if not answer.get("path"):
        raise Failed(f"no repro: {answer.get('report')}")
    said = reduction_in(answer["report"])
    figures: Figures = {
        "s from the exception to the repro": answer["seconds"],
        "s of them reduction": said["s"],
        "questions": said["questions"],
        "questions a second": said["questions"] / max(said["s"], 0.01),
        "nodes left": said["nodes left"],
    }
    if answer["share"] is not None:
        figures["% of the device's memory, most at a time, for the questions"] = 100 * answer["share"]
    return figures, answer["report"]
