"""Puts the daemon together with those who hear of its events: the terminal, files, the web server."""

from __future__ import annotations

import queue
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from minidbg.watch.announce import Announcer, JsonLines, PlainLines, View
from minidbg.watch.daemon import Daemon, Hint, Inbox, Key, Stop
from minidbg.watch.events import Notice, Serving
from minidbg.watch.file_events import FileEvents
from minidbg.watch.flip_commands import FlipCommands
from minidbg.watch.page import Live, Page
from minidbg.watch.repros import home_of, read_repros
from minidbg.watch.results import Results
from minidbg.watch.runner import forks
from minidbg.watch.settings import WatchSettings
from minidbg.words import settings as base
from minidbg.workers.pool import Pool, ServerPool, preload_for

DEFAULT_ADDRESS = "127.0.0.1:8765"


@dataclass(frozen=True, slots=True)
class Outputs:
    """Who hears of it besides the terminal."""

    as_json: bool = False
    html: Path | None = None
    junit: Path | None = None
    document: Path | None = None
    serve: str | None = None
    """``HOST:PORT``, or ``-`` for the default."""
    allow_actions: bool = False


class PageServer(View, Protocol):
    """The page of ``--serve``: it hears of events like every view."""

    url: str
    token: str

    def start(self) -> None:
        """Answer requests from here on."""


def views_of(
    settings: WatchSettings, outputs: Outputs, inbox: Inbox, live: Live, server: PageServer | None
) -> list[View]:
    """Those who hear of events. Raises MinidbgError, and OSError for a file that cannot be written."""
    views: list[View] = [live, server] if server is not None else [live]
    if outputs.html is not None:
        views.append(Page(outputs.html, live))
    if outputs.junit or outputs.document:
        files = {"junit": outputs.junit, "document": outputs.document}
        views.append(Results(live, settings.fail_on, **files))
    if settings.on_flip:
        views.append(FlipCommands(settings.on_flip, settings.folder, lambda text: inbox.put(Notice(text))))
    if outputs.as_json:
        views.append(JsonLines(sys.stdout))
    elif sys.stdout.isatty() and sys.stdin.isatty() and not settings.once:
        from minidbg.watch.terminal import Terminal

        views.append(Terminal(inbox))  # last: from here on errors would be written over
    else:
        views.append(PlainLines(sys.stdout, every_result=settings.once))
    return views


def run_daemon(
    paths: list[Path], settings: WatchSettings, outputs: Outputs, extra: Callable[[str], Any]
) -> int:
    """Watch until stopped; the exit status. ``extra`` gives the parts of extras that options switch on, by their names."""
    default = base.load().repro_dir
    for path in paths:
        if not path.exists() and path == default:
            path.mkdir(parents=True)  # the first repro may come while we watch
    inbox: Inbox = queue.SimpleQueue()
    live = Live()
    server: PageServer | None = None
    if outputs.serve:
        address = DEFAULT_ADDRESS if outputs.serve == "-" else outputs.serve
        ask = (lambda repro: inbox.put(Key("rerun", repro=repro))) if outputs.allow_actions else None
        server = extra("page")(address, live, home_of(paths), ask)
    announce = Announcer(views_of(settings, outputs, inbox, live, server))
    repros = read_repros(paths, Path(), kinds=settings.kinds).values()
    backends = {repro.spec.backend.name for repro in repros}

    def make_pool(hidden: Path) -> Pool:
        return ServerPool(inbox.put, preload_for(backends, forks=forks(settings.workers)), state=hidden)

    events = FileEvents(lambda path: inbox.put(Hint(path)))
    try:
        daemon = Daemon(paths, settings, announce, inbox, events, make_pool)
    except BaseException:
        announce.close()
        raise
    live.repros = lambda: daemon.watched.repros
    if server is not None:
        server.start()
        announce(Serving(server.url, server.token, outputs.allow_actions))
    stop_on_signals(inbox)
    return daemon.run()


def stop_on_signals(inbox: Inbox) -> None:
    """Let SIGINT, SIGTERM and SIGHUP end the daemon cleanly; a second SIGINT ends it at once."""

    def handler(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        inbox.put(Stop(signal.Signals(number).name))

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, handler)
