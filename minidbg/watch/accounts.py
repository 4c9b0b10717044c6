"""What states and answers add up to: exit statuses, counts, usual durations, and what has been seen too seldom."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from minidbg.failure import Kind, Verdict
from minidbg.history import State
from minidbg.watch.repros import Repro
from minidbg.watch.states import FAILING, NOT_JUDGED, is_expected
from minidbg.watch.sweep import Answer

FLAKY_FACTOR = 6
"""A flaky repro is run this many times as often as another before it is left alone."""


def exit_status(answers: Iterable[Answer], repros: dict[str, Repro], *, unexpected_only: bool) -> int:
    """What ``--once`` exits with: see DESIGN's table; with ``unexpected_only`` 1 when a header is contradicted."""
    answers = list(answers)
    verdicts = {state.verdict for answer in answers if (state := judged(answer)) is not None}
    if not verdicts:
        return 125
    if unexpected_only:
        return 1 if contradictions(answers, repros) else 0
    failing = verdicts & FAILING
    if failing & {Verdict.REPRODUCES, Verdict.FLAKY}:
        return 1
    return 3 if failing else 0


def judged(answer: Answer) -> State | None:
    """The state that an answer comes to; None when nothing could be said."""
    return None if answer.settled.standing in NOT_JUDGED else answer.settled.state


def contradictions(answers: Iterable[Answer], repros: Mapping[str, Repro]) -> list[State]:
    """The states that are not what the repro's header expects, those of muted repros left out."""
    states = [state for answer in answers if (state := judged(answer)) is not None]
    heard = [state for state in states if not repros[state.repro].muted]
    return [state for state in heard if not is_expected(state.verdict, repros[state.repro].expect)]


def count_standings(answers: Iterable[Answer]) -> dict[str, int]:
    """How many repros came to what."""
    counts: dict[str, int] = {}
    for answer in answers:
        standing = str(answer.settled.standing)
        counts[standing] = counts.get(standing, 0) + 1
    return counts


def usual_seconds(states: Iterable[State], repros: Mapping[str, Repro]) -> float:
    """The longest that a repro which came back has taken."""
    return max((state.seconds for state in states if came_back(state, repros.get(state.repro))), default=0.0)


def came_back(state: State, repro: Repro | None) -> bool:
    """Whether the state is of a repro that ends by itself."""
    return repro is not None and repro.kind is not Kind.HANG and state.verdict is not Verdict.TIMEOUT


def seen_too_seldom(states: Iterable[State], repros: Mapping[str, Repro], *, runs: int) -> list[str]:
    """Repros whose present verdict rests on fewer than ``runs`` runs, and flaky ones, which may have become quiet."""
    found = set()
    for state in states:
        repro = repros.get(state.repro)
        if repro is None or repro.damage or repro.kind is Kind.HANG or repro.digest != state.script:
            continue
        if state.runs < (FLAKY_FACTOR * runs if state.verdict is Verdict.FLAKY else runs):
            found.add(state.repro)
    return sorted(found)
