"""Commands to show a repro or write it for others: ``show``, ``stages``, ``report``; ``config``."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from minidbg.commands.output import FILE, JSON_OPTION, REPRO, note, print_json, seconds_option
from minidbg.core import settings
from minidbg.core.settings import Origin
from minidbg.core.text import display_path, printable
from minidbg.watch import settings as watching

NAMED = click.argument("repro", type=REPRO)


@click.command()
@NAMED
@JSON_OPTION
def show(repro: Path, as_json: bool) -> None:
    """Show what is known about REPRO, without running it.

    REPRO is a script, or a unique part of its name in the repro folder.
    """
    from minidbg import report

    details = report.repro_details(repro)
    if as_json:
        print_json(details.to_json())
    else:
        click.echo(printable(report.summary(details)))


@click.command()
@NAMED
@seconds_option(default=120.0)
@JSON_OPTION
def stages(repro: Path, seconds: float, as_json: bool) -> None:
    """Find the compile stage at fault, and what avoids it.

    REPRO is a script, or a unique part of its name in the repro folder; show and report include the
    result from then on. Runs its graph through eager, aot_eager and aot_eager_decomp_partition, and
    bisects inductor's passes, lowerings and options with torch's own bisector. Then tries changes
    of the program: options, dynamic=, a graph break, contiguous or cast inputs, the CPU. Each run
    is a child process.
    """
    from minidbg.report import stages as room

    report = room.find_stages(repro, seconds=seconds, note=note)
    room.keep_stages(repro, report)
    if as_json:
        print_json({"repro": str(repro), "sentence": report.sentence, **report.to_json()})
    else:
        click.echo(report.sentence)
    note(f"{report.seconds:.1f} s; kept in {display_path(room.kept_file(repro))}")


@click.command()
@NAMED
@click.option("-o", "--output", type=FILE, help="Write to FILE instead of stdout.")
@click.option("--run/--no-run", default=True, show_default=True, help="Run the repro first, to see it fail.")
@click.option("--keep-private", is_flag=True, help="Leave paths, user and host names as they are.")
@click.option(
    "--versions/--no-versions",
    default=True,
    show_default=True,
    help="Include the output of torch.utils.collect_env.",
)
@JSON_OPTION
def report(
    repro: Path, output: Path | None, run: bool, keep_private: bool, versions: bool, as_json: bool
) -> None:
    """Write a bug report for REPRO, in Markdown.

    It has the form that PyTorch's issue template asks for. Home and working folder, other private
    paths, user and host name are left out, and values of variables called TOKEN, SECRET, KEY or
    PASSWORD. Read it before you post it.
    """
    from minidbg.report import repro_details
    from minidbg.report.issue import issue

    details = repro_details(repro)
    written = issue(details, run=run, keep_private=keep_private, versions=versions, note=note)
    if run and not written.ran:
        note("the failure did not show when it was run just now; the report has what was captured")
    if as_json:
        print_json(
            {"repro": str(details.path), "title": written.title, "body": written.body, "ran": written.ran}
        )
    if output is not None:
        output.write_text(written.body, encoding="utf-8")
        note(f"written: {output}")
    elif not as_json:
        click.echo(printable(written.body.rstrip("\n")))


@click.command()
@JSON_OPTION
def config(as_json: bool) -> None:
    """Print each setting, its value and its source.

    Sources, the weakest first: defaults, the user's file, [tool.minidbg] of the nearest pyproject.toml, MINIDBG_*
    variables, arguments. Settings of [tool.minidbg.watch] follow as watch.NAME.
    """
    watch_origins = watching.load_watch_with_origins({})
    of_watch = (replace(origin, name=f"watch.{origin.name}") for origin in watch_origins)
    origins = [*settings.load_with_origins(), *of_watch]
    if as_json:
        for origin in origins:
            print_json({"name": origin.name, "value": origin.value, "source": origin.source})
        return
    names = max(len(origin.name) for origin in origins)
    values = min(max(len(cell_text(origin.value)) for origin in origins), 40)
    for origin in origins:
        line = f"{origin.name:<{names}}  {cell_text(origin.value):<{values}}  {variable(origin)}"
        click.echo(click.style(line, dim=origin.source == "default"))
    click.echo(f"minidbg: the user's file is {settings.user_settings_file()}", err=True)


def variable(origin: Origin) -> str:
    if origin.source != "the environment":
        return origin.source
    name = "MINIDBG_DIR" if origin.name == "repro_dir" else f"MINIDBG_{origin.name.upper()}"
    return f"{name} in the environment"


def cell_text(value: Any) -> str:
    shown = json.loads(json.dumps(value, default=str))  # as --json prints it
    return "-" if shown is None or shown == [] else str(shown)
