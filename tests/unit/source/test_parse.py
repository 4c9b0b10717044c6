"""Source that is read back without tracing, and source that is refused."""

from __future__ import annotations

import operator
import textwrap

import pytest
import torch
from torch import fx

from minidbg.source.parse import NotOurForm, read_module
from minidbg.source.size import canonical_text


def read(body: str, *, parameters: str = "self, x", around: str = "") -> fx.GraphModule:
    """The graph of a class with this ``forward``."""
    forward = f"def forward({parameters}):\n{textwrap.indent(textwrap.dedent(body), '    ')}"
    text = f"class Repro(torch.nn.Module):\n{textwrap.indent(around + forward, '    ')}\n"
    return read_module(text, {"torch": torch, "operator": operator})


def test_nothing_is_folded_dropped_or_reordered() -> None:
    """What symbolic tracing would bake into a constant or lose."""
    gm = read(
        """
        full = torch.full((), 3.0)
        cumsum = full.cumsum(0)
        torch._C._set_grad_enabled(False)
        torch.relu(x)
        torch._C._set_grad_enabled(True)
        return (cumsum,)
        """
    )
    targets = [node.target for node in gm.graph.nodes if node.op.startswith("call")]
    grad = torch._C._set_grad_enabled
    assert targets == [torch.full, "cumsum", grad, torch.relu, grad]


def test_reading_does_not_run_forward() -> None:
    gm = read("y = torch.ones(-1)\nreturn y")
    assert [node.op for node in gm.graph.nodes] == ["placeholder", "call_function", "output"]


def test_class_text_may_be_indented_as_in_a_function() -> None:
    text = "    class Repro(torch.nn.Module):\n        def forward(self, x):\n            return x\n"
    assert read_module(text, {"torch": torch}).graph.find_nodes(op="placeholder")


def test_comments_become_meta_again() -> None:
    gm = read("y = torch.relu(x)  # train.py:41\nreturn y")
    _, y, _ = gm.graph.nodes
    assert y.meta["stack_trace"] == '  File "train.py", line 41, in forward\n'


def test_a_result_without_a_name_takes_no_name_that_comes_later() -> None:
    gm = read("torch.relu(x)\nrelu = torch.relu(x)\nreturn relu")
    assert [node.name for node in gm.graph.nodes][1:3] == ["relu_1", "relu"]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("y = x\nreturn y", "no single operation"),
        ("y = 3\nreturn y", "no single operation"),
        ("y = torch.relu(torch.relu(x))\nreturn y", "the call torch.relu"),
        ("y = x.a.b()\nreturn y", "nothing is called x;"),
        ("y = x + 1 + 2\nreturn y", "in an argument"),
        ("y = x < 1 < 2\nreturn y", "no single operation"),
        ("y = torch.relu(x)\ny = torch.relu(y)\nreturn y", "assigned twice"),
        ("x += 1\nreturn x", "AugAssign"),
        ("if x:\n    return x\nreturn x", "If"),
        ("for i in x:\n    pass\nreturn x", "For"),
        ("y, z = x.max(0)\nreturn y", "Assign"),
        ("y = z.relu()\nreturn y", "nothing is called z"),
        ("y = torch.no_such_function(x)\nreturn y", "nothing is called torch.no_such_function"),
        ("y = torch.pi(x)\nreturn y", "cannot be called"),
        ("y = torch.relu(*x)\nreturn y", "in an argument"),
        ("y = torch.relu(**x)\nreturn y", "no dict"),
        ("y = self.missing\nreturn y", "self.missing"),
        ("with torch.no_grad():\n    y = torch.relu(x)\nreturn y", "a block of torch.no_grad"),
        ("y = torch.relu(x)", "does not end in return"),
        ("y = [a for a in x]\nreturn y", "no single operation"),
        ("y = torch.add(x, lambda: 1)\nreturn y", "in an argument"),
        ("y = torch.add(x, f'{x}')\nreturn y", "in an argument"),
    ],
)
def test_other_forms_are_refused_with_their_line(body: str, why: str) -> None:
    with pytest.raises(NotOurForm, match=why):
        read(body)


@pytest.mark.parametrize("parameters", ["self, *x", "self, **x", "self, *, x", "self, x, /"])
def test_parameters_of_other_kinds_are_refused(parameters: str) -> None:
    with pytest.raises(NotOurForm, match="plain parameters"):
        read("return 1", parameters=parameters)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("x = 1", "exactly one class"),
        ("class A:\n  def", "does not parse"),
        ("class A(torch.nn.Module):\n    pass", "a class holds only"),
        ("class A(torch.nn.Module):\n    def __init__(self, a):\n        pass", "takes arguments"),
        ("class A(torch.nn.Module):\n    def __init__(self):\n        super().__init__()", "no forward"),
        ("class A(torch.nn.Module):\n    def helper(self):\n        pass", "a class holds only"),
        ("@torch.no_grad\nclass A(torch.nn.Module):\n    def forward(self):\n        return 1", "decorator"),
        ("class A(torch.nn.Module):\n    torch.this_would_raise", "a class holds only"),
    ],
)
def test_other_classes_are_refused_and_not_run(text: str, why: str) -> None:
    with pytest.raises(NotOurForm, match=why):
        read_module(text, {"torch": torch})


def test_negative_numbers_are_numbers_and_negated_values_are_nodes() -> None:
    gm = read("y = -x\nz = torch.add(y, -1)\nreturn z")
    _, neg, add, _ = gm.graph.nodes
    assert neg.target is operator.neg
    assert add.args == (neg, -1)


def test_constants_of_nested_graphs_are_read_from_the_instance() -> None:
    inner = (
        "class Body(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.register_buffer('c', torch.ones(2))\n"
        "    def forward(self, x):\n"
        "        c = self.c\n"
        "        add = x + c\n"
        "        return add\n"
        "def __init__(self):\n"
        "    super().__init__()\n"
        "    self.body = self.Body()\n"
    )
    gm = read("body = self.body(x)\nreturn body", around=inner)
    assert isinstance(gm.body, fx.GraphModule)
    assert torch.equal(gm(torch.ones(2)), torch.full((2,), 2.0))
    assert "operator.add" in canonical_text(gm)
