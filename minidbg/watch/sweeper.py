"""The life of sweeps: what begins one, what makes its results stale, how it ends. The daemon's thread runs all of it."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from minidbg.history import Observation
from minidbg.watch import events
from minidbg.watch.announce import Announcer
from minidbg.watch.recorder import Recorder
from minidbg.watch.repros import Repro, stamp_of
from minidbg.watch.runner import Runner, as_renamed, outcome_of
from minidbg.watch.settings import Machine, WatchSettings, devices_of, parse_devices
from minidbg.watch.snapshot import Root
from minidbg.watch.sources import installed_digest
from minidbg.watch.states import Decision, Job, Purpose, Transition, usual_seconds
from minidbg.watch.sweep import CanaryKey, Run, Sweep, count_standings, in_order
from minidbg.watch.watched import Mark, Watched
from minidbg.words.outcome import Outcome, Verdict
from minidbg.words.text import display_path, plural
from minidbg.workers.pool import Ended

MOST_FILES_TOLD = 200


@dataclass(slots=True)
class Sweeper:
    """Begins, feeds and ends sweeps. ``clock`` gives seconds since the epoch."""

    settings: WatchSettings
    recorder: Recorder
    watched: Watched
    runner: Runner
    announce: Announcer
    clock: Callable[[], float] = time.time
    machine: Machine = field(default_factory=lambda: Machine({}))
    """No devices until the daemon has found them."""
    current: Sweep | None = None
    last: Sweep | None = None
    """The last one that ended."""
    broken: dict[CanaryKey, str] = field(default_factory=dict)
    """Why each backend is broken that is, as it was told."""

    @property
    def repros(self) -> dict[str, Repro]:
        return self.watched.repros

    # Beginning

    def begin(self) -> None:
        changed, names = self.watched.changed_since(Mark.SWEPT), self.watched.to_run
        whole = self.watched.runs_all
        self.watched.begin_sweep()
        began = self.clock()
        digest = self.watched.snapshot.digest() + installed_digest(self.machine.torch)
        code = hashlib.sha1(digest.encode(), usedforsecurity=False).hexdigest()
        # modules beside the scripts may be imported
        folders = {str(repro.path.absolute().parent) for repro in self.repros.values()}
        usual = usual_seconds(self.recorder.states.values(), self.repros)
        stale = self.runner.get_ready([*self.watched.all_roots(), *map(Root, folders)], usual)
        if stale:
            self.announce(events.WorkersReplaced(tuple(map(display_path, stale[:20])), len(stale)))
        files = [display_path(path) for path in changed[:MOST_FILES_TOLD]]
        number = self.recorder.history.start_sweep(began, code=code, files=files)
        jobs, unable = self.jobs_of(names)
        jobs = in_order(jobs, self.recorder.states, changed, self.repros)
        self.current = self.sweep_over(number, jobs, code, whole=whole, began=began)
        devices = tuple(sorted({job.device for job in jobs}))
        self.announce(
            events.SweepStarted(number, len(jobs), len(names), tuple(files[:20]), len(changed), devices)
        )
        self.publish(self.current, unable)
        self.fill()

    def sweep_over(self, number: int, jobs: Sequence[Job], code: str, **more: Any) -> Sweep:
        return Sweep(
            number, jobs, self.repros, dict(self.recorder.states), code=code, slots=self.settings.jobs,
            device_slots=self.settings.device_jobs, **more,
        )  # fmt: skip

    def jobs_of(self, names: set[str]) -> tuple[list[Job], list[Decision]]:
        """The jobs of these repros, and the decisions on those that are damaged. Once is said which devices are not here."""
        jobs: list[Job] = []
        unable: list[Decision] = []
        absent: Counter[str] = Counter()
        wanted = parse_devices(self.settings.devices)
        for name in sorted(names):
            repro = self.repros[name]
            devices = devices_of(repro.spec.device, wanted, self.machine)
            every = [Job(name, device) for device in devices]
            if repro.damage:
                states = self.recorder.states
                unable += [
                    Decision(job, Transition.INVALID, states.get((name, job.device)), reason=repro.damage)
                    for job in every
                ]
            else:
                absent.update(device for device in devices if device not in self.machine.environments)
                jobs += [job for job in every if job.device not in absent]
        for device in absent:
            here, missed = ", ".join(self.machine.present()), plural(absent[device], "repro")
            text = f"{device} not present (found {here}); {missed} skipped there; 'minidbg doctor' lists what is here"
            self.announce.once(("missing", device), events.DeviceMissing(device, text))
        return jobs, unable

    # Running

    def fill(self) -> None:
        while self.current is not None and (run := self.current.next_run()) is not None:
            self.submit(self.current, run)

    def submit(self, sweep: Sweep, run: Run) -> None:
        """Start one run; where that fails, all repros are to be run again."""
        state = self.recorder.states.get((run.job.repro, run.job.device))
        try:
            self.runner.submit(run, sweep.repros[run.job.repro], state)
        except Exception:
            sweep.running.discard(run)
            self.watched.pending.all = True  # others may wait for it in vain, if it is a canary
            raise

    def notice_edits(self) -> None:
        """Supersede the current sweep when the code is no longer what it began with: nothing more is started, and its runs end."""
        sweep = self.current
        if sweep is not None and not sweep.edited and self.watched.changed_since(Mark.SWEEP):
            sweep.cut_short()
            self.runner.cancel_all()

    def ended(self, message: Ended) -> None:
        """A run has ended: ``job_ended`` or ``canary_ended``, then start the next. A run of an earlier sweep is passed over."""
        run, sweep = self.runner.under_way.pop(message.id, None), self.current
        if run is None or sweep is None:
            return
        sweep.running.discard(run)  # first: after a fault of our own nobody must wait for it
        self.watched.peek()
        self.notice_edits()
        if message.lost and not sweep.edited and self.runner.lost(run):
            sweep.running.add(run)
            self.submit(sweep, run)
        elif run.purpose is not Purpose.CANARY and not message.cancelled:
            self.job_ended(sweep, run, message)
        elif not (message.cancelled or message.lost or sweep.edited):
            self.canary_ended(sweep, run, message)
        self.fill()

    def canary_ended(self, sweep: Sweep, run: Run, message: Ended) -> None:
        """A canary has reported; once is said when a backend breaks or is back."""
        repro, key = sweep.repros[run.job.repro], sweep.canary(run.job)
        shown, backend = outcome_of(repro, key.device, message), repro.spec.backend.name
        found = sweep.saw_canary(run, shown)
        is_broken = shown.verdict not in (Verdict.GONE, Verdict.SKIPPED)
        if is_broken and self.broken.get(key) != shown.reason:
            self.broken[key] = shown.reason
            count = sum(repro.backend_key == key.backend for repro in self.repros.values())
            self.announce(events.BackendBroken(backend, key.device, shown.reason, count))
        elif not is_broken and self.broken.pop(key, None) is not None:
            self.announce(events.BackendBack(backend, key.device))
        self.publish(sweep, found)

    def job_ended(self, sweep: Sweep, run: Run, message: Ended) -> None:
        """Make an ``Observation`` of the run, and ``publish`` what the sweep decides on it; a stale one is only stored."""
        job, repro = run.job, sweep.repros[run.job.repro]
        files = message.files
        if files is None:  # a crash, or a fresh interpreter, which cannot say: what the job has loaded before
            state = self.recorder.states.get((job.repro, job.device))
            files = sweep.runs[job][0].modules if job in sweep.runs else state.modules if state else ()
        modules = self.watched.adopt(files)
        shown = self.observation(sweep, run, message, modules)
        if self.is_stale(sweep, job, repro, modules):
            self.recorder.store_run(replace(shown, stale=True))
        else:
            self.publish(sweep, sweep.saw(run, shown))

    def observation(self, sweep: Sweep, run: Run, message: Ended, modules: tuple[str, ...]) -> Observation:
        repro = sweep.repros[run.job.repro]
        outcome = outcome_of(repro, run.job.device, message)
        if message.lost:
            reason = "the worker process died twice under it"
            outcome = Outcome(Verdict.INVALID, reason=reason, device=run.job.device)
        return Observation(
            repro.name, run.job.device, self.clock(), as_renamed(outcome, repro, self.watched.snapshot.files),
            purpose=run.purpose, sweep=sweep.number, script=repro.digest,
            environment=self.machine.environments[run.job.device].key, code=sweep.code,
            loaded=self.watched.marks[Mark.SWEEP].digest(modules) if modules else "", modules=modules,
            seconds=message.seconds, fresh=run.fresh,
        )  # fmt: skip

    def is_stale(self, sweep: Sweep, job: Job, repro: Repro, modules: Iterable[str]) -> bool:
        """Whether the code or the script changed while the run went on. Looks at the files themselves, not at events."""
        if stamp_of(repro.path) != repro.stamp:
            self.watched.ask_for([repro.name])
            return True
        self.watched.read_edited(modules)
        self.notice_edits()
        return sweep.edited

    def publish(self, sweep: Sweep, found: Sequence[Decision | events.Unconfirmed]) -> None:
        """Announce what is to be confirmed, and have the recorder ``commit`` the decisions."""
        decisions = [one for one in found if isinstance(one, Decision)]
        for one in found:
            if isinstance(one, events.Unconfirmed):
                self.announce(one)
        if sweep.first_verdict is None and (
            len(found) > len(decisions) or any(one.runs for one in decisions)
        ):
            sweep.first_verdict = self.clock()
        if decisions:
            self.recorder.commit(decisions, sweep.repros, sweep.number)
        # The runs are in the history now.
        sweep.decisions.update({one.job: replace(one, runs=()) for one in decisions})

    # Ending

    def finish_if_done(self) -> bool:
        """End the current sweep when nothing of it runs any more; whether it ended now."""
        sweep = self.current
        if sweep is None or self.runner.under_way or not sweep.finished:
            return False
        self.current = None
        self.last = sweep
        if not sweep.edited and sweep.whole:
            self.watched.mark(Mark.SWEPT, self.watched.marks[Mark.SWEEP])
        elif sweep.whole:
            self.watched.pending.all = True
        elif sweep.edited:
            self.watched.ask_for({job.repro for job in sweep.jobs} - {job.repro for job in sweep.decisions})
        end, now = "superseded" if sweep.edited else "complete", self.clock()
        self.recorder.history.end_sweep(sweep.number, now, end)
        first = None if sweep.first_verdict is None else round(sweep.first_verdict - sweep.began, 3)
        standings = count_standings(sweep.decisions.values())
        took = round(now - sweep.began, 3)
        self.announce(events.SweepFinished(sweep.number, end, took, first, standings, sweep.unjudged))
        sweep.jobs, sweep.states, sweep.runs = (), {}, {}  # nobody asks for them any more
        self.watched.forget_missing()
        if sweep.number % 50 == 0:
            self.recorder.history.prune()
        return True
