"""The command line. Results go to stdout, everything else to stderr; each command calls one function of the library.

Exit statuses are those of the verdicts (``minidbg.failure.EXIT_STATUS``); what cannot be judged, a usage error
included, is 125, so that no mistake of ours looks like a failing repro to ``git bisect run``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from minidbg.errors import MinidbgError
from minidbg.failure import EXIT_STATUS, Outcome, Verdict
from minidbg.watch.commands import bisect, history, list_repros, status, watch

CANNOT_JUDGE = 125
WORST_FIRST = (1, 3, CANNOT_JUDGE, 0)

VERDICT_STYLE = {
    Verdict.GONE: "green",
    Verdict.REPRODUCES: "red",
    Verdict.CHANGED: "yellow",
    Verdict.CRASHED: "yellow",
    Verdict.TIMEOUT: "yellow",
    Verdict.FLAKY: "magenta",
}


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="minidbg")
def cli() -> None:
    """Shrink what breaks a torch.compile backend, keep it as a script, and watch it get fixed."""


@cli.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@click.option("--device", help="Run on this device instead of the one in the script, for example cuda:1.")
@click.option("--backend", help="Ask another backend, by its registered name.")
@click.option("--seconds", default=300.0, show_default=True, help="Time limit of each run.")
def check(
    paths: tuple[Path, ...], as_json: bool, device: str | None, backend: str | None, seconds: float
) -> None:
    """Run repros, each in a fresh interpreter, and say which still fail.

    PATHS are scripts or folders of scripts. Exit status: the worst of 1 (reproduces), 3 (fails differently),
    125 (cannot be judged here), 0 (gone).
    """
    from minidbg import repro

    statuses = []
    for path in repros_in(paths):
        outcome = repro.run(path, device=device, backend=backend, seconds=seconds)
        statuses.append(outcome.verdict.exit_status)
        if as_json:
            click.echo(json.dumps({"repro": str(path), **outcome.to_json()}))
        else:
            print_outcome(path, outcome)
    sys.exit(min(statuses, key=WORST_FIRST.index))


@cli.command("reduce")
@click.argument("path", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--seconds", default=300.0, show_default=True, help="Most seconds to spend.")
@click.option("--max-calls", type=click.IntRange(min=1), help="Most oracle calls to spend.")
@click.option(
    "--dir", "folder", type=click.Path(file_okay=False, path_type=Path), help="Where the repro goes."
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def reduce_command(
    path: Path, seconds: float, max_calls: int | None, folder: Path | None, as_json: bool
) -> None:
    """Reduce a capture or a repro further, edited by hand or not, and write a verified repro."""
    from minidbg.reduction import session

    written = session.reduce_path(path, seconds=seconds, max_calls=max_calls, folder=folder)
    if as_json:
        click.echo(json.dumps(written.to_json()))
    elif written.path is not None:
        click.echo(str(written.path))
    click.echo(f"minidbg: {written.line}", err=True)
    sys.exit(0 if written.path is not None else CANNOT_JUDGE)


@cli.command()
def demo() -> None:
    """Break a transformer in a small buggy backend and watch it being reduced. No download, GPU or compiler."""
    from minidbg.demo import show

    show.run(Console())


for command in (watch, status, list_repros, history, bisect):
    cli.add_command(command)


def repros_in(paths: Iterable[Path]) -> list[Path]:
    """The scripts that ``paths`` name: files as they are, of folders the scripts at their top.

    Raises click.UsageError when a path does not exist or a folder holds no script.
    """
    found: list[Path] = []
    for path in paths:
        if not path.exists():
            raise click.UsageError(f"{path}: no such file or folder; give repro scripts or a folder of them")
        scripts = sorted(path.glob("*.py")) if path.is_dir() else [path]
        if not scripts:
            raise click.UsageError(
                f"{path}: no *.py in this folder; captures lie in {path}/.minidbg/captures"
            )
        found.extend(scripts)
    return found


def print_outcome(path: Path, outcome: Outcome) -> None:
    """One line for one run: verdict, script, seconds, and the reason or what the backend said."""
    verdict = click.style(f"{outcome.verdict:<10}", fg=VERDICT_STYLE.get(outcome.verdict))
    said = outcome.reason or outcome.message.strip().partition("\n")[0][:120]
    click.echo(f"{verdict} {path}  {outcome.seconds:.1f} s  {said}".rstrip())


def main(argv: list[str] | None = None) -> Any:
    """The entry point. A request that cannot be met ends with two lines on stderr and status 125."""
    try:
        cli.main(args=argv, prog_name="minidbg", standalone_mode=False)
    except click.exceptions.Abort:
        click.echo("minidbg: interrupted", err=True)
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(CANNOT_JUDGE)
    except MinidbgError as error:
        click.echo(f"minidbg: {error}", err=True)
        sys.exit(CANNOT_JUDGE)


assert set(EXIT_STATUS.values()) == set(WORST_FIRST), "a new status needs its place among the worst"
