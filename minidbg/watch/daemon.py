"""The daemon: one loop that hears of files, runs, builds, keys and signals, and lets sweeps begin and end."""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import FrameType

from minidbg.history import NAME, Environment, open_or_begin_anew
from minidbg.watch.accounts import contradictions, exit_status, seen_too_seldom
from minidbg.watch.announce import Announcer, Log
from minidbg.watch.background import Background
from minidbg.watch.builder import Builder, Built
from minidbg.watch.debounce import Debounce
from minidbg.watch.devices import Machine
from minidbg.watch.events import Events
from minidbg.watch.ignore import Ignore
from minidbg.watch.lock import Lock, hidden_folder
from minidbg.watch.lookout import Lookout
from minidbg.watch.messages import Hint, Inbox, Key, Message, Revised, Stop
from minidbg.watch.outcomes import last_json
from minidbg.watch.plain import shown
from minidbg.watch.pool import Died, Ended, Order, Pool, Ready
from minidbg.watch.recorder import Recorder
from minidbg.watch.repros import home_of, read_repros
from minidbg.watch.revisions import repositories_of, revisions
from minidbg.watch.runner import DEVICE_SCRIPT, Runner, forks
from minidbg.watch.settings import FailOn, WatchSettings
from minidbg.watch.snapshot import Snapshot
from minidbg.watch.sources import repositories_worth_building
from minidbg.watch.states import FAILING
from minidbg.watch.sweeper import Sweeper
from minidbg.watch.watched import Bytecode, Watched

MOST_WAIT_S = 1.0
PROBE_RUNS = 5
QUIET_WORK_S = 1.0
MOST_SWEEPS_ONCE = 3


