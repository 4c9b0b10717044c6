"""When a burst of events becomes a sweep. Time is a number here."""

from __future__ import annotations

from pathlib import Path

import pytest

from minidbg.watch.sources import GitWork, git_work
from minidbg.watch.watched import LOCKED_MAX_S, STEPPING_QUIET_S, Burst


def test_a_burst_is_over_after_the_quiet_time() -> None:
    burst = Burst(small_quiet_s=0.2)
    assert burst.deadline() is None
    burst.note(10.0, "a.py")
    burst.note(10.15, "b.py")
    assert not burst.is_due(10.3)
    assert burst.is_due(10.35)
    assert burst.end() == (("a.py", "b.py"), False)
    assert burst.deadline() is None


def test_a_burst_without_end_is_cut_off_at_the_longest_wait() -> None:
    burst = Burst(small_quiet_s=0.2)
    times = [10 + 0.1 * step for step in range(80)]
    for now in times:
        burst.note(now, "always.py")
        if burst.is_due(now):
            break
    assert now == pytest.approx(15.0)


def test_thousands_of_events_and_lost_ones_are_one_look_at_everything() -> None:
    burst = Burst()
    for number in range(Burst.LIMIT + 10):
        burst.note(10.0, f"{number}.py")
    paths, lost = burst.end()
    assert lost
    assert len(paths) == Burst.LIMIT
    burst.note(10.0, None)
    assert burst.end() == ((), True), "events were lost"


def test_a_checkout_under_way_is_waited_out_and_a_forgotten_lock_is_not() -> None:
    burst = Burst(small_quiet_s=0.2)
    burst.note(10.0, "a.py")
    assert not burst.is_due(15.0, GitWork.LOCKED)
    assert burst.is_due(15.0, GitWork.NONE)
    assert burst.is_due(10.0 + LOCKED_MAX_S, GitWork.LOCKED)


def test_a_rebase_is_waited_out_until_it_stops_for_a_person() -> None:
    burst = Burst(small_quiet_s=0.2)
    burst.note(10.0, "a.py")
    assert not burst.is_due(10.0 + STEPPING_QUIET_S - 0.1, GitWork.STEPPING)
    assert burst.is_due(10.0 + STEPPING_QUIET_S, GitWork.STEPPING)


@pytest.mark.parametrize(
    ("name", "work"),
    [
        ("index.lock", GitWork.LOCKED),
        ("rebase-merge", GitWork.STEPPING),
        ("rebase-apply", GitWork.STEPPING),
        ("MERGE_HEAD", GitWork.STEPPING),
        ("index", GitWork.NONE),
    ],
)
@pytest.mark.parametrize("is_worktree", [False, True])
def test_git_at_work_is_seen_from_its_folder(
    tmp_path: Path, name: str, work: GitWork, is_worktree: bool
) -> None:
    folder = tmp_path / ("elsewhere" if is_worktree else ".git")
    folder.mkdir()
    if is_worktree:
        (tmp_path / ".git").write_text(f"gitdir: {folder}\n")
    (folder / name).write_text("")
    assert git_work([str(tmp_path)]) is work


def test_a_burst_of_few_files_is_over_sooner_than_one_of_many() -> None:
    """An edit that follows supersedes the sweep; a checkout of hundreds of files must not begin one in its middle."""
    small, large = Burst(small_quiet_s=0.03), Burst(small_quiet_s=0.03)
    small.note(10.0, "a.py")
    for number in range(100):
        large.note(10.0, f"{number}.py")
    assert small.deadline() == pytest.approx(10.03)
    assert large.deadline() == pytest.approx(10.2)
