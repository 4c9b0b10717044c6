"""``minidbg hunt``: before a program meets a failure."""

from __future__ import annotations

import ast
import json
import logging
import os
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from minidbg.commands import output
from minidbg.commands.output import note, print_json, repro_folder
from minidbg.commands.watching import dict_text
from minidbg.core.errors import BadSetting
from minidbg.core.files import replace_file
from minidbg.core.machine import HERE
from minidbg.core.text import abridged, in_one_line

if TYPE_CHECKING:
    from minidbg.extras.hunt.hunting import Hunt
    from minidbg.extras.hunt.judging import SampleCell, SampleResult

LETTERS = {
    "ok": "·", "handed back": "b", "unsupported": "u", "fails": "F", "wrong": "W", "hangs": "H",
    "crashed": "C", "skipped": " ",
}  # fmt: skip


def words(name: str, text: str, **more: Any) -> Callable[[output.FC], output.FC]:
    """An option that may be repeated, and may hold several words with commas between."""

    def split(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(word for text in given for word in text.split(",") if word)

    return click.option(name, multiple=True, callback=split, help=text, **more)


@click.command()
@click.argument("backend")
@words("--ops", "Only ops with these names or patterns: 'nn.functional.*,add'.")
@words("--dtypes", "Only these dtypes: float32,int64,...")
@words("--devices", "Devices to run on: cpu,cuda,...", default=("cpu",), show_default=True)
@click.option("--options", default="", metavar="DICT", callback=dict_text, help="Options of the backend.")
@click.option("--mode", help="As in torch.compile(mode=...).")
@click.option(
    "--samples",
    type=output.COUNT,
    metavar="N",
    default=2,
    show_default=True,
    help="Limit of samples of an op in one dtype.",
)
@output.seconds_option(" of the search; reductions come after it", None)
@output.jobs_option(True, min(4, HERE.processors()))
@click.option(
    "--call-seconds",
    type=output.TIME_LIMIT,
    metavar="SECONDS",
    default=30.0,
    show_default=True,
    help="Time limit in seconds of a sample; one that takes longer counts as a hang.",
)
@click.option(
    "--expected",
    type=output.FILE,
    help="File of expected failures to compare with; written if it does not exist.",
)
@output.DIR_OPTION
@output.JSON_OPTION
def hunt(
    backend: str, folder: Path | None, expected: Path | None, as_json: bool, options: str, **given: Any
) -> None:
    """Test which ops work in which dtypes with BACKEND.

    Runs torch's operator samples. BACKEND is a registered name, package:name where the import of a
    package of another name registers it, or module:attribute. Each distinct failure ends as a
    verified repro.

    Exit status 0: nothing fails; with --expected, nothing works worse than the file says. 3:
    something does. 125: cannot hunt.
    """
    from minidbg.extras.hunt.hunting import Hunt

    logging.getLogger("torch").setLevel(logging.ERROR)  # importing its samples speaks of CUDA
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # where a backend of one's own lies, as for python -m
    repros = (folder or repro_folder()).absolute()
    hunted = Hunt(backend, repros, note, options=ast.literal_eval(options or "{}"), **given)
    try:
        hunted.run()
    except KeyboardInterrupt:
        hunted.interrupted = True
    failing = tell_results(hunted, as_json=as_json)
    if hunted.interrupted:
        output.end_interrupted()
    sys.exit(3 if (failing if expected is None else is_worse(hunted, expected)) else 0)


def tell_results(hunted: Hunt, *, as_json: bool) -> bool:
    table, failures = hunted.table(), hunted.distinct()
    totals = Counter(str(state) for state, _ in table.values())
    if as_json:
        for cell, (state, text) in table.items():
            print_json({"cell": {**cell._asdict(), "state": state, "text": text}})
        for one in failures:
            print_json({
                "case": str(one.sample), "state": one.state, "message": one.outcome.message,
                "count": one.ops.total(), "ops": list(one.ops), "repro": one.repro,
            })  # fmt: skip
        print_json({"totals": totals, "backend": hunted.backend, "cells": len(hunted.cells)})
    else:
        print_table(table)
        for one in failures:
            said = abridged(in_one_line(one.outcome.message), 160)
            click.echo(f"{one.state} x{one.ops.total()}  {', '.join([*one.ops][:3])}: {said}")
            click.echo(f"    {os.path.relpath(one.repro) if one.repro else 'not reduced'}")
        counts = [f"{totals[state]} {state}" for state in LETTERS if totals[state]]
        click.echo(", ".join(counts) or "nothing was tried")
    for one in [one for one in hunted.failures.values() if one.refused]:
        note(f"not counted, since it could not be reduced to a repro: {one.sample}: {one.refused}")
    note(f"{'interrupted: ' if hunted.interrupted else ''}{hunted.summary}")
    return bool(failures)


def print_table(table: Mapping[SampleCell, tuple[SampleResult, str]]) -> None:
    """A row for each op that does not work in every dtype, a letter for each dtype."""
    from minidbg.extras.hunt.judging import DTYPES

    rows: dict[str, dict[str, str]] = {}
    for cell, (state, _) in sorted(table.items()):
        name = cell.op if cell.device == "cpu" else f"{cell.op} {cell.device}"
        rows.setdefault(name, {})[cell.dtype] = LETTERS[state]
    telling = {name: row for name, row in rows.items() if not {*row.values()} <= {"·", " "}}
    if telling:
        dtypes = [one for one in DTYPES if any(one in row for row in telling.values())]
        width = max(map(len, telling))
        click.echo(f"{'':<{width}}  {'  '.join(dtypes)}")
        for name, row in telling.items():
            marks = "  ".join(row.get(dtype, " ").center(len(dtype)) for dtype in dtypes)
            click.echo(f"{name:<{width}}  {marks}".rstrip())
        legend = [f"{letter} {state}" for state, letter in LETTERS.items() if letter.strip()]
        click.echo("  ".join(legend))
    if whole := len(rows) - len(telling):
        work = "op works" if whole == 1 else "ops work"
        click.echo(f"{whole} {work} in each dtype that was tried")


def is_worse(hunted: Hunt, expected: Path) -> bool:
    """Whether something works worse than the file says, which is written if missing. Raises
    BadSetting."""
    from minidbg.extras.hunt.judging import SampleResult

    states = {" ".join(cell): state for cell, (state, _) in sorted(hunted.table().items())}
    if not expected.exists():
        fails = (pair for pair in states.items() if pair[1].rank > SampleResult.OK.rank)
        lines = (f"{json.dumps(cell)} = {json.dumps(state)}" for cell, state in fails)
        head = "# What does not work. To compare: minidbg hunt BACKEND --expected THIS"
        replace_file(expected, "\n".join([head, "[ops]", *lines, ""]).encode())
        note(f"written: {expected}, what is expected from now on")
        return False
    try:
        known = tomllib.loads(expected.read_text(encoding="utf-8"))["ops"]
        before = {cell: SampleResult(known.get(cell, "ok")) for cell in states}
    except (KeyError, ValueError, AttributeError) as error:
        raise BadSetting(
            f"{expected} was not written by hunt ({error}); delete it to write it anew"
        ) from error
    worse = {cell for cell, state in states.items() if state.rank > before[cell].rank}
    for cell, state in states.items():
        if state is not before[cell] and state is not SampleResult.SKIPPED:
            note(f"{'worse' if cell in worse else 'better'}: {cell}: {state}, was {before[cell]}")
    return bool(worse)
