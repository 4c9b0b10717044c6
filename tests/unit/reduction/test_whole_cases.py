"""What is done with a whole case before and after its search: which path shows it, whether it is believed, what is kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx

from minidbg import repro, workers
from minidbg.core.deadline import Deadline
from minidbg.core.errors import MinidbgError, NotReproduced
from minidbg.core.outcome import Kind, Outcome, Signature, Verdict
from minidbg.core.run_spec import BackendRef, CallPath, Level, RunSpec
from minidbg.fx.case import Case
from minidbg.reduction.reducing import (
    DONE_FILE,
    OTHERS_KEPT,
    earlier_result,
    interrupted_sentence,
    keep_others,
    reproducing_path,
)
from minidbg.reduction.result import Limits, ReductionResult
from minidbg.reduction.session import BEST_FILE, Session

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
        (Outcome(Verdict.INVALID, reason="eager itself fails: x"), "this is not a failure of the backend: eager"),
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
    (tmp_path / DONE_FILE).write_text(json.dumps(result.to_json()))
    monkeypatch.setattr(repro, "run", lambda path, seconds, **_: Outcome(verdict))
    found = earlier_result(tmp_path, Deadline.after(9.0), workers.submit)
    assert found == (replace(result, known_before=True) if answered else None)


def test_an_earlier_repro_that_is_gone_or_cannot_be_run_answers_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(path: Path, **_: Any) -> Outcome:
        raise MinidbgError("no script")

    script = tmp_path / "r.py"
    result = ReductionResult(script, 9, 1, 7, 2.0, True, Verdict.REPRODUCES)
    (tmp_path / DONE_FILE).write_text(json.dumps(result.to_json()))
    monkeypatch.setattr(repro, "run", lambda path, seconds, **_: FAILS)
    assert earlier_result(tmp_path, Deadline.after(9.0), workers.submit) is None
    script.touch()
    monkeypatch.setattr(repro, "run", refuses)
    assert earlier_result(tmp_path, Deadline.after(9.0), workers.submit) is None
    assert earlier_result(tmp_path / "never", Deadline.after(9.0), workers.submit) is None


def test_an_interrupted_search_names_its_best_where_there_is_one(tmp_path: Path) -> None:
    session = Session(Limits())
    assert interrupted_sentence(session) == "interrupted before anything smaller was found; start it again"
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
