"""The life of sweeps: what begins one, what makes its results stale, how it ends. The daemon's thread runs all of it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from minidbg.failure import Outcome, Verdict
from minidbg.watch.announce import Announcer, shown
from minidbg.watch.columns import Machine, devices_of, parse_devices, said_aloud, variants
from minidbg.watch.outcomes import CanaryAnswer, canary_of, expected_signature, is_fallback, outcome_of
from minidbg.watch.pool import Bytecode, Ended
from minidbg.watch.recorder import Recorder
from minidbg.watch.repros import Repro, is_module_file, stamp_of
from minidbg.watch.runner import Runner
from minidbg.watch.settings import OnChange, WatchSettings
from minidbg.watch.snapshot import Root
from minidbg.watch.sources import installed_digest
from minidbg.watch.states import Seen
from minidbg.watch.sweep import (
    Answer,
    CanaryKey,
    Job,
    Purpose,
    Sighting,
    Sweep,
    Task,
    cannot_run,
    count_standings,
    in_order,
    usual_seconds,
)  # fmt: skip
from minidbg.watch.watched import Mark, Watched

MOST_FILES_TOLD = 200
MOST_TOUCHES = 2
JUST_BEGUN_S = 0.5
GRACE_S = 2.0
"""How long runs that a change has made stale may go on (``on_change = "queue"``)."""


@dataclass(slots=True)
class Sweeper:
    """Begins, feeds and ends sweeps. ``clock`` gives seconds since the epoch."""

    settings: WatchSettings
    machine: Machine
    recorder: Recorder
    watched: Watched
    bytecode: Bytecode
    runner: Runner
    announce: Announcer
    clock: Callable[[], float]
    current: Sweep | None = None
    edited: bool = False
    """Whether the code has changed since the current sweep began."""
    cancel_at: float | None = None
    """When the stale runs under way are to be ended."""
    whole: bool = True
    """Whether the current sweep runs every repro."""
    code: str = ""
    began: float = 0.0
    first_answer: float | None = None
    answers: dict[Job, Answer] = field(default_factory=dict)
    """Of the last sweep that was no probing."""
    broken: dict[CanaryKey, str] = field(default_factory=dict)
    told_missing: set[str] = field(default_factory=set)
    awaiting_canary: list[tuple[Job, Seen]] = field(default_factory=list)
    """What runs have shown that is new, and is told once the backend is known to work."""
    touches: dict[Job, int] = field(default_factory=dict)
    """How many times in a row a job's own files were written while it ran, without another content."""

    @property
    def repros(self) -> dict[str, Repro]:
        """The repros as they are now."""
        return self.watched.repros

    # Beginning

    def begin(self) -> None:
        """Start a sweep of what is wanted."""
        changed = self.watched.changed_since(Mark.SWEPT)
        self.whole = self.watched.wants_all
        names = self.watched.take_due()
        self.watched.mark(Mark.SWEEP)
        self.edited, self.began, self.first_answer = False, self.clock(), None
        self.awaiting_canary.clear()
        installed = installed_digest(self.machine.torch)
        digest = self.watched.snapshot.digest() + installed
        self.code = hashlib.sha1(digest.encode(), usedforsecurity=False).hexdigest()
        self.runner.usual_seconds = usual_seconds(self.recorder.states.values(), self.repros)
        self.runner.pool.refresh()
        self.runner.bytecode = self.bytecode.renew([*self.watched.all_roots(), *self.script_folders()])
        number = self.recorder.history.start_sweep(
            self.began, code=self.code, files=[shown(path) for path in changed[:MOST_FILES_TOLD]]
        )
        jobs, unable = self.jobs_of(names)
        self.current = Sweep(
            number, in_order(jobs, self.recorder.states, changed, self.repros), self.repros, dict(self.recorder.states),
            slots=self.settings.jobs, device_slots=self.settings.device_jobs,
        )  # fmt: skip
        self.answers.clear()
        self.announce(
            "sweep_started", sweep=number, jobs=len(jobs), repros=len(names),
            files=[shown(path) for path in changed[:20]], changed=len(changed), devices=sorted({job.device for job in jobs}),
        )  # fmt: skip
        self.take(unable)
        self.fill()

    def begin_probing(self, names: Iterable[str], number: int) -> None:
        """Run these repros once more although nothing has changed, as part of the last sweep."""
        jobs, _ = self.jobs_of(set(names))
        self.edited, self.whole = False, False
        self.watched.mark(Mark.SWEEP)
        self.current = Sweep(
            number,
            jobs,
            self.repros,
            dict(self.recorder.states),
            slots=self.settings.jobs,
            device_slots=self.settings.device_jobs,
            probing=True,
        )
        self.fill()

    def script_folders(self) -> list[Root]:
        """The folders that scripts lie in: modules beside them may be imported."""
        return [
            Root(str(folder)) for folder in {repro.path.absolute().parent for repro in self.repros.values()}
        ]

    def jobs_of(self, names: set[str]) -> tuple[list[Job], list[Answer]]:
        """The jobs of these repros, and the answers for those that cannot be run: damaged, or no such device."""
        jobs: list[Job] = []
        unable: list[Answer] = []
        absent: dict[str, int] = {}
        wanted = parse_devices(self.settings.devices)
        for name in sorted(names):
            repro = self.repros[name]
            devices = devices_of(repro.device, wanted, self.machine)
            columns = variants(devices, self.settings.env, self.settings.options)
            if repro.damage:
                unable += cannot_run(repro, columns, self.recorder.states)
                continue
            for device in devices:
                if device not in self.machine.environments:
                    absent[device] = absent.get(device, 0) + 1
            jobs += [Job(name, column) for column in columns if column.device not in absent]
        self.tell_missing(absent)
        return jobs, unable

    def tell_missing(self, absent: dict[str, int]) -> None:
        """Say once which devices are not here."""
        for device, count in absent.items():
            if device not in self.told_missing:
                self.told_missing.add(device)
                self.announce("device_missing", device=device, text=said_aloud(device, count, self.machine))

    # Running

    def fill(self) -> None:
        """Give work to free workers."""
        sweep = self.current
        while sweep is not None and (task := sweep.next_task()) is not None:
            state = self.recorder.states.get((task.job.repro, task.job.device))
            self.runner.start(task, sweep.repros[task.job.repro], state)

    def notice_edits(self) -> None:
        """Supersede the current sweep when the code is no longer what it began with: what runs now is stale."""
        if self.current is None or self.edited or not self.watched.changed_since(Mark.SWEEP):
            return
        self.supersede()

    def supersede(self) -> None:
        """Start nothing more in the current sweep, and let its runs end soon."""
        if self.current is None:
            return
        self.edited = True
        self.current.cut_short()
        just_begun = self.clock() < self.began + JUST_BEGUN_S  # by the first of several writes of one save
        at_once = self.settings.on_change is OnChange.RESTART or self.current.probing or just_begun
        self.cancel_at = self.clock() + (0.0 if at_once else GRACE_S)
        self.cancel_late()

    def cancel_late(self) -> None:
        """End stale runs that take too long: nobody waits for them. Until then a compiler may fill its cache."""
        if self.cancel_at is not None and self.clock() >= self.cancel_at:
            self.cancel_at = None
            self.runner.cancel_all()

    def stop_probing(self) -> None:
        """There is something better to do."""
        if self.current is not None and self.current.probing:
            self.supersede()

    def ended(self, message: Ended) -> bool:
        """Hear of an order; whether it was one of ours."""
        found = self.runner.ended(message.id)
        sweep = self.current
        if found is None or sweep is None:
            return found is not None
        task, started = found
        if message.cancelled:
            sweep.given_up(task)
        elif message.lost and not self.edited and self.runner.lost(task):
            state = self.recorder.states.get((task.job.repro, task.job.device))
            self.runner.start(task, sweep.repros[task.job.repro], state)
        elif task.purpose is Purpose.CANARY:
            self.canary_ended(sweep, task, message)
        else:
            self.job_ended(sweep, task, message, started)
        self.fill()
        return True

    def give_up_unanswered(self) -> None:
        """After a fault of our own: let no task be waited for that will not report."""
        if self.current is not None:
            for task in self.current.running - {task for task, _ in self.runner.under_way.values()}:
                self.current.given_up(task)

    def canary_ended(self, sweep: Sweep, task: Task, message: Ended) -> None:
        """A canary has reported; once is said when a backend breaks or is back."""
        if self.edited or message.lost:
            sweep.given_up(task)
            return
        answer, key = canary_of(message), sweep.key(task.job)
        backend = sweep.repros[task.job.repro].backend
        answers = sweep.saw_canary(task, answer)
        waiting, self.awaiting_canary = self.awaiting_canary, []
        for job, seen in waiting:
            self.tell_unconfirmed(sweep, job, seen)
        if answer.answer == "broken" and self.broken.get(key) != answer.reason:
            self.tell_broken(key, backend, answer)
        elif answer.answer != "broken" and self.broken.pop(key, None) is not None:
            self.announce("backend_back", backend=backend, device=key.device)
        self.take(answers)

    def tell_broken(self, key: CanaryKey, backend: str, answer: CanaryAnswer) -> None:
        """Say that a backend cannot do anything at all."""
        self.broken[key] = answer.reason
        count = sum(repro.backend_key == key.backend for repro in self.repros.values())
        self.announce(
            "backend_broken", backend=backend, device=key.device, reason=answer.reason, repros=count,
        )  # fmt: skip

    def job_ended(self, sweep: Sweep, task: Task, message: Ended, started: float) -> None:
        """A run has reported: judge it if the code stood still meanwhile."""
        repro = sweep.repros[task.job.repro]
        self.watched.adopt(message.files or ())
        files = message.files if message.files is not None else self.known_files(sweep, task.job)
        seen, outcome = self.sighting(repro, task, message, files)
        if self.is_stale(task.job, repro, files, started):
            sighting = Sighting(task.purpose, seen, outcome)
            self.recorder.store_sighting(task.job.repro, task.job.device, sighting, stale=True)
            sweep.given_up(task)
            return
        answers = sweep.saw(task, seen, outcome)
        self.take(answers)
        if not answers and task.purpose is Purpose.RUN:
            self.tell_unconfirmed(sweep, task.job, seen)

    def tell_unconfirmed(self, sweep: Sweep, job: Job, seen: Seen) -> None:
        """Say at once what a run has shown, when a working backend showed something new; whether it holds comes later."""
        canary = sweep.canaries.get(sweep.key(job))
        state, repro = self.recorder.states.get((job.repro, job.device)), sweep.repros[job.repro]
        before = state.verdict if state is not None and state.script == repro.digest else repro.expect
        if canary is None:
            self.awaiting_canary.append((job, seen))
        elif canary.answer == "passes" and seen.verdict is not before:
            if self.first_answer is None:
                self.first_answer = self.clock()
            self.announce(
                "unconfirmed", sweep=sweep.number, repro=job.repro, device=job.device, before=str(before),
                verdict=str(seen.verdict), seconds=round(seen.seconds, 3),
            )  # fmt: skip

    def known_files(self, sweep: Sweep, job: Job) -> tuple[str, ...]:
        """What the job has loaded before, for a run that cannot say: a crash, or a fresh interpreter."""
        earlier = sweep.sightings.get(job)
        state = self.recorder.states.get((job.repro, job.device))
        return earlier[0].seen.modules if earlier else (state.modules if state else ())

    def sighting(
        self, repro: Repro, task: Task, message: Ended, files: Iterable[str]
    ) -> tuple[Seen, Outcome]:
        """What the run showed, and on what."""
        outcome = outcome_of(repro, task.job.device, message)
        if message.lost:
            outcome = Outcome(
                Verdict.INVALID, reason="the worker process died twice under it", device=task.job.device
            )
        outcome = self.as_renamed(outcome, repro)
        modules = self.watched.loaded(files)
        assert self.current is not None
        seen = Seen(
            outcome.verdict,
            self.clock(),
            self.current.number,
            repro.digest,
            self.machine.environments[task.job.column.device].key,
            self.code,
            self.watched.marks[Mark.SWEEP].digest_of(modules) if modules else "",
            modules,
            message.seconds,
            task.fresh,
            outcome.reason or outcome.message.partition("\n")[0][:200],
            is_fallback(outcome),
            self.current.probing,
        )
        return seen, outcome

    def as_renamed(self, outcome: Outcome, repro: Repro) -> Outcome:
        """``outcome``, unless it is the expected failure in a module that has only been renamed: then it reproduces."""
        expected, found = expected_signature(repro), outcome.signature
        if outcome.verdict is not Verdict.CHANGED or not (
            expected and expected.frames and found and found.frames
        ):
            return outcome
        (old, where), (new, now_where) = (one.frames[0].partition(":")[::2] for one in (expected, found))
        same = replace(found, frames=expected.frames) == replace(expected, frames=expected.frames)
        if not same or where != now_where or self.is_watched_module(old) or not self.is_watched_module(new):
            return outcome
        return replace(outcome, verdict=Verdict.REPRODUCES, reason=f"module renamed: {old} is {new} now")

    def is_watched_module(self, name: str) -> bool:
        """Whether one of the watched files holds the module."""
        return any(is_module_file(name, path) for path in self.watched.snapshot.files)

    def is_stale(self, job: Job, repro: Repro, files: Iterable[str], started: float) -> bool:
        """Whether the code or the script changed while the run went on. Looks at the files themselves, not at events."""
        if stamp_of(repro.path) != repro.stamp:
            self.watched.ask_for([repro.name])
            return True
        loaded = self.watched.loaded(files)
        if suspects := self.watched.edited(loaded):
            self.watched.read_files(suspects)
        self.notice_edits()
        if self.edited:
            return True
        # Written during the run, and yet the same: it may have read something else in between. A file that is written by
        # each run, such as an extension built at import, must not keep us asking for ever.
        if self.touches.get(job, 0) < MOST_TOUCHES and self.watched.written_since(loaded, started):
            self.touches[job] = self.touches.get(job, 0) + 1
            if self.current is not None and not self.current.probing:
                self.watched.ask_for([repro.name])
            return True
        self.touches.pop(job, None)
        return False

    def take(self, answers: list[Answer]) -> None:
        """Store and tell final answers."""
        if not answers or self.current is None:
            return
        if self.first_answer is None and any(answer.sightings for answer in answers):
            self.first_answer = self.clock()
        if not self.current.probing:
            self.answers.update({answer.job: answer for answer in answers})
        self.recorder.commit(
            answers, self.repros_of(answers), self.current.number, quiet=self.current.probing
        )

    def repros_of(self, answers: Iterable[Answer]) -> dict[str, Repro]:
        """The repros that the answers are about, as they were when the sweep began."""
        assert self.current is not None
        return {answer.job.repro: self.current.repros[answer.job.repro] for answer in answers}

    # Ending

    def finish_if_done(self) -> bool:
        """End the current sweep when nothing of it runs any more; whether it ended now."""
        sweep = self.current
        if sweep is None or self.runner.under_way or not sweep.finished:
            return False
        self.current = self.cancel_at = None
        if sweep.probing:
            return True
        if self.whole and self.edited:
            self.watched.every = True
        elif self.whole:
            self.watched.mark(Mark.SWEPT, self.watched.marks[Mark.SWEEP])
        elif self.edited:
            self.watched.ask_for({job.repro for job in sweep.jobs} - {job.repro for job in self.answers})
        end = "superseded" if self.edited else "complete"
        now = self.clock()
        self.recorder.history.end_sweep(sweep.number, now, end)
        self.announce(
            "sweep_finished", sweep=sweep.number, end=end, seconds=round(now - self.began, 3),
            first_verdict_seconds=None if self.first_answer is None else round(self.first_answer - self.began, 3),
            standings=count_standings(self.answers.values()), unjudged=sweep.unjudged,
        )  # fmt: skip
        self.watched.forget_missing()
        if sweep.number % 50 == 0:
            self.recorder.history.prune()
        return True
