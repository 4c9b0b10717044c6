"""What is done with a whole case before and after its search: which path shows it, whether it is believed, what is kept."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx

from minidbg import repro
from minidbg.fx.case import Case
from minidbg.reduction import core, reducing
from minidbg.reduction.reducing import (
    OTHERS_KEPT,
    as_defined,
    earlier_result,
    gives_wrong_value,
    interrupted_sentence,
    is_just,
    keep_others,
    reproducing_path,
)
from minidbg.reduction.replay import open_log
from minidbg.reduction.result import Limits, ReductionResult
from minidbg.reduction.session import BEST_FILE, Session
from minidbg.words.deadline import Deadline
from minidbg.words.errors import MinidbgError, NotReproduced
from minidbg.words.outcome import LAYOUT, Kind, Outcome, Signature, Verdict
from minidbg.words.run_spec import BackendRef, CallPath, Level, RunSpec

GONE = Outcome(Verdict.GONE)
FAILS = Outcome(Verdict.REPRODUCES, Signature(Kind.COMPILE, types=("ValueError",)), message="no kernel")


def relu(x: Any) -> Any:
    return torch.relu(x)


def case_of(program: Callable[..., Any] = relu, **spec: Any) -> Case:
    spec.setdefault("signature", FAILS.signature)
    return Case(fx.symbolic_trace(program), (torch.ones(2),), RunSpec(BackendRef("b", "'b'"), **spec))


def asking(monkeypatch: pytest.MonkeyPatch, answer: Callable[[Case], Outcome]) -> tuple[Session, list[Case]]:
    asked: list[Case] = []

    def ask_together(self: Session, cases: Sequence[Case]) -> list[Outcome]:
        asked.extend(cases)
        return [answer(case) for case in cases]

    monkeypatch.setattr(Session, "ask_together", ask_together)
    return Session(Limits()), asked


# ---- the path that shows the whole


def test_the_own_path_is_asked_first_and_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    session, asked = asking(monkeypatch, lambda case: FAILS)
    found, known = reproducing_path(case_of(), session)
    assert found.spec.call is CallPath.TORCH_COMPILE
    assert (len(asked), known.is_flaky) == (1, False)


def test_the_other_path_is_taken_where_it_alone_shows_the_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    session, asked = asking(monkeypatch, lambda case: FAILS if case.spec.call is CallPath.DIRECT else GONE)
    assert reproducing_path(case_of(), session)[0].spec.call is CallPath.DIRECT
    assert len(asked) == 2


def test_a_graph_of_aot_autograd_has_no_other_path(monkeypatch: pytest.MonkeyPatch) -> None:
    session, asked = asking(monkeypatch, lambda case: GONE)
    with pytest.raises(NotReproduced):
        reproducing_path(case_of(level=Level.ATEN, call=CallPath.DIRECT), session)
    assert len(asked) == 1


def test_a_case_whose_failure_nobody_had_seen_expects_what_was_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    session, _ = asking(monkeypatch, lambda case: FAILS)
    found, _ = reproducing_path(case_of(signature=None), session)
    assert (found.signature, found.provenance.message) == (FAILS.signature, "no kernel")


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        (Outcome(Verdict.INVALID, reason="eager itself fails: x"), "this is no failure of the backend: eager"),
        (Outcome(Verdict.INVALID, reason="no module"), "the case does not show its failure here: invalid: no module"),
        (Outcome(Verdict.SKIPPED, reason="eager itself fails"), "does not show its failure here: skipped"),
        (GONE, r"does not show its failure here: gone. Expected compile; tried: .*torch.compile \(gone\), called directly \(gone\)"),
    ],
)  # fmt: skip
def test_a_whole_that_shows_nothing_is_refused_with_what_it_showed(
    monkeypatch: pytest.MonkeyPatch, outcome: Outcome, said: str
) -> None:
    session, _ = asking(monkeypatch, lambda case: outcome)
    with pytest.raises(NotReproduced, match=said):
        reproducing_path(case_of(), session)


def test_a_whole_that_fails_now_and_then_is_reduced_with_so_many_chances(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = iter([GONE, GONE, FAILS, GONE, FAILS, GONE, GONE])
    session, asked = asking(monkeypatch, lambda case: next(answers))
    case = case_of(signature=Signature(Kind.RUNTIME))
    found, known = reproducing_path(case, session)
    assert found is case
    assert str(known) == "fails in 2 of 6 runs"
    assert session.repeats == known.repeats > 1
    assert len(asked) == 7


# ---- what is believed, and kept


@pytest.mark.parametrize(
    ("verdict", "changes", "answered"),
    [
        (Verdict.REPRODUCES, {}, True),
        (Verdict.FLAKY, {}, True),
        (Verdict.GONE, {}, False),
        (Verdict.REPRODUCES, {"certified": False}, False),
        (Verdict.REPRODUCES, {"path": None}, False),
    ],
)
def test_an_earlier_result_answers_where_its_repro_is_certified_and_fails_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verdict: Verdict, changes: dict[str, Any], answered: bool
) -> None:
    script = tmp_path / "r.py"
    script.touch()
    result = replace(ReductionResult(script, 9, 1, 7, 2.0, True, Verdict.REPRODUCES), **changes)
    open_log(tmp_path, case_of(), just_seen=False).append({"end": "published", "written": result.to_json()})
    monkeypatch.setattr(repro, "run", lambda path, seconds: Outcome(verdict))
    found = earlier_result(tmp_path, Deadline.after(9.0))
    assert found == (replace(result, known_before=True) if answered else None)


def test_an_earlier_repro_that_is_gone_or_cannot_be_run_answers_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(path: Path, seconds: float) -> Outcome:
        raise MinidbgError("no script")

    script = tmp_path / "r.py"
    result = ReductionResult(script, 9, 1, 7, 2.0, True, Verdict.REPRODUCES)
    open_log(tmp_path, case_of(), just_seen=False).append({"end": "published", "written": result.to_json()})
    monkeypatch.setattr(repro, "run", lambda path, seconds: FAILS)
    assert earlier_result(tmp_path, Deadline.after(9.0)) is None
    script.touch()
    monkeypatch.setattr(repro, "run", refuses)
    assert earlier_result(tmp_path, Deadline.after(9.0)) is None
    assert earlier_result(tmp_path / "never", Deadline.after(9.0)) is None


def test_an_interrupted_search_names_its_best_where_there_is_one(tmp_path: Path) -> None:
    session = Session(Limits())
    assert (
        interrupted_sentence(session)
        == "interrupted before anything smaller was found; start it again to go on"
    )
    session.folder = tmp_path
    assert "before anything smaller was found" in interrupted_sentence(session)
    session.best = case_of()
    assert f"the best so far is {tmp_path / BEST_FILE}, and starting again" in interrupted_sentence(session)
    assert repro.load(tmp_path / BEST_FILE).graph_module is not None


def test_of_many_other_failures_the_first_few_are_kept_as_captures(tmp_path: Path) -> None:
    session = Session(Limits())
    for number in range(OTHERS_KEPT + 2):
        signature = Signature(Kind.COMPILE, types=(f"Error{number}",))
        session.others[str(number)] = case_of(), Outcome(Verdict.CHANGED, signature, message=f"said {number}")
    keep_others(tmp_path, session)
    kept = {repro.read_header(path).spec.signature for path in repro.captures(tmp_path).glob("*.py")}
    assert {one.types for one in kept if one} == {(f"Error{number}",) for number in range(OTHERS_KEPT)}


# ---- what the search ends in


@pytest.mark.parametrize(
    ("outcome", "is_wrong"),
    [
        (Outcome(Verdict.CHANGED, Signature(Kind.ACCURACY, message="output: nan")), True),
        (Outcome(Verdict.REPRODUCES, Signature(Kind.ACCURACY, message="output: nan")), False),
        (Outcome(Verdict.CHANGED, Signature(Kind.ACCURACY, message=LAYOUT)), False),
        (Outcome(Verdict.CHANGED, Signature(Kind.RUNTIME)), False),
        (GONE, False),
    ],
)
def test_a_wrong_value_is_another_failure_by_a_wrong_result(outcome: Outcome, is_wrong: bool) -> None:
    assert gives_wrong_value(outcome) is is_wrong


@pytest.mark.parametrize(
    ("program", "is_alone"),
    [
        (lambda x: x.sort(), True),
        (lambda x: operator.getitem(x.sort(), 0), True),
        (lambda x: x.sin().sort(), False),
        (lambda x: x.sin(), False),
    ],
)
def test_a_node_is_alone_with_what_takes_its_result_apart(
    program: Callable[..., Any], is_alone: bool
) -> None:
    assert is_just("sort", fx.symbolic_trace(program)) is is_alone


def reduced_to(*steps: Case, certified: bool = True) -> core.Minimized:
    last = steps[-1]
    pairs = tuple((step.graph_module, step.inputs) for step in steps)
    return core.Minimized(
        last.graph_module, last.inputs, 3, certified, False, 1.0, pairs, (), neighbour=pairs[0]
    )


@pytest.mark.parametrize(("is_open", "kept"), [([], 3), ([2], 2), ([1, 2], 1), ([0, 1, 2], 3), ([1], 3)])
def test_a_reduction_ends_in_its_last_step_that_torch_defines(
    monkeypatch: pytest.MonkeyPatch, is_open: list[int], kept: int
) -> None:
    """Where none of them is defined the search is believed: whatever is open was there before."""
    steps = [case_of(lambda x, n=number: torch.relu(x) + n) for number in range(3)]
    graphs = [step.graph_module for step in steps]
    monkeypatch.setattr(
        reducing,
        "newly_open",
        lambda case, before: frozenset({"a point"} if graphs.index(case.graph_module) in is_open else ()),
    )
    before = reduced_to(*steps)
    found = as_defined(case_of(), before)
    assert len(found.steps) == kept
    assert found.graph_module is graphs[kept - 1]
    is_changed = kept < 3
    assert (found.certified, found.neighbour is None) == (not is_changed, is_changed)
