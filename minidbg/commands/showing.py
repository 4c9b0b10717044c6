"""Commands about a repro: ``show`` it, ``check`` whether it still fails, find its ``stages``, write
it for others by ``report``; and ``config``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from minidbg.commands import output
from minidbg.commands.output import JSON_OPTION, REPRO, note, print_json, seconds_option
from minidbg.commands.watching import OPTIONS
from minidbg.core import settings
from minidbg.core.run_spec import PRECISIONS
from minidbg.core.text import abridged, in_one_line, printable
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


WORST_FIRST = (1, 3, output.CANNOT_JUDGE, 0)

COLOURS = {0: "green", 1: "red", 3: "yellow"}
"""By the exit status of a verdict."""


@click.command()
@click.argument("paths", nargs=-1, required=True, type=output.ReproPath(folders=True))
@JSON_OPTION
@output.DEVICE_OPTION
@click.option(
    "--backend",
    metavar=output.BACKEND,
    help="Use this backend instead of the one in the script: "
    "a registered name, module:attribute, or a call, module:make(level=2).",
)
@OPTIONS
@click.option(
    "--tolerances",
    "precision",
    type=click.Choice(PRECISIONS),
    help="Tolerances for a backend that computes float32 in this precision by design.",
)
@output.judge_option("Results are wrong where this is false: 'pcc>=0.99'; replaces tolerances.")
@seconds_option(" of each run")
def check(
    paths: tuple[Path, ...],
    as_json: bool,
    device: str | None,
    backend: str | None,
    options: str,
    precision: str | None,
    judge: str,
    seconds: float,
) -> None:
    """Run repros in fresh interpreters, and say which still fail.

    PATHS are scripts, unique parts of their names in the repro folder, or folders of scripts. Exit status, the first that applies: 1 a repro still fails, at least in some runs; 3 one fails differently; 125 one cannot be judged here; 0 all are gone.
    """
    from minidbg import repro
    from minidbg.watch.repros import find_repros

    for path in paths:
        if not find_repros([path]):
            where = f"captures lie in {path}/.minidbg/captures"
            raise click.UsageError(f"{path}: no *.py in this folder; {where}")
    statuses = []
    for path in find_repros(paths):
        outcome = repro.run(
            path, device=device, backend=backend, options=options, precision=precision, judge=judge,
            seconds=seconds,
        )  # fmt: skip
        statuses.append(outcome.verdict.exit_status)
        if as_json:
            print_json({"repro": str(path), **outcome.to_json()})
        else:
            verdict = click.style(f"{outcome.verdict:<10}", fg=COLOURS.get(statuses[-1]))
            why = in_one_line(outcome.reason or abridged(outcome.message, 120))
            script = in_one_line(str(path))
            click.echo(f"{verdict} {script}  {outcome.seconds:.1f} s  {why}".rstrip())
    sys.exit(min(statuses, key=WORST_FIRST.index))


@click.command()
@NAMED
@seconds_option(default=120.0)
@JSON_OPTION
def stages(repro: Path, seconds: float, as_json: bool) -> None:
    """Find the compile stage at fault, and what avoids it.

    REPRO is a script, or a unique part of its name in the repro folder. Runs its graph through
    eager, aot_eager, aot_eager_decomp_partition and its own backend. Then tries changes of the
    program: options, dynamic=, contiguous or cast inputs, the CPU. Each run is a child process.
    """
    from minidbg.report.stages import find_stages

    report = find_stages(repro, seconds=seconds, note=note)
    if as_json:
        print_json({"repro": str(repro), "sentence": report.sentence, **report.to_json()})
    else:
        click.echo(report.sentence)
    note(f"{report.seconds:.1f} s")


@click.command()
@NAMED
@click.option("--run/--no-run", default=True, show_default=True, help="Run the repro first, to see it fail.")
@click.option("--keep-private", is_flag=True, help="Leave paths, user and host names as they are.")
@click.option(
    "--versions/--no-versions",
    default=True,
    show_default=True,
    help="Include the output of torch.utils.collect_env.",
)
@JSON_OPTION
def report(repro: Path, run: bool, keep_private: bool, versions: bool, as_json: bool) -> None:
    """Write a bug report for REPRO, in Markdown.

    It has the form that PyTorch's issue template asks for. Home and working folder, other private
    paths, user and host name are left out, and values of variables called TOKEN, SECRET, KEY or
    PASSWORD. Read it before you post it.
    """
    from minidbg.report import repro_details
    from minidbg.report.issue import issue

    details = repro_details(repro)
    title, body, ran = issue(details, run=run, keep_private=keep_private, versions=versions, note=note)
    if run and not ran:
        note("the failure did not show when it was run just now; the report has what was captured")
    if as_json:
        print_json({"repro": str(details.path), "title": title, "body": body, "ran": ran})
    else:
        click.echo(printable(body.rstrip("\n")))


@click.command()
@JSON_OPTION
def config(as_json: bool) -> None:
    """Print each setting, its value and its source.

    Sources, the weakest first: defaults, the user's file, [tool.minidbg] of the nearest pyproject.toml, MINIDBG_*
    variables, arguments. Settings of [tool.minidbg.watch] follow as watch.NAME.
    """
    of_watch = watching.load_watch_with_origins({}).items()
    origins = settings.load_with_origins() | {f"watch.{name}": origin for name, origin in of_watch}
    for name, (value, source) in origins.items():
        if as_json:
            print_json({"name": name, "value": value, "source": source})
        else:
            line = f"{name} = {json.dumps(value, default=str)}  # {source}"
            click.echo(click.style(line, dim=source == "default"))
    note(f"the user's file is {settings.user_settings_file()}")
