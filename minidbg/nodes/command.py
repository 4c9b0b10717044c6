"""``minidbg nodes``: what a backend computes node by node, beside eager."""

from __future__ import annotations

import contextlib
import csv
import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from minidbg.commands import output
from minidbg.commands.output import note
from minidbg.core.errors import DeviceInUse
from minidbg.core.text import display_path, printable

if TYPE_CHECKING:
    from minidbg.fx.case import Case
    from minidbg.nodes.row import Row

METRICS_SHOWN = ("pcc", "max_abs_diff", "sqnr_db", "ratio", "status")
ON_A_TERMINAL = ("node", "op", "line", "shape", "dtype", *METRICS_SHOWN)
"""The columns of a terminal of ``WIDE`` columns, else without what the node is; files have all."""
WIDE, WIDTH_OF_A_FILE = 120, 240  # a file or a pipe has no width of its own


@click.command()
@click.argument("path", type=output.REPRO)
@click.option("--backend", metavar=output.BACKEND, help="Use this backend, not the one in PATH.")
@output.judge_option(
    "A row is bad where this is false: 'pcc>=0.99', 'cosine>=0.99 and max_abs<1e-3'. "
    "Default: the judge in PATH, else where eager's own error does not explain it."
)
@click.option(
    "--mode",
    type=click.Choice(["isolated", "accumulated"]),
    default="isolated",
    show_default=True,
    help="isolated: each node is compiled alone and gets eager's values. accumulated: the "
    "graph's own values, which it then returns all: that changes what a backend fuses.",
)
@click.option(
    "--golden",
    type=click.Choice(["cpu"]),
    help="Compare with eager on the CPU, where the device's own eager is in doubt.",
)
@click.option(
    "--no-fallback",
    is_flag=True,
    help="A row is bad where something else ran the node in the backend's place: torch's CPU "
    "fallback, inductor, eager (handed back).",
)
@click.option("--csv", "csv_file", type=output.FILE, help="Write all columns to this file.")
@click.option("--jsonl", "jsonl_file", type=output.FILE, help="Write a line of JSON a node.")
@output.seconds_option(" of each node", 20.0)
def nodes(
    path: Path,
    backend: str | None,
    judge: str,
    mode: str,
    golden: str | None,
    no_fallback: bool,
    csv_file: Path | None,
    jsonl_file: Path | None,
    seconds: float,
) -> None:
    """Compare what a backend computes with eager, node by node.

    PATH is a repro, a capture, a .pt2 file of torch.export.save (with inductor unless --backend is
    given), or a script of torch's own minifier. The model need not fail. Each node runs in a child
    process: one that hangs or crashes is a row with status error.

    Only the forward graph is compared, also where a model has a backward. The
    first bad row is marked, and the last line is what to type next.

    Exit status: 1 a row is bad, 0 none is, 125 nothing was compared.
    """
    from minidbg.nodes.row import Status, TableMode
    from minidbg.nodes.walk import node_rows

    if no_fallback and mode == "accumulated":
        raise click.UsageError("--no-fallback needs --mode isolated: it asks each node alone")
    if csv_file and jsonl_file and csv_file.resolve() == jsonl_file.resolve():
        raise click.UsageError(f"--csv and --jsonl name one file: {csv_file}")
    with contextlib.ExitStack() as until_the_end:
        with contextlib.redirect_stdout(sys.stderr):  # what the script prints is no result
            case = case_in(path, backend, until_the_end)
        case = case.with_spec(golden=golden or case.spec.golden, judge=judge or case.spec.judge)
        rows = []
        writers = [*writers_of(until_the_end, csv_file, jsonl_file)]
        try:
            for row in node_rows(case, mode=TableMode(mode), seconds=seconds):
                if no_fallback and row.ran_elsewhere and not row.status.is_bad:
                    reason = row.reason or f"it ran on {row.ran_on}"
                    row = replace(row, status=Status.ERROR, reason=reason)
                rows.append(row)
                for write in writers:
                    write(row)
        except DeviceInUse as refusal:
            output.begin_again(refusal)
            raise
        bad = next((row for row in rows if row.status.is_bad), None)
        print_rows(rows, bad)
        click.echo(ending(path, case, rows, bad, seconds))
    judged = any(row.status == Status.OK for row in rows)
    sys.exit(1 if bad else 0 if judged else output.CANNOT_JUDGE)