class Daemon:
    """Watches ``paths`` until it is stopped, or for one sweep. All methods run in the thread that calls ``run``."""

    def __init__(
        self,
        paths: Sequence[Path],
        settings: WatchSettings,
        announce: Announcer,
        *,
        make_pool: Callable[[Inbox, Path], Pool],
        make_events: Callable[[Inbox], Events],
        inbox: Inbox | None = None,
    ) -> None:
        """Takes the lock and opens the history. Raises AlreadyWatched and MinidbgError."""
        self.paths = [path.absolute() for path in paths]
        self.settings, self.announce = settings, announce
        self.inbox: Inbox = inbox or queue.SimpleQueue()
        self.home = home_of(self.paths)
        self.lock = Lock(self.home)
        hidden = hidden_folder(self.home)
        self.log = Log(hidden / "watch.log")
        announce.views.append(self.log)
        history, notice = open_or_begin_anew(hidden / NAME, time.time())
        history.interrupt_running(time.time())
        self.recorder = Recorder(history, announce, settings.on_flip, settings.folder, history.states())
        self.pool = make_pool(self.inbox, hidden)
        watched = Watched(Ignore(settings.ignore))
        self.sweeper = Sweeper(
            settings, Machine({}), self.recorder, watched, Bytecode(hidden / "pycache"), Runner(self.pool, settings),
            announce, time.time,
        )  # fmt: skip
        self.builder = Builder(settings.build, settings.folder, self.inbox.put) if settings.build else None
        self.background = Background(self.home, history, self.pool, announce)
        self.lookout = Lookout(
            self.paths, self.home, settings, self.sweeper, make_events(self.inbox), announce,
            Debounce(settings.quiet_s, settings.max_wait_s), polling=settings.poll_s is not None,
        )  # fmt: skip
        self.status: int | None = None
        self.machine_order = 0
        self.paused = False
        self.next_quiet_work = 0.0
        self.build_base: Snapshot | None = None
        self.failed_build: str | None = None
        self.held: list[Ended] = []
        """What the runs of a head start have shown."""
        self.rebuilds = self.sweeps_done = 0
        if notice:
            announce("notice", text=notice)

    # The loop

    def run(self) -> int:
        """Work until something says stop; the exit status."""
        try:
            self.start()
            while self.status is None:
                try:
                    now = time.monotonic()
                    wait = min(MOST_WAIT_S, max(0.0, self.lookout.deadline(now) - now))
                    self.handle(self.inbox.get(timeout=wait))
                    while self.status is None and not self.inbox.empty():
                        self.handle(self.inbox.get())
                except queue.Empty:
                    pass
                if self.status is None:
                    self.step(time.monotonic())
            return self.status
        finally:
            self.end()

    def start(self) -> None:
        """Ask what devices there are, find the repros and their sources, and tell where everything stands."""
        self.machine_order = self.sweeper.runner.next_number()
        no_torch = ("--no-torch",) if os.environ.get("MINIDBG__WATCH_PRELOAD") == "none" else ()
        mode = "fork" if forks(self.settings) else "prelude"
        self.pool.run(Order(self.machine_order, (str(DEVICE_SCRIPT), *no_torch), mode, 120.0))
        self.sweeper.repros = read_repros(self.paths, self.home)
        self.lookout.find_sources()
        self.sweeper.watched.look(everywhere=True)
        self.announce(
            "started", pid=os.getpid(), home=str(self.home), repros=sorted(self.sweeper.repros),
            sources=[shown(root.path) for root in self.sweeper.watched.roots],
            files=len(self.sweeper.watched.snapshot.files), jobs=self.settings.jobs,
            states=[
                {"repro": name, "device": device, "verdict": str(state.verdict), "since": state.since}
                for (name, device), state in self.recorder.states.items() if name in self.sweeper.repros
            ],
        )  # fmt: skip
        for name, repro in self.sweeper.repros.items():
            if repro.damage:
                self.announce("repro_damaged", repro=name, reason=repro.damage)
        self.recorder.tell_forgotten_flips(self.sweeper.repros)

    def handle(self, message: Message) -> None:
        """Take in one message. A fault of ours in it is logged, and the daemon lives."""
        try:
            self.dispatch(message)
        except Exception:  # the fence around each job: one broken job must not end the daemon
            self.log.exception("message_failed", message=repr(message)[:500])
            self.announce(
                "notice",
                text=f"a fault in minidbg itself; its traceback is in {self.log.handler.baseFilename}",
            )
            self.sweeper.give_up_unanswered()

    def dispatch(self, message: Message) -> None:
        """Hand the message to whom it concerns."""
        match message:
            case Hint(path):
                self.lookout.hinted(path)
            case Ended():
                self.order_ended(message)
            case Ready(seconds, files):
                self.sweeper.bytecode.seed(files, self.sweeper.watched.all_roots())
                self.announce("workers_ready", seconds=round(seconds, 3))
            case Died(status, stderr):
                self.announce(
                    "notice",
                    text=f"the worker server ended with status {status}; a new one starts: {stderr[-300:]}",
                )
            case Built():
                self.built(message)
            case Revised(sweep, found):
                self.recorder.history.set_revisions(sweep, found)
            case Key(name):
                self.key(name)
            case Stop(reason, status):
                self.announce("stopping", reason=reason)
                self.status = status

    def step(self, now: float) -> None:
        """Do what is due now."""
        if not self.sweeper.machine.environments:
            return
        self.lookout.tick(now)
        lull = self.lookout.is_lull(now)
        if lull:
            self.lookout.peek()
        if self.sweeper.opening is not None:
            self.open_after_burst()
        if self.sweeper.current is not None:
            self.sweeper.fill()
            self.sweeper.cancel_late()
            self.end_sweep_if_done()
        elif self.builder is not None and self.builder.running:
            return
        elif self.ready_to_sweep():
            self.begin()
        elif lull and self.may_start_early():
            self.sweeper.begin(told=False)
        elif not self.settings.once and not self.paused:
            self.use_quiet_time()

    def ready_to_sweep(self) -> bool:
        """Whether there is a reason to sweep and nothing against it: a pause, a burst under way, a build that failed."""
        if self.paused or self.lookout.debounce.first is not None or not self.wanted:
            return False
        return self.failed_build is None or self.failed_build != self.sweeper.watched.snapshot.digest()

    def may_start_early(self) -> bool:
        """Whether runs may begin although the burst may go on: what they show is held back, and dropped if it does."""
        watch_only = self.builder is None and not self.settings.once and not self.lookout.polling
        return watch_only and not self.paused and bool(self.sweeper.reasons.changed_files())

    def open_after_burst(self) -> None:
        """Let a sweep with a head start be seen once the burst is over, or end it when files have changed again."""
        if not self.sweeper.edited:
            if self.lookout.debounce.first is not None:
                return
            self.opened()
        held, self.held = self.held, []
        for message in held:
            self.sweeper.ended(message)

    @property
    def wanted(self) -> bool:
        """Whether there is a reason for a sweep."""
        return self.sweeper.reasons.wanted(self.sweeper.repros.keys())

    # Sweeps

    def begin(self) -> None:
        """Begin a sweep, after a build if the code has changed and a build is wanted."""
        reasons = self.sweeper.reasons
        if self.builder is None or (reasons.swept is not None and not reasons.changed_files()):
            return self.sweep()
        self.build_base = self.sweeper.watched.snapshot
        self.builder.start()
        self.announce("build_started", command=self.settings.build)
        return None

    def built(self, message: Built) -> None:
        """A build has ended: sweep, or say that it failed. A file edited meanwhile may have been missed: build again."""
        assert self.builder is not None
        if not self.builder.ended(message):
            return
        self.lookout.look((), everywhere=True)
        snapshot = self.sweeper.watched.snapshot
        if message.status != 0:
            self.failed_build = snapshot.digest()
            self.announce(
                "build_failed",
                status=message.status,
                seconds=round(message.seconds, 3),
                output=message.output,
            )
            number = self.recorder.history.start_sweep(time.time(), code=self.failed_build, files=[])
            self.recorder.history.end_sweep(number, time.time(), "build_failed")
            if self.settings.once:
                self.status = 125
            return
        self.announce("build_finished", seconds=round(message.seconds, 3))
        edited = set(snapshot.changes_since(self.build_base or snapshot)) - self.sweeper.watched.always
        if edited and self.rebuilds < 1:
            self.rebuilds += 1
            self.begin()
        else:
            self.sweep()

    def sweep(self) -> None:
        """Begin the sweep itself."""
        self.sweeper.begin(told=False)
        self.opened()

    def opened(self) -> None:
        """The sweep that has begun counts: tell of it, and ask git what the code is."""
        self.rebuilds, self.failed_build = 0, None
        self.sweeper.open()
        assert self.sweeper.current is not None
        number = self.sweeper.current.number
        roots = repositories_of(repositories_worth_building(self.sweeper.watched.roots))

        def ask_git() -> None:
            self.inbox.put(Revised(number, revisions(roots)))

        threading.Thread(target=ask_git, name="minidbg-git", daemon=True).start()

    def order_ended(self, message: Ended) -> None:
        """A run, a reduction or the look for devices has ended."""
        if message.id == self.machine_order:
            self.found_machine(message)
        elif not self.background.ended(message, time.time()):
            self.lookout.peek()
            if self.sweeper.opening is not None and not self.sweeper.edited:
                self.held.append(message)
            else:
                self.sweeper.ended(message)

    def end_sweep_if_done(self) -> None:
        """End the sweep when all of it is done; with ``--once``, everything when the code stood still."""
        sweep = self.sweeper.current
        assert sweep is not None
        if self.settings.once and sweep.finished and not self.sweeper.runner.under_way:
            self.lookout.look((), everywhere=True)
        if not self.sweeper.finish_if_done() or not self.settings.once:
            return
        self.sweeps_done += 1
        if not self.wanted:
            self.status = self.status_of_once()
        elif self.sweeps_done >= MOST_SWEEPS_ONCE:
            self.announce("notice", text="the code kept changing while it was judged; nothing can be said")
            self.status = 125

    def status_of_once(self) -> int:
        """The exit status; what contradicts its header is named when only that counts."""
        answers, repros = self.sweeper.answers.values(), self.sweeper.repros
        unexpected = self.settings.fail_on is FailOn.UNEXPECTED
        for state in contradictions(answers, repros) if unexpected else ():
            self.announce(
                "unexpected", repro=state.repro, device=state.device, verdict=str(state.verdict),
                expect=str(repros[state.repro].expect),
            )  # fmt: skip
        return exit_status(answers, repros, unexpected_only=unexpected)

    def use_quiet_time(self) -> None:
        """With nothing to judge: reduce a capture, and run anew what has been seen only few times."""
        if time.monotonic() < self.next_quiet_work:
            return
        self.next_quiet_work = time.monotonic() + QUIET_WORK_S
        repros = self.sweeper.repros.values()
        if self.settings.reduce and self.background.start(self.sweeper.runner.last_number + 1, repros):
            self.sweeper.runner.next_number()
        names = seen_too_seldom(self.recorder.states.values(), self.sweeper.repros, runs=PROBE_RUNS)
        last = self.recorder.history.sweeps(1)
        if names and last and not self.sweeper.broken:
            self.sweeper.begin_probing(names, last[0].id)

    # Devices, keys, the end

    def found_machine(self, message: Ended) -> None:
        """What devices there are; the first sweep can begin."""
        said = last_json(message.stdout)
        try:
            machine = Machine.from_json(said or {})
        except (KeyError, TypeError):
            last = message.stderr.strip().rpartition("\n")[2]
            self.announce("notice", text=f"torch could not be asked for devices; only cpu is used: {last}")
            machine = Machine({"cpu": Environment("cpu", "unknown", "unknown")})
        self.sweeper.machine, self.recorder.torch = machine, machine.torch
        for environment in machine.environments.values():
            self.recorder.history.put_environment(environment)
        self.announce(
            "machine",
            torch=machine.torch,
            devices={name: one.name for name, one in machine.environments.items()},
        )

    def key(self, name: str) -> None:
        """What a person asked for."""
        if name == "quit":
            self.inbox.put(Stop("asked to"))
        elif name == "pause":
            self.paused = not self.paused
            self.announce("paused" if self.paused else "resumed")
        elif name == "failing":
            self.ask_again(
                {name for (name, _), state in self.recorder.states.items() if state.verdict in FAILING}
            )
        elif name == "rerun":
            self.failed_build = None
            self.sweeper.stop_probing()
            self.sweeper.reasons.ask_for_all(during_sweep=self.sweeper.current is not None)

    def ask_again(self, names: Iterable[str]) -> None:
        """Run these repros although nothing has changed."""
        self.sweeper.stop_probing()
        self.sweeper.reasons.ask_for(names)

    def end(self) -> None:
        """Leave nothing behind but the history."""
        self.lookout.events.stop()
        if self.builder is not None:
            self.builder.cancel()
        if self.sweeper.current is not None and not self.sweeper.current.probing:
            self.recorder.history.end_sweep(self.sweeper.current.number, time.time(), "interrupted")
        self.pool.close()
        self.recorder.close()
        self.recorder.history.close()
        self.announce("stopped", status=self.status)
        self.announce.close()
        self.lock.release()


def stop_on_signals(inbox: Inbox) -> None:
    """Let SIGINT, SIGTERM and SIGHUP end the daemon cleanly; a second SIGINT ends it at once."""

    def handler(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        inbox.put(Stop(signal.Signals(number).name))

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, handler)
