"""``minidbg hunt``: before a program meets a failure."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from minidbg.commands.ending import end_interrupted
from minidbg.commands.output import (
    COUNT,
    FILE,
    FOLDER,
    JSON,
    VERBOSITY,
    note,
    print_json,
    repro_folder,
)
from minidbg.words.text import display_path, in_one_line, plural, printable

if TYPE_CHECKING:
    from rich.progress import ProgressColumn

    from minidbg.extras.hunt.hunting import Hunt, HuntProgress, Listener
    from minidbg.extras.hunt.states import DistinctFailure
    from minidbg.extras.hunt.table import OpCell

STYLE = {
    "ok": "green", "unsupported": "bright_black", "handed back": "cyan", "fails": "yellow", "wrong": "red",
    "crashed": "magenta", "hangs": "magenta", "skipped": "bright_black",
}  # fmt: skip
LINE_EVERY_S = 20.0
MOST_JOBS = 4
MOST_TOLD = 10


def words(_context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    """The words of an option that may be repeated, and may hold several with commas between them."""
    return tuple(word for text in given for word in text.split(",") if word)


@click.command()
@click.argument("backend")
@click.option(
    "--ops", multiple=True, callback=words, help="Only these: names or patterns, as in 'nn.functional.*,add'."
)
@click.option("--dtypes", multiple=True, callback=words, help="Only these: float32,int64,...")
@click.option(
    "--devices", multiple=True, callback=words, default=("cpu",), show_default=True, help="cpu,cuda,..."
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=1),
    help="End after so long, reductions included; by default, until all is tried.",
)
@click.option("--samples", type=COUNT, help="Most samples of an op in one dtype.")
@click.option("--graphs/--no-graphs", default=True, help="Whether random graphs are tried too.")
@click.option(
    "--jobs",
    "-j",
    default=lambda: min(MOST_JOBS, os.cpu_count() or 1),
    type=COUNT,
    help=f"Worker processes; by default one for each core, {MOST_JOBS} at most.",
)
@click.option("--seed", default=0, show_default=True, help="Of the samples and the graphs.")
@click.option(
    "--option",
    "options",
    multiple=True,
    metavar="NAME=VALUE",
    help="Of the backend; the value is a Python literal.",
)
@click.option("--mode", help="As in torch.compile(mode=...).")
@click.option("--call-seconds", default=30.0, show_default=True, help="A candidate that takes longer hangs.")
@click.option("--baseline", type=FILE, help="Compare with what was known; written where it is missing.")
@click.option(
    "--update-baseline", is_flag=True, help="Write what is known now into the baseline, after the comparison."
)
@click.option("--dir", "folder", type=FOLDER, help="Where the repros go.")
@click.option("--fresh", is_flag=True, help="Forget an unfinished hunt; what failed is still tried first.")
@JSON
def hunt(
    backend: str,
    options: tuple[str, ...],
    baseline: Path | None,
    update_baseline: bool,
    folder: Path | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Find out which op works in which dtype with BACKEND.

    Runs torch's operator samples, then random graphs. BACKEND is a registered name, package:name where the import
    of a package of another name registers it, or module:attribute. Each distinct failure ends as a verified repro.
    A hunt that was ended in any way goes on where it was when it is started again; one that is complete, or whose
    backend has changed, begins anew with what failed before.

    Exit status 0: nothing fails; with --baseline, nothing that is new or worse. 1: something does. 125: cannot hunt.
    """
    from minidbg.extras.hunt.candidates import Wanted
    from minidbg.extras.hunt.hunting import Hunt
    from minidbg.words import settings

    if update_baseline and baseline is None:
        raise click.UsageError("--update-baseline writes into a baseline; give --baseline FILE too")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # where a backend of one's own lies, as for python -m
    wanted = Wanted(
        backend,
        (folder or repro_folder()).absolute(),
        options=literals(options),
        value_limit_bytes=settings.load().value_limit_bytes,
        **given,
    )
    with progress() as listener:
        hunted = Hunt(wanted, listener)
        if hunted.store.resumed:
            note(
                f"going on with a hunt that has run {plural(len(hunted.store.results), 'program')}; --fresh begins anew"
            )
        try:
            hunted.run()
        except KeyboardInterrupt:
            hunted.interrupted = True
    if hunted.complete and not hunted.interrupted:
        hunted.store.end()
    status = tell(hunted, baseline, update_baseline, as_json)
    if hunted.interrupted:
        end_interrupted()
    sys.exit(status)


