"""When a burst of events becomes a sweep. Time is a number here."""

from __future__ import annotations

import pytest

from minidbg.watch.watched import Burst


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


def test_a_burst_of_few_files_is_over_sooner_than_one_of_many() -> None:
    """An edit that follows supersedes the sweep; a checkout of hundreds of files must not begin one in its middle."""
    small, large = Burst(small_quiet_s=0.03), Burst(small_quiet_s=0.03)
    small.note(10.0, "a.py")
    for number in range(100):
        large.note(10.0, f"{number}.py")
    assert small.deadline() == pytest.approx(10.03)
    assert large.deadline() == pytest.approx(10.2)
