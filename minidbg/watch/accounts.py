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
    verdicts = []
    for answer in answers:
        state = answer.settled.state
        if state is not None and answer.settled.standing not in NOT_JUDGED:
            verdicts.append((state.verdict, repros[answer.job.repro].expect))
    if not verdicts:
        return 125
    if unexpected_only:
        return 0 if all(is_expected(verdict, expect) for verdict, expect in verdicts) else 1
    failing = {verdict for verdict, _ in verdicts} & FAILING
    if failing & {Verdict.REPRODUCES, Verdict.FLAKY}:
        return 1
    return 3 if failing else 0


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
