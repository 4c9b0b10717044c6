"""The daemon: one loop over one inbox, which hears of files, runs, builds, keys and signals, and
lets sweeps begin and end.

After each message ``step`` asks what there is to do now; nothing else begins a sweep or a build.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import TypeAlias, TypeVar

from minidbg.core import settings as base
from minidbg.core.errors import MinidbgError
from minidbg.core.outcome import Verdict, is_expected
from minidbg.core.text import display_path, last_line, plural
from minidbg.history import HISTORY_FILE, Flip, Observation, Revision, SweepRecord, open_or_begin_anew
from minidbg.watch import events, views
from minidbg.watch.events import Notice
from minidbg.watch.files import are_stale, changes, digest_of_all
from minidbg.watch.repros import Lock, Repro, contents_of, hidden_folder, home_of, read_repros
from minidbg.watch.runner import Build, Runner, fork_for, outcome_of_job
from minidbg.watch.settings import DEVICES_CALL, Devices, FailOn, WatchSettings, chosen_devices
from minidbg.watch.sources import repositories_worth_building, revisions
from minidbg.watch.states import FAILING, INCONCLUSIVE, Decision, Job, Purpose, Transition, usual_seconds
from minidbg.watch.sweep import CAN_RUN, BackendKey, Run, Sweep
from minidbg.watch.watched import FileEvents, Watched
from minidbg.workers import Ended, Pool, Request, Scripts, preload_for


@dataclass(frozen=True, slots=True)
class FilesChanged:
    """Something was written: rescan."""


@dataclass(frozen=True, slots=True)
class DevicesChanged:
    """There are more devices, or one is back: ask for them, and run everything again."""


@dataclass(frozen=True, slots=True)
class Revised:
    sweep: int
    revisions: Mapping[str, Revision]


BuildEnd: TypeAlias = events.BuildFinished | events.BuildFailed
Message: TypeAlias = FilesChanged | DevicesChanged | Revised | BuildEnd | Future[Ended] | views.Wish
Inbox: TypeAlias = "queue.SimpleQueue[Message]"
OtherMachines: TypeAlias = Callable[[Pool, Callable[[Message], None]], Pool]
"""Of this machine's pool and the inbox's ``put``: a pool with devices of other machines too."""


Given = TypeVar("Given")
MOST_WAIT_S = 1.0
MOST_SWEEPS_ONCE = 3
REST_S = 10.0
"""After a fault of our own nothing is begun for so long."""
MOST_FILES_TOLD = 20
EVENT_CHARACTERS = 1000


class Daemon:
    """Watches ``paths`` until stopped, or for one sweep. All methods run in ``run``'s thread."""

    def __init__(
        self,
        paths: Sequence[Path],
        settings: WatchSettings,
        announce: views.Announcer,
        inbox: Inbox,
        file_events: FileEvents,
        make_pool: Callable[[Path], Pool],
    ) -> None:
        """Takes the lock and opens the history. Raises MinidbgError."""
        self.paths = [path.absolute() for path in paths]
        self.settings, self.announce, self.inbox = settings, announce, inbox
        self.home = home_of(self.paths)
        self.lock = Lock(self.home)
        hidden = hidden_folder(self.home)
        announce.views.append(views.JsonLines(views.log_in(hidden)))
        self.history, notice = open_or_begin_anew(hidden / HISTORY_FILE, time.time())
        self.states = self.history.states()
        self.watched = Watched(self.paths, self.home, settings, file_events, announce)
        self.pool = make_pool(hidden)
        self.runner = Runner(self.pool, settings, inbox.put)
        self.devices = Devices({})  # none until they were asked for
        self.devices_asked: Future[Ended] | None = None
        self.sweep: Sweep | None = None
        self.broken: dict[BackendKey, str] = {}  # why each broken backend is broken, as told
        self.build: Build | None = None
        self.builds_again = False  # the build was begun once more because of an edit under it
        self.status: int | None = None
        self.sweeps_done = 0
        self.resting_until = 0.0
        if notice:
            announce(Notice(notice))

    # The loop

    def run(self) -> int:
        try:
            self.start()
            while self.status is None:
                wait = min(MOST_WAIT_S, max(0.0, self.watched.next_rescan - time.monotonic()))
                with contextlib.suppress(queue.Empty):
                    message = self.inbox.get(timeout=wait)
                    if self.is_at_home():
                        self.guarded(self.dispatch, message)
                if self.status is None and self.is_at_home():
                    self.guarded(self.step, time.monotonic())
            return self.status
        finally:
            self.end()

    def is_at_home(self) -> bool:
        """Whether the hidden folder is there; where somebody has removed it the daemon ends, since
        what is run then says nothing."""
        if not self.lock.holder.exists() and self.status is None:
            hidden = display_path(self.lock.holder.parent)
            self.announce(Notice(f"{hidden} was removed under this process; start again"))
            self.status = 125
        return self.status is None

    def start(self) -> None:
        self.ask_for_devices()
        self.watched.rescan()
        repros = self.watched.repros
        self.announce(events.Started(
            os.getpid(), str(self.home), repros=tuple(sorted(repros)),
            sources=tuple(display_path(root) for root in self.watched.roots),
            files=len(self.watched.snapshot), jobs=self.settings.jobs,
            states=tuple(state for state in self.states.values() if state.repro in repros),
        ))  # fmt: skip
        for name, repro in repros.items():
            if repro.damage:
                self.announce(events.ReproFileChanged("damaged", name, repro.damage))
        for flip in reversed(self.history.flips(announced=False)):
            self.tell_flip(flip)  # we were killed before

    def guarded(self, job: Callable[[Given], None], given: Given) -> None:
        """Do ``job``. A fault of ours is told once, and after a rest the daemon goes on; where the
        history cannot be written, all is run again then."""
        try:
            job(given)
        except Exception as fault:  # noqa: BLE001 - a fence: one broken job must not end the daemon
            self.resting_until = time.monotonic() + REST_S
            if isinstance(fault, MinidbgError):
                self.watched.ask_for_all()
                text = f"{fault}; nothing is judged until that is mended"
                self.announce.once(text, Notice(text))
            else:
                log = hidden_folder(self.home) / "watch.log"
                what = f"{type(fault).__name__}: {fault}"
                text = f"a fault in minidbg itself ({what}); its traceback is in {log}"
                self.announce.once(text, events.Fault(text, traceback.format_exc()))
            self.status = 125 if self.settings.once else None

    def dispatch(self, message: Message) -> None:
        match message:
            case FilesChanged():
                self.watched.rescan_soon()
            case DevicesChanged():
                self.ask_for_devices()
            case Future() if message is self.devices_asked:
                self.devices_answered(message.result())
            case Future():
                self.run_ended(message)
            case Notice():
                self.announce(message)
            case events.BuildFinished() | events.BuildFailed():
                self.build_ended(message)
            case Revised(sweep, found):
                self.history.set_revisions(sweep, found)
            case views.RunAll():
                self.watched.ask_for_all()
            case views.Stop(reason):
                self.announce(Notice(f"stopping: {reason}"))
                self.status = 125 if self.settings.once else 0  # not all was seen

    def step(self, now: float) -> None:
        """Do what is due."""
        if now >= self.watched.next_rescan:
            self.watched.rescan()
        if not self.devices.environments:
            return
        if self.sweep is not None:
            if self.watched.snapshot != self.watched.begun:
                self.supersede(self.sweep)
            self.fill(self.sweep)
            if not (any(self.sweep.waiting.values()) or self.runner.under_way):
                self.end_sweep(self.sweep)
        busy = self.sweep is not None or self.build is not None or self.status is not None
        if not busy and now >= self.resting_until and self.watched.wants_sweep:
            if self.watched.needs_build:
                self.begin_build()
            else:
                self.begin_sweep()

    # A sweep: its beginning

    def begin_sweep(self) -> None:
        watched, began = self.watched, time.time()
        before = watched.begun if watched.judged is None else watched.judged
        names, watched.begun = watched.to_run, watched.snapshot
        changed = changes(before, watched.begun)
        code = f"{digest_of_all(watched.begun)} {self.devices.torch}"
        # modules beside the scripts may be imported
        folders = {str(repro.path.absolute().parent) for repro in watched.repros.values()}
        self.runner.recompiled = (*watched.roots, *folders)
        self.runner.usual_seconds = usual_seconds(self.states.values(), watched.repros)
        if stale := self.pool.refresh():
            others = f" and {plural(len(stale) - 1, 'other file')}" if len(stale) > 1 else ""
            text = f"{display_path(stale[0])}{others} changed since the old ones started"
            self.announce(Notice(f"waiting for new workers before this sweep: {text}"))
        files = tuple(map(display_path, changed[:MOST_FILES_TOLD]))
        number = self.history.add(SweepRecord(files if changed or self.sweeps_done else None))
        jobs, unable = self.jobs_of(names)
        watched.to_run_again = set()
        self.sweep = Sweep(
            number, jobs, watched.repros, self.states, changed, code=code, slots=self.settings.jobs,
            device_slots=self.settings.device_jobs, began=began,
        )  # fmt: skip
        self.announce(events.SweepStarted(number, len(jobs), len(names), files, len(changed)))
        roots = repositories_worth_building(root for root in watched.roots if root not in watched.loaded)
        self.post_from_thread(lambda: Revised(number, revisions(roots)))
        self.publish(self.sweep, unable)
        self.fill(self.sweep)

    def post_from_thread(self, job: Callable[[], Message]) -> None:
        threading.Thread(target=lambda: self.inbox.put(job()), daemon=True).start()

    def jobs_of(self, names: set[str]) -> tuple[list[Job], list[Decision]]:
        """The jobs of these repros, and the decisions on those that are damaged."""
        jobs: list[Job] = []
        unable: list[Decision] = []
        absent: Counter[str] = Counter()
        for name in sorted(names):
            repro = self.watched.repros[name]
            for device in chosen_devices(repro.spec.device, self.settings.devices, self.devices):
                job = Job(name, device)
                if repro.damage:
                    unable.append(Decision(job, Transition.INVALID, None, reason=repro.damage))
                elif device in self.devices.environments:
                    jobs.append(job)
                else:
                    absent[device] += 1
        for device in absent:
            here, missed = ", ".join(self.devices.present()), plural(absent[device], "repro")
            text = f"{device} not present (found {here}); {missed} skipped there; "
            text += "'minidbg doctor' lists what is here"
            self.announce.once(("missing", device), Notice(text))
        return jobs, unable

    # Its runs

    def fill(self, sweep: Sweep) -> None:
        """Start what has a slot. Where that fails all run again: others may wait for it in vain."""
        while (run := sweep.next_run(self.runner.under_way.values())) is not None:
            try:
                self.runner.submit(run, sweep.repros[run.job.repro], self.states.get(run.job))
            except Exception:
                self.watched.ask_for_all()
                raise

    def supersede(self, sweep: Sweep) -> None:
        sweep.supersede()
        for end in self.runner.under_way:
            end.cancel()

    def run_ended(self, end: Future[Ended]) -> None:
        """It counts only if its script and what it loaded are as the sweep began. Else an edited
        script runs again by itself, and other changes supersede the sweep."""
        run, sweep = self.runner.under_way.pop(end, None), self.sweep
        if run is None or sweep is None or end.cancelled():
            return
        message, job, repro = end.result(), run.job, sweep.repros[run.job.repro]
        is_canary = run.purpose is Purpose.CANARY
        if message.lost and (run.forked or not run.fresh) and not sweep.superseded:
            why = message.error[-300:]
            self.announce(Notice(f"the worker server ended; a new one starts: {why}"))
            sweep.lost(run)
            return
        before = sweep.runs[job][0] if job in sweep.runs else self.states.get(job)
        # a crash, or a fresh interpreter, cannot say what it loaded: what the job loaded before
        named = message.files if message.files is not None else before.files if before else ()
        own = map(os.path.realpath, (repro.path, repro.path.with_suffix(".safetensors")))
        files = self.watched.adopt(set(named).difference(own))
        is_edited = contents_of(repro.path) != repro.contents
        is_stale = is_edited or sweep.superseded or are_stale(files, self.watched.begun)
        if is_stale:
            self.watched.rescan_soon()
        if is_edited:
            self.watched.to_run_again.add(repro.name)
        elif is_stale:
            self.supersede(sweep)
        outcome = outcome_of_job(repro, job.device, message)
        seen = Observation(
            *job, time.time(), replace(outcome, message=outcome.message[:EVENT_CHARACTERS]),
            purpose=run.purpose, sweep=sweep.number, script=repro.digest, torch=self.devices.torch,
            environment=self.devices.environments[job.device], code=sweep.code, fresh=run.fresh,
            loaded=digest_of_all(self.watched.snapshot, files) if files else "", files=files,
        )  # fmt: skip
        if is_canary and not sweep.superseded:
            self.canary_ended(sweep, run, seen)
        elif not is_canary and not is_stale:
            self.publish(sweep, sweep.saw(run, seen))

    def canary_ended(self, sweep: Sweep, run: Run, seen: Observation) -> None:
        """A canary has reported; once is said when a backend breaks or is back."""
        key, name = sweep.key(run.job), sweep.repros[run.job.repro].spec.backend.name
        if seen.verdict not in CAN_RUN and self.broken.get(key) != seen.outcome.reason:
            self.broken[key] = seen.outcome.reason
            count = sum(repro.backend_key == key[0] for repro in self.watched.repros.values())
            self.announce(events.BackendBroken(name, run.job.device, seen.outcome.reason, count))
        elif seen.verdict in CAN_RUN and self.broken.pop(key, None) is not None:
            self.announce(events.BackendBack(name, run.job.device))
        self.publish(sweep, sweep.saw_canary(run, seen.verdict))

    def publish(self, sweep: Sweep, found: Sequence[Decision | events.Unconfirmed]) -> None:
        """Decisions are stored, then told: if we are killed in between, rather twice than never."""
        for one in found:
            if isinstance(one, events.Unconfirmed):
                self.announce(one)
                continue
            flip, state = one.flip, one.state if one.runs else None
            with self.history.transaction():
                for run in one.runs:
                    self.history.add(run)
                if state is not None:
                    self.history.add(state)
                if flip is not None:
                    flip = replace(flip, id=self.history.add(flip))
            if state is not None:
                self.states[one.job] = state
            self.announce(judged(sweep.number, one, sweep.repros[one.job.repro]))
            if flip is not None:
                self.tell_flip(flip)
            sweep.decisions[one.job] = replace(one, runs=())  # they are in the history now

    def tell_flip(self, flip: Flip) -> None:
        self.announce(events.flip_event(self.history, flip, self.home))
        self.history.mark_announced(flip.id)

    # Its end

    def end_sweep(self, sweep: Sweep) -> None:
        """All of it is done; with ``--once`` the daemon is, when the code stood still."""
        self.sweep, watched = None, self.watched
        self.pool.let_go()
        if self.settings.once:
            watched.rescan()
            sweep.superseded |= watched.snapshot != watched.begun
        if sweep.superseded:
            watched.to_run_again |= {job.repro for job in sweep.jobs}
        else:  # also of a few repros: all others were judged on this code before
            watched.judged = watched.begun
        end = "superseded" if sweep.superseded else "complete"
        transitions = dict(Counter(str(one.transition) for one in sweep.decisions.values()))
        took = round(time.time() - sweep.began, 3)
        self.announce(events.SweepFinished(sweep.number, end, took, transitions, sweep.unjudged))
        self.sweeps_done += 1
        if self.settings.once and not watched.wants_sweep:
            self.status = self.status_of_once(sweep.decisions.values())
        elif self.settings.once and self.sweeps_done >= MOST_SWEEPS_ONCE:
            self.announce(Notice("the code kept changing while the repros ran; no verdict"))
            self.status = 125

    def status_of_once(self, decisions: Iterable[Decision]) -> int:
        """What ``--once`` exits with."""
        conclusive = (one for one in decisions if one.transition not in INCONCLUSIVE)
        states = [one.state for one in conclusive if one.state]
        verdicts = {state.verdict for state in states}
        if not verdicts:
            return 125
        if self.settings.fail_on is FailOn.ANY:
            reproduced = verdicts & {Verdict.REPRODUCES, Verdict.FLAKY}
            return 1 if reproduced else 3 if verdicts & FAILING else 0
        unexpected = [
            f"{state.repro} [{state.device}] is {state.verdict}"
            for state in states
            if not is_expected(state.verdict, self.watched.repros[state.repro].expect)
        ]
        if unexpected:
            self.announce(Notice(f"not as their headers expect: {', '.join(sorted(unexpected))}"))
        return 1 if unexpected else 0

    # Builds

    def begin_build(self) -> None:
        command = self.settings.build or ""
        self.build = Build(command, self.settings.folder)
        self.watched.built = self.watched.snapshot
        self.announce(events.BuildStarted(command))
        self.post_from_thread(self.build.wait)

    def build_ended(self, message: BuildEnd) -> None:
        """A file edited under the build may have been missed: then another one is needed, once."""
        self.build, watched = None, self.watched
        watched.rescan()
        edited = {*changes(watched.built or {}, watched.snapshot)} - watched.loaded
        watched.build_failed = isinstance(message, events.BuildFailed)
        self.builds_again = bool(edited) and not (self.builds_again or watched.build_failed)
        if not self.builds_again:
            watched.built = watched.snapshot
        self.announce(message)
        if watched.build_failed and self.settings.once:
            self.status = 125

    # Devices, the end

    def ask_for_devices(self) -> None:
        fork = fork_for(self.settings.workers)
        self.devices_asked = self.pool.submit(Request(call=DEVICES_CALL, fork=fork))
        self.devices_asked.add_done_callback(self.inbox.put)

    def devices_answered(self, message: Ended) -> None:
        if self.devices.environments:
            self.watched.ask_for_all()  # it was asked before
        if message.answered:
            self.devices = Devices(**message.value)
        else:
            why = last_line(message.error or message.stderr_tail)
            self.announce(Notice(f"torch could not be asked for devices; only cpu is used: {why}"))
            self.devices = Devices({"cpu": "cpu|unknown"})

    def end(self) -> None:
        self.watched.events.stop()
        if self.build is not None:
            self.build.cancel()
        self.pool.close()
        self.history.close()
        self.announce.close()
        self.lock.release()


