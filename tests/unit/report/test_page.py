"""The page lists the captured graph and says what became of each node, whatever its size; it stands alone."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest
import torch
from support.lying_repro import NODES, lay, long_capture, node_list
from torch import fx

from minidbg.report import story_of
from minidbg.report.errors_along import ErrorsAlong
from minidbg.report.marked_nodes import Mark, left_in
from minidbg.report.page import MOST_LISTED, highlighted, page
from minidbg.source.module_text import write_graph_builder
from minidbg.source.node_list import MARK, ListedNode


@pytest.fixture
def repro(tmp_path: Path) -> Path:
    return lay(tmp_path / "repros")


def capture_of(repro: Path) -> Path:
    (capture,) = repro.parent.glob(".minidbg/captures/*.py")
    return capture


def rows_of(text: str) -> list[str]:
    """The lines of the page's lists of nodes, without markup."""
    rows = re.findall(r'<tr class="\w*">(.*?)</tr>', text)
    return [" ".join(html.unescape(re.sub(r"<[^>]*>", " ", row)).split()) for row in rows]


def marks(model: str, *nodes: ListedNode) -> list[Mark]:
    left = left_in(model)
    return [left.mark(node) for node in nodes]


MODEL = """class Repro(torch.nn.Module):
    class CondTrue0(torch.nn.Module):
        def forward(self, y):
            sin = torch.sin(y)  # a.py:9
            return (sin,)

    def forward(self, x, tanh):
        relu = torch.relu(tanh)  # a.py:1
        relu.add_(x)  # a.py:2
        relu[0] = x  # a.py:3
        with torch.autocast('cpu', None, True, None):
            mm = relu @ x  # a.py:4
        return (mm,)
"""


def test_nodes_are_kept_become_inputs_or_are_removed_by_name_and_line() -> None:
    kept = [ListedNode("x", "input"), ListedNode("relu", "relu", place="a.py:1")]
    kept += [ListedNode("mm", "matmul", place="a.py:4"), ListedNode("sin", "sin", place="a.py:9")]
    assert marks(MODEL, *kept) == [Mark.KEPT] * 4
    assert marks(MODEL, ListedNode("tanh", "tanh", place="a.py:1")) == [Mark.AS_INPUT]
    gone = [ListedNode("w", "input"), ListedNode("relu", "relu", place="a.py:8"), ListedNode("y", "input")]
    assert marks(MODEL, *gone) == [Mark.REMOVED] * 3


def test_a_value_that_took_the_name_of_an_input_is_found_by_what_it_reads() -> None:
    """Seen with a linear, relu, linear, relu: of ``x`` and ``x_1`` one was left, and was written as ``x``."""
    model = """class Repro(torch.nn.Module):
    def forward(self, linear):
        x = torch.relu(linear)  # a.py:1
        return (x,)
"""
    relu, other = (
        ListedNode("x_1", "relu", "linear", place="a.py:1"),
        ListedNode("x_2", "relu", "linear_1", place="a.py:1"),
    )
    found = marks(
        model, ListedNode("x", "input", place="a.py:1"), ListedNode("linear", "linear"), relu, other
    )
    assert found == [Mark.REMOVED, Mark.AS_INPUT, Mark.KEPT, Mark.REMOVED]


def test_calls_without_a_name_and_blocks_are_found_by_op_and_line() -> None:
    kept = [ListedNode("", "add_", place="a.py:2"), ListedNode("", "setitem", place="a.py:3")]
    kept += [ListedNode("_enter_autocast", "_enter_autocast"), ListedNode("", "_exit_autocast")]
    assert marks(MODEL, *kept) == [Mark.KEPT] * 4
    gone = [ListedNode("", "add_", place="a.py:7"), ListedNode("", "mul_", place="a.py:2")]
    assert marks(MODEL, *gone) == [Mark.REMOVED] * 2


def test_a_graph_that_is_built_node_by_node_is_compared_too() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return torch.relu(x)

    model = write_graph_builder(fx.symbolic_trace(f)).text
    assert left_in(model).inputs == ("x",)
    nodes = [ListedNode("x", "add"), ListedNode("add_", "add_"), ListedNode("relu", "relu")]
    assert marks(model, *nodes) == [Mark.AS_INPUT, Mark.KEPT, Mark.KEPT]


def test_a_script_whose_model_a_person_wrote_anew_keeps_nothing_and_is_no_error() -> None:
    assert marks("class Repro(torch.nn.Sequential):\n    pass\n", ListedNode("x", "input")) == [Mark.REMOVED]


def test_what_is_left_stands_on_top_with_the_program_s_lines_and_the_rest_is_folded(repro: Path) -> None:
    text = page(story_of(repro))
    assert (
        "The 8 inputs and nodes of the graph as it was captured: 1 kept, 1 became an input, 6 removed."
        in text
    )
    top, _, folded = text.partition("<details><summary>6 removed</summary>")
    assert rows_of(top) == [
        "5 became an input tanh = tanh(linear) float32[2, 2] train.py:21 x = torch.tanh(x)",
        "6 kept relu = relu(tanh) float32[2, 2] train.py:21 x = torch.relu(x)",
    ]
    assert rows_of(folded)[0] == "1 removed x input float32[2, 2] train.py:20 x = self.layer(x)"
    assert len(rows_of(folded)) == 6


