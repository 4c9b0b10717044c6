"""``minidbg run``: an unchanged program wrapped; ``minidbg reduce``: a capture or repro reduced."""

from __future__ import annotations

import contextlib
import json
import logging
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import click

from minidbg.commands import output
from minidbg.commands.output import note, print_error, print_json, repro_folder
from minidbg.core.errors import DeviceInUse, Interrupted
from minidbg.core.text import display_path, plural


@click.command()
@click.argument("path", required=False, type=output.REPRO)
@click.option(
    "--backend",
    metavar=output.BACKEND,
    help="Backend for a .pt2 file, torch's repro, or a script that lacks one: a registered name, "
    "module:attribute, or for a script that lacks its backend a call, train:make(level=2).",
)
@output.seconds_option()
@click.option("--max-calls", type=output.COUNT, metavar="N", help="Most runs of the backend.")
@output.DIR_OPTION
@output.jobs_option("2 where there are two cores, else 1")
@click.option("--memory-bytes", type=output.COUNT, help="Memory limit of each run.")
@output.JSON_OPTION
def reduce(
    path: Path | None,
    backend: str | None,
    seconds: float,
    max_calls: int | None,
    folder: Path | None,
    jobs: int | None,
    memory_bytes: int | None,
    as_json: bool,
) -> None:
    """Reduce a capture, a repro, or all unreduced captures.

    A capture is a recorded failure; the graph at which a process died in a backend is one too. Each repro is written once it has failed again in a fresh interpreter. PATH may have been edited by hand. It may also be a .pt2 file of torch.export.save, or a script that torch's own minifier or tlparse wrote (minifier_launcher.py, repro.py, fx_graph_runnable): such a script is executed, so pass only one that you trust.

    Ctrl-C ends the search; the best repro so far is verified and written. A second Ctrl-C ends at
    once. One that was killed goes on from the smallest graph found when it is started again.
    """
    limits = {"seconds": seconds, "max_calls": max_calls, "memory_bytes": memory_bytes}
    limits |= {"jobs": jobs} if jobs is not None else {}
    how: dict[str, Any] = {"backend": backend, "limits": limits}
    if path is None:
        sys.exit(reduce_all(folder or repro_folder(), as_json=as_json, **how))
    sys.exit(reduce_one(capture_to_reduce(path), folder, as_json=as_json, **how))


def reduce_all(folder: Path, *, as_json: bool, **how: Any) -> int:
    """Reduce unreduced captures in ``folder`` and what dead processes left; the exit status."""
    from minidbg.repro import crash_records
    from minidbg.watch.repros import read_repros, shown_by, unreduced

    for record in crash_records.waited_in_vain(folder):
        note(crash_records.death(record))
        crash_records.remove_record(record)
    for record in crash_records.records_of_dead(folder):
        note(crash_records.death(record))
        capture_to_reduce(record)
    waiting, status = unreduced(folder), 0
    if not waiting:
        note(f"no unreduced captures in {display_path(folder)}")
    for number, capture in enumerate(waiting, 1):
        begin = f"{number} of {plural(len(waiting), 'capture')}: {display_path(capture.path)}"
        if (known := shown_by(capture, read_repros([folder], folder).values())) is not None:
            note(f"{begin}: {display_path(known.path)} shows this failure already")
            continue
        note(begin)
        try:
            status = max(status, reduce_one(capture.path, folder, as_json=as_json, **how))
        except Interrupted:
            raise
        except Exception as error:  # noqa: BLE001 - a script's own code; the next is another
            print_error(error)
            status = output.CANNOT_JUDGE
    return status


def reduce_one(
    path: Path, folder: Path | None, *, as_json: bool, backend: str | None, limits: Mapping[str, Any]
) -> int:
    """Reduce it, print what came of it; the exit status. The first Ctrl-C ends the search alone.
    Raises Interrupted, and what the script's code raises."""
    from minidbg import library
    from minidbg.core import settings
    from minidbg.reduction.result import Limits, on_stream

    due, value_limit = time.monotonic() + limits["seconds"], settings.load().value_limit_bytes
    granted = Limits(**limits, value_limit_bytes=value_limit, due=due)
    interrupted = False

    def on_interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        if not interrupted:
            note("interrupted: verifying the best so far, if there is one; Ctrl-C again ends at once")
        interrupted = True
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, on_interrupt)
    try:
        # what the script prints is no result of the command
        with contextlib.redirect_stdout(sys.stderr), on_stream(sys.stderr) as listener:
            written = library.reduced(path, backend=backend, limits=granted, folder=folder, listener=listener)
    except DeviceInUse as refusal:
        output.begin_again(refusal)
        raise
    except (KeyboardInterrupt, Interrupted):
        how_to = f"to go on: minidbg reduce {display_path(path)}"
        raise Interrupted(f"interrupted before a repro was verified; {how_to}") from None
    finally:
        signal.signal(signal.SIGINT, before)
    if as_json:
        print_json(written.to_json())
    elif written.path is not None:
        click.echo(display_path(written.path))
    note(written.line)
    if interrupted:
        if not written.certified:
            note(f"interrupted; to go on: minidbg reduce {display_path(written.path or path)}")
        output.end_interrupted()
    return 0 if written.path is not None else output.CANNOT_JUDGE


