"""``minidbg.stats()``: each graph counts once, as verified, failed, not run, or not verified for a reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from minidbg.backend import stats
from minidbg.backend.standing import PROCESS, of_new_graph, write_stats
from minidbg.run.launch import graph_lines


@pytest.fixture(autouse=True)
def _no_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minidbg.backend.standing.GRAPHS", [])
    monkeypatch.delenv("MINIDBG_STATS", raising=False)
    PROCESS.reset()


def test_each_graph_counts_once() -> None:
    verified, wrong, refused, _, both = (of_new_graph() for _ in range(5))
    verified.verified = True
    verified.leave_out("output 0 is not judged")
    wrong.verified = wrong.failed = True
    refused.not_verified("no memory")
    refused.not_verified("another reason of a later call")
    both.not_verified("no memory")
    both.verified = True
    found = stats()
    assert (found.graphs, found.verified, found.failed, found.not_run) == (5, 2, 1, 1)
    assert (found.not_verified, found.left_out) == ({"no memory": 1}, {"output 0 is not judged": 1})


def test_a_forked_childs_graphs_are_not_its_parents() -> None:
    of_new_graph().process += 1
    assert stats().graphs == 0


def test_a_process_appends_its_line_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "stats.jsonl"
    monkeypatch.setenv("MINIDBG_STATS", str(file))
    write_stats()
    assert not file.exists(), "nothing was compiled"
    of_new_graph().verified = True
    write_stats()
    write_stats()
    assert [json.loads(line)["verified"] for line in file.read_text().splitlines()] == [1, 1]


def test_the_end_of_minidbg_run_counts_the_graphs_of_all_processes() -> None:
    one = {"graphs": 3, "verified": 1, "not_run": 1, "not_verified": {"no memory": 1}, "left_out": {}}
    other = {"graphs": 1, "verified": 1, "not_run": 0, "not_verified": {}, "left_out": {"output 0": 1}}
    assert graph_lines([one, other]) == [
        "2 of 3 graphs that ran agree with eager",
        "1 not verified: no memory",
        "1 verified in part: output 0",
    ]
    assert graph_lines([]) == []
