"""Commands about minidbg itself: ``demo``, ``doctor`` and ``help``."""

from __future__ import annotations

import sys
from dataclasses import asdict
from importlib import resources

import click

from minidbg.commands.output import CANNOT_JUDGE, JSON_OPTION, print_json
from minidbg.core.errors import nearest


@click.command()
def demo() -> None:
    """Break a transformer in a buggy backend, and see it reduced.

    It needs no download, no GPU and no compiler.
    """
    from rich.console import Console

    from minidbg.commands.demo import show

    show.run_demo(Console())


STATE_STYLE = {"fine": "green", "missing": "yellow", "broken": "red"}


@click.command()
@JSON_OPTION
def doctor(as_json: bool) -> None:
    """Say what this machine lacks, and what to do about it.

    Checks all that minidbg needs. Exit status 0, or 125 when something required is broken.
    """
    from minidbg.commands.doctor import examine

    status = 0
    for finding in examine():
        if finding.state == "broken":
            status = CANNOT_JUDGE
        if as_json:
            print_json(asdict(finding))
            continue
        state = click.style(f"{finding.state:<7}", fg=STATE_STYLE[finding.state])
        click.echo(f"{state}  {finding.name}: {finding.found}")
        if finding.advice:
            click.echo(f"{'':<9}{finding.advice}")
    sys.exit(status)


def topics() -> dict[str, str]:
    package = resources.files("minidbg")
    files = [*(package / "help").iterdir(), package / "ARCHITECTURE.md"]
    found = {file.name.removesuffix(".md").lower(): file.read_text(encoding="utf-8") for file in files}
    return dict(sorted(found.items()))


@click.command("help")
@click.argument("topic", required=False)
def help_topic(topic: str | None) -> None:
    """Show one topic of the manual, or list them all."""
    from rich.console import Console
    from rich.markdown import Markdown

    known = topics()
    if topic is None:
        for name, text in known.items():
            click.echo(f"{name:<15}{text.splitlines()[0].lstrip('# ')}")
    elif topic not in known:
        hint = nearest(topic, known) or "; see: minidbg help"
        raise click.UsageError(f"no topic {topic!r}{hint}")
    elif sys.stdout.isatty():
        Console().print(Markdown(known[topic]))
    else:
        click.echo(known[topic], nl=False)
