"""What is concluded from a record's name, its age and its process; which folders go."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest
from support.doubles import Hands

from minidbg.repro import crash_records
from minidbg.repro.crash_records import RecordName, Step

HERE = crash_records.this_place()
NOBODY = 2**22 + 5
"""A process number that no process has."""


def put(
    folder: Path, number: int, step: Step, *, pid: int = NOBODY, text: str = "a record", place: str = HERE
) -> Path:
    started = crash_records.started_ms(pid) if pid != NOBODY else 1_000
    path = crash_records.make_record_folder(folder) / str(RecordName(place, pid, started, number, step))
    path.write_text(text)
    return path


def test_a_name_is_read_back_and_told_at_every_step() -> None:
    name = crash_records.own_name(3, Step.COMPILE)
    assert crash_records.read_name(Path("anywhere") / str(name)) == name
    assert crash_records.read_name(Path(str(name._replace(step=Step.IDLE)))) == name._replace(step=Step.IDLE)
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
    assert crash_records.records_of_dead(tmp_path) == ([path] if is_death else [])
    assert path.exists() is (step is not Step.IDLE)
    assert crash_records.waited_in_vain(tmp_path) == ([path] if step is Step.WAITING else [])


def test_deaths_are_told_newest_first(tmp_path: Path) -> None:
    paths = [put(tmp_path, number, Step.RUN) for number in range(3)]
    for older, newer in ((1, 0), (0, 2)):
        while paths[newer].stat().st_ctime <= paths[older].stat().st_ctime:
            paths[newer].touch()
    assert crash_records.records_of_dead(tmp_path) == [paths[2], paths[0], paths[1]]


def test_a_zombie_is_dead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path, 1, Step.RUN, pid=os.getpid())
    assert crash_records.records_of_dead(tmp_path) == []
    monkeypatch.setattr(psutil.Process, "status", lambda _: psutil.STATUS_ZOMBIE)
    assert crash_records.records_of_dead(tmp_path) == [path]


def test_a_death_is_said_with_the_process_its_rank_and_what_it_was_at(tmp_path: Path) -> None:
    path = put(tmp_path, 1, Step.COMPILE, text="Seen on rank 1 of 4.")
    assert crash_records.death(path) == f"process {NOBODY} (rank 1 of 4) died while compiling a graph"
    idle = put(tmp_path, 2, Step.IDLE)
    assert crash_records.death(idle) == f"process {NOBODY} died while at rest"
    waiting = put(tmp_path, 3, Step.WAITING)
    assert "died while waiting for other ranks in a collective" in crash_records.death(waiting)
    assert crash_records.death(tmp_path / "x.py") == ""


def test_what_living_processes_have_been_at_for_long_is_said(tmp_path: Path) -> None:
    path = put(tmp_path, 1, Step.COMPILE, pid=os.getpid())
    put(tmp_path, 2, Step.IDLE, pid=os.getpid())
    said = [f"process {os.getpid()}, for {crash_records.LONG_S + 1:.0f} s: compiling a graph"]
    for age_s, expected in ((crash_records.LONG_S, []), (crash_records.LONG_S + 1, said)):
        assert list(crash_records.at_work(tmp_path, Hands(crash_records.modified(path) + age_s))) == expected


def test_a_process_that_got_the_number_of_a_dead_one_is_told_by_its_start(tmp_path: Path) -> None:
    own = crash_records.own_name(4, Step.COMPILE)
    before = RecordName(own.place, own.pid, own.started_ms - 60_000, 4, own.step)
    path = crash_records.make_record_folder(tmp_path) / str(before)
    path.write_text("a record")
    assert crash_records.records_of_dead(tmp_path) == [path]


def test_a_record_of_another_machine_counts_as_left_behind_when_it_is_old(tmp_path: Path) -> None:
    path = put(tmp_path, 5, Step.RUN, place="0badcafe")
    assert crash_records.records_of_dead(tmp_path) == []
    late = Hands(crash_records.modified(path) + crash_records.FOREIGN_AFTER_S + 1)
    assert crash_records.records_of_dead(tmp_path, late) == [path]


def test_a_link_is_no_record(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("mine")
    os.symlink(tmp_path / "secret", put(tmp_path, 1, Step.RUN).with_name(f"{HERE}-{NOBODY}-1000-2.run.py"))
    (path,) = crash_records.records_of_dead(tmp_path)
    assert not path.is_symlink()


def test_the_same_record_of_two_ranks_becomes_one_capture(tmp_path: Path) -> None:
    captures = {crash_records.as_capture(put(tmp_path, number, Step.RUN)) for number in (1, 2)}
    assert len(captures) == 1
    assert crash_records.records_of_dead(tmp_path) == []


@pytest.mark.parametrize(
    "name", ["x.py", "a-1-2-3.sleep.py", "a-1-2-3.py", "a-1-2-3.run.py.bak", "a-1-2-3.run.safetensors"]
)
def test_other_names_are_no_records(name: str) -> None:
    assert crash_records.read_name(Path(name)) is None


def test_a_folder_that_was_made_for_records_alone_goes_and_one_in_which_something_lies_stays(
    tmp_path: Path,
) -> None:
    used, unused = tmp_path / "used", tmp_path / "unused"
    for folder in (used, unused):
        crash_records.make_record_folder(folder)
    (used / "mine.txt").touch()
    crash_records.remove_if_unused(used)
    crash_records.remove_if_unused(unused)
    assert (used.exists(), unused.exists()) == (True, False)
    crash_records.make_record_folder(unused)
    (unused / ".minidbg" / "captures").mkdir()
    crash_records.remove_if_unused(unused)
    assert (unused / ".minidbg" / "captures").exists()
    record = put(used, 1, Step.RUN)
    crash_records.remove_if_unused(used)
    assert record.exists()
