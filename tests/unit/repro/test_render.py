"""The text of a script."""

import ast
import math
import runpy

import pytest
import torch
from support.graphs_to_write import graph_of

from minidbg.core.errors import CannotWrite
from minidbg.core.outcome import Kind, Signature
from minidbg.core.run_spec import BackendRef, CallPath, Context
from minidbg.repro import Exactness, Form, render, write


def top_of(case, **arguments):
    """The parts of the failure: imports, backend, model and inputs."""
    text = render(case, Form.CAPTURE, **arguments).text.partition("sys.exit(125))\n")[2]
    return text.split('if __name__ == "__main__"')[0]


def with_constant(value):
    return graph_of(lambda g, x: (g.call_function(torch.add, (x, g.get_attr("mask"))),), root={"mask": value})


@pytest.mark.parametrize("form", Form)
def test_a_script_never_names_minidbg_in_its_code(make_case, form):
    tree = ast.parse(render(make_case(), form).text)
    imports = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    assert imports
    assert "minidbg" not in "".join(imports)


def test_text_that_is_no_python_is_refused(make_case):
    with pytest.raises(CannotWrite, match="no Python"):
        render(make_case(backend=BackendRef("b", "<function b at 0x7f>")))


def test_float32_is_written_out_where_the_default_is_another(make_case):
    case = make_case(context=Context(default_dtype="torch.float64"))
    assert "torch.randn(4, 8, dtype=torch.float32, device=device)" in top_of(case)


def test_small_tensors_of_a_graph_are_literal_integers_and_nan_stored_and_weights_random(make_case):
    torch.manual_seed(0)
    with_nan = torch.randn(300).index_fill(0, torch.tensor([7]), math.nan)
    small, weights, table, odd = (
        make_case(with_constant(value), (torch.randn(400),))
        for value in (torch.tensor([1.5, -2.0]), torch.randn(400) * 3, torch.randint(0, 99, (300,)), with_nan)
    )
    assert "self.register_buffer('mask', torch.tensor([1.5, -2.0]))" in top_of(small).replace('"', "'")
    assert "torch.randn(400, generator=torch.Generator().manual_seed(1)) * 3)" in top_of(weights)
    assert not render(weights).tensors
    assert list(render(weights, exactness=Exactness.EXACT).tensors) == ["Repro.mask", "x"]
    assert "safetensors" in top_of(table)
    assert list(render(table).tensors) == list(render(odd).tensors) == ["Repro.mask"]


def test_values_beyond_the_limit_are_refused(make_case):
    case = make_case(inputs=(torch.randn(100, 100),))
    with pytest.raises(CannotWrite, match="value_limit_bytes"):
        render(case, exactness=Exactness.EXACT, value_limit_bytes=39_999)
    assert render(case, exactness=Exactness.EXACT, value_limit_bytes=40_000).tensors
    assert render(case, value_limit_bytes=0)


@pytest.mark.parametrize("form", [Form.SHORT, Form.SHOWS])
@pytest.mark.parametrize("call", CallPath)
@pytest.mark.parametrize("kind", Kind)
def test_every_script_can_be_imported(make_case, tmp_path, kind, call, form):
    path = write(make_case(signature=Signature(kind), call=call), tmp_path / "r.py", form)
    assert ("test_repro" in runpy.run_path(str(path), run_name="r")) is (form is Form.SHORT)


def test_dynamic_dimensions_are_marked(make_case):
    case = make_case(dynamic=True, dynamic_dims=((0, 1),))
    marks = "torch._dynamo.maybe_mark_dynamic(x, 0)\n    torch._dynamo.maybe_mark_dynamic(x, 1)"
    assert marks in top_of(case)
