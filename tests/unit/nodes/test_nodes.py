"""The table of nodes: the first bad row is the planted one, a healthy graph has none, and what dies costs its own row."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import node_tables as tables
import pytest
import torch
from one_op import on_op
from torch import fx

from minidbg import commands
from minidbg.core.run_spec import Context
from minidbg.fx.case import Case
from minidbg.fx.copying import capture_by_dynamo
from minidbg.nodes.row import Row, TableMode
from minidbg.nodes.walk import MOST_IN_A_CHILD, node_rows
from minidbg.repro.cases import backend_named, case_of

OPS = (torch.sin, torch.tanh, torch.neg)
SECONDS = 60.0


def chain(backend: Any, *, before: int, after: int) -> Case:
    """A graph of so many ops before a softmax, and after it."""
    graph = fx.Graph()
    value = graph.placeholder("x")
    for number in range(before + after + 1):
        op = torch.softmax if number == before else OPS[number % len(OPS)]
        value = graph.call_function(op, (value, -1) if op is torch.softmax else (value,))
    least_and_index, total = graph.call_function(torch.min, (value, 0)), graph.call_method("sum", (value,))
    graph.output((value, graph.call_function(operator.getitem, (least_and_index, 0)), total))
    x = torch.linspace(-2, 2, 24).reshape(4, 6)
    return case_of(fx.GraphModule({}, graph), (x,), backend_named(backend), context=Context(grad=False))


def shown(rows: list[Row]) -> list[tuple[str, str]]:
    return [(row.node, str(row.status)) for row in rows if row.status.is_bad]


STATUSES = {
    "values": "numerics_fail",
    "dtype": "dtype_mismatch",
    "shape": "shape_mismatch",
    "compile": "error",
    "run": "error",
    "segfault": "error",
}


def test_the_planted_node_is_the_only_bad_row() -> None:
    off = []
    for what, status in STATUSES.items():
        rows = list(node_rows(chain(on_op("softmax", what), before=1, after=0), seconds=SECONDS))
        others = [row.status for row in rows if row.node != "softmax"]
        if shown(rows) != [("softmax", status)] or others != ["ok"] * 3:
            off.append((what, shown(rows), [row.reason for row in rows if row.reason]))
    assert off == []


def test_a_sum_with_zero_may_be_its_own_argument() -> None:
    graph = fx.Graph()
    graph.output((graph.call_function(torch.add, (graph.placeholder("x"), 0.0)),))
    backend, context = backend_named(tables.returns_what_it_got), Context(grad=False)
    case = case_of(fx.GraphModule({}, graph), (torch.ones(3),), backend, context=context)
    (row,) = node_rows(case, seconds=SECONDS)
    assert row.status == "ok"
    assert row.reason == "output 0 and input 0 after the call share memory; in eager they do not"


@pytest.mark.parametrize(
    ("backend", "where"),
    [(tables.gives_softmax_to_inductor, ["cpu", "cpu (inductor)"]), (tables.always_inductor, ["cpu", "cpu"]),
     (tables.hands_back, ["eager (handed back)"] * 2)],
)  # fmt: skip
def test_who_ran_a_node_in_the_backends_place(backend: Any, where: list[str]) -> None:
    rows = list(node_rows(chain(backend, before=1, after=0), seconds=SECONDS))
    assert [row.ran_on for row in rows[:2]] == where


@pytest.mark.parametrize("backend", [tables.forgets_itself, tables.dies_of_many])
def test_a_node_that_fails_only_after_others_says_so(backend: Any) -> None:
    rows = [*node_rows(chain(backend, before=2, after=2), seconds=SECONDS)]
    assert "not so when asked again" in next(row.reason for row in rows if row.status.is_bad)
    assert len({row.node for row in rows}) == len(rows) == 7


@pytest.mark.parametrize("name", tables.TABLES)
def test_what_is_written_read_or_nested_has_a_row_of_its_own(name: str) -> None:
    program, inputs, backend, mode, op = tables.TABLES[name]
    graph_module, values = capture_by_dynamo(program, inputs)
    case = case_of(graph_module, values, backend_named(backend), context=Context(grad=False))
    rows = list(node_rows(case, mode=TableMode(mode), seconds=SECONDS))
    assert [row.op for row in rows if row.status.is_bad][:1] == ([op] if op else [])


@pytest.mark.slow
def test_a_node_that_hangs_costs_its_own_row() -> None:
    rows = node_rows(chain(on_op("softmax", "hang"), before=2, after=2), seconds=5)
    (bad,) = [row for row in rows if row.status.is_bad]
    assert (bad.node, bad.status, bad.reason) == ("softmax", "error", "no end within 15 s")


@pytest.mark.parametrize("mode", TableMode)
def test_a_healthy_graph_has_no_bad_row_and_real_numbers(mode: TableMode) -> None:
    rows = list(node_rows(chain("aot_eager", before=10, after=10), mode=mode, seconds=SECONDS))
    assert shown(rows) == []
    measured = [row for row in rows if row.status == "ok"]
    assert len(measured) == len(rows) >= 23
    assert {(row.mode, row.ran_on, row.max_abs_diff) for row in measured} == {(mode, "cpu", 0.0)}


def test_accumulated_values_are_bad_from_the_planted_node_on() -> None:
    case = chain(on_op("softmax", "values"), before=8, after=8)
    rows = list(node_rows(case, mode=TableMode.ACCUMULATED, seconds=SECONDS))
    names = [row.node for row in rows]
    assert shown(rows)[0] == ("softmax", "numerics_fail")
    assert all(row.status == "ok" for row in rows[: names.index("softmax")])


def test_a_judge_of_ones_own_says_which_row_is_bad() -> None:
    case = chain(on_op("softmax", "values"), before=2, after=1)
    judged = (case.with_spec(judge=judge) for judge in ("pcc>=0.99", "max_abs<1e-4"))
    answers = [shown([*node_rows(each, seconds=SECONDS)]) for each in judged]
    assert answers == [[], [("softmax", "numerics_fail")]]


class OfOps(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.neg(torch.softmax(torch.sin(x), -1))


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "model.pt2"
    torch.export.save(torch.export.export(OfOps(), (torch.linspace(-1, 1, 8),)), path)
    return path


@pytest.fixture
def status_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    monkeypatch.chdir(tmp_path)

    def run(*words: object) -> int:
        with pytest.raises(SystemExit) as ended:
            commands.main(["nodes", *map(str, words)])
        return int(str(ended.value.code))

    return run


def test_the_command_marks_the_first_bad_row_and_says_what_to_type_next(
    program: Path, status_of: Callable[..., int], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    files = ("--jsonl", tmp_path / "rows.jsonl", "--csv", tmp_path / "rows.csv")
    assert status_of(program, "--backend", "one_op_backends:softmax_off", *files) == 1
    remark = capsys.readouterr().out
    (marked,) = [line for line in remark.splitlines() if "<------" in line]
    assert marked.split()[0] == "softmax"
    last = remark.strip().splitlines()[-1]
    assert last.startswith("next: minidbg reduce "), remark
    assert (tmp_path / last.split()[-1]).is_file()
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [row["status"] for row in rows] == ["ok", "numerics_fail", "ok"]
    assert (tmp_path / "rows.csv").read_text().startswith("node,op,line,shape,dtype,mode,pcc,cosine")


def test_exit_statuses(
    program: Path, status_of: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(program, "--backend", "aot_eager") == 0
    assert "no bad row of 3" in capsys.readouterr().out
    assert status_of(program, "--judge", "psnr>3") == 125
    assert "metrics: pcc" in capsys.readouterr().err
    assert status_of(program, "--mode", "both") == 125
    assert status_of("nothing.py") == 125


@pytest.mark.slow
def test_a_wrong_lowering_of_inductor_is_the_first_bad_row() -> None:
    graph = fx.Graph()
    value = graph.placeholder("x")
    for number in range(MOST_IN_A_CHILD + 5):  # the wrong one is asked for in the second child
        op = torch.relu if number == MOST_IN_A_CHILD + 2 else OPS[number % len(OPS)]
        value = graph.call_function(op, (value,))
    graph.output((value,))
    bug = {"torch._inductor.config": {"cpp.inject_relu_bug_TESTING_ONLY": "accuracy"}}
    x = torch.linspace(-2, 2, 24).reshape(4, 6)
    context = Context(grad=False, config=bug)
    case = case_of(fx.GraphModule({}, graph), (x,), backend_named("inductor"), context=context)
    assert shown(list(node_rows(case, seconds=SECONDS * 2))) == [("relu", "numerics_fail")]
