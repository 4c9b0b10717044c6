"""What is concluded from a record's name, its age and its process; which folders go."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest
from support.doubles import Hands

from minidbg.repro import flights
from minidbg.repro.flights import RecordName, Step

HERE = flights.this_place()
NOBODY = 2**22 + 5
"""A process number that no process has."""


def put(folder: Path, number: int, step: Step, *, pid: int = NOBODY, text: str = "a record") -> Path:
    started = flights.started_ms(pid) if pid != NOBODY else 1_000
    path = flights.make_flight_folder(folder) / str(RecordName(HERE, pid, started, number, step))
    path.write_text(text)
    return path


def test_a_name_is_read_back_and_told_at_every_step() -> None:
    name = flights.own_name(3, Step.COMPILE)
    assert flights.read_name(Path("anywhere") / str(name)) == name
    assert flights.read_name(Path(str(name.at(Step.IDLE)))) == name.at(Step.IDLE)
    assert (name.pid, name.number) == (os.getpid(), 3)


@pytest.mark.parametrize(
    ("step", "is_death"),
    [
        (Step.COMPILE, True),
        (Step.RUN, True),
        (Step.BACKWARD, True),
        (Step.INTERRUPTED, True),
        (Step.WAITING, False),
        (Step.IDLE, False),
    ],
)
def test_a_process_that_ended_in_a_step_of_the_backend_is_a_death(
    tmp_path: Path, step: Step, is_death: bool
) -> None:
    path = put(tmp_path, 1, step)
    assert flights.dead_flights(tmp_path) == ([path] if is_death else [])
    assert path.exists() is (step is not Step.IDLE)
    assert flights.waited_in_vain(tmp_path) == ([path] if step is Step.WAITING else [])


def test_deaths_are_told_newest_first(tmp_path: Path) -> None:
    paths = [put(tmp_path, number, Step.RUN) for number in range(3)]
    for older, newer in ((1, 0), (0, 2)):
        while paths[newer].stat().st_ctime <= paths[older].stat().st_ctime:
            paths[newer].touch()
    assert flights.dead_flights(tmp_path) == [paths[2], paths[0], paths[1]]


def test_a_zombie_is_dead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path, 1, Step.RUN, pid=os.getpid())
    assert flights.dead_flights(tmp_path) == []
    monkeypatch.setattr(psutil.Process, "status", lambda _: psutil.STATUS_ZOMBIE)
    assert flights.dead_flights(tmp_path) == [path]


def test_a_death_is_said_with_the_process_its_rank_and_what_it_was_at(tmp_path: Path) -> None:
    path = put(tmp_path, 1, Step.COMPILE, text="Seen on rank 1 of 4.")
    assert flights.death(path) == f"process {NOBODY} (rank 1 of 4) died while compiling a graph"
    idle = put(tmp_path, 2, Step.IDLE)
    assert flights.death(idle) == f"process {NOBODY} died while at rest"
    assert flights.death(tmp_path / "x.py") == ""


def test_a_step_that_takes_as_long_as_any_is_not_said_to_take_long(tmp_path: Path) -> None:
    path = put(tmp_path, 1, Step.COMPILE, pid=os.getpid())
    for age_s, count in ((flights.LONG_S, 0), (flights.LONG_S + 1, 1)):
        assert len(list(flights.at_work(tmp_path, Hands(flights.modified(path) + age_s)))) == count


def test_a_folder_that_was_made_for_records_alone_goes_and_one_in_which_something_lies_stays(
    tmp_path: Path,
) -> None:
    used, unused = tmp_path / "used", tmp_path / "unused"
    for folder in (used, unused):
        flights.make_flight_folder(folder)
    (used / "mine.txt").touch()
    flights.remove_if_unused(used)
    flights.remove_if_unused(unused)
    assert (used.exists(), unused.exists()) == (True, False)
    flights.make_flight_folder(unused)
    (unused / ".minidbg" / "captures").mkdir()
    flights.remove_if_unused(unused)
    assert (unused / ".minidbg" / "captures").exists()
    record = put(used, 1, Step.RUN)
    flights.remove_if_unused(used)
    assert record.exists()
