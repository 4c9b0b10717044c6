"""Commands about watching: ``watch``, ``list``, ``history``, ``bisect``."""

from __future__ import annotations

import ast
import pkgutil
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from minidbg.commands import output
from minidbg.commands.output import existing_folder, print_json, repro_folder
from minidbg.commands.table import WATCH
from minidbg.core.text import display_path
from minidbg.watch.settings import FailOn, Workers, load_watch_settings


def dict_text(context: click.Context, parameter: click.Parameter, text: str) -> str:
    try:
        return repr(dict(sorted(ast.literal_eval(text).items()))) if text else ""
    except (ValueError, SyntaxError, AttributeError, TypeError):
        raise click.BadParameter(
            f"{text!r} is not a Python dict; write options as {{'fuse': False}}"
        ) from None


OPTIONS = click.option(
    "--options",
    default="",
    metavar="DICT",
    callback=dict_text,
    help="Add these options of the backend to those of the script.",
)


@click.command("watch")
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
@click.option("--devices", help="Devices to run on: cpu,cuda:1 or all; default: the device in each repro.")
@click.option(
    "--source",
    "sources",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Watch this source folder too; may be repeated. The backends' own are found.",
)
@click.option(
    "--once",
    is_flag=True,
    help="Run each repro once; exit with 1 if any still fails, else 3 if any fails differently, "
    "else 0; 125 if none could be judged.",
)
@click.option(
    "--fail-on",
    type=click.Choice([*map(str, FailOn)]),
    show_default="any",
    help="With --once: any exits as above; "
    "unexpected exits with 1 only where a verdict is not the script's 'expect', a fix included.",
)
@click.option("--json", "as_json", is_flag=True, help="Print each event as one JSON object per line.")
@click.option(
    "--poll",
    "poll_s",
    metavar="SECONDS",
    type=click.FloatRange(min=0.05),
    help="Rescan every so many seconds instead of waiting for file events.",
)
@click.option(
    "--serve",
    metavar="[ADDRESS]",
    is_flag=False,
    flag_value="127.0.0.1:8437",
    help="Serve a web page at HOST:PORT too; default: 127.0.0.1:8437.",
)
@click.option("--build", help=output.BUILD.format("before a sweep"))
@click.option(
    "--on-flip",
    multiple=True,
    help="Shell command that reads the changed verdicts of a sweep (FIXED, REGRESSED, changed) "
    "as JSON Lines on stdin; may be repeated.",
)
@output.jobs_option("the number of cores, at most 8")
@click.option(
    "--device-jobs", type=output.COUNT, metavar="N", show_default="1",
    help="Most runs at the same time on each device other than the CPU.",
)  # fmt: skip
@output.seconds_option(" of each run", None, "chosen from its earlier runs")
@click.option("--cluster", metavar="ADDRESS", help="Run on the workers of this Dask scheduler.")
@click.option(
    "--workers",
    type=click.Choice([*map(str, Workers)]),
    show_default="auto",
    help="Run repros in forks of a warm process, or in fresh interpreters.",
)
def watch(
    paths: tuple[Path, ...], as_json: bool, once: bool, cluster: str | None, serve: str | None, **options: Any
) -> None:
    """Run the repros whenever their backends change; say what changed.

    PATHS are folders of repros or single scripts; by default
    the repro folder. Ends with Ctrl-C.
    """
    found = list(paths) or [repro_folder()]
    settings = replace(load_watch_settings(options), once=once)
    others = pkgutil.resolve_name(WATCH["cluster"])(cluster) if cluster else None
    page = partial(pkgutil.resolve_name(WATCH["serve"]), serve) if serve else None
    from minidbg.watch.daemon import run_daemon

    sys.exit(run_daemon(found, settings, as_json=as_json, others=others, page=page))


@click.command("list")
@click.argument("folder", required=False, type=click.Path(path_type=Path))
@output.JSON_OPTION
def list_repros(folder: Path | None, as_json: bool) -> None:
    """List the repros of FOLDER, and what was last seen of each.

    A line for each device, and on stderr who watches the folder. Nothing is run.
    """
    from minidbg.watch import queries, repros

    place = existing_folder(folder)
    rows = queries.status_rows(place)
    if watcher := repros.watcher_of(repros.home_of([place])):
        output.note(f"{display_path(place)} is {watcher}")
    show_rows(rows, queries.list_text(rows), as_json=as_json)


def show_rows(rows: Iterable[Mapping[str, Any]], text: str, *, as_json: bool) -> None:
    if not as_json:
        click.echo(text)
    for row in rows if as_json else ():
        print_json(row)


@click.command("history")
@click.argument("repro", required=False, type=output.ReproPath(folders=True))
@click.option("-n", "--limit", default=20, show_default=True, help="Number of changes and of runs to show.")
@output.JSON_OPTION
def history(repro: Path | None, limit: int, as_json: bool) -> None:
    """Show verdict changes; for one repro, its runs too.

    REPRO is a script, a unique part of its name in the repro folder, or a folder of repros.
    """
    from minidbg.watch import queries

    path = repro if repro is not None and not repro.is_dir() else existing_folder(repro)
    past = queries.history_of(path, limit)
    show_rows(queries.history_rows(*past), queries.history_text(*past), as_json=as_json)


@click.command("bisect")
@click.argument("revisions", nargs=2, metavar="GOOD BAD")
@click.argument("repro", type=output.REPRO)
@click.option(
    "--repository",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Repository of the backend; default: found from the backend's module.",
)
@click.option(
    "--build", show_default="build of [tool.minidbg.watch]",
    help=output.BUILD.format("in the worktree at each commit"),
)  # fmt: skip
@output.DEVICE_OPTION
@OPTIONS
@output.seconds_option(" of each build and each run")
@output.JSON_OPTION
def bisect(revisions: tuple[str, str], repro: Path, as_json: bool, **options: Any) -> None:
    """Find the commit that broke or fixed REPRO.

    GOOD and BAD are revisions of the backend: in GOOD the failure is gone, in BAD it is there; either may be the
    older one. The search runs in a worktree of its own: your checkout is not touched.
    """
    from minidbg.watch import bisecting

    settings = load_watch_settings({})
    if not options["build"]:
        options |= {"build": settings.build, "build_folder": settings.folder}
    found = bisecting.bisect_revisions(*revisions, repro, partial(click.echo, err=True), **options)
    show_rows([asdict(found)], found.text(), as_json=as_json)
