"""The daemon: one loop that hears of files, runs, builds, keys and signals, and lets sweeps begin and end."""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TypeAlias

from minidbg.history import NAME, Environment, Revision, open_or_begin_anew
from minidbg.watch import events
from minidbg.watch.announce import Announcer, JsonLines, Log, PlainLines, View
from minidbg.watch.builds import Builds, Built
from minidbg.watch.events import Notice
from minidbg.watch.file_events import FileEvents
from minidbg.watch.flip_commands import FlipCommands
from minidbg.watch.recorder import Recorder, contradictions, exit_status, judged_states
from minidbg.watch.repros import Lock, hidden_folder, home_of, read_repros
from minidbg.watch.runner import PROBE_SCRIPT, Runner, forks
from minidbg.watch.settings import FailOn, Machine, WatchSettings
from minidbg.watch.sources import repositories_worth_building, revisions
from minidbg.watch.states import FAILING
from minidbg.watch.sweeper import Sweeper
from minidbg.watch.watched import Watched
from minidbg.words import settings as base
from minidbg.words.errors import MinidbgError
from minidbg.words.json_lines import last_json
from minidbg.words.text import display_path, last_line
from minidbg.workers.pool import NUMBERS, Died, Ended, Order, Pool, Ready, RunMode, ServerPool, preload_for


@dataclass(frozen=True, slots=True)
class Hint:
    """A path may have changed; None: some events were lost."""

    path: str | None


@dataclass(frozen=True, slots=True)
class Key:
    """A person asked for something: rerun (of one ``repro``, or all), failing, quit."""

    name: str
    repro: str = ""


@dataclass(frozen=True, slots=True)
class Stop:
    reason: str
    status: int = 0


@dataclass(frozen=True, slots=True)
class Revised:
    sweep: int
    revisions: Mapping[str, Revision]


Message: TypeAlias = Hint | Key | Stop | Revised | Built | Ended | Ready | Died | Notice
Inbox: TypeAlias = "queue.SimpleQueue[Message]"


MOST_WAIT_S = 1.0
MOST_SWEEPS_ONCE = 3
FIRST_REST_S, MOST_REST_S = 1.0, 60.0
"""After a fault of our own nothing is begun for a while, each time for twice as long."""


