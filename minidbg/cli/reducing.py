"""``minidbg reduce``: a capture or a repro, reduced (further)."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from minidbg.cli.manners import CANNOT_JUDGE, JSON, note, print_json


@click.command()
@click.argument("path", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--seconds", default=300.0, show_default=True, help="Most seconds to spend.")
@click.option("--max-calls", type=click.IntRange(min=1), help="Most oracle calls to spend.")
@click.option(
    "--dir", "folder", type=click.Path(file_okay=False, path_type=Path), help="Where the repro goes."
)
@JSON
def reduce(path: Path, seconds: float, max_calls: int | None, folder: Path | None, as_json: bool) -> None:
    """Reduce a capture or a repro further, edited by hand or not, and write a verified repro."""
    from minidbg.reduction import session

    written = session.reduce_path(path, seconds=seconds, max_calls=max_calls, folder=folder)
    if as_json:
        print_json(written.to_json())
    elif written.path is not None:
        click.echo(str(written.path))
    note(written.line)
    sys.exit(0 if written.path is not None else CANNOT_JUDGE)
