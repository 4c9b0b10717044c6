"""``minidbg show``: what is known about one repro."""

from __future__ import annotations

from pathlib import Path

import click

from minidbg.cli.manners import JSON, print_json


@click.command()
@click.argument("repro", type=click.Path(path_type=Path))
@JSON
def show(repro: Path, as_json: bool) -> None:
    """Show what is known about REPRO; nothing in it is run.

    REPRO is a script, or enough of a name in the repro folder.
    """
    from minidbg import report, settings

    path = report.find_script(repro, settings.load().repro_dir)
    story = report.story_of(path)
    if as_json:
        print_json(story.to_json())
    else:
        click.echo(report.glance(story))
