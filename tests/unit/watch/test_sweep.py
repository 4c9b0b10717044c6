"""A sweep without processes: order, canaries, confirmations, and that nothing is lost or invented."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from minidbg.history import Observation, State
from minidbg.watch.events import Unconfirmed
from minidbg.watch.repros import UNKNOWN, Repro
from minidbg.watch.states import Decision, Job, Purpose, Transition
from minidbg.watch.sweep import MOST_RUNS, Lane, Run, Sweep, in_order
from minidbg.words.outcome import Kind, Outcome, Signature, Verdict

HANGS = replace(UNKNOWN, signature=Signature(Kind.HANG))
GONE, REPRODUCES, SKIPPED = Verdict.GONE, Verdict.REPRODUCES, Verdict.SKIPPED
PASSES = Outcome(GONE)


def state(name: str, verdict: Verdict = REPRODUCES, **changes: object) -> State:
    known = State(
        name, "cpu", verdict, 1.0, 1.0, "script", "machine", "code 1", "loaded 1", last_sweep=1, runs=5
    )
    return replace(known, **changes)


def repro(name: str, backend: str = "b") -> Repro:
    return Repro(name, Path(name), "script", backend_source=backend)


def sweep_over(*states: State, backends: dict[str, str] | None = None, **more: object) -> Sweep:
    repros = {one.repro: repro(one.repro, (backends or {}).get(one.repro, "b")) for one in states}
    table = {(one.repro, "cpu"): one for one in states}
    return Sweep(2, [Job(one.repro, "cpu") for one in states], repros, table, **more)


def report(sweep: Sweep, run: Run, verdict: Verdict) -> list[Decision]:
    return final(sweep.saw(run, shown_by(run, Outcome(verdict))))


def shown_by(run: Run, outcome: Outcome) -> Observation:
    found = Observation(
        run.job.repro, run.job.device, 2.0, outcome, run.purpose, "script", "machine", sweep=2
    )
    return replace(found, code="code 2", loaded="loaded 2", fresh=run.fresh)


def final(found: list[Decision | Unconfirmed]) -> list[Decision]:
    return [one for one in found if isinstance(one, Decision)]


def started(sweep: Sweep, count: int) -> list[Run]:
    return [task for _ in range(count) if (task := sweep.next_run()) is not None]


def begun(*names: str, **more: object) -> tuple[Sweep, Run, Run]:
    """A sweep over failing repros whose first canary and first run are under way."""
    sweep = sweep_over(*map(state, names), **more)
    canary, run = started(sweep, 2)
    return sweep, canary, run


def jobs_on(*devices: str, names: str = "abcd", **more: object) -> tuple[list[Job], Sweep]:
    """A sweep over repros of these names on these devices, whose backend has passed."""
    jobs = [Job(f"{name}.py", device) for device in devices for name in names]
    repros = {job.repro: repro(job.repro) for job in jobs}
    sweep = Sweep(2, jobs, repros, {}, slots=8, **more)
    sweep.canaries = {sweep.canary(job): PASSES for job in jobs}
    return jobs, sweep


def test_the_order_is_failed_in_the_saved_file_failing_touched_the_rest_and_none_is_left_out() -> None:
    states = [
        state("rest.py", GONE),
        state("touched.py", GONE, modules=("/src/pkg/a.py",)),
        state("failing_slow.py", seconds=9.0),
        state("failing_quick.py", seconds=0.1),
        state("failing_touched.py", modules=("/src/pkg/a.py", "/src/pkg/b.py"), seconds=1.0),
        state("in_the_file.py", seconds=20.0),
    ]
    table = {(one.repro, "cpu"): one for one in states}
    jobs = [Job(name, "cpu") for name in ("new.py", *(one.repro for one in states))]
    repros = {job.repro: repro(job.repro) for job in jobs}
    signature = Signature(Kind.COMPILE, frames=("pkg.a:lower", "pkg.main:run"))
    repros["in_the_file.py"] = replace(repros["in_the_file.py"], spec=replace(UNKNOWN, signature=signature))
    assert [job.repro for job in in_order(jobs, table, ["/src/pkg/a.py"], repros)] == [
        "in_the_file.py", "failing_touched.py", "failing_quick.py", "failing_slow.py", "new.py", "touched.py", "rest.py",
    ]  # fmt: skip


def test_the_first_job_runs_beside_its_canary_and_its_answer_waits_for_it() -> None:
    sweep, canary, run = begun("a.py")
    assert (canary.purpose, run.purpose) == (Purpose.CANARY, Purpose.RUN)
    assert report(sweep, run, REPRODUCES) == []
    answers = sweep.saw_canary(canary, PASSES)
    found = [(answer.job.repro, answer.transition) for answer in answers]
    assert found == [("a.py", Transition.STILL_FAILING)]
    assert sweep.finished


@pytest.mark.parametrize(
    ("device_slots", "devices"),
    [(1, ["acme:0", "acme:1", "cpu", "cpu"]), (2, ["acme:0", "acme:0", "acme:1", "acme:1", "cpu", "cpu"])],
)
def test_a_device_runs_one_process_at_a_time_unless_told_otherwise_and_the_cpu_any_number(
    device_slots: int, devices: list[str]
) -> None:
    devices_used = ("acme:0", "acme:1", "acme", "cpu")
    _, sweep = jobs_on(*devices_used, names="ab", device_slots=device_slots)
    running = [task.job.device for task in started(sweep, 8)]
    assert sorted(running) == devices


def test_what_waits_for_a_device_runs_when_it_is_free() -> None:
    jobs, sweep = jobs_on("acme:0")
    seen = []
    while tasks := started(sweep, 8):
        (task,) = tasks
        seen.append(task.job)
        report(sweep, task, GONE)
    assert list(dict.fromkeys(seen)) == jobs


def test_a_broken_backend_changes_no_state_and_runs_nothing_more() -> None:
    sweep, canary, first = begun("a.py", "b.py", "c.py")
    assert report(sweep, first, GONE) == []
    run, confirmation = started(sweep, 2)
    assert (run.purpose, confirmation.purpose) == (Purpose.RUN, Purpose.CONFIRM)
    assert sweep.saw_canary(canary, Outcome(Verdict.INVALID, reason="SyntaxError")) == []
    assert report(sweep, confirmation, GONE) == []
    assert report(sweep, run, GONE) == []
    assert sweep.finished
    assert sweep.unjudged == 3


def test_one_broken_backend_does_not_stop_another() -> None:
    sweep = sweep_over(state("a.py"), state("b.py"), backends={"a.py": "broken", "b.py": "fine"}, slots=4)
    canary_a, run_a, canary_b, run_b = started(sweep, 4)
    report(sweep, run_a, GONE)
    assert sweep.saw_canary(canary_a, Outcome(Verdict.REPRODUCES)) == []
    assert report(sweep, run_b, REPRODUCES) == []
    assert [answer.job.repro for answer in sweep.saw_canary(canary_b, PASSES)] == ["b.py"]


def test_a_missing_backend_skips_its_repros_with_the_reason() -> None:
    sweep = sweep_over(state("a.py"), state("b.py"))
    canary = started(sweep, 1)[0]
    answers = sweep.saw_canary(canary, Outcome(SKIPPED, reason="No module named 'x'"))
    told = [(answer.transition, answer.reason) for answer in answers]
    assert told == [(Transition.SKIPPED, "No module named 'x'")] * 2
    assert [answer.state for answer in answers] == [state("a.py"), state("b.py")]


def test_a_flip_is_answered_only_after_its_confirmation_which_runs_beside_the_warm_runs() -> None:
    sweep, canary, run = begun("a.py", "b.py", "c.py", "d.py")
    sweep.saw_canary(canary, PASSES)
    assert report(sweep, run, GONE) == []
    *warm, confirmation = started(sweep, 9)
    assert [task.job.repro for task in warm] == ["b.py", "c.py"], "a confirmation takes no slot of a warm run"
    assert (confirmation.purpose, confirmation.job.repro) == (Purpose.CONFIRM, "a.py")
    assert confirmation.fresh
    (answer,) = report(sweep, confirmation, GONE)
    assert answer.transition is Transition.FIXED
    assert [run.purpose for run in answer.runs] == [Purpose.RUN, Purpose.CONFIRM]


def test_what_cannot_be_confirmed_keeps_its_state_and_ends() -> None:
    sweep, canary, run = begun("a.py")
    sweep.saw_canary(canary, PASSES)
    answers = report(sweep, run, GONE)
    for _ in range(MOST_RUNS):
        if answers:
            break
        answers = report(sweep, started(sweep, 1)[0], SKIPPED)
    assert answers[0].state == state("a.py")
    assert "could not be confirmed" in answers[0].reason
    assert sweep.finished


def test_a_change_during_the_sweep_drops_what_was_not_vouched_for() -> None:
    sweep, canary, run = begun("a.py", "b.py")
    assert report(sweep, run, REPRODUCES) == []
    sweep.cut_short()
    assert sweep.next_run() is None
    assert sweep.saw_canary(canary, PASSES) == []
    assert sweep.finished


def test_a_repro_that_warm_workers_misjudge_is_asked_fresh_until_its_script_changes() -> None:
    known = state("a.py", disagreements=2)
    assert started(sweep_over(known), 2)[1].fresh
    assert not started(sweep_over(replace(known, script="edited")), 2)[1].fresh


def test_all_warm_runs_are_started_before_what_may_hang_and_confirmations_do_not_wait_for_it() -> None:
    hangs = [state(f"hang{number}.py") for number in range(3)]
    quick = [state(f"quick{number}.py") for number in range(3)]
    plain = sweep_over(*hangs, *quick)
    repros = {**plain.repros, **{one.repro: replace(repro(one.repro), spec=HANGS) for one in hangs}}
    sweep = Sweep(2, plain.jobs, repros, plain.states)
    sweep.canaries[sweep.canary(Job("hang0.py", "cpu"))] = PASSES
    tasks = started(sweep, 9)
    assert [task.job.repro for task in tasks] == ["quick0.py", "quick1.py"]
    for task in tasks:
        report(sweep, task, GONE)
    order = [(task.job.repro, task.lane) for task in started(sweep, 9)]
    assert order == [
        ("quick2.py", Lane.WARM), ("quick0.py", Lane.FRESH), ("hang0.py", Lane.LONG), ("hang1.py", Lane.LONG),
    ]  # fmt: skip


def test_a_flip_is_confirmed_while_warm_runs_keep_a_machine_full() -> None:
    box = "acme:0"
    states = [state(f"{name}.py", device=box) for name in "abcdef"]
    jobs, repros = [Job(one.repro, box) for one in states], {one.repro: repro(one.repro) for one in states}
    table = {(one.repro, one.device): one for one in states}
    sweep = Sweep(2, jobs, repros, table, slots=3, device_slots=3)
    sweep.canaries[sweep.canary(jobs[0])] = PASSES
    first, second, _ = started(sweep, 9)
    assert report(sweep, first, GONE) == []
    (again,) = started(sweep, 9)
    assert (again.job, again.purpose) == (first.job, Purpose.CONFIRM)
    report(sweep, second, GONE)
    (warm,) = started(sweep, 9)
    assert warm.purpose is Purpose.RUN, "one fresh interpreter at a time beside warm runs"


@pytest.mark.parametrize("verdicts", [[REPRODUCES], [GONE, GONE], [GONE, REPRODUCES, REPRODUCES]])
def test_every_job_gets_exactly_one_answer(verdicts: list[Verdict]) -> None:
    states = [state(f"{number}.py") for number in range(7)]
    sweep, answers, running = sweep_over(*states, slots=3), [], []
    counts: dict[str, int] = {}
    while not sweep.finished:
        while len(running) < 3 and (task := sweep.next_run()) is not None:
            running.append(task)
        task = running.pop(0)
        if task.purpose is Purpose.CANARY:
            answers += final(sweep.saw_canary(task, PASSES))
        else:
            place = counts[task.job.repro] = counts.get(task.job.repro, -1) + 1
            answers += report(sweep, task, verdicts[place])
    assert sorted(answer.job.repro for answer in answers) == sorted(one.repro for one in states)


@pytest.mark.parametrize("late", [False, True])
def test_what_is_to_be_confirmed_is_known_once_its_backend_works(late: bool) -> None:
    sweep, canary, run = begun("a.py")
    known = [] if late else sweep.saw_canary(canary, PASSES)
    known += sweep.saw(run, shown_by(run, Outcome(GONE)))
    known += sweep.saw_canary(canary, PASSES) if late else []
    assert known == [Unconfirmed(2, "a.py", "cpu", REPRODUCES, seen=True, verdict=GONE, seconds=0.0)]


def test_each_job_of_a_backend_that_is_not_here_is_skipped_once() -> None:
    sweep, canary, run = begun("a.py", "b.py", slots=2)
    assert report(sweep, run, GONE) == []
    late = started(sweep, 2)
    assert Purpose.CONFIRM in [task.purpose for task in late]
    answers = final(sweep.saw_canary(canary, Outcome(SKIPPED, reason="no toy here")))
    answers += [answer for task in late for answer in report(sweep, task, GONE)]
    found = sorted((one.job.repro, one.transition) for one in answers)
    assert found == [("a.py", Transition.SKIPPED), ("b.py", Transition.SKIPPED)]
    assert sweep.unjudged == 0
