"""Work for quiet times: captures and the flight records of dead processes, without any process."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from minidbg.history import History
from minidbg.watch import probe
from minidbg.watch.announce import Announcer
from minidbg.watch.events import Event
from minidbg.watch.idle_work import ASK_AGAIN_S, UNTOUCHED_S, Flights, IdleWork
from minidbg.watch.repros import Repro, read_repro
from minidbg.watch.settings import Column
from minidbg.words.claims import claimed
from minidbg.words.kinds import Kind
from minidbg.workers.pool import Ended, Order

SCRIPT = """# /// script
# [tool.minidbg]
# schema = 1
# kind = "compile"
# backend = "toy"
# [tool.minidbg.signature]
# kind = "compile"
# types = ["{error}"]
# ///
def backend():
    return "toy"
"""


class Desk:
    """A repro folder, a pool that only remembers its orders, and the events that were told."""

    def __init__(self, folder: Path, history: History) -> None:
        self.folder, self.captures = folder, folder / ".minidbg" / "captures"
        self.captures.mkdir(parents=True)
        self.orders: list[Order] = []
        self.told: list[Event] = []
        self.now = 100.0
        self.work = IdleWork(folder, history, self, Announcer([self]), clock=lambda: self.now)

    def run(self, order: Order) -> None:
        self.orders.append(order)

    def cancel(self, number: int) -> None: ...
    def refresh(self) -> None: ...
    def close(self) -> None: ...
    def show(self, event: Event) -> None:
        self.told.append(event)

    def capture(self, name: str, error: str, *, at: float) -> Path:
        path = self.captures / name
        path.write_text(SCRIPT.format(error=error))
        os.utime(path, (at, at))
        return path

    def repro(self, error: str) -> Repro:
        path = self.folder / f"{error}.py"
        path.write_text(SCRIPT.format(error=error))
        repro = read_repro(path, path.name)
        assert repro is not None
        return repro

    def ends(self, *status: int, **more: object) -> bool:
        """The last order ends so."""
        return self.work.ended(Ended(self.orders[-1].id, *status, **more))

    def names(self) -> list[str]:
        return [event.name for event in self.told]


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    (tmp_path / ".minidbg").mkdir()
    with History.open(tmp_path / ".minidbg" / "history.sqlite") as history:
        yield Desk(tmp_path, history)


def test_captures_of_another_layout_wait_for_who_wants_them(desk: Desk) -> None:
    path = desk.capture("a.py", "KeyError", at=1)
    path.write_text(path.read_text().replace("# types", '# message = "output: stride"\n# types'))
    assert not desk.work.start([])


def test_captures_are_reduced_one_by_one_the_oldest_first_and_none_twice(desk: Desk) -> None:
    new, old = desk.capture("new.py", "B", at=2), desk.capture("old.py", "A", at=1)
    (desk.captures / "damaged.py").write_text("# ///")
    assert desk.work.start([])
    assert not desk.work.start([]), "one at a time"
    assert desk.ends(0, stdout=json.dumps({"path": "x.py"}))
    assert desk.work.start([])
    assert desk.ends(125, stderr="minidbg: the case does not show its failure here")
    assert not desk.work.start([])
    assert [Path(order.argv[3]) for order in desk.orders] == [old, new]
    assert all(order.nice == 19 for order in desk.orders)
    results = {path: result for path, (_, result) in desk.work.history.background().items()}
    assert results == {str(old): "x.py", str(new): "minidbg: the case does not show its failure here"}


@pytest.mark.parametrize("written", [{}, {"written": {"path": "x.py"}}, {"written": {"path": None}}])
def test_a_capture_that_somebody_else_has_reduced_is_left_until_it_is_another(
    desk: Desk, written: dict[str, object]
) -> None:
    """Issue 15: crash and hang captures that 'minidbg run' had reduced were reduced again at each start."""
    path = desk.capture("crash.py", "A", at=1)
    digest = hashlib.sha1(path.read_bytes(), usedforsecurity=False).hexdigest()
    path.with_suffix(".reduced").write_text(json.dumps({"digest": digest, "result": "", **written}))
    assert not desk.work.start([])
    desk.capture("crash.py", "B", at=2)
    assert desk.work.start([])


def test_a_capture_that_another_process_is_reducing_is_left_to_it(desk: Desk) -> None:
    """Seen with a real daemon: what 'minidbg run' was reducing after a crash was reduced here a second time."""
    capture = desk.capture("crash.py", "A", at=1)
    with claimed(capture):
        assert not desk.work.start([])
    assert desk.work.start([]), "its process has ended and left no result"


SAME_PROGRAM = (
    '"""Seen on rank {rank} of 2."""\n{script}    # at train.py:{line}\n    x = 1  # train.py:{line}\n'
)


def test_a_crash_whose_program_was_reduced_is_known_wherever_its_lines_stand_and_on_every_rank(
    desk: Desk,
) -> None:
    made, other = desk.repro("SIGSEGV"), desk.repro("other")
    for rank, path in enumerate((desk.captures / "a.py", desk.captures / "b.py")):
        path.write_text(SAME_PROGRAM.format(rank=rank, script=SCRIPT.format(error="A"), line=7 + rank))
    assert desk.work.start([made, other])
    assert desk.ends(0, stdout=json.dumps({"path": str(made.path)}))
    assert not desk.work.start([made, other])
    assert [(event.name, event.repro) for event in desk.told[-1:]] == [("capture_known", made.name)]
    assert desk.work.start([other]), "its repro was thrown away"
    desk.ends(cancelled=True)
    path.write_text(path.read_text().replace("x = 1", "x = 2"))
    assert desk.work.start([made, other]), "another program"


def test_captures_of_another_kind_than_is_watched_wait(desk: Desk) -> None:
    desk.capture("a.py", "KeyError", at=1)
    desk.work.kinds = (Kind.CRASH,)
    assert not desk.work.start([])
    desk.work.kinds = (Kind.CRASH, Kind.COMPILE)
    assert desk.work.start([])


def test_a_regression_is_bisected_between_its_commits(desk: Desk) -> None:
    column = Column("cpu", "ACME=1", "{'fuse': False}")
    assert desk.work.bisect("r.py", "aaaa", "bbbb+1234", column) == ""
    where = ("--device", "cpu", "--options", "{'fuse': False}")
    assert desk.orders[-1].argv == ("-m", "minidbg", "bisect", "aaaa", "bbbb", "r.py", *where, "--json")
    assert desk.orders[-1].env == {"ACME": "1"}
    found = {"commit": "c" * 40, "subject": "optimise", "author": "Ann", "date": "2026-01-01"}
    desk.ends(0, stdout=json.dumps(found))
    assert desk.names()[-2:] == ["bisect_started", "bisect_finished"]
    assert "cccccccccc optimise (Ann)" in desk.told[-1].text
    assert "not committed" in desk.work.bisect("r.py", "aaaa", "aaaa+1234", column)
    assert "git does not say" in desk.work.bisect("r.py", "", "", column)


def test_a_capture_whose_failure_a_repro_shows_is_left_and_that_is_said_once(desk: Desk) -> None:
    desk.capture("a.py", "A", at=1)
    shown = desk.repro("A")
    for _ in range(2):
        assert not desk.work.start([shown])
    assert [(event.name, event.repro) for event in desk.told] == [("capture_known", "A.py")]
    assert desk.work.start([]), "it waits for the day that the repro is thrown away"


def test_an_edited_capture_is_tried_again_and_so_is_one_whose_reduction_was_cut_off(desk: Desk) -> None:
    desk.capture("a.py", "A", at=1)
    assert desk.work.start([])
    desk.ends(cancelled=True)
    assert desk.work.start([])
    desk.ends(125, stdout=json.dumps({"path": None, "verdict": "gone"}))
    assert not desk.work.start([])
    desk.capture("a.py", "B", at=1)
    assert desk.work.start([])


def test_a_flight_record_that_lies_untouched_is_looked_into_before_captures(desk: Desk) -> None:
    desk.capture("a.py", "A", at=1)
    flight = desk.folder / ".minidbg" / "flight"
    flight.mkdir()
    (flight / "here-1-2-3.compile.py").write_text("")
    assert desk.work.start([])
    assert desk.orders[-1].argv[2] == "reduce", "its process may be at work"
    desk.ends(0, stdout=json.dumps({"path": "x.py"}))
    desk.now += UNTOUCHED_S
    assert desk.work.start([])
    assert desk.orders[-1].argv[1:] == ("flights", str(desk.folder))
    assert desk.orders[-1].nice == 19
    died = desk.capture("crash_1.py", "B", at=3)
    desk.ends(0, stdout=json.dumps({"captures": [str(died)]}))
    assert desk.names()[-1] == "process_died"
    assert desk.work.start([])
    assert desk.orders[-1].argv[3] == str(died)


def test_records_that_are_renamed_belong_to_somebody_at_work(tmp_path: Path) -> None:
    flight = tmp_path / ".minidbg" / "flight"
    flight.mkdir(parents=True)
    flights = Flights(tmp_path)
    for step in range(100):
        record = flight / f"here-1-2-{step}.run.py"
        record.write_text("")
        assert not flights.due(float(step))
        record.unlink()
    record.write_text("")
    assert not flights.due(100.0)
    assert flights.due(100.0 + UNTOUCHED_S)
    assert not flights.due(101.0 + UNTOUCHED_S), "not at every look"
    assert flights.due(100.0 + UNTOUCHED_S + ASK_AGAIN_S)


def test_records_of_dead_processes_become_captures_and_those_of_living_ones_stay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from minidbg.repro.flights import Step, flight_folder, own_name

    flight_folder(tmp_path).mkdir(parents=True)
    living = own_name(1, Step.RUN)
    dead = f"{living.place}-{2**22 + 1}-{living.started_ms}-2.{Step.COMPILE}.py"
    for name in (str(living), dead):
        (flight_folder(tmp_path) / name).write_text(SCRIPT.format(error="A"))
    assert probe.main(["flights", str(tmp_path)]) == 0
    (capture,) = json.loads(capsys.readouterr().out)["captures"]
    assert Path(capture).parent == tmp_path / ".minidbg" / "captures"
    assert [path.name for path in flight_folder(tmp_path).iterdir()] == [str(living)]
