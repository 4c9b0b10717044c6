"""A history that is carried from run to run and between machines: nothing is lost, counted twice, or put out of order."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from minidbg.history import (
    Environment,
    Flip,
    History,
    ReproState,
    Result,
    Revision,
    export_history,
    import_history,
)
from minidbg.history.carrying import contents_of, from_json, merged, to_json
from minidbg.words.errors import MinidbgError
from minidbg.words.outcome import Outcome, Verdict

BAD, GOOD = Verdict.REPRODUCES, Verdict.GONE
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
    history.add_result(number, Result(repro, "cpu", at + 0.1, Outcome(verdict), "run", script, environment))
    before = next(
        (one for one in history.every_state() if (one.repro, one.environment) == (repro, environment)), None
    )
    if before is not None and before.verdict is verdict and before.script == script:
        state = replace(before, seen=at + 0.1, runs=before.runs + 1, last_sweep=number)
    else:
        state = ReproState(
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


def carry(source: History, target: History, folder: Path, name: str = "carried.json.gz") -> dict[str, int]:
    export_history(source, folder / name)
    return import_history(target, folder / name)


def document(history: History) -> object:
    return to_json(contents_of(history))


def test_since_when_is_right_over_nightly_runs_that_start_from_nothing(opened: Open, tmp_path: Path) -> None:
    """Each night a fresh checkout imports what the night before exported."""
    for night, verdict in enumerate((BAD, BAD, BAD, GOOD, GOOD, GOOD), 1):
        with opened(f"night{night}") as history:
            if night > 1:
                import_history(history, tmp_path / "carried.json")
            sweep(history, night * 100.0, verdict)
            export_history(history, tmp_path / "carried.json")
    with opened("desk") as history:
        import_history(history, tmp_path / "carried.json")
        state = history.states()["r.py", "cpu"]
        assert (state.verdict, state.since, state.runs) == (GOOD, 400.1, 3)
        (flip,) = history.flips()
        before, after = history.sweep(flip.last_before), history.sweep(flip.sweep)
        assert (str(before.revisions["/src"]), str(after.revisions["/src"])) == ("commit300.", "commit400.")
        assert [number for number, _ in history.results("r.py")] == [6, 5, 4, 3, 2, 1], "newest first"
        assert history.flips(unannounced=True) == [], "another machine has told of it"


def test_two_machines_of_a_kind_are_one_story(opened: Open, tmp_path: Path) -> None:
    with opened("one") as one, opened("two") as two:
        for at in (100.0, 500.0):
            sweep(one, at, BAD)
        for at in (300.0, 700.0):
            sweep(two, at, BAD)
        new = carry(two, one, tmp_path)
        assert new == {"sweeps": 2, "runs": 2, "flips": 0, "verdicts": 1}
        state = one.states()["r.py", "cpu"]
        assert (state.since, state.seen) == (100.1, 700.1)
        assert [found.started for found in one.sweeps()] == [700.0, 500.0, 300.0, 100.0]


def test_what_an_earlier_export_could_not_say_yet_counts_as_new(opened: Open, tmp_path: Path) -> None:
    """It was written while the sweep went on: the merge has no more sweeps than before, and yet the import did something."""
    with opened("one") as one, opened("two") as two:
        number = one.start_sweep(100.0, code="c", files=[])
        carry(one, two, tmp_path)
        one.end_sweep(number, 101.0, "complete")
        assert carry(one, two, tmp_path) == {"sweeps": 1, "runs": 0, "flips": 0, "verdicts": 0}
        assert not any(carry(one, two, tmp_path).values())


def test_a_flip_in_between_keeps_the_later_time(opened: Open, tmp_path: Path) -> None:
    with opened("one") as one, opened("two") as two:
        sweep(one, 100.0, GOOD)
        sweep(one, 900.0, GOOD)
        for at, verdict in ((200.0, GOOD), (300.0, BAD), (400.0, GOOD)):
            sweep(two, at, verdict)
        carry(two, one, tmp_path)
        assert one.states()["r.py", "cpu"].since == 400.1


def test_another_kind_of_machine_keeps_its_own_state_and_is_gone_on_with(
    opened: Open, tmp_path: Path
) -> None:
    with opened("one") as one, opened("two") as two:
        sweep(one, 100.0, BAD, environment="intel")
        sweep(two, 200.0, GOOD, environment="amd")
        carry(two, one, tmp_path)
        assert one.states()["r.py", "cpu"].environment == "amd", "seen last"
        states = {state.environment: state for state in one.every_state()}
        assert (states["intel"].verdict, states["intel"].since) == (BAD, 100.1)
        sweep(one, 300.0, BAD, environment="intel")
        assert one.states()["r.py", "cpu"].since == 100.1
        assert {state.environment for state in one.every_state()} == {"amd", "intel"}


def random_history(history: History, rng: random.Random) -> None:
    for _ in range(rng.randrange(1, 8)):
        at = float(rng.randrange(1, 12))
        if rng.random() < 0.8:
            sweep(
                history, at + rng.choice((0.0, 0.25)), rng.choice((BAD, GOOD)), environment=rng.choice("ef"),
                repro=rng.choice(("r.py", "q.py")), script=rng.choice("st"),
            )  # fmt: skip
        else:
            history.put_environment(Environment("cpu", rng.choice("xy"), "m", torch=str(at)))


@pytest.mark.parametrize("seed", range(60))
def test_merging_is_idempotent_and_its_order_does_not_matter(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    found = []
    for name in ("a", "b"):
        with History.open(tmp_path / f"{name}.sqlite") as history:
            history.connection.execute("pragma synchronous = off")
            random_history(history, rng)
            found.append(contents_of(history))
    one, other = found
    both = merged(one, other)
    assert to_json(merged(other, one)) == to_json(both)
    assert to_json(merged(both, other)) == to_json(both)
    assert to_json(merged(both, one)) == to_json(both)
    assert to_json(merged(one, one)) == to_json(one)
    assert to_json(from_json(json.loads(json.dumps(to_json(both))))) == to_json(both)
    assert both.sizes()["runs"] == len(one.results | other.results)


def test_importing_twice_changes_nothing_in_the_file(opened: Open, tmp_path: Path) -> None:
    with opened("one") as one, opened("two") as two:
        sweep(one, 100.0, BAD)
        sweep(two, 200.0, GOOD)
        carry(two, one, tmp_path)
        first, rows = document(one), list(one.connection.execute("select * from results"))
        assert carry(two, one, tmp_path) == {"sweeps": 0, "runs": 0, "flips": 0, "verdicts": 0}
        assert (document(one), list(one.connection.execute("select * from results"))) == (first, rows)
        carry(one, two, tmp_path)
        assert document(two) == first, "both know the same"


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"minidbg_history": 2}', '{"minidbg_history": 1, "sweeps": [[1]], "environments": {}}', "\x1f\x8b broken"],
)  # fmt: skip
def test_another_file_is_refused_and_nothing_is_changed(text: str, opened: Open, tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text(text, encoding="latin-1")
    with opened("one") as one:
        sweep(one, 100.0, BAD)
        before = document(one)
        with pytest.raises(MinidbgError, match="no exported history"):
            import_history(one, tmp_path / "other.json")
        assert document(one) == before


def test_a_damaged_part_is_refused_whole(opened: Open, tmp_path: Path) -> None:
    with opened("one") as one, opened("two") as two:
        sweep(two, 200.0, GOOD)
        export_history(two, tmp_path / "x.json")
        data = json.loads((tmp_path / "x.json").read_text())
        for damage in (
            {"results": [[7, *data["results"][0][1:]]]},
            {"results": [[*data["results"][0][:5], "splendid", *data["results"][0][6:]]]},
            {"states": [{**data["states"][0], "verdict": "splendid"}]},
        ):
            (tmp_path / "x.json").write_text(json.dumps({**data, **damage}))
            with pytest.raises(MinidbgError):
                import_history(one, tmp_path / "x.json")
        assert one.sweeps() == []


def test_a_history_of_an_older_minidbg_can_be_exported(opened: Open, tmp_path: Path) -> None:
    with opened("old") as history:
        sweep(history, 100.0, BAD)
        history.connection.execute("drop table other_states")
    with History.open(tmp_path / "old.sqlite", readonly=True) as history:
        sizes = {"sweeps": 1, "runs": 1, "flips": 0, "verdicts": 1}
        assert export_history(history, tmp_path / "x.json") == sizes
