"""``minidbg workaround``: until a failure is mended."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from minidbg.commands.output import CANNOT_JUDGE, COUNT, JSON, REPRO, note, print_json
from minidbg.words.errors import Interrupted
from minidbg.words.text import plural, printable


@click.command()
@click.argument("repro", type=REPRO)
@click.option("--max-questions", default=10, show_default=True, type=COUNT, help="Most changes to try.")
@JSON
def workaround(repro: Path, max_questions: int, as_json: bool) -> None:
    """Find the smallest change of the program that avoids a failure.

    REPRO is a repro or a capture. Each change is tried on the unreduced capture, where that is still there, and
    counts when the backend then gives what eager gives. Exit status 0, or 125 when nothing helps.
    """
    from minidbg import report
    from minidbg.extras import workarounds

    story = report.story_of(repro)
    is_capture = story.capture is None or story.capture.absolute() == repro.absolute()
    capture = repro if story.capture is None or is_capture else story.capture
    if is_capture:
        note("its unreduced capture is not there, so the changes are tried on this script alone")
    search = workarounds.find(capture, None if is_capture else repro, most_questions=max_questions)
    if not search.interrupted:
        workarounds.keep(repro, search)
    if as_json:
        print_json({"repro": str(repro), "capture": str(capture), **search.to_json()})
    for number, found in enumerate([] if as_json else search.found, 1):
        click.echo(f"{number}. {printable(found.what)}: {found.cost}")
        click.echo(f"   {found.where}")
        for line in "\n".join(found.lines).splitlines():
            click.echo(f"       {printable(line)}")
    for text in search.notes:
        note(text)
    if search.found:
        nodes = search.found[0].nodes
        tried = f"{plural(nodes, 'node')}, {plural(search.questions, 'run')}, {search.seconds:.1f} s"
        note(f"tried on the graph of {tried}")
    if search.interrupted:
        tried = f"{len(search.found)} found after {plural(search.questions, 'run')}"
        raise Interrupted(f"interrupted: {tried}, nothing kept; the same command starts anew")
    sys.exit(0 if search.found else CANNOT_JUDGE)
