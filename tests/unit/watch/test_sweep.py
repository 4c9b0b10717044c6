"""A sweep without processes: order, canaries, confirmations, and that nothing is lost or invented."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from minidbg.core.outcome import Kind, Outcome, Signature, Verdict
from minidbg.history import Observation, State
from minidbg.watch.events import Unconfirmed
from minidbg.watch.repros import UNREADABLE_SPEC, Repro
from minidbg.watch.states import Decision, Job, Purpose, Transition
from minidbg.watch.sweep import Lane, Run, Sweep

HANGS = replace(UNREADABLE_SPEC, signature=Signature(Kind.HANG))
GONE, REPRODUCES, SKIPPED, INVALID = Verdict.GONE, Verdict.REPRODUCES, Verdict.SKIPPED, Verdict.INVALID


@dataclass
class Driven(Sweep):
    """A sweep, and what is under way of it, which the daemon knows."""

    under_way: list[Run] = field(default_factory=list)


def state(name: str, verdict: Verdict = REPRODUCES, **changes: object) -> State:
    known = State(
        name, "cpu", verdict, 1.0, 1.0, "script", "machine", "code 1", "loaded 1", last_sweep=1, runs=5
    )
    return replace(known, **changes)


def repro(name: str, backend: str = "b", **more: object) -> Repro:
    return Repro(name, Path(name), "script", backend_source=backend, **more)


def sweep_over(*states: State, repros: tuple[Repro, ...] = (), **more: object) -> Driven:
    table = {one.repro: repro(one.repro) for one in states} | {one.name: one for one in repros}
    known = {Job(one.repro, one.device): one for one in states}
    return Driven(2, list(known), table, known, **more)


def passed(sweep: Driven) -> Driven:
    """The sweep once all of its canaries have passed."""
    for queue, runs in sweep.waiting.items():
        canaries = [run for run in runs if run.purpose is Purpose.CANARY]
        sweep.waiting[queue] = [run for run in runs if run.purpose is not Purpose.CANARY]
        assert [found for run in canaries for found in report(sweep, run, GONE)] == []
    return sweep


def jobs_on(*devices: str, names: str = "abcd", **more: object) -> tuple[list[Job], Driven]:
    """A sweep over repros of these names on these devices, whose backend has passed."""
    jobs = [Job(f"{name}.py", device) for device in devices for name in names]
    repros = {job.repro: repro(job.repro) for job in jobs}
    return jobs, passed(Driven(2, jobs, repros, {}, slots=8, **more))


def report(sweep: Driven, run: Run, verdict: Verdict) -> list[Decision | Unconfirmed]:
    """Let the run end so."""
    sweep.under_way = [one for one in sweep.under_way if one is not run]
    if run.purpose is Purpose.CANARY:
        return sweep.saw_canary(run, verdict)
    shown = Observation(*run.job, 2.0, Outcome(verdict), run.purpose, "script", "machine", sweep=2)
    return sweep.saw(run, replace(shown, code="code 2", loaded="loaded 2", fresh=run.fresh))


def told(found: list[Decision | Unconfirmed]) -> list[tuple[str, str]]:
    """Of each the repro with what was decided, or with the verdict that is to be confirmed."""
    return [
        (one.job.repro, str(one.transition)) if isinstance(one, Decision) else (one.repro, f"{one.verdict}?")
        for one in found
    ]


def started(sweep: Driven, count: int = 9) -> list[Run]:
    before = len(sweep.under_way)
    for _ in range(count):
        if (run := sweep.next_run(sweep.under_way)) is not None:
            sweep.under_way.append(run)
    return sweep.under_way[before:]


def test_the_order_is_failed_in_the_saved_file_failing_touched_the_rest_and_none_is_left_out() -> None:
    states = [
        state("rest.py", GONE),
        state("touched.py", GONE, files=("/src/pkg/a.py",)),
        state("failing_slow.py", seconds=9.0),
        state("failing_quick.py", seconds=0.1),
        state("failing_touched.py", files=("/src/pkg/a.py", "/src/pkg/b.py"), seconds=1.0),
        state("in_the_package.py", seconds=21.0),
        state("in_the_file.py", seconds=20.0),
    ]
    table = {(one.repro, "cpu"): one for one in states}
    jobs = [Job(name, "cpu") for name in ("new.py", *(one.repro for one in states))]
    repros = {job.repro: repro(job.repro) for job in jobs}
    for name, frame in (("in_the_file", "pkg.a:lower"), ("in_the_package", "pkg:run")):
        spec = replace(UNREADABLE_SPEC, signature=Signature(Kind.COMPILE, frames=("x:y", frame)))
        repros[f"{name}.py"] = repro(f"{name}.py", spec=spec)
    changed = ["/src/pkg/a.py", "/src/pkg/__init__.py", "/src/x.so", "/src/other_pkg.py"]
    assert [job.repro for job in Sweep(2, jobs, repros, table, changed).jobs] == [
        "in_the_file.py", "in_the_package.py", "failing_touched.py", "failing_quick.py", "failing_slow.py", "new.py",
        "touched.py", "rest.py",
    ]  # fmt: skip


def test_the_first_job_runs_beside_its_canary_and_what_it_shows_waits_for_it() -> None:
    for verdict, found in ((REPRODUCES, ("a.py", "still failing")), (GONE, ("a.py", "gone?"))):
        sweep = sweep_over(state("a.py"))
        canary, run = started(sweep)
        assert (canary.purpose, run.purpose) == (Purpose.CANARY, Purpose.RUN)
        assert report(sweep, run, verdict) == []
        assert told(report(sweep, canary, GONE)) == [found]


@pytest.mark.parametrize(
    ("device_slots", "devices"),
    [(1, ["acme:0", "acme:1", "cpu", "cpu"]), (2, ["acme:0", "acme:0", "acme:1", "acme:1", "cpu", "cpu"])],
)
def test_a_device_runs_one_process_at_a_time_unless_told_otherwise_and_the_cpu_any_number(
    device_slots: int, devices: list[str]
) -> None:
    _, sweep = jobs_on("acme:0", "acme:1", "acme", "cpu", names="ab", device_slots=device_slots)
    assert sorted(run.job.device for run in started(sweep)) == devices


def test_a_broken_backend_decides_nothing_runs_nothing_more_and_stops_no_other() -> None:
    states = [state(f"{name}.py") for name in "abcd"]
    sweep = sweep_over(*states, repros=(repro("d.py", "fine"),))
    canary, first = started(sweep)
    assert report(sweep, first, GONE) == []
    (second,) = started(sweep)
    assert report(sweep, canary, INVALID) == []
    assert report(sweep, second, GONE) == []
    canary, run = started(sweep)
    assert (canary.job.repro, run.job.repro) == ("d.py", "d.py")
    assert report(sweep, canary, GONE) == []
    assert told(report(sweep, run, REPRODUCES)) == [("d.py", "still failing")]
    assert started(sweep) == []
    sweep.decisions[run.job] = Decision(run.job, Transition.STILL_FAILING, None)
    assert sweep.unjudged == 3


def test_of_a_backend_that_is_not_here_each_repro_says_so_itself() -> None:
    sweep = sweep_over(state("a.py"), state("b.py"))
    found = []
    while runs := started(sweep):
        found += [one for run in runs for one in report(sweep, run, SKIPPED)]
    assert told(found) == [("a.py", "skipped"), ("b.py", "skipped")]
    assert [one.state for one in found] == [state("a.py"), state("b.py")]
    assert sweep.unjudged == 0


def many_flips(confirmed: Verdict) -> Driven:
    """A sweep in which all of nine are gone by a warm run, and interpreters of their own have confirmed two so."""
    sweep = passed(sweep_over(*(state(f"{number}.py") for number in range(9))))
    while runs := [run for run in (*sweep.under_way, *started(sweep)) if run.purpose is Purpose.RUN]:
        report(sweep, runs[0], GONE)
    alone = list(sweep.under_way)
    assert [(run.fresh, run.forked) for run in alone] == [(True, False)] * 2
    for run in alone:
        report(sweep, run, confirmed)
    return sweep


@pytest.mark.parametrize(("confirmed", "forked"), [(GONE, True), (REPRODUCES, False)])
def test_forks_of_one_fresh_server_confirm_many_flips_once_an_interpreter_of_its_own_has_agreed(
    confirmed: Verdict, forked: bool
) -> None:
    sweep, others = many_flips(confirmed), list[Run]()
    while runs := started(sweep) or sweep.under_way:
        others.append(runs[0])
        report(sweep, runs[0], GONE)
    assert {(run.fresh, run.forked) for run in others} == {(True, forked)}
    assert {run.job for run in others} >= {*sweep.jobs[2:]}


def test_where_the_fresh_server_ends_under_a_fork_interpreters_of_their_own_go_on() -> None:
    sweep = many_flips(GONE)
    (lost, _), sweep.under_way = started(sweep), []
    sweep.lost(lost)
    runs = started(sweep)
    assert lost.forked
    assert lost.job in {run.job for run in runs}
    assert not any(run.forked for run in runs)


def test_a_change_during_the_sweep_drops_what_was_not_vouched_for() -> None:
    sweep = sweep_over(state("a.py"), state("b.py"))
    canary, run = started(sweep)
    assert report(sweep, run, REPRODUCES) == []
    sweep.supersede()
    assert started(sweep) == []
    assert report(sweep, canary, GONE) == []
    assert started(sweep) == []


def test_a_repro_that_warm_workers_misjudge_is_asked_fresh_until_its_script_changes() -> None:
    known = state("a.py", disagreements=2)
    for one, is_fresh in ((known, True), (replace(known, script="edited"), False)):
        assert [run.fresh for run in started(passed(sweep_over(one)))] == [is_fresh]


def test_all_warm_runs_are_started_before_what_may_hang_and_confirmations_do_not_wait_for_it() -> None:
    hangs, quick = ([state(f"{kind}{number}.py") for number in range(3)] for kind in ("hang", "quick"))
    repros = tuple(repro(one.repro, spec=HANGS) for one in hangs)
    sweep = passed(sweep_over(*hangs, *quick, repros=repros))
    runs = started(sweep)
    assert [run.job.repro for run in runs] == ["quick0.py", "quick1.py"]
    for run in runs:
        report(sweep, run, GONE)
    assert [(run.job.repro, run.lane) for run in started(sweep)] == [
        ("quick2.py", Lane.WARM), ("quick0.py", Lane.FRESH), ("hang0.py", Lane.LONG), ("hang1.py", Lane.LONG),
    ]  # fmt: skip
