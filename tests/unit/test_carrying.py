"""A history that is carried from run to run and between machines: nothing is lost, counted twice, or put out of order."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from minidbg.history import (
    DamagedHistory,
    Environment,
    Flip,
    History,
    Observation,
    Revision,
    State,
    import_history,
)
from minidbg.words.errors import MinidbgError
from minidbg.words.outcome import Outcome, Verdict

BAD, GOOD = Verdict.REPRODUCES, Verdict.GONE
NOTHING = {"sweeps": 0, "runs": 0, "flips": 0, "verdicts": 0}
Open = Callable[[str], History]


@pytest.fixture
def opened(tmp_path: Path) -> Open:
    return lambda name: History.open(tmp_path / f"{name}.sqlite")


def sweep(
    history: History,
    at: float,
    verdict: Verdict,
    *,
    environment: str = "e",
    repro: str = "r.py",
    script: str = "s",
) -> None:
    """What a sweep writes that has one repro: run, state, and a flip where the verdict is another one."""
    number = history.start_sweep(at, code=f"c{at}", files=["x.py"])
    run = Observation(repro, "cpu", at + 0.1, Outcome(verdict), "run", script, environment, sweep=number)
    history.add_observation(run)
    before = next(
        (one for one in history.every_state() if (one.repro, one.environment) == (repro, environment)), None
    )
    if before is not None and before.verdict is verdict and before.script == script:
        state = replace(before, seen=at + 0.1, runs=before.runs + 1, last_sweep=number)
    else:
        state = State(
            repro, "cpu", verdict, at + 0.1, at + 0.1, script, environment, "c", last_sweep=number, runs=1
        )
        if before is not None and before.script == script:
            kind = "FIXED" if verdict is GOOD else "REGRESSED"
            history.add_flip(
                Flip(repro, "cpu", at + 0.3, kind, before.verdict, verdict, number, before.last_sweep)
            )
    history.put_state(state)
    history.set_revisions(number, {"/src": Revision(f"commit{at}")})
    history.end_sweep(number, at + 0.5, "complete")


def carry(source: History, target: History) -> dict[str, int]:
    """Import the file of a history that its daemon may still have open."""
    return import_history(target, source.path)


def document(history: History) -> dict[str, object]:
    """All that a history says, without its numbers and in the order of time."""
    ask = history.connection.execute
    keys = {number: tuple(key) for number, *key in ask("select id, started, code from sweeps")}
    assert len({*keys.values()}) == len(keys)
    results = ask("select sweep, at, repro, device, verdict, script, environment from results")
    flips = ask("select sweep, last_before, at, repro, device, kind, before, after from flips")
    states = [(one, keys.get(one.last_sweep)) for one in history.every_state()]
    return {
        "sweeps": sorted(ask("select started, code, ended, end, files, revisions from sweeps")),
        "results": sorted((keys[number], *row) for number, *row in results),
        "flips": sorted((keys[number], keys.get(before), *row) for number, before, *row in flips),
        "states": sorted((repr(replace(one, last_sweep=None)), sweep) for one, sweep in states),
        "present": {key: one.environment for key, one in history.states().items()},
        "environments": {*history.environments()},
    }


def test_since_when_is_right_over_nightly_runs_that_keep_one_file(tmp_path: Path) -> None:
    """Each night a fresh checkout gets the file of the night before, and nothing else, from the cache."""
    cache = tmp_path / "cache.sqlite"
    for night, verdict in enumerate((BAD, BAD, BAD, GOOD, GOOD, GOOD), 1):
        file = tmp_path / f"night{night}.sqlite"
        if night > 1:
            shutil.copy(cache, file)
        with History.open(file) as history:
            sweep(history, night * 100.0, verdict)
        shutil.copy(file, cache)
    with History.open(tmp_path / "desk.sqlite") as history:
        import_history(history, cache)
        state = history.states()["r.py", "cpu"]
        assert (state.verdict, state.since, state.runs) == (GOOD, 400.1, 3)
        (flip,) = history.flips()
        before, after = history.sweep(flip.last_before), history.sweep(flip.sweep)
        assert (str(before.revisions["/src"]), str(after.revisions["/src"])) == ("commit300.", "commit400.")
        assert [run.sweep for run in history.observations("r.py")] == [6, 5, 4, 3, 2, 1], "newest first"
        assert history.flips(announced=False) == [], "another machine has told of it"


def test_two_machines_of_a_kind_are_one_story(opened: Open) -> None:
    with opened("one") as one, opened("two") as two:
        for at in (100.0, 500.0):
            sweep(one, at, BAD)
        for at in (300.0, 700.0):
            sweep(two, at, BAD)
        new = carry(two, one)
        assert new == {"sweeps": 2, "runs": 2, "flips": 0, "verdicts": 1}
        state = one.states()["r.py", "cpu"]
        assert (state.since, state.seen) == (100.1, 700.1)
        assert [found.started for found in one.sweeps()] == [700.0, 500.0, 300.0, 100.0]


def test_what_an_earlier_copy_could_not_say_yet_counts_as_new(opened: Open) -> None:
    """It was made while the sweep went on: the merge has no more sweeps than before, and yet the import did something."""
    with opened("one") as one, opened("two") as two:
        number = one.start_sweep(100.0, code="c", files=[])
        carry(one, two)
        one.end_sweep(number, 101.0, "complete")
        assert carry(one, two) == {"sweeps": 1, "runs": 0, "flips": 0, "verdicts": 0}
        assert not any(carry(one, two).values())


def test_a_flip_in_between_keeps_the_later_time(opened: Open) -> None:
    with opened("one") as one, opened("two") as two:
        sweep(one, 100.0, GOOD)
        sweep(one, 900.0, GOOD)
        for at, verdict in ((200.0, GOOD), (300.0, BAD), (400.0, GOOD)):
            sweep(two, at, verdict)
        carry(two, one)
        assert one.states()["r.py", "cpu"].since == 400.1


def test_another_kind_of_machine_keeps_its_own_state_and_is_gone_on_with(opened: Open) -> None:
    with opened("one") as one, opened("two") as two:
        sweep(one, 100.0, BAD, environment="intel")
        sweep(two, 200.0, GOOD, environment="amd")
        carry(two, one)
        assert one.states()["r.py", "cpu"].environment == "amd", "seen last"
        states = {state.environment: state for state in one.every_state()}
        assert (states["intel"].verdict, states["intel"].since) == (BAD, 100.1)
        sweep(one, 300.0, BAD, environment="intel")
        assert one.states()["r.py", "cpu"].since == 100.1
        assert {state.environment for state in one.every_state()} == {"amd", "intel"}


def diverge(history: History, rng: random.Random, after: float) -> None:
    """Some sweeps at times that no other history has."""
    for at in sorted(rng.sample(range(1, 40), rng.randrange(1, 8))):
        sweep(
            history, after + at, rng.choice((BAD, GOOD)), environment=rng.choice("ef"),
            repro=rng.choice(("r.py", "q.py")), script=rng.choice("st"),
        )  # fmt: skip
        if rng.random() < 0.2:
            history.put_environment(Environment("cpu", rng.choice("xy"), "m"))


@pytest.mark.parametrize("seed", range(30))
def test_merging_is_idempotent_and_its_order_does_not_matter(seed: int, tmp_path: Path) -> None:
    """The jobs of a matrix go on from one cache, or from none."""
    rng = random.Random(seed)
    names = ("a", "b", "c")
    if seed % 2:
        with History.open(tmp_path / "cache.sqlite") as cache:
            diverge(cache, rng, 0.0)
    for place, name in enumerate(names):
        if seed % 2:
            shutil.copy(tmp_path / "cache.sqlite", tmp_path / f"{name}.sqlite")
        with History.open(tmp_path / f"{name}.sqlite") as history:
            diverge(history, rng, 50.0 + place / 4)
    merged = []
    for order in (names, names[::-1], ("b", "a", "c", "b")):
        with History.open(tmp_path / f"{'-'.join(order)}.sqlite") as history:
            for name in order:
                import_history(history, tmp_path / f"{name}.sqlite")
            merged.append(document(history))
            assert [import_history(history, tmp_path / f"{name}.sqlite") for name in names] == [NOTHING] * 3
            assert document(history) == merged[-1]
    assert merged[0] == merged[1] == merged[2]


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[History, Path]]:
    """A history with one sweep, open; and the file of another one."""
    with History.open(tmp_path / "other.sqlite") as other:
        sweep(other, 200.0, GOOD)
        sweep(other, 300.0, BAD)
    with History.open(tmp_path / "one.sqlite") as one:
        sweep(one, 100.0, BAD)
        yield one, tmp_path / "other.sqlite"


def test_importing_twice_changes_nothing_in_the_file(two: tuple[History, Path]) -> None:
    one, other = two
    assert import_history(one, other) == {"sweeps": 2, "runs": 2, "flips": 1, "verdicts": 1}
    first = list(one.connection.iterdump())
    assert import_history(one, other) == NOTHING
    assert import_history(one, one.path) == NOTHING, "its own file"
    assert list(one.connection.iterdump()) == first


def test_the_other_file_is_only_read(two: tuple[History, Path]) -> None:
    """Nor does anything lie beside it afterwards, so it may be where nothing can be written."""
    one, other = two
    apart = other.parent / "artifact #1?" / "history.sqlite"
    apart.parent.mkdir()
    shutil.move(other, apart)
    content, stamp = apart.read_bytes(), apart.stat().st_mtime_ns
    apart.chmod(0o444)
    apart.parent.chmod(0o555)
    try:
        assert import_history(one, apart)["runs"] == 2
    finally:
        apart.parent.chmod(0o755)
    assert [*apart.parent.iterdir()] == [apart]
    assert (apart.read_bytes(), apart.stat().st_mtime_ns) == (content, stamp)


def test_what_a_killed_daemon_left_in_its_log_is_read_too(two: tuple[History, Path]) -> None:
    one, other = two
    with History.open(other) as living:
        sweep(living, 400.0, BAD)
        killed = other.parent / "killed" / "history.sqlite"
        killed.parent.mkdir()
        for suffix in ("", "-wal"):
            shutil.copy(f"{other}{suffix}", f"{killed}{suffix}")
    assert import_history(one, killed)["runs"] == 3


def refused(one: History, other: Path) -> str:
    """What is said of a file that is not imported; the history is as before, and takes the next file."""
    before = list(one.connection.iterdump())
    with pytest.raises(MinidbgError) as error:
        import_history(one, other)
    assert list(one.connection.iterdump()) == before
    assert one.trouble == "", "nothing goes on in memory"
    with History.open(one.path.with_name("next.sqlite")) as after:
        sweep(after, 900.0, BAD)
    assert import_history(one, one.path.with_name("next.sqlite"))["runs"] == 1
    what, advice = error.value.in_two()
    assert str(other) in what
    assert advice.startswith("update minidbg")
    return what


@pytest.mark.parametrize(
    ("content", "why"),
    [(b"", "empty or damaged"), (b"[]", "not a database"), (b"no database, but as long as one" * 100, "not a database")],
)  # fmt: skip
def test_another_file_is_refused(content: bytes, why: str, two: tuple[History, Path]) -> None:
    one, other = two
    other.write_bytes(content)
    assert why in refused(one, other)


@pytest.mark.parametrize("part", [0.4, 0.8])
def test_a_file_that_was_cut_short_is_refused(part: float, two: tuple[History, Path]) -> None:
    one, other = two
    content = other.read_bytes()
    other.write_bytes(content[: int(len(content) * part)])
    refused(one, other)


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        ("pragma user_version = 99", r"another version of minidbg (schema 99, here 1)"),
        ("update results set verdict = 'splendid'", "splendid"),
        ("update flips set after = 'splendid'", "splendid"),
        ("update states set state = '{}'", "verdict"),
        ("update states set state = json_set(state, '$.colour', 'red')", "colour"),
        ("drop table flips", "no such table"),
    ],
)
def test_what_is_not_known_here_is_refused_whole(damage: str, why: str, two: tuple[History, Path]) -> None:
    one, other = two
    connection = sqlite3.connect(other)
    with connection:
        connection.execute(damage)
    connection.close()
    assert why in refused(one, other)


def test_nothing_is_imported_into_a_newer_history(two: tuple[History, Path]) -> None:
    one, _ = two
    one.connection.execute("pragma user_version = 99")
    with pytest.raises(DamagedHistory, match="schema 99"):
        History.open(one.path)


def test_a_history_of_an_older_minidbg_can_be_imported(two: tuple[History, Path]) -> None:
    one, other = two
    connection = sqlite3.connect(other)
    connection.execute("drop table other_states")
    connection.close()
    assert import_history(one, other)["verdicts"] == 1


def test_a_sweep_that_was_under_way_when_it_was_imported_is_completed_later(opened: Open) -> None:
    """Its own daemon ended it, although one here took it for interrupted; a copy of before changes nothing any more."""
    with opened("one") as one, opened("two") as two:
        number = one.start_sweep(100.0, code="c", files=[])
        carry(one, two)
        early = History.open(two.path.with_name("early.sqlite"))
        with early:
            carry(one, early)
        two.interrupt_running(150.0)
        one.end_sweep(number, 160.0, "complete")
        one.set_revisions(number, {"/src": Revision("commit")})
        assert carry(one, two) == {**NOTHING, "sweeps": 1}
        assert import_history(two, early.path) == NOTHING
        (found,) = two.sweeps()
        assert (found.end, found.ended, found.revisions) == ("complete", 160.0, {"/src": Revision("commit")})


def test_what_flipped_on_one_machine_does_not_hold_since_before_that_on_the_other(opened: Open) -> None:
    """It is one story in whatever order the three files come."""
    with opened("one") as one, opened("two") as two, opened("desk") as desk:
        sweep(one, 100.0, GOOD)
        sweep(one, 900.0, GOOD)
        for at, verdict in ((200.0, GOOD), (300.0, BAD), (400.0, GOOD)):
            sweep(two, at, verdict)
        for other in (one, two, one):
            carry(other, desk)
        assert desk.states()["r.py", "cpu"].since == 400.1