def test_a_capture_s_own_page_lists_its_graph_without_marks(repro: Path) -> None:
    text = page(story_of(capture_of(repro)))
    assert "The 8 inputs and nodes of the graph as it was captured." in text
    assert len(rows_of(text)) == 8
    assert "removed" not in text
    assert "linear_1" in text
    assert MARK[2:40] not in text, "the list is no part of the script"


@pytest.mark.parametrize(
    "damage", ["# [1, 2]", "# {}[", '# ["a", "b", "c", "d", "e", "f", "g", "h"]', "# " + "[" * 50_000]
)
def test_a_capture_without_a_list_or_with_a_damaged_one_shows_the_repro_s_graph_and_says_so(
    repro: Path, damage: str
) -> None:
    capture = capture_of(repro)
    capture.write_text(f"{capture.read_text()}{damage}\n")
    said = "The script&#39;s own graph stands above: its capture carries no list of its nodes."
    assert said in page(story_of(repro))
    capture.write_text(capture.read_text().partition(MARK)[0])
    text = page(story_of(repro))
    assert said in text
    assert rows_of(text) == []


def test_more_nodes_than_a_browser_likes_are_counted_and_not_listed(repro: Path) -> None:
    capture_of(repro).write_text(long_capture(MOST_LISTED + 5_000))
    text = page(story_of(repro))
    assert len(rows_of(text)) == MOST_LISTED + 2, "and the two that are left"
    assert f"The first {MOST_LISTED} of 25001; the capture lists all." in text


def test_names_and_lines_of_strangers_are_text(repro: Path) -> None:
    capture, evil = capture_of(repro), "</code></table><script>\u202e\x1b"
    nodes = [*NODES, [evil] * 7]
    capture.write_text(capture.read_text().partition(MARK)[0] + node_list(nodes))
    text = page(story_of(repro))
    assert "&lt;/code&gt;&lt;/table&gt;&lt;script&gt;\\u202e\\x1b" in text
    assert "<script" not in text


@pytest.mark.parametrize("path", sorted((Path(__file__).parents[3] / "minidbg" / "report").glob("*.py")))
def test_highlighting_changes_no_character(path: Path) -> None:
    source = path.read_text()
    shown = highlighted(source)
    assert '<span class="k' in shown
    assert html.unescape(re.sub(r"</?span[^>]*>", "", shown)) == source


def test_source_that_is_no_python_is_shown_and_escaped() -> None:
    shown = highlighted("'''open <b>\n")
    assert html.unescape(re.sub(r"</?span[^>]*>", "", shown)) == "'''open <b>\n"
    assert "<b>" not in shown


def test_errors_along_a_graph_name_the_first_wrong_node() -> None:
    found = ErrorsAlong(("a", "b", "c"), (1e-7, None, 0.5), 3e-5)
    assert found.first_wrong == "c"
    assert ErrorsAlong(("a",), (0.0,), 3e-5).first_wrong == ""


def test_each_measured_value_has_a_bar_and_what_is_wrong_stands_out(repro: Path) -> None:
    errors = ErrorsAlong(("linear", "tanh", "relu", "linear_1"), (0.0, None, 1e-4, float("inf")), 3e-5)
    text = page(story_of(repro), errors)
    bars = re.findall(r'<td class="error( wrong)?"><span>(.*?)</span><i style="width: (.*?)px">', text)
    assert bars == [(" wrong", "0.0001", "36.0"), ("", "0", "0.0"), (" wrong", "inf", "72.0")]
    assert "is that of <b>relu</b>" in text
    assert "<details open><summary>6 removed</summary>" in text


def test_errors_of_a_script_without_a_list_are_listed_by_their_names(tmp_path: Path, repro: Path) -> None:
    alone = tmp_path / "alone.py"
    alone.write_text(repro.read_text())
    text = page(story_of(alone), ErrorsAlong(("relu",), (0.5,), 3e-5))
    assert rows_of(text) == ["1 relu 0.5"]


def test_the_course_of_a_reduction_is_a_table_of_what_was_smaller_each_time(repro: Path) -> None:
    text = page(story_of(repro))
    assert "6 runs: 3 failed the same way, 1 passed, 1 failed otherwise, 1 proved nothing." in text
    rows = re.findall(
        r"<tr><td>(\d+)</td><td>(\d+)</td><td>(\d+)</td><td>(\w+)</td><td>(.*?)</td></tr>", text
    )
    assert rows == [
        ("1", "5", "1", "suspects", "0.10"),
        ("3", "3", "1", "suspects", "0.10"),
        ("5", "1", "1", "suspects", "0.10"),
    ]


def test_a_page_has_everything_and_loads_nothing(repro: Path) -> None:
    text = page(story_of(repro))
    for part in ("What fails", "Where it was seen", "Facts", "The captured graph", "How it was found"):
        assert f"<h2>{part}</h2>" in text
    assert not re.search(r"""(src|href)\s*=\s*["']""", text)
    assert "<script" not in text
    assert "url(http" not in text
    assert "@import" not in text


def test_a_page_of_a_repro_alone_says_what_is_not_there(tmp_path: Path, repro: Path) -> None:
    alone = tmp_path / "alone.py"
    alone.write_text(repro.read_text())
    text = page(story_of(alone))
    assert "no capture of the graph that it came from lies beside it" in text
    assert "How it was found" not in text
    assert "Not watched yet" in text
