"""The daemon without processes, events or sleep: a pool that answers from a table, and hints that the test gives."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
from daemon_world import REPRO, World, script_of

from minidbg.watch.daemon import FilesChanged
from minidbg.watch.events import Notice
from minidbg.watch.settings import FailOn
from minidbg.watch.views import RunAll, Stop
from minidbg.workers import Ended, Request


def test_one_change_is_one_sweep_of_all_repros_with_the_failing_first(world: World) -> None:
    world.start({"a": "gone", "b": "reproduces"})
    assert world.flips() == []
    world.ran()
    world.save("a", "gone ")
    assert world.ran() == ["b", "a"]
    world.save("a", "gone ")
    assert len(world.names("sweep_started")) == 2, "a save without a change is none"


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


def test_a_first_run_may_take_long_and_later_ones_some_times_the_last(world: World) -> None:
    world.start({"a": "gone"})
    assert {order.seconds for order in world.pool.orders if order.argv} == {180}, "a canary's too"
    world.pool.orders.clear()
    world.save("a", "gone ")
    (later,) = [order.seconds for order in world.pool.orders if script_of(order)]
    assert 30 <= later < 180


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
    runs = world.daemon.history.observations("a.py")
    assert [run.verdict for run in runs] == ["gone", "gone", "reproduces"], "nothing stale is kept"


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


def test_what_a_run_loads_from_elsewhere_and_a_new_backend_count_from_then_on(world: World) -> None:
    library = world.folder / "build" / "ext.so"
    library.parent.mkdir()
    library.write_text("1")
    world.begin({"a": "gone"})
    answer = world.pool.answer
    world.pool.answer = lambda order: replace(
        ended := answer(order), files=ended.files and (*ended.files, str(library))
    )  # type: ignore[method-assign]
    world.settle()
    other = world.folder / "src" / "other_backend.py"
    other.write_text("")
    (world.package / "b.py").write_text("gone")
    world.put(FilesChanged())
    world.told.clear()
    world.write(
        world.repros / "b.py",
        REPRO.format(kind="compile", expect="gone").replace("toy_backend", "other_backend"),
    )
    world.write(library, "2")
    other.write_text("# edited")
    world.put(FilesChanged())
    assert world.data("sweep_started", "repros") == [1, 2, 2]
    assert world.data("sweep_started", "files") == [(), ("build/ext.so",), ("src/other_backend.py",)]


def test_each_repro_runs_on_each_device_and_a_missing_one_is_skipped_aloud(world: World) -> None:
    world.start({"a": "gone"}, devices=("cpu", "cuda:1", "all"))
    assert {*world.data("result", "device")} == {"cpu", "cuda:0"}
    (missing,) = world.names("notice")
    assert missing.text == (
        "cuda:1 not present (found cpu, cuda:0); 1 repro skipped there; 'minidbg doctor' lists what is here"
    )
    assert {order.fork for order in world.pool.orders if "cuda:0" in "".join(order.argv)} == {None}


def test_a_fault_is_said_once_and_followed_by_a_rest_and_builds_nothing(world: World) -> None:
    daemon = world.begin({"a": "gone"})
    world.pool.refresh = lambda: 1 // 0  # type: ignore[assignment, method-assign, return-value]
    for now in (0.0, 0.1, 0.2):
        while not daemon.inbox.empty():
            daemon.guarded(daemon.dispatch, daemon.inbox.get())
        daemon.guarded(daemon.step, now)
    (fault,) = world.data("fault", "text")
    assert "ZeroDivisionError" in fault
    assert daemon.resting_until > 0.2


def test_what_cannot_be_begun_for_once_is_asked_for_again(world: World) -> None:
    """A server that cannot be started, such as for want of memory, must not be waited for."""
    world.begin({"a": "reproduces"})

    def refuse_once(order: Request) -> None:
        if not order.call:
            world.pool.during = lambda order: None
            raise OSError("no process to be had")

    world.pool.during = refuse_once
    with pytest.raises(OSError, match="no process"):
        world.settle()
    world.settle()
    assert world.data("result", "verdict") == ["reproduces"]


def test_a_run_whose_server_dies_is_asked_again_in_an_interpreter_of_its_own_and_then_judges_nothing(
    world: World,
) -> None:
    world.start({"a": "reproduces"})
    for losses, standing in ((1, "still failing"), (2, "invalid")):
        world.ran()
        world.pool.lose = losses
        world.save("a", f"reproduces{' ' * losses}")
        assert world.ran() == ["a", "a"]
        assert world.data("result", "transition")[-1] == standing
    said = "the worker server ended; a new one starts: out of memory"
    assert world.data("notice", "text") == [said, said]


def test_a_sweep_that_waits_for_new_workers_says_for_which_file(world: World) -> None:
    world.start({"a": "reproduces"})
    world.pool.stale = tuple(str(world.folder / name) for name in ("library.py", "other.py"))
    world.save("a", "reproduces ")
    said = "waiting for new workers before this sweep: library.py and 1 other file changed since the old ones started"
    assert world.data("notice", "text") == [said]


def test_a_flip_that_was_not_told_is_told_by_the_next_daemon(world: World) -> None:
    world.start({"a": "reproduces"})
    world.save("a", "gone")
    world.daemon.history.write("update flips set announced = 0")
    world.daemon.end()
    world.told.clear()
    world.begin()
    assert world.flips() == [("FIXED", "a.py")]


def test_rerun_and_quit(world: World) -> None:
    daemon = world.start({"a": "gone", "b": "reproduces"})
    world.save("a", "gone ")
    world.ran()
    world.put(RunAll())
    assert world.ran() == ["b", "a"]
    world.put(Notice("a machine came back"))
    assert world.data("notice", "text")[-1:] == ["a machine came back"]
    world.put(Stop("asked to"))
    assert daemon.status == 0


@pytest.mark.parametrize(
    ("verdicts", "fail_on", "status"),
    [
        ([], FailOn.ANY, 125),
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


@pytest.mark.parametrize("ends", ["a signal", "a fault of our own"])
def test_once_ends_with_125_where_it_is_ended_before_all_was_seen(world: World, ends: str) -> None:
    daemon = world.begin({"a": "gone"}, once=True)
    if ends == "a signal":
        world.put(Stop("SIGTERM"))
    else:
        world.pool.refresh = lambda: 1 // 0  # type: ignore[assignment, method-assign, return-value]
        for _ in range(3):
            while not daemon.inbox.empty():
                daemon.guarded(daemon.dispatch, daemon.inbox.get())
            daemon.guarded(daemon.step, 0.0)
    assert daemon.status == 125


def test_without_events_a_save_is_seen_at_the_next_look(world: World) -> None:
    daemon = world.start({"a": "reproduces"})
    world.events.why = "no more watches"
    (world.package / "a.py").write_text("gone")
    daemon.step(float("inf"))
    world.settle()
    assert world.flips() == [("FIXED", "a.py")]
    said = "file events are not available (no more watches); rescanning every few seconds"
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


def test_while_the_history_cannot_be_written_nothing_is_judged_and_all_is_later(world: World) -> None:
    daemon = world.start({"a": "reproduces"})
    history = daemon.history
    history.write("pragma query_only = on")
    world.edit(world.package / "a.py", "gone")
    daemon.guarded(daemon.dispatch, daemon.inbox.get())
    daemon.guarded(daemon.step, float("inf"))
    assert world.data("notice", "text") == [
        f"{history.path} cannot be written: attempt to write a readonly database; nothing is judged until that is mended"
    ]
    history.write("pragma query_only = off")
    daemon.resting_until = 0.0
    world.settle()
    assert world.flips() == [("FIXED", "a.py")]


def test_a_hidden_folder_that_is_removed_ends_the_daemon_and_no_backend_is_broken(world: World) -> None:
    world.start({"a": "reproduces"})
    world.daemon.inbox.put(RunAll())
    shutil.rmtree(world.repros / ".minidbg")
    assert world.daemon.run() == 125
    assert "was removed under this process; start again" in world.names("notice")[-1].text
    assert world.names("backend_broken") == []
