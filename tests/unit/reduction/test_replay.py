"""The replay log by itself: which answers a reduction may go on from, and what is said of a log that cannot be read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx

from minidbg.fx.case import Case
from minidbg.reduction.replay import FILE, ReplayLog, digest_of, last_result, open_log, read_log
from minidbg.reduction.result import ReductionResult
from minidbg.words.outcome import Outcome, Verdict
from minidbg.words.run_spec import BackendRef, CallPath, Context, RunSpec

WRITTEN = ReductionResult(Path("r.py"), 20, 1, 7, 2.0, True, Verdict.REPRODUCES)


def case_of(*inputs: Any, **spec: Any) -> Case:
    graph = fx.Graph()
    taken = [graph.placeholder(f"x{number}") for number in range(len(inputs))]
    graph.output((graph.call_function(torch.sin, (taken[0],)),))
    backend = spec.pop("backend", BackendRef("b", "b"))
    return Case(fx.GraphModule(torch.nn.Module(), graph), inputs, RunSpec(backend, **spec))


CASE = case_of(torch.ones(2))


def entry(digest: str, verdict: Verdict = Verdict.GONE) -> dict[str, Any]:
    return {"digest": digest, "outcome": Outcome(verdict).to_json()}


def log_with(folder: Path, *entries: dict[str, Any], case: Case = CASE, just_seen: bool = False) -> None:
    log = open_log(folder, case, just_seen=just_seen)
    for one in entries:
        log.append(one)


def test_questions_in_the_same_order_are_answered_from_the_log(tmp_path: Path) -> None:
    log_with(tmp_path, entry("a"), entry("b", Verdict.REPRODUCES))
    log = open_log(tmp_path, CASE, just_seen=False)
    answers = [log.recorded(digest) for digest in ("a", "b", "c")]
    assert [answer and answer.verdict for answer in answers] == [Verdict.GONE, Verdict.REPRODUCES, None]
    assert not log.is_replaying


def test_answers_are_found_in_whatever_order_they_are_asked_for(tmp_path: Path) -> None:
    """What is asked ahead depends on how long questions take: on going on, none takes any time."""
    log_with(tmp_path, entry("a"), entry("b"), entry("c"), entry("b"))
    log = open_log(tmp_path, CASE, just_seen=False)
    assert log.recorded("a") is not None
    assert log.is_replaying
    assert log.recorded("another") is None
    assert not log.is_replaying
    assert log.recorded("c") is not None
    assert [log.recorded("b") is not None for _ in range(3)] == [True, True, False]
    assert len(open_log(tmp_path, CASE, just_seen=False).entries) == 4, "nothing is forgotten"


@pytest.mark.parametrize(
    ("key", "value"), [("case", "of another graph"), ("torch", "1.0"), ("schema", 0)], ids=str
)
def test_answers_of_another_case_torch_or_form_of_the_log_are_left(
    tmp_path: Path, key: str, value: Any
) -> None:
    log_with(tmp_path, entry("a"), just_seen=True)
    head, *rest = (tmp_path / FILE).read_text().splitlines()
    (tmp_path / FILE).write_text("\n".join([json.dumps({**json.loads(head), key: value}), *rest, ""]))
    log = open_log(tmp_path, CASE, just_seen=False)
    assert (log.entries, log.head["just_seen"]) == ([], False)


def test_a_reduction_that_came_to_its_end_is_not_gone_on_from(tmp_path: Path) -> None:
    log_with(tmp_path, entry("a"), {"end": "published", "written": WRITTEN.to_json()})
    assert last_result(tmp_path) == WRITTEN
    assert open_log(tmp_path, CASE, just_seen=False).entries == []


def test_a_log_without_an_end_or_with_a_damaged_one_has_no_result(tmp_path: Path) -> None:
    assert last_result(tmp_path) is None
    log_with(tmp_path, entry("a"))
    assert last_result(tmp_path) is None
    log_with(tmp_path, {"end": "published", "written": {"path": "r.py"}})
    assert last_result(tmp_path) is None


def test_that_the_whole_was_just_seen_is_remembered_with_the_answers(tmp_path: Path) -> None:
    """The questions after a failure in a program are others than those of ``minidbg reduce``."""
    log_with(tmp_path, entry("a"), just_seen=True)
    log = open_log(tmp_path, CASE, just_seen=False)
    assert log.head["just_seen"] is True
    assert len(log.entries) == 1


@pytest.mark.parametrize(
    "line", ["[1]", '{"digest": "b"}', '{"outcome": {"verdict": "gone"}}', '{"digest": "b", "outcome": {}}']
)
def test_what_is_no_answer_ends_what_is_read_and_is_named_by_its_line(tmp_path: Path, line: str) -> None:
    log_with(tmp_path, entry("a"))
    path = tmp_path / FILE
    path.write_text(path.read_text() + line + "\n" + json.dumps(entry("c")) + "\n")
    head, entries, complaint = read_log(path)
    assert head["case"] == digest_of(CASE)
    assert [one["digest"] for one in entries] == ["a"]
    assert complaint.startswith(f"line 3 of {path} cannot be read (")


def test_a_first_line_that_is_no_head_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(json.dumps(entry("a")) + "\n")
    head, entries, complaint = read_log(tmp_path / FILE)
    assert (head, entries) == ({}, [])
    assert complaint.startswith("line 1 ")


def test_a_log_that_cannot_be_written_costs_nothing_but_going_on(tmp_path: Path) -> None:
    log = ReplayLog(tmp_path / "no folder" / FILE)
    log.append(entry("a"))
    assert log.path is None
    log.append(entry("b"))
    log.write_anew()
    assert list(tmp_path.iterdir()) == []


def view_and_its_base() -> tuple[torch.Tensor, torch.Tensor]:
    base = torch.ones(4)
    return base[:2], base[2:]


ANOTHER_QUESTION: dict[str, tuple[Case, Case]] = {
    "an index": (case_of(torch.tensor([0, 1])), case_of(torch.tensor([1, 0]))),
    "eight indices": (case_of(torch.arange(8)), case_of(torch.arange(8).flip(0))),
    "a number": (case_of(torch.ones(2), 3), case_of(torch.ones(2), 4)),
    "a truth value for a number": (case_of(torch.ones(2), 1), case_of(torch.ones(2), True)),
    "a size": (CASE, case_of(torch.ones(3))),
    "a dtype": (CASE, case_of(torch.ones(2, dtype=torch.float64))),
    "strides": (case_of(torch.ones(2, 3)), case_of(torch.ones(3, 2).t())),
    "a gradient": (CASE, case_of(torch.ones(2, requires_grad=True))),
    "one storage": (case_of(*view_and_its_base()), case_of(torch.ones(2), torch.ones(2))),
    "options": (CASE, case_of(torch.ones(2), backend=BackendRef("b", "b", options={"a": 1}))),
    "a mode of the backend": (CASE, case_of(torch.ones(2), backend=BackendRef("b", "b", mode="m"))),
    "the backward": (CASE, case_of(torch.ones(2), backward=True)),
    "dynamic sizes": (CASE, case_of(torch.ones(2), dynamic=True)),
    "the call path": (CASE, case_of(torch.ones(2), call=CallPath.DIRECT)),
    "grad mode": (CASE, case_of(torch.ones(2), context=Context(grad=False))),
}


@pytest.mark.parametrize(("one", "other"), ANOTHER_QUESTION.values(), ids=ANOTHER_QUESTION)
def test_cases_that_differ_so_are_two_questions(one: Case, other: Case) -> None:
    assert digest_of(one) != digest_of(other)


SAME_QUESTION: dict[str, tuple[Case, Case]] = {
    "floats": (CASE, case_of(torch.zeros(2))),
    "the values of many indices": (case_of(torch.arange(99)), case_of(torch.arange(99).flip(0))),
    "an object by its address": (case_of(torch.ones(2), object()), case_of(torch.ones(2), object())),
    "values of a meta tensor": (
        case_of(torch.ones(2, dtype=torch.int64, device="meta")),
        case_of(torch.zeros(2, dtype=torch.int64, device="meta")),
    ),
}


@pytest.mark.parametrize(("one", "other"), SAME_QUESTION.values(), ids=SAME_QUESTION)
def test_what_another_process_cannot_have_alike_is_no_part_of_the_question(one: Case, other: Case) -> None:
    assert digest_of(one) == digest_of(other)


def test_names_of_nodes_are_no_part_of_the_question() -> None:
    graph = fx.Graph()
    graph.output((graph.call_function(torch.sin, (graph.placeholder("another"),)),))
    renamed = replace(CASE, graph_module=fx.GraphModule(torch.nn.Module(), graph))
    assert digest_of(renamed) == digest_of(CASE)
