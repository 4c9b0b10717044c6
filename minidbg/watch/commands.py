"""The commands that belong to watch, for the command line to add: watch, status, history, list, bisect."""

from __future__ import annotations

import json
import queue
import sys
from pathlib import Path
from typing import Any

import click

from minidbg.watch.settings import FailOn, OnChange, WatchSettings, Workers, load

FOLDER = click.argument("folder", required=False, type=click.Path(path_type=Path))
JSON = click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")


def default_paths() -> list[Path]:
    """The repro folder of the settings."""
    from minidbg import settings

    return [settings.load().repro_dir]


@click.command("watch")
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
@click.option("--devices", help="cpu,cuda:1 or all; by default each repro runs on its own device.")
@click.option(
    "--source", "sources", multiple=True, type=click.Path(path_type=Path), help="Watch this folder too."
)
@click.option("--once", is_flag=True, help="One sweep, then exit: 0, 1, 3 or 125 as in 'minidbg check'.")
@click.option(
    "--fail-on", type=click.Choice(list(FailOn)), help="With --once: 'unexpected' compares with each header."
)
@click.option("--json", "as_json", is_flag=True, help="Print each event as one JSON object a line.")
@click.option(
    "--poll",
    "poll_s",
    type=click.FloatRange(min=0.05),
    help="Look every SECONDS instead of waiting for events.",
)
@click.option(
    "--on-change",
    type=click.Choice(list(OnChange)),
    help="A change during a sweep: end the runs or kill them.",
)
@click.option("--build", help="Shell command to run before a sweep, for example 'ninja -C build'.")
@click.option("--on-flip", help="Shell command that gets each flip as JSON on stdin.")
@click.option("-j", "--jobs", type=click.IntRange(min=1), help="Runs at the same time.")
@click.option("--seconds", type=click.FloatRange(min=0.1), help="Time limit of a run.")
@click.option("--workers", type=click.Choice(list(Workers)), help="Fork warm processes, or start fresh ones.")
@click.option("--no-reduce", is_flag=True, help="Do not reduce captures in the background.")
@click.option(
    "--print-unit", type=click.Choice(["systemd", "launchd"]), help="Print a service file for this command."
)
def watch(
    paths: tuple[Path, ...], as_json: bool, no_reduce: bool, print_unit: str | None, **options: Any
) -> None:
    """Run the repros again on each change of their backends, and say which flipped.

    PATHS are folders of repros or single scripts; by default the repro folder. Ends with Ctrl-C.
    """
    found = list(paths) or default_paths()
    settings = load({**options, "reduce": False if no_reduce else None})
    if print_unit:
        from minidbg.watch.units import unit

        click.echo(
            unit(
                print_unit,
                [
                    argument
                    for argument in sys.argv[1:]
                    if not argument.startswith("--print-unit") and argument != print_unit
                ],
                Path.cwd(),
            )
        )
        return
    sys.exit(run_daemon(found, settings, as_json=as_json))


def run_daemon(paths: list[Path], settings: WatchSettings, *, as_json: bool) -> int:
    """Watch until stopped; the exit status."""
    from minidbg.watch.announce import Announcer, JsonLines, View
    from minidbg.watch.daemon import Daemon, stop_on_signals
    from minidbg.watch.events import NoEvents, WatchdogEvents
    from minidbg.watch.messages import Hint, Inbox
    from minidbg.watch.plain import PlainLines
    from minidbg.watch.pool import ServerPool, preload_for

    for path in paths:
        if not path.exists() and path in default_paths():
            path.mkdir(parents=True)  # the first repro may come while we watch
    inbox: Inbox = queue.SimpleQueue()
    views: list[View] = []
    announce = Announcer(views)
    if as_json:
        views.append(JsonLines(sys.stdout))
    elif sys.stdout.isatty() and sys.stdin.isatty() and not settings.once:
        from minidbg.watch.terminal import Terminal

        views.append(Terminal(inbox))
    else:
        views.append(PlainLines(sys.stdout, every_result=settings.once))
    quiet = settings.once or settings.poll_s is not None
    try:
        daemon = Daemon(
            paths,
            settings,
            announce,
            make_pool=lambda inbox, hidden: ServerPool(inbox.put, preload_for(paths), state=hidden),
            make_events=lambda inbox: (
                NoEvents() if quiet else WatchdogEvents(lambda path: inbox.put(Hint(path)))
            ),
            inbox=inbox,
        )
    except BaseException:
        announce.close()
        raise
    stop_on_signals(inbox)
    return daemon.run()


def print_json(rows: list[dict[str, Any]]) -> None:
    """One object a line."""
    for row in rows:
        click.echo(json.dumps(row, default=str))