def judged(sweep: int, decision: Decision, repro: Repro) -> events.Judged:
    """``decision`` as told: with the state unless nothing could be judged and an earlier stands."""
    runs = decision.runs
    state = decision.state if runs and decision.transition not in INCONCLUSIVE else None
    return events.Judged(
        sweep, repro.name, decision.job.device, decision.transition,
        state.verdict if state else runs[-1].verdict if runs else None,
        seconds=round(runs[0].seconds, 3) if runs else 0.0, runs=len(runs), reason=decision.reason,
        message=runs[-1].outcome.message if runs else "", since=state.since if state else None,
        expected=is_expected(state.verdict, repro.expect) if state else None,
    )  # fmt: skip


# The daemon with those who hear of its events


def run_daemon(
    paths: list[Path],
    settings: WatchSettings,
    *,
    as_json: bool,
    others: OtherMachines | None = None,
    page: Callable[[Callable[[str], None]], views.View] | None = None,
) -> int:
    """``page`` makes a view, given a function by which it tells a person something."""
    default = base.load().repro_dir
    for path in paths:
        if not path.exists() and path == default:
            path.mkdir(parents=True)  # the first repro may come while we watch
    inbox: Inbox = queue.SimpleQueue()

    def tell(text: str) -> None:
        inbox.put(Notice(text))

    listeners = [page(tell)] if page else []
    if settings.on_flip:
        listeners.append(views.FlipCommands(settings.on_flip, settings.folder, tell))
    if as_json:
        listeners.append(views.JsonLines(sys.stdout))
    elif sys.stdout.isatty() and sys.stdin.isatty() and not settings.once:
        from minidbg.watch.terminal import TerminalView

        listeners.append(TerminalView(inbox.put))  # last: from here on errors would be written over
    else:
        listeners.append(views.PlainLines(sys.stdout, every_result=settings.once))
    announce = views.Announcer(listeners)
    # here the headers alone, so that the server imports torch while the scripts are parsed
    repros = read_repros(paths, Path(), parsed=False).values()
    backends = {repro.spec.backend.name for repro in repros}

    def make_pool(hidden: Path) -> Pool:
        preload = preload_for(backends, forks=fork_for(settings.workers) is not None)
        here = Scripts(preload, state=hidden)
        return others(here, inbox.put) if others else here

    file_events = FileEvents(lambda: inbox.put(FilesChanged()), before_build=bool(settings.build))
    try:
        daemon = Daemon(paths, settings, announce, inbox, file_events, make_pool)
    except BaseException:
        announce.close()
        raise

    def stop(number: int, frame: FrameType | None) -> None:
        """End cleanly; a second SIGINT ends the process at once."""
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        inbox.put(views.Stop(signal.Signals(number).name))

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    return daemon.run()
