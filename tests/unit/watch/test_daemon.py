"""The daemon without processes, events or sleep: a pool that answers from a table, and hints that the test gives."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
from daemon_world import REPRO, World, script_of

from minidbg.history import History
from minidbg.watch.daemon import FilesChanged, Key, Stop
from minidbg.watch.settings import FailOn
from minidbg.workers import Ended, Request
from minidbg.workers.pool import Died


def test_one_change_is_one_sweep_of_all_repros_with_the_failing_first(world: World) -> None:
    world.start({"a": "gone", "b": "reproduces"})
    assert world.flips() == []
    world.ran()
    world.save("a", "gone ")
    assert world.ran() == ["b", "a"]
    assert len(world.names("sweep_started")) == 2


def test_a_flip_is_confirmed_in_a_fresh_interpreter_and_told_once(world: World) -> None:
    world.start({"a": "reproduces"})
    world.pool.orders.clear()
    world.save("a", "gone")
    forked = [order.fork is not None for order in world.pool.orders if script_of(order).endswith("a.py")]
    assert forked == [True, False]
    assert world.flips() == [("FIXED", "a.py")]
    (flip,) = world.names("flip")
    assert flip.files == ("src/toy_backend/a.py",)
    world.save("a", "gone \n")
    assert world.flips() == [("FIXED", "a.py")]


def test_a_run_that_ends_before_its_canary_is_told_of_once_the_canary_has_passed(world: World) -> None:
    daemon = world.start({"a": "reproduces"}, jobs=2)
    world.told.clear()
    world.edit(world.package / "a.py", "gone")
    daemon.handle(daemon.inbox.get())
    for _ in range(3):
        daemon.step(float("inf"))
    canary, run = daemon.inbox.get(), daemon.inbox.get()
    daemon.handle(run)
    assert world.names("unconfirmed") == []
    daemon.handle(canary)
    assert world.data("unconfirmed", "verdict") == ["gone"]
    world.settle()
    assert world.flips() == [("FIXED", "a.py")]


def test_a_touched_file_and_a_file_elsewhere_cause_no_sweep(world: World) -> None:
    world.start({"a": "gone"})
    world.edit(world.package / "a.py", "gone")
    world.write(world.folder / "elsewhere.py", "")
    assert len(world.names("sweep_started")) == 1


def test_a_broken_backend_is_said_once_and_flips_nothing(world: World) -> None:
    world.start({"a": "reproduces"})
    world.pool.canary = "invalid"
    for text in ("gone", "gone "):
        world.save("a", text)
    assert world.data("backend_broken", "reason") == ["because"]
    assert world.flips() == []
    world.pool.canary = "gone"
    world.save("a", "gone  ")
    assert len(world.names("backend_back")) == 1
    assert world.flips() == [("FIXED", "a.py")]


def test_an_edit_while_a_run_goes_on_makes_its_result_stale(world: World) -> None:
    """The backend is broken for a moment: what a run saw of that moment must flip nothing."""
    world.start({"a": "reproduces", "b": "gone"})

    def edit_once(order: Request) -> None:
        if script_of(order).endswith("a.py"):
            world.pool.during = lambda order: None
            (world.package / "a.py").write_text("gone")
            world.edit(world.package / "b.py", "gone  ")

    world.pool.during = edit_once
    world.save("b", "gone ")
    assert world.data("sweep_finished", "end") == ["complete", "superseded", "complete"]
    assert world.flips() == [("FIXED", "a.py")]
    stale = [run for run in world.daemon.history.observations("a.py") if run.stale]
    assert len(stale) == 1


def test_an_edit_that_no_event_told_of_is_seen_at_the_end_of_the_run(world: World) -> None:
    world.start({"a": "reproduces"})

    def edit_in_silence(order: Request) -> None:
        if script_of(order).endswith("a.py") and order.fork is not None:
            world.pool.during = lambda order: None
            (world.package / "a.py").write_text("gone")

    world.pool.during = edit_in_silence
    world.save("__init__", "# another")
    assert world.names("sweep_finished")[1].end == "superseded"
    assert world.flips() == [("FIXED", "a.py")]


def test_a_file_that_every_run_writes_anew_does_not_keep_the_daemon_busy_for_ever(world: World) -> None:
    world.begin({"a": "reproduces"})
    world.pool.during = lambda order: (world.package / "a.py").write_text("reproduces") and None
    world.settle()
    assert len(world.names("sweep_started")) <= 4
    assert world.names("result")[-1].verdict == "reproduces"


def test_an_added_and_an_edited_repro_run_alone_and_a_removed_one_is_forgotten(world: World) -> None:
    world.repro("a", "gone")
    (world.package / "b.py").write_text("reproduces")
    world.start()
    world.ran()
    world.write(world.repros / "b.py", REPRO.format(kind="compile", expect="reproduces"))
    assert world.data("repro_added", "repro") == ["b.py"]
    assert world.ran() == ["b"]
    world.write(world.repros / "a.py", REPRO.format(kind="runtime", expect="gone"))
    assert world.ran() == ["a"]
    world.write(world.repros / "a.py", REPRO.format(kind="runtime", expect="reproduces"))
    assert world.ran() == [], "another expectation is no other repro"
    (world.repros / "b.py").unlink()
    world.put(FilesChanged())
    assert world.data("repro_removed", "repro") == ["b.py"]
    world.save("a", "gone ")
    assert world.ran() == ["a"]


def test_a_damaged_repro_is_shown_and_runs_nothing(world: World) -> None:
    world.repro("a", "gone")
    (world.repros / "cut_off.py").write_text("# /// script\n# [tool.mini")
    (world.repros / "conftest.py").write_text("")
    world.start()
    assert world.data("repro_damaged", "repro") == ["cut_off.py"]
    standings = {event.repro: event.standing for event in world.names("result")}
    assert standings == {"a.py": "new", "cut_off.py": "invalid"}
    assert "cut_off" not in world.ran()


def test_each_repro_runs_on_each_device_and_a_missing_one_is_skipped_aloud(world: World) -> None:
    world.start({"a": "gone"}, devices="cpu,cuda:1,all")
    assert {*world.data("result", "device")} == {"cpu", "cuda:0"}
    (missing,) = world.names("notice")
    assert missing.text == (
        "cuda:1 not present (found cpu, cuda:0); 1 repro skipped there; 'minidbg doctor' lists what is here"
    )
    assert {order.fork for order in world.pool.orders if "cuda:0" in order.argv} == {None}


def test_what_the_header_expects_is_nothing_new(world: World) -> None:
    """Issue 15: the table said 'reproduces -> reproduces?'."""
    world.repro("a", "reproduces", expect="gone")
    world.start()
    told = [(event.before, event.verdict) for event in world.names("unconfirmed")]
    assert told == [("gone", "reproduces")]


def test_a_fault_is_said_once_and_followed_by_a_rest_and_builds_nothing(world: World) -> None:
    daemon = world.begin({"a": "gone"})
    world.pool.refresh = lambda: 1 // 0  # type: ignore[assignment, method-assign, return-value]
    for now in (0.0, 0.1, 0.2):
        while not daemon.inbox.empty():
            daemon.handle(daemon.inbox.get())
        daemon.guarded(lambda now=now: daemon.step(now))  # type: ignore[misc]
    (fault,) = world.data("fault", "text")
    assert "ZeroDivisionError" in fault
    assert daemon.resting_until > 0.2


def test_what_cannot_be_begun_for_once_is_asked_for_again(world: World) -> None:
    """A server that cannot be started, such as for want of memory, must not be waited for."""
    world.begin({"a": "reproduces"})

    def refuse_once(order: Request) -> None:
        if order.argv[1:2] != ("devices",):
            world.pool.during = lambda order: None
            raise OSError("no process to be had")

    world.pool.during = refuse_once
    with pytest.raises(OSError, match="no process"):
        world.settle()
    world.settle()
    assert world.data("result", "verdict") == ["reproduces"]


def test_a_crash_is_a_verdict(world: World) -> None:
    world.repro("a", "reproduces")
    world.repro("c", "SEGV", kind="crash")
    world.start()
    world.save("a", "SEGV")
    assert world.flips() == [("crashed", "a.py")]
    states = {name: str(state.verdict) for (name, _), state in world.daemon.states.items()}
    assert states == {"a.py": "crashed", "c.py": "reproduces"}
    asked = [order.argv[-1] for order in world.pool.orders if script_of(order).endswith("c.py")]
    assert asked[0] == "--child", "a worker is a process of its own already"


def test_a_server_that_dies_once_is_asked_again_and_one_that_dies_twice_judges_nothing(world: World) -> None:
    world.begin({"a": "reproduces"})
    world.pool.lose = 1
    world.settle()
    world.edit(world.package / "a.py", "gone")
    world.pool.lose = 2
    world.put(Died(-9, "out of memory"))
    assert world.daemon.sweep is None
    said = "the worker server ended with status -9; a new one starts: out of memory"
    assert world.data("notice", "text") == [said]


def test_a_sweep_that_waits_for_new_workers_says_for_which_file(world: World) -> None:
    world.start({"a": "reproduces"})
    world.pool.stale = tuple(str(world.folder / name) for name in ("library.py", "other.py"))
    world.save("a", "reproduces ")
    said = "this sweep waits for new workers: library.py and 1 other file changed since the old ones started"
    assert world.data("notice", "text") == [said]


def test_states_survive_the_daemon_and_a_flip_that_was_not_told_is_told_by_the_next(world: World) -> None:
    world.start({"a": "reproduces"})
    world.daemon.end()
    (world.package / "a.py").write_text("gone")
    world.start()
    assert world.flips() == [("FIXED", "a.py")]
    world.daemon.end()
    with History(world.repros / ".minidbg" / "history.sqlite") as history:
        history.connection.execute("update flips set announced = 0")
    world.told.clear()
    world.begin()
    assert world.flips() == [("FIXED", "a.py")]


def test_rerun_and_quit(world: World) -> None:
    daemon = world.start({"a": "gone", "b": "reproduces"})
    world.save("a", "gone ")
    world.ran()
    world.put(Key("rerun"))
    assert world.ran() == ["b", "a"]
    world.put(Key("quit"))
    assert daemon.status == 0


@pytest.mark.parametrize(
    ("verdicts", "fail_on", "status"),
    [
        (["gone", "gone"], FailOn.ANY, 0),
        (["gone", "reproduces"], FailOn.ANY, 1),
        (["gone", "changed"], FailOn.ANY, 3),
        (["changed", "reproduces"], FailOn.ANY, 1),
        (["skipped", "invalid"], FailOn.ANY, 125),
        (["skipped", "gone"], FailOn.ANY, 0),
        (["reproduces", "reproduces"], FailOn.UNEXPECTED, 0),
        (["reproduces", "gone"], FailOn.UNEXPECTED, 1),
        (["reproduces", "changed"], FailOn.UNEXPECTED, 1),
        (["skipped", "skipped"], FailOn.UNEXPECTED, 125),
    ],
)
def test_once_ends_with_the_status_of_what_was_seen(
    world: World, verdicts: list[str], fail_on: FailOn, status: int
) -> None:
    for number, verdict in enumerate(verdicts):
        world.repro(f"r{number}", verdict)
    daemon = world.start(once=True, fail_on=fail_on)
    assert daemon.status == status


def test_once_names_what_contradicts_its_header(world: World) -> None:
    world.repro("known", "reproduces")
    world.repro("fixed", "gone")
    world.repro("kept", "gone", expect="gone")
    daemon = world.start(once=True, fail_on=FailOn.UNEXPECTED)
    assert daemon.status == 1
    (event,) = world.names("unexpected")
    assert [event.repro, event.verdict, event.expect] == ["fixed.py", "gone", "reproduces"]


def test_without_events_a_save_is_seen_at_the_next_look(world: World) -> None:
    daemon = world.start({"a": "reproduces"})
    world.events.why = "no more watches"
    (world.package / "a.py").write_text("gone")
    daemon.step(float("inf"))
    world.settle()
    assert world.flips() == [("FIXED", "a.py")]
    said = "file events are not to be had (no more watches); everything is looked at every few seconds"
    assert world.data("notice", "text") == [said]


def test_a_fault_of_our_own_is_logged_and_survived(world: World) -> None:
    world.begin({"a": "reproduces", "b": "reproduces"})
    answer = world.pool.answer

    def faulty(order: Request) -> Ended:
        ended = answer(order)
        return replace(ended, files=7) if script_of(order).endswith("a.py") else ended  # type: ignore[arg-type]

    world.pool.answer = faulty  # type: ignore[method-assign]
    world.settle()
    assert world.data("result", "repro") == ["b.py"]
    assert "TypeError: 'int' object is not iterable" in (world.repros / ".minidbg" / "watch.log").read_text()


def test_the_daemon_needs_no_torch() -> None:
    import subprocess

    program = "import minidbg.watch.daemon, minidbg.commands.watching, minidbg.watch.terminal, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0


def test_stop_ends_a_running_sweep_as_interrupted(world: World) -> None:
    daemon = world.begin({"a": "gone"})
    while daemon.sweep is None:
        daemon.handle(daemon.inbox.get())
        daemon.step(0.0)
    daemon.inbox.put(Stop("SIGTERM"))
    while daemon.status is None:
        daemon.handle(daemon.inbox.get())
    daemon.end()
    world.daemon = None
    with History(world.repros / ".minidbg" / "history.sqlite") as history:
        assert history.sweeps()[0].end in ("interrupted", "complete")


def test_while_the_history_cannot_be_written_nothing_is_judged_and_all_is_later(world: World) -> None:
    daemon = world.start({"a": "reproduces"})
    history = daemon.history
    history.write("pragma query_only = on")
    world.edit(world.package / "a.py", "gone")
    daemon.handle(daemon.inbox.get())
    daemon.guarded(lambda: daemon.step(float("inf")))
    assert world.data("notice", "text") == [
        f"{history.path} cannot be written: attempt to write a readonly database; nothing is judged until that is mended"
    ]
    history.write("pragma query_only = off")
    daemon.resting_until = 0.0
    world.settle()
    assert world.flips() == [("FIXED", "a.py")]
