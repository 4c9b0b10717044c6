"""Failures of inductor (and of Triton, where it makes the kernels) in this torch, each with its minimal script."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from parts.context import Context, Failed, Figures, Row, Skipped, need

END_S = 30.0
"""What a hunt takes to end what it has begun."""


def rows(context: Context) -> Iterator[tuple[str, Row]]:
    yield "inductor" if context.device != "acme" else "aot_eager", partial(row, context)


def row(context: Context) -> tuple[Figures, str]:
    need("expecttest")
    folder = context.folder / "found"
    folder.mkdir(exist_ok=True)
    backend = "aot_eager" if context.device == "acme" else "inductor"
    seconds = max(5.0, context.left - END_S)
    place = context.place("hunt")
    words = ("--devices", context.device, "--seconds", f"{seconds:.0f}", "--json", "--dir", folder)
    try:
        done = context.minidbg("hunt", backend, *words, cwd=place)
    except Skipped as over:  # what it has found by then lies there
        figures, titles = found_by_now(folder, (place / "stdout.txt").read_text(errors="replace"))
        raise Skipped(f"{over}; {titles or 'nothing was found by then'}", figures) from None
    if done.status not in (0, 1):
        raise Failed(f"it ended with {done.status}: {done.tail}")
    return found_by_now(folder, done.out)


def found_by_now(folder: Path, log: str) -> tuple[Figures, str]:
    """How many scripts there are, and their first lines."""
    scripts = sorted(folder.glob("*.py"))
    titles = [next(iter(path.read_text().splitlines()), "").strip('"') for path in scripts]
    lines = sum(line.startswith("{") for line in log.splitlines())
    return {"scripts": len(scripts), "lines of its log": lines}, "; ".join(titles)
