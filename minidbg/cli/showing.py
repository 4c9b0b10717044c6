"""``minidbg show``: what is known about one repro."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from minidbg.cli.manners import JSON, note, print_json
from minidbg.errors import MinidbgError
from minidbg.printable import printable

if TYPE_CHECKING:
    from minidbg.report import Story


@click.command()
@click.argument("repro", type=click.Path(path_type=Path))
@click.option(
    "--html",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write a page that stands alone: the graph, the reduction's course, the history.",
)
@click.option(
    "--errors",
    is_flag=True,
    help="With --html: run it, and show the error of each value along the graph (wrong results only).",
)
@JSON
def show(repro: Path, html: Path | None, errors: bool, as_json: bool) -> None:
    """Show what is known about REPRO; nothing in it is run, unless --errors asks for it.

    REPRO is a script, or enough of a name in the repro folder.
    """
    from minidbg import report, settings

    if errors and html is None:
        raise click.UsageError("--errors draws on a page; give --html FILE too")
    path = report.find_script(repro, settings.load().repro_dir)
    story = report.story_of(path)
    if html is not None:
        write_page(story, html, errors=errors)
    if as_json:
        print_json({**story.to_json(), "html": str(html) if html else None})
    elif html is None:
        click.echo(printable(report.glance(story)))


def write_page(story: Story, html: Path, *, errors: bool) -> None:
    """The page of ``story`` in the file; errors that cannot be computed are a complaint on it."""
    from minidbg.report.errors_along import errors_of
    from minidbg.report.page import page

    along, complaint = None, ""
    if errors:
        try:
            along = errors_of(story.capture or story.path)
        except MinidbgError as refusal:
            complaint = str(refusal)
            note(complaint)
    html.write_text(page(story, along, complaint=complaint), encoding="utf-8")
    note(f"written: {html}")