def literals(given: Sequence[str]) -> dict[str, Any]:
    """``NAME=VALUE`` of the command line. Raises UsageError."""
    import ast

    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            raise click.UsageError(f"--option {text!r} has no value; write --option {text}=VALUE")
        try:
            found[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            found[name] = value
    return found


def tell(hunted: Hunt, baseline: Path | None, update: bool, as_json: bool) -> int:
    """Print and write what was found; the exit status."""

    from minidbg.extras.hunt import table

    store, backend = hunted.store, hunted.wanted.backend
    cells, cases = table.cells_of(store), store.cases()
    totals = {str(state): count for state, count in table.totals(cells).items()}
    if as_json:
        print_records(hunted, cells, cases, totals)
    else:
        print_table(cells)
        for case in cases:
            print_case(case)
        click.echo(", ".join(f"{count} {state}" for state, count in totals.items()) or "nothing was tried")
    tried = tried_in_words(hunted, cells)
    before = "interrupted: " if hunted.interrupted else ""
    rest = "" if hunted.complete and not hunted.interrupted else "; the same command goes on from here"
    note(f"{before}{plural(len(cases), 'failure')}; {tried}{rest}")
    if waiting := sum(not one.settled and one.repro is None for one in cases):
        why = f" within {hunted.wanted.seconds:g} s" if hunted.deadline.is_over else " yet"
        note(f"{waiting} of the failures {'is' if waiting == 1 else 'are'} captured and not reduced{why}")
    for path in hunted.cut_short:
        note(
            f"not reduced to the end within {hunted.wanted.seconds:g} s; to go on: minidbg reduce {display_path(path)}"
        )
    for one in store.refuted()[:MOST_TOLD]:
        note(f"not counted, since its capture did not fail again: {one.first}: {one.line[:200]}")
    for complaint in hunted.complaints:
        note(complaint)
    failing = bool(cases)
    if baseline is not None and not hunted.interrupted:  # half a hunt is no baseline
        failing = compare(hunted, baseline, as_json)
        if update:
            table.write_baseline(baseline, store, backend)
    return 1 if failing else 0


PAIR = "op x dtype pair"
"""What a row of the table has a letter for; on each device one."""


def tried_in_words(hunted: Hunt, cells: Sequence[OpCell]) -> str:
    """``120 of 6,005 op x dtype pairs, 12 random graphs``."""
    from minidbg.extras.hunt.table import GRAPHS

    tried = len({(cell.op, cell.dtype, cell.device) for cell in cells if cell.op != GRAPHS})
    graphs = sum(sum(cell.counts.values()) for cell in cells if cell.op == GRAPHS)
    pairs = f"{tried:,} of {plural(len(hunted.cells), PAIR)}"
    return f"{pairs}, {plural(graphs, 'random graph')}" if graphs else pairs


def print_records(
    hunted: Hunt, cells: Sequence[OpCell], cases: Sequence[DistinctFailure], totals: Mapping[str, int]
) -> None:
    """Cells, failures and totals as lines of JSON."""
    import torch

    store = hunted.store
    for cell in cells:
        print_json({"cell": cell.to_json()})
    for case in cases:
        print_json(case.to_json())
    print_json(
        {
            "totals": totals, "backend": hunted.wanted.backend, "torch": torch.__version__, "candidates": len(store.results),
            "per_second": round(len(store.results) / store.seconds, 2) if store.seconds else None,
            "complete": hunted.complete, "cells": len(hunted.cells),
        }
    )  # fmt: skip


def compare(hunted: Hunt, baseline: Path, as_json: bool) -> bool:
    """Whether something is new or worse. A baseline that is missing is written."""
    from minidbg.extras.hunt import table

    if not baseline.exists():
        table.write_baseline(baseline, hunted.store, hunted.wanted.backend)
        note(f"written: {baseline}, the baseline from now on")
        return False
    compared = table.compare(baseline, hunted.store, hunted.wanted.backend)
    if as_json:
        print_json({"new": list(compared.new), "fixed": list(compared.fixed)})
    else:
        for word, colour, texts in (("new", "red", compared.new), ("fixed", "green", compared.fixed)):
            for text in texts:
                click.echo(f"{click.style(word, fg=colour)}{'':<{7 - len(word)}}{printable(text)}")
    note(f"against {baseline}: {compared.line}")
    return bool(compared.new)


def print_table(cells: Sequence[OpCell]) -> None:
    """A row for each op that does not work in every dtype, a letter for each dtype."""
    from minidbg.extras.hunt import table
    from minidbg.extras.hunt.samples import DTYPES

    rows = table.rows_of(cells)
    fine = ("ok", "skipped")
    telling = {
        key: row for key, row in rows.items() if any(str(cell.state) not in fine for cell in row.values())
    }
    if telling:
        dtypes = [one for one in DTYPES if any(one in row for row in telling.values())]
        width = max(len(op) for op, _ in telling)
        click.echo(f"{'':<{width}}  {'  '.join(dtypes)}")
        for (op, device), row in telling.items():
            marks = [mark(row.get(dtype), len(dtype)) for dtype in dtypes]
            click.echo(
                f"{op:<{width}}  {'  '.join(marks)}{'' if device == 'cpu' else '  ' + device}".rstrip()
            )
        used = dict.fromkeys(str(cell.state) for row in telling.values() for cell in row.values())
        click.echo(
            "  ".join(
                f"{table.LETTERS[state]} {state}"
                for state in table.LETTERS
                if state in used and state != "skipped"
            )
        )
    graphs = next((cell for cell in cells if cell.op == table.GRAPHS), None)
    if graphs is not None:
        click.echo(
            "random graphs: " + ", ".join(f"{count} {state}" for state, count in graphs.counts.items())
        )
    whole = len(rows) - len(telling)
    if whole:
        click.echo(f"{whole} {'op works' if whole == 1 else 'ops work'} in each dtype that was tried")


def mark(cell: OpCell | None, width: int) -> str:
    """The letter of a cell, in the middle of its column."""
    from minidbg.extras.hunt.table import LETTERS

    if cell is None:
        return " " * width
    state = str(cell.state)
    return click.style(LETTERS[state].center(width), fg=STYLE[state])


def print_case(found: DistinctFailure) -> None:
    state = click.style(str(found.state), fg=STYLE[str(found.state)])
    click.echo(f"{state} x{found.count}  {found.ops_text(3)}: {in_one_line(found.text)[:160]}")
    place = found.repro or found.capture
    click.echo(f"    {os.path.relpath(place) if place else 'no repro: ' + found.line}")


# ---- while it runs


def progress() -> AbstractContextManager[Listener]:
    """A listener in a block: a bar on a terminal, else a line now and then on stderr."""
    if VERBOSITY.get() < 0:
        return nullcontext(lambda standing: None)
    from minidbg.reduction.result import bar_or_lines, cut_off_first, short_bar

    def shown(standing: HuntProgress) -> dict[str, Any]:
        return {
            "total": standing.cells, "completed": standing.cells_begun,
            "figures": figures(standing), "doing": standing.doing,
        }  # fmt: skip

    def figures(standing: HuntProgress) -> str:
        return (
            f"{standing.cells_begun:,} of {plural(standing.cells, PAIR)}, "
            f"{plural(standing.failures, 'failure')}, {time_left(standing)}"
        )

    def line(standing: HuntProgress) -> str:
        return f"{figures(standing)}; now {standing.doing}"

    def columns() -> Iterable[ProgressColumn]:
        from rich.progress import TextColumn

        return (
            TextColumn("minidbg:"),
            short_bar(),
            TextColumn("{task.fields[figures]}"),
            cut_off_first("{task.fields[doing]}"),
        )

    first = {"figures": "starting", "doing": ""}
    return bar_or_lines(sys.stderr, columns, first, shown, line, every_s=LINE_EVERY_S)


def time_left(standing: HuntProgress) -> str:
    """``about 3 min left``: of the time that was given, or of the first round by its pace so far."""
    rest = standing.rest_seconds
    if standing.cells_begun and standing.cells_begun < standing.cells:
        by_pace = standing.seconds / standing.cells_begun * (standing.cells - standing.cells_begun)
        rest = by_pace if rest is None else min(rest, by_pace)
    if rest is None:
        return f"{standing.seconds:.0f} s"
    return f"about {rest:.0f} s left" if rest < 120 else f"about {rest / 60:.0f} min left"


# ---- until it is mended
