"""Failures of inductor (and of Triton, where it makes the kernels) in this torch, each with its minimal script."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial

from parts.context import Context, Failed, Figures, Row, need

END_S = 30.0
"""What a hunt takes to end what it has begun."""


def rows(context: Context) -> Iterator[tuple[str, Row]]:
    yield "inductor" if context.device != "acme" else "aot_eager", partial(row, context)


def row(context: Context) -> tuple[Figures, str]:
    need("hypothesis", "expecttest")
    folder = context.folder / "found"
    folder.mkdir(exist_ok=True)
    backend = "aot_eager" if context.device == "acme" else "inductor"
    seconds = max(5.0, context.left - END_S)
    done = context.minidbg(
        "hunt",
        backend,
        "--devices",
        context.device,
        "--seconds",
        f"{seconds:.0f}",
        "--json",
        "--dir",
        folder,
        cwd=context.place("hunt"),
    )
    if done.status not in (0, 1):
        raise Failed(f"it ended with {done.status}: {done.tail}")
    events = [json.loads(line) for line in done.out.splitlines() if line.startswith("{")]
    scripts = sorted(folder.glob("*.py"))
    titles = [next(iter(path.read_text().splitlines()), "").strip('"') for path in scripts]
    return {"scripts": len(scripts), "lines of its log": len(events)}, "; ".join(titles)