class Daemon:
    """Watches ``paths`` until it is stopped, or for one sweep. All methods run in the thread that calls ``run``."""

    def __init__(
        self,
        paths: Sequence[Path],
        settings: WatchSettings,
        announce: Announcer,
        inbox: Inbox,
        file_events: FileEvents,
        make_pool: Callable[[Path], Pool],
    ) -> None:
        """Takes the lock and opens the history. Pool and file events put messages into the inbox. Raises AlreadyWatched and MinidbgError."""
        self.paths = [path.absolute() for path in paths]
        self.settings, self.announce, self.inbox = settings, announce, inbox
        self.home = home_of(self.paths)
        self.lock = Lock(self.home)
        hidden = hidden_folder(self.home)
        self.log = Log(hidden / "watch.log")
        announce.views.append(self.log)
        history, notice = open_or_begin_anew(hidden / NAME, time.time())
        history.interrupt_running(time.time())
        self.recorder = Recorder(history, announce, history.states())
        self.pool = make_pool(hidden)
        self.watched = Watched(self.paths, self.home, settings, file_events, announce)
        self.sweeper = Sweeper(settings, self.recorder, self.watched, Runner(self.pool, settings), announce)
        self.builds = Builds(self.inbox.put, self.watched, history, announce)
        self.status: int | None = None
        self.machine_order = 0
        self.sweeps_done = 0
        self.resting_until = self.rest_s = 0.0
        if notice:
            announce(Notice(notice))

    # The loop

    def run(self) -> int:
        try:
            self.start()
            while self.status is None:
                try:
                    now = time.monotonic()
                    wait = min(MOST_WAIT_S, max(0.0, self.watched.deadline(now) - now))
                    self.handle(self.inbox.get(timeout=wait))
                    while self.status is None and not self.inbox.empty():
                        self.handle(self.inbox.get())
                except queue.Empty:
                    pass
                if self.status is None:
                    self.guarded("step", lambda: self.step(time.monotonic()))
            return self.status
        finally:
            self.end()

    def start(self) -> None:
        self.ask_for_devices()
        self.watched.start()
        repros = self.watched.repros
        self.announce(events.Started(
            os.getpid(), str(self.home), repros=tuple(sorted(repros)),
            sources=tuple(display_path(root.path) for root in self.watched.roots),
            files=len(self.watched.snapshot.files), jobs=self.settings.jobs,
            states=tuple(
                state for (name, _), state in self.recorder.states.items() if name in repros
            ),
        ))  # fmt: skip
        for name, repro in repros.items():
            if repro.damage:
                self.announce(events.ReproDamaged(name, repro.damage))
        self.recorder.tell_forgotten_flips(repros)

    def ask_for_devices(self) -> None:
        self.machine_order = next(NUMBERS)
        no_torch = ("--no-torch",) if os.environ.get("MINIDBG__WATCH_PRELOAD") == "none" else ()
        mode = RunMode.FORK if forks(self.settings.workers) else RunMode.FRESH
        self.pool.run(Order(self.machine_order, (PROBE_SCRIPT, "devices", *no_torch), mode, 120.0))

    def handle(self, message: Message) -> None:
        self.guarded(repr(message)[:500], lambda: self.dispatch(message))

    def guarded(self, what: str, job: Callable[[], None]) -> None:
        """Do ``job``. A fault of ours is logged, said once, and followed by a rest; the daemon lives.

        Where the history cannot be written nothing can be judged either: all is run again after the rest.
        """
        try:
            job()
        except Exception as fault:  # the fence around each job: one broken job must not end the daemon
            self.log.exception("fault", what=what)
            self.rest_s = min(MOST_REST_S, max(FIRST_REST_S, 2 * self.rest_s))
            self.resting_until = time.monotonic() + self.rest_s
            if isinstance(fault, MinidbgError):
                self.watched.ask_for_all()
                text = f"{fault}; nothing is judged until that is mended"
                self.status = 125 if self.settings.once else None
            else:
                text = f"a fault in minidbg itself ({type(fault).__name__}: {fault}); its traceback is in {self.log.path}"
            self.announce.once(text, Notice(text))

    def dispatch(self, message: Message) -> None:
        match message:
            case Hint(path):
                self.watched.hinted(path)
            case Ended(id=self.machine_order):
                self.found_machine(message)
            case Ended():
                self.sweeper.ended(message)
            case Ready(seconds):
                self.announce(events.WorkersReady(round(seconds, 3)))
            case Died(status, stderr):
                text = f"the worker server ended with status {status}; a new one starts: {stderr[-300:]}"
                self.announce(Notice(text))
            case Notice():
                self.announce(message)
            case Built():
                self.built(message)
            case Revised(sweep, found):
                self.recorder.history.set_revisions(sweep, found)
            case Key():
                self.key(message)
            case Stop(reason, status):
                self.announce(events.Stopping(reason))
                self.status = status

    def step(self, now: float) -> None:
        if not self.sweeper.machine.environments:
            return
        self.watched.tick(now)
        self.sweeper.notice_edits()
        if self.sweeper.current is not None:
            self.sweeper.fill()
            self.end_sweep_if_done()
        if self.sweeper.current is not None or self.builds.current is not None:
            return
        if self.status is not None or now < self.resting_until:
            return
        if self.ready_to_sweep() and not self.builds.begin():
            self.sweep()

    def ready_to_sweep(self) -> bool:
        """Whether there is a reason to sweep and nothing against it: a burst under way, a build that failed."""
        hindered = self.watched.burst.first is not None or self.watched.build_fails
        return self.watched.wants_sweep and not hindered

    # Sweeps

    def built(self, message: Built) -> None:
        if self.builds.ended(message):
            if not self.builds.begin() and self.watched.wants_sweep:
                self.sweep()
        elif self.settings.once and self.builds.current is None:
            self.status = 125

    def sweep(self) -> None:
        try:
            self.sweeper.begin()
        except Exception:
            self.watched.pending.all = True  # what it was to run is still to be run
            raise
        assert self.sweeper.current is not None
        number = self.sweeper.current.number
        roots = repositories_worth_building(self.watched.roots)
        threading.Thread(
            target=lambda: self.inbox.put(Revised(number, revisions(roots))), name="minidbg-git", daemon=True
        ).start()

    def end_sweep_if_done(self) -> None:
        """End the sweep when all of it is done; with ``--once``, everything when the code stood still."""
        sweep = self.sweeper.current
        assert sweep is not None
        if self.settings.once and sweep.finished and not self.sweeper.runner.under_way:
            self.watched.look(everywhere=True)
            self.sweeper.notice_edits()
        if not self.sweeper.finish_if_done():
            return
        self.rest_s = 0.0
        if not self.settings.once:
            return
        self.sweeps_done += 1
        if not self.watched.wants_sweep:
            self.status = self.status_of_once()
        elif self.sweeps_done >= MOST_SWEEPS_ONCE:
            self.announce(Notice("the code kept changing while it was judged; nothing can be said"))
            self.status = 125

    def status_of_once(self) -> int:
        """The exit status; what contradicts its header is named when only that counts."""
        assert self.sweeper.last is not None
        decisions, repros = self.sweeper.last.decisions.values(), self.watched.repros
        unexpected = self.settings.fail_on is FailOn.UNEXPECTED
        for state in contradictions(judged_states(decisions), repros) if unexpected else ():
            expect = repros[state.repro].expect
            self.announce(events.Unexpected(state.repro, state.device, state.verdict, expect))
        return exit_status(decisions, repros, unexpected_only=unexpected)

    # Devices, keys, the end

    def found_machine(self, message: Ended) -> None:
        try:
            machine = Machine.from_json(last_json(message.stdout) or {})
        except (KeyError, TypeError):
            text = f"torch could not be asked for devices; only cpu is used: {last_line(message.stderr)}"
            self.announce(Notice(text))
            machine = Machine({"cpu": Environment("cpu", "unknown", "unknown")})
        self.sweeper.machine, self.recorder.torch = machine, machine.torch
        names = {name: one.name for name, one in machine.environments.items()}
        self.announce(events.MachineFound(machine.torch, names))

    def key(self, key: Key) -> None:
        match key.name:
            case "quit":
                self.inbox.put(Stop("asked to"))
            case "failing":
                states = self.recorder.states.items()
                self.watched.ask_for(repro for (repro, _), state in states if state.verdict in FAILING)
            case "rerun" if key.repro:
                self.watched.ask_for([key.repro])
            case "rerun":
                self.watched.ask_for_all()

    def end(self) -> None:
        self.watched.events.stop()
        self.builds.cancel()
        if self.sweeper.current is not None:
            self.recorder.history.end_sweep(self.sweeper.current.number, time.time(), "interrupted")
        self.pool.close()
        self.recorder.history.close()
        self.announce(events.Stopped(self.status))
        self.announce.close()
        self.lock.release()


# The daemon with those who hear of its events


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

    file_events = FileEvents(lambda path: inbox.put(Hint(path)))
    try:
        daemon = Daemon(paths, settings, announce, inbox, file_events, make_pool)
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
