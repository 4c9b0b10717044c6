"""The drawing of a graph says which nodes were kept, whatever its size; the page stands alone."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest
from lying_repro import LARGE, SMALL, lay, long_capture

from minidbg.report import story_of
from minidbg.report.drawn_graph import MOST_BLOCKS, DrawnNode, fold, kept_names, module_of, read_graph
from minidbg.report.errors_along import ErrorsAlong
from minidbg.report.page import errors_svg, graph_svg, highlighted, page
from minidbg.source.module_text import write_graph_builder


def model_in(script: str) -> str:
    start = script.index("class Repro")
    return script[start : script.index("\n\n\n", start)]


def test_a_graph_is_read_off_the_source_with_what_each_node_reads() -> None:
    nodes = read_graph(model_in(LARGE))
    assert [node.name for node in nodes if node.is_input] == ["x", "layers_0_weight", "layers_1_weight"]
    relu = next(node for node in nodes if node.label == "relu")
    assert (relu.inputs, relu.comment, relu.module) == (("tanh",), "train.py:21", "layers_0")


def test_operators_items_methods_and_statements_have_labels() -> None:
    source = (
        "class Repro(torch.nn.Module):\n    def forward(self, x):\n"
        "        a = x + 1\n        b = a[0]\n        c = b.relu_()\n        d = -c\n"
        "        torch.ops.aten.add_.Tensor(d, 1)\n        e = d.shape\n        f = a @ b\n        return (f,)\n"
    )
    labels = [node.label for node in read_graph(source)][1:]
    assert labels == ["add", "getitem", "relu", "neg", "Tensor", "shape", "matmul"]


def test_a_graph_that_is_built_node_by_node_is_read_too() -> None:
    import torch
    from torch import fx

    written = write_graph_builder(fx.symbolic_trace(lambda x: torch.relu(x) + 1))
    nodes = [(node.label, node.inputs) for node in read_graph(written.text)]
    assert nodes == [("input", ()), ("relu", ("x",)), ("add", ("relu",))]


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("layers_3_attention_weight", "layers_3"),
        ("h_0_ln_1_bias", "h_0"),
        ("ln_f_weight", "ln_f"),
        ("x", ""),
        ("primals_1", ""),
    ],
)
def test_modules_are_told_by_the_names_of_parameters(name: str, module: str) -> None:
    assert module_of(name) == module


def test_kept_nodes_are_found_by_name_or_by_what_they_call_and_where() -> None:
    original, reduced = read_graph(model_in(LARGE)), read_graph(model_in(SMALL))
    assert kept_names(original, reduced) == ({"relu"}, {"tanh"})
    renamed = read_graph(model_in(SMALL).replace("relu = ", "other = ").replace("relu,", "other,"))
    assert kept_names(original, renamed) == ({"relu"}, {"tanh"})


@pytest.mark.parametrize("count", [10, 300, 10_000])
def test_a_graph_of_any_size_is_drawn_in_few_blocks_that_hold_each_node_once(count: int) -> None:
    nodes = read_graph(model_in(long_capture(count)))
    blocks = fold(nodes, {"relu"}, {"tanh"})
    assert len(blocks) <= MOST_BLOCKS + 2
    drawn = [node.name for block in blocks for node in block.nodes]
    assert drawn == [node.name for node in nodes if not node.is_input]
    (alone,) = [block for block in blocks if block.kept]
    assert alone.is_single


def test_a_repro_with_thousands_of_kept_nodes_is_folded_all_the_same() -> None:
    nodes = read_graph(model_in(long_capture(5_000)))
    blocks = fold(nodes, {node.name for node in nodes})
    assert len(blocks) <= MOST_BLOCKS
    assert sum(block.kept for block in blocks) == sum(not node.is_input for node in nodes)


def test_names_cannot_break_out_of_the_drawing() -> None:
    node = DrawnNode("<script>", "relu", (), 'x = "</title><script>"')
    drawing = graph_svg(fold([node], {"<script>"}))
    assert "<script>" not in drawing


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
    drawing = errors_svg(("a", "b", "c"), (0.0, float("inf"), 0.5), 3e-5)
    assert drawing.count("error wrong") == 2


def test_a_page_has_everything_and_loads_nothing(tmp_path: Path) -> None:
    text = page(story_of(lay(tmp_path / "repros")))
    for part in ("What fails", "Where it was", "How it was found", "Where it was seen", "The script"):
        assert f"<h2>{part}</h2>" in text
    assert not re.search(r"""(src|href)\s*=\s*["'](?!#)""", text)
    assert "url(http" not in text
    assert "@import" not in text


def test_a_page_of_a_repro_alone_says_what_is_not_there(tmp_path: Path) -> None:
    alone = tmp_path / "alone.py"
    alone.write_text(lay(tmp_path / "repros").read_text())
    text = page(story_of(alone))
    assert "no capture of the graph that it came from lies beside it" in text
    assert "How it was found" not in text
    assert "Not watched yet" in text