def capture_to_reduce(path: Path) -> Path:
    """The script to reduce: a crash record becomes a capture first."""
    from minidbg.repro import crash_records

    if crash_records.read_name(path) is None:
        return path
    path = crash_records.as_capture(path)
    note(f"its graph is kept in {display_path(path)}")
    return path


OPTIONS_FIRST = {"allow_interspersed_args": False, "ignore_unknown_options": True}
"""The first word that is no option of ours, a program's ``-m`` too, ends ours."""


@click.command(context_settings=OPTIONS_FIRST)
@click.option(
    "--backend",
    envvar="MINIDBG_BACKEND",
    metavar=output.BACKEND,
    help="Use this backend instead of those that the program asks for.",
)
@click.option("--fallback", is_flag=True, help="Where a backend fails, run the graph in eager.")
@click.option("--later", is_flag=True, help="Write captures only; reduce them with: minidbg reduce.")
@output.DIR_OPTION
@output.seconds_option(" of all reductions of a process", None, "300.0")
@click.argument("program", nargs=-1, type=click.UNPROCESSED, metavar="{PROGRAM|-m MODULE} [ARGS]...")
def run(
    backend: str | None,
    fallback: bool,
    later: bool,
    folder: Path | None,
    seconds: float | None,
    program: tuple[str, ...],
) -> None:
    """Run a Python program with every torch.compile in it wrapped.

    The program runs as it would alone, and minidbg exits with its status (128 + n when signal n
    ended it). A summary of failures is printed at the end, also when the program crashed in a
    backend. Options come before PROGRAM. Settings come from MINIDBG_* variables and pyproject.toml,
    as for minidbg.wrap.

    Once the program imports torch's compiler, a process beside it gets ready for a failure: it
    takes some seconds of one core and 0.4 GB until the program ends, and none with --later.
    """
    from minidbg.commands.run.inside import what_is_imported
    from minidbg.commands.run.launch import run_program, summary_of
    from minidbg.core import environment, settings

    if not program or program == ("-m",):
        raise click.UsageError(
            "no program given; for example: minidbg run train.py, or: minidbg run -m package.train"
        )
    if program[0].startswith("-") and program[0] != "-m":
        raise click.NoSuchOption(program[0])
    given = {
        "on_failure": "fallback" if fallback else None,
        "reduce": "later" if later else None,
        "seconds": seconds,
    }
    loaded = settings.load({**given, "repro_dir": folder})
    repro_dir = loaded.repro_dir.absolute()
    wanted = {name: value for name, value in given.items() if value is not None}
    variables = {f"MINIDBG_{name.upper()}": str(value) for name, value in wanted.items()}
    began = time.time()
    with tempfile.TemporaryDirectory(prefix="minidbg-run-") as place:
        log = Path(place, "log.jsonl")
        log.touch()
        door = "" if loaded.reduce is settings.Reduce.LATER else str(Path(place, "door"))
        level = logging.getLogger("minidbg").level
        orders = {"log": str(log), "backend": backend, "door": door, "level": level}
        variables |= {
            "MINIDBG_DIR": str(repro_dir),
            environment.RUN: json.dumps({**orders, "imported": what_is_imported()}),
        }
        environ = environment.for_program(variables)
        warm = "inductor" if backend in (None, "inductor") else "imports"
        ending = run_program(program, environ, door, warm)
        lines = summary_of(log, ending, began, loaded, note)
    for line in lines:
        note(line)
    if ending == -signal.SIGINT:  # we die of it as the program did, so that a shell ends its loop
        output.end_by(signal.SIGINT)
    sys.exit(128 - ending if ending < 0 else ending)
