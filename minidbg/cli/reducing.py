"""``minidbg reduce``: a capture or a repro, reduced (further)."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from minidbg.cli.output import CANNOT_JUDGE, JSON, note, print_json
from minidbg.cluster.members import Cluster, cluster_options

if TYPE_CHECKING:
    from minidbg.reduction.result import Listener


@click.command()
@click.argument("path", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--last-crash", is_flag=True, help="Reduce what the last process that died in a backend was at."
)
@click.option("--backend", help="For a .pt2 file or torch's repro: a registered name or module:attribute.")
@click.option("--seconds", default=300.0, show_default=True, help="Most seconds to spend.")
@click.option("--max-calls", type=click.IntRange(min=1), help="Most oracle calls to spend.")
@click.option(
    "--dir", "folder", type=click.Path(file_okay=False, path_type=Path), help="Where the repro goes."
)
@click.option(
    "--jobs",
    "-j",
    default=1,
    show_default=True,
    type=click.IntRange(min=1),
    help="Oracle calls at the same time.",
)
@click.option("--memory-bytes", type=click.IntRange(min=1), help="Memory limit of an oracle call.")
@cluster_options
@click.option("--events", is_flag=True, help="Progress as JSON objects on stderr, one for each oracle call.")
@JSON
def reduce(
    path: Path | None,
    last_crash: bool,
    backend: str | None,
    seconds: float,
    max_calls: int | None,
    folder: Path | None,
    jobs: int,
    memory_bytes: int | None,
    cluster: Cluster | None,
    events: bool,
    as_json: bool,
) -> None:
    """Reduce a capture or a repro further, edited by hand or not, and write a verified repro.

    PATH may also be a .pt2 file of torch.export.save, or a script that torch's own minifier or tlparse wrote
    (minifier_launcher.py, repro.py, fx_graph_runnable); it is executed.

    Ctrl-C ends the search, and the best repro so far is verified and written. A reduction that was ended in any other way
    (kill -9, power loss) goes on where it was when it is started again.
    """
    from minidbg import library
    from minidbg.reduction.result import Limits

    path = asked_for(path, last_crash, folder)
    with listener_on_stderr(events) as listener, machines(cluster, path, jobs) as jobs:
        written = library.reduced(
            path,
            backend=backend,
            limits=Limits(seconds=seconds, max_calls=max_calls, memory_bytes=memory_bytes, jobs=jobs),
            folder=folder,
            listener=listener,
            own_process=True,
        )
    if as_json:
        print_json(written.to_json())
    elif written.path is not None:
        click.echo(str(written.path))
    note(written.line)
    if written.path is not None and not as_json:
        tell_stages(written.path)
    sys.exit(0 if written.path is not None else CANNOT_JUDGE)


@contextlib.contextmanager
def machines(cluster: Cluster | None, path: Path, jobs: int) -> Iterator[int]:
    """Ask the questions of a reduction on the machines of ``cluster``; how many at the same time."""
    if cluster is None:
        yield jobs
        return
    from minidbg.cluster.asking import asked_on
    from minidbg.repro import read_header
    from minidbg.watch.sources import code_behind

    device = str(read_header(path).table.get("device", "cpu"))
    with asked_on(cluster, device, code_behind(path), tell=note) as slots:
        yield slots if jobs == 1 else min(jobs, slots)


def tell_stages(path: Path) -> None:
    """Say at which stage the repro fails, now that it is announced; Ctrl-C leaves it out."""
    from minidbg import repro, settings, stages
    from minidbg.errors import MinidbgError

    header = repro.read_header(path)
    if not settings.load().stages or header.table.get("level") == "aten" or header.kind in ("crash", "hang"):
        return
    sys.stdout.flush()
    try:
        report = stages.stages_of(header)
        if report is None:
            report = stages.find_stages(path)
            stages.keep_stages(path, report)
    except (MinidbgError, OSError) as error:
        note(f"its stage was not found out: {error}")
    except KeyboardInterrupt:
        note(f"its stage was not found out; minidbg stages {path} does it")
    else:
        note(f"stages: {report.sentence}")


def asked_for(path: Path | None, last_crash: bool, folder: Path | None) -> Path:
    """The script to reduce; a flight record becomes a capture first. Raises UsageError."""
    from minidbg import settings
    from minidbg.repro import flights

    if (path is None) is not last_crash:
        raise click.UsageError("give one of them: a PATH, or --last-crash")
    if path is None:
        folder = folder or settings.load().repro_dir
        left = flights.dead_flights(folder)
        waited = flights.waited_in_vain(folder)
        for record in (*waited, *left):
            note(flights.death(record))
        for record in waited:
            flights.remove(record)
        if not left:
            raise click.UsageError(
                f"no process that died in a backend has left a record in {flights.flight_folder(folder)}; "
                "other captures lie beside it, in captures"
            )
        path = left[0]
        if len(left) > 1:
            note("the newest is reduced; minidbg reduce PATH takes another")
    if flights.read_name(path) is not None:
        path = flights.as_capture(path)
        note(f"kept as {path}")
    return path


@contextlib.contextmanager
def listener_on_stderr(events: bool) -> Iterator[Listener]:
    """Where progress goes: a bar or lines for a person, objects for a machine."""
    from minidbg.reduction import result

    if events:
        yield result.as_events(
            lambda event, **fields: click.echo(json.dumps({"event": event, **fields}), err=True)
        )
        return
    with result.on_stream(sys.stderr) as listener:
        yield listener
