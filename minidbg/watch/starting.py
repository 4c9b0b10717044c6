"""Puts the daemon together with those who hear of its events."""

from __future__ import annotations

import queue
import signal
import sys
from pathlib import Path
from types import FrameType

from minidbg.watch.announce import Announcer, JsonLines, PlainLines, View
from minidbg.watch.daemon import Daemon, Hint, Inbox, Stop
from minidbg.watch.events import Notice
from minidbg.watch.file_events import FileEvents
from minidbg.watch.flip_commands import FlipCommands
from minidbg.watch.repros import read_repros
from minidbg.watch.runner import forks
from minidbg.watch.settings import WatchSettings
from minidbg.words import settings as base
from minidbg.workers.pool import Pool, ServerPool, preload_for


def views_of(settings: WatchSettings, inbox: Inbox, *, as_json: bool) -> list[View]:
    views: list[View] = []
    if settings.on_flip:
        views.append(FlipCommands(settings.on_flip, settings.folder, lambda text: inbox.put(Notice(text))))
    if as_json:
        views.append(JsonLines(sys.stdout))
    elif sys.stdout.isatty() and sys.stdin.isatty() and not settings.once:
        from minidbg.watch.terminal import Terminal

        views.append(Terminal(inbox))  # last: from here on errors would be written over
    else:
        views.append(PlainLines(sys.stdout, every_result=settings.once))
    return views


def run_daemon(paths: list[Path], settings: WatchSettings, *, as_json: bool) -> int:
    default = base.load().repro_dir
    for path in paths:
        if not path.exists() and path == default:
            path.mkdir(parents=True)  # the first repro may come while we watch
    inbox: Inbox = queue.SimpleQueue()
    announce = Announcer(views_of(settings, inbox, as_json=as_json))
    repros = read_repros(paths, Path()).values()
    backends = {repro.spec.backend.name for repro in repros}

    def make_pool(hidden: Path) -> Pool:
        return ServerPool(inbox.put, preload_for(backends, forks=forks(settings.workers)), state=hidden)

    events = FileEvents(lambda path: inbox.put(Hint(path)))
    try:
        daemon = Daemon(paths, settings, announce, inbox, events, make_pool)
    except BaseException:
        announce.close()
        raise
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
