"""A user's Triton kernel, with autotuner and helpers, in the graph that fails."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from parts.context import Context, Failed, Figures, Row, Skipped, last_json, need

PROGRAM = Path(__file__).resolve().parents[1] / "triton_program.py"


def rows(context: Context) -> Iterator[tuple[str, Row]]:
    yield "captured", partial(captured, context)
    for fault in ("refuses_kernels", "wrong_behind_kernels"):
        yield fault.replace("_", " "), partial(reduced, context, fault)


def captured(context: Context) -> tuple[Figures, str]:
    """The capture holds the kernel's source; nothing is launched, so that this runs without a device as well."""
    need("triton")
    folder = context.place("captured")
    done = context.python(PROGRAM, "cpu", "refuses_kernels", "later", cwd=folder, limit=100)
    answer = last_json(done.out)
    if not answer.get("capture"):
        raise Failed(f"nothing was captured: {answer}")
    text = Path(folder, answer["capture"]).read_text()
    missing = [name for name in ("def scaled", "def tuned", "triton.Config", "SHIFT") if name not in text]
    if missing:
        raise Failed(f"the capture lacks {', '.join(missing)}: {answer['capture']}")
    return {"lines": len(text.splitlines())}, ""


def reduced(context: Context, fault: str) -> tuple[Figures, str]:
    """Reduced, and the script runs where the program is not."""
    need("triton")
    if context.device == "acme":
        raise Skipped("Triton has no driver for the stand-in")
    folder = context.place(fault)
    own = folder / "the_program"
    own.mkdir()
    shutil.copy(PROGRAM, own)
    done = context.python(own / PROGRAM.name, context.device, fault, "now", cwd=folder, limit=200)
    answer = last_json(done.out)
    if not answer.get("path"):
        raise Failed(f"no repro: {answer.get('report') or done.tail}")
    shutil.rmtree(own)
    again = context.python(folder / answer["path"], cwd=context.place("elsewhere"), limit=100)
    if again.status != 1:
        raise Failed(f"without the program its script ends with {again.status} instead of 1: {again.tail}")
    return {"lines": len(Path(folder, answer["path"]).read_text().splitlines())}, answer["report"]