def writers_of(files: contextlib.ExitStack, csv_file: Path | None, jsonl_file: Path | None) -> Any:
    from minidbg.nodes.row import COLUMNS

    def opened(path: Path) -> IO[str]:
        return files.enter_context(path.open("w", encoding="utf-8", newline="", buffering=1))

    if csv_file is not None:
        table = csv.DictWriter(opened(csv_file), COLUMNS)
        table.writeheader()
        yield lambda row: table.writerow(row.to_json())
    if jsonl_file is not None:
        stream = opened(jsonl_file)
        yield lambda row: stream.write(json.dumps(row.to_json()) + "\n")


def print_rows(rows: Sequence[Row], bad: Row | None) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    width = None if sys.stdout.isatty() else WIDTH_OF_A_FILE
    console = Console(no_color=output.colour() is False, width=width)
    names = ON_A_TERMINAL if console.width >= WIDE else (ON_A_TERMINAL[0], *METRICS_SHOWN)
    whole = {*METRICS_SHOWN, ""}  # half a number is another one
    columns = [Column(name, no_wrap=name in whole, overflow="fold") for name in (*names, "")]
    table = Table(*columns, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for row in rows:
        values = ["" if (value := getattr(row, name)) is None else value for name in names]
        cells = [f"{value:.6g}" if isinstance(value, float) else str(value) for value in values]
        cells.append("<------" if row is bad else "")
        table.add_row(*map(Text, map(printable, cells)), style="red" if row.status.is_bad else "")
    console.print(table)
    for row in rows:
        if row.reason and (row.status.is_bad or row.status == "no_golden"):
            click.echo(printable(f"{row.node}: {row.reason}"))


def ending(path: Path, case: Case, rows: Sequence[Row], bad: Row | None, seconds: float) -> str:
    """What there is to type next: the bad node alone becomes a capture where it fails in a child,
    else the whole graph."""
    from minidbg import oracle, repro
    from minidbg.core import settings
    from minidbg.core.run_spec import CallPath
    from minidbg.fx.edit import CannotExtract
    from minidbg.nodes.walk import case_of_node
    from minidbg.reduction.publishing import with_failure

    this = f"minidbg nodes {shlex.quote(display_path(path))}"
    if bad is None:
        judged = sum(row.status == "ok" for row in rows)
        return f"no bad row of {judged} judged; another backend: {this} --backend NAME"
    if bad.status == "error" and bad.ran_elsewhere:
        ran = sum(row.ran_elsewhere for row in rows)
        return f"{ran} of {len(rows)} nodes ran elsewhere; next: a kernel for {bad.op}"
    cases = [case]
    with contextlib.suppress(CannotExtract):
        alone = case_of_node(case, bad.node)
        cases[:0] = [alone, alone.with_spec(call=CallPath.DIRECT)]
    for failing in cases:
        outcome = oracle.ask(failing, seconds=seconds * 3)
        if outcome.verdict == "reproduces":
            chosen = settings.load()
            limit = chosen.value_limit_bytes
            failing = with_failure(failing, outcome)
            capture = repro.keep_capture(failing, chosen.repro_dir, value_limit_bytes=limit)
            return f"next: minidbg reduce {shlex.quote(display_path(capture))}"
    note("minidbg's own judge sees no failure in that node alone, nor in the graph")
    asked = click.get_current_context().params
    mode = "isolated" if bad.mode == "accumulated" else "accumulated"
    orders = (f"--{name}={asked[name]}" for name in ("backend", "judge", "golden") if asked[name])
    return f"next: {this} {shlex.join([*orders, f'--mode={mode}'])}"


def case_in(path: Path, backend: str | None, until_the_end: contextlib.ExitStack) -> Case:
    """The case in a script or a ``.pt2`` file, for ``backend`` instead of its own, inductor for a
    program. Raises UnreadableRepro, UnknownBackend, BackendUnreachable, what the script does."""
    from minidbg import backends, repro
    from minidbg.core.errors import BackendUnreachable
    from minidbg.extras import importers
    from minidbg.torch_internals.devices import kept_on_cpu

    if (forms := importers.forms_of(path, backend)) is not None:
        return next(iter(forms))
    until_the_end.enter_context(kept_on_cpu(repro.read_header(path).spec.device))
    case = repro.load(path)
    if backend is not None:
        reference = backend if ":" in backend else None
        ref = backends.find_reference(backend, setup=case.backend.setup, reference=reference)
        return replace(case.with_spec(backend=ref), compiler=backends.resolve(ref))
    if case.backend.lacks_backend:
        advice = "edit it, or give --backend MODULE:EXPRESSION"
        raise BackendUnreachable(f"{path}: {case.backend.unfilled}; {advice}")
    return case
