"""What written source looks like."""

from __future__ import annotations

import collections
import enum
import math
import operator
import subprocess
import sys
import typing

import pytest
import torch
from support.graphs_to_write import assert_round_trip, forward_of, graph_of, module_of
from torch import fx, nn

from minidbg.codegen.module_text import instantiate, write_module
from minidbg.codegen.names import LOADED_WITH_TORCH
from minidbg.codegen.parse import read_module
from minidbg.core.errors import CannotWrite


class Colour(enum.Enum):
    RED = 1


class Pair(typing.NamedTuple):
    left: object
    right: object


def foreign(x: torch.Tensor) -> torch.Tensor:
    return x


def line_of(target: object, *args: object, **kwargs: object) -> str:
    """The statement written for one call; ``...X`` in ``args`` stands for the input."""
    gm = graph_of(lambda g, x: g.call_function(target, tuple(x if arg is X else arg for arg in args), kwargs))
    source = assert_round_trip(gm)
    return forward_of(source)[0].partition(" = ")[2]


X = object()


@pytest.mark.parametrize(
    ("target", "args", "expected"),
    [
        (operator.add, (X, 1), "x + 1"),
        (operator.sub, (2.5, X), "2.5 - x"),
        (operator.pow, (-1, X), "(-1) ** x"),
        (operator.pow, (X, -1), "x ** -1"),
        (operator.matmul, (X, X), "x @ x"),
        (operator.neg, (X,), "-x"),
        (operator.not_, (X,), "not x"),
        (operator.is_, (X, None), "operator.is_(x, None)"),
        (operator.add, (1, 2), "operator.add(1, 2)"),
        (operator.iadd, (X, 1), "operator.iadd(x, 1)"),
        (operator.getitem, (X, 0), "x[0]"),
        (operator.getitem, (X, (slice(None), slice(1, None))), "x[:, 1:]"),
        (operator.getitem, (X, (Ellipsis, None, slice(0, -1, 2))), "x[..., None, 0:-1:2]"),
        (operator.getitem, (X, (0,)), "x[0,]"),
        (operator.getitem, (X, ()), "x[()]"),
        (operator.getitem, (X, [0, 1]), "x[[0, 1]]"),
        (operator.getitem, (X, slice(None)), "x[:]"),
        (getattr, (X, "T"), "x.T"),
        (getattr, (X, "no identifier"), "getattr(x, 'no identifier')"),
        (getattr, (X, "__mangled"), "getattr(x, '__mangled')"),
        (getattr, (X, "data"), "getattr(x, 'data')"),
        (torch.relu, (X,), "torch.relu(x)"),
        (torch.nn.functional.linear, (X, X), "torch.nn.functional.linear(x, x)"),
        (torch.ops.aten.add.Tensor, (X, 1), "torch.ops.aten.add.Tensor(x, 1)"),
        (torch.ops.aten.add, (X, 1), "torch.ops.aten.add(x, 1)"),
        (torch._C._set_grad_enabled, (False,), "torch._C._set_grad_enabled(False)"),
        (torch.Tensor.add, (X, 1), "torch.Tensor.add(x, 1)"),
        (math.sqrt, (X,), "math.sqrt(x)"),
        (abs, (X,), "abs(x)"),
        (operator.abs, (X,), "operator.abs(x)"),
        (collections.OrderedDict, ([],), "collections.OrderedDict([])"),
        (torch._C._nn.gelu, (X,), "torch.nn.functional.gelu(x)"),
        (torch.nn.functional.conv2d, (X, X), "torch.conv2d(x, x)"),
        (torch.special.expit, (X,), "torch.special.expit(x)"),
        (torch.ops.higher_order.cond, (X, 1, 2, ()), "torch.ops.higher_order.cond(x, 1, 2, ())"),
        (torch.sym_max, (X, 1), "torch.sym_max(x, 1)"),
        (math.floor, (X,), "math.floor(x)"),
        (len, (X,), "len(x)"),
    ],
)
def test_a_call_is_written_as_a_person_would(target: object, args: tuple[object, ...], expected: str) -> None:
    assert line_of(target, *args) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "None"),
        (-0.0, "-0.0"),
        (math.inf, 'float("inf")'),
        (-math.inf, 'float("-inf")'),
        (math.nan, 'float("nan")'),
        (complex(1, -0.0), "complex(1.0, -0.0)"),
        ("it's \n\\", repr("it's \n\\")),
        (b"\x00", r"b'\x00'"),
        (Ellipsis, "..."),
        (torch.bfloat16, "torch.bfloat16"),
        (torch.device("cuda", 1), "torch.device('cuda:1')"),
        (torch.strided, "torch.strided"),
        (torch.channels_last, "torch.channels_last"),
        (slice(1, None), "slice(1, None, None)"),
        (range(3), "range(0, 3, 1)"),
        ([1, (2,), {"a": [None]}], "[1, (2,), {'a': [None]}]"),
        (torch.nn.attention.SDPBackend.MATH, "torch.nn.attention.SDPBackend.MATH"),
        (torch.relu, "torch.relu"),
    ],
)
def test_an_argument_is_written_as_a_literal(value: object, expected: str) -> None:
    assert line_of(torch.add, X, value) == f"torch.add(x, {expected})"


def test_classes_and_functions_of_other_modules_are_imported_by_name() -> None:
    gm = graph_of(lambda g, x: g.call_function(foreign, (x, Pair(x, 1), Colour.RED)))
    source = assert_round_trip(gm)
    assert source.imports == (f"import {__name__}",)
    predispatch = graph_of(
        lambda g, x: g.call_function(torch._functorch.predispatch._add_batch_dim, (x, 0, 1))
    )
    assert write_module(predispatch).imports == ("import torch._functorch.predispatch",)
    called = f"{__name__}.foreign(x, {__name__}.Pair(x, 1), {__name__}.Colour.RED)"
    assert forward_of(source)[0] == f"foreign = {called}"


def test_keywords_that_are_no_identifiers_travel_in_a_dict() -> None:
    assert line_of(torch.sum, X, dim=0) == "torch.sum(x, dim=0)"
    line = line_of(torch.sum, X, **{"no identifier": 1, "dim": 0})
    assert line == "torch.sum(x, **{'no identifier': 1, 'dim': 0})"


def test_item_assignment_is_a_statement_and_values_that_nobody_uses_get_no_name() -> None:
    def build(g: fx.Graph, x: fx.Node) -> fx.Node:
        g.call_function(operator.setitem, (x, (slice(None), 0), 3))
        g.call_method("add_", (x, 1))
        g.call_function(torch.relu, (x,))
        return x

    lines = forward_of(assert_round_trip(graph_of(build)))
    assert lines == ["x[:, 0] = 3", "x.add_(1)", "torch.relu(x)", "return x"]


enter, exit = torch.amp.autocast_mode._enter_autocast, torch.amp.autocast_mode._exit_autocast


def test_autocast_is_a_block_where_it_nests() -> None:
    def build(g: fx.Graph, x: fx.Node) -> fx.Node:
        outer = g.call_function(enter, ("cpu", torch.bfloat16, True, None))
        outer.meta["stack_trace"] = '  File "/home/me/train.py", line 41, in f\n'
        inner = g.call_function(enter, ("cpu", torch.bfloat16, False, None))
        g.call_function(exit, (inner,))
        y = g.call_function(torch.relu, (x,))
        g.call_function(exit, (outer,))
        return y

    source = assert_round_trip(graph_of(build))
    assert "torch.bfloat16, True, None):  # train.py:41\n" in source.text
    assert forward_of(source) == [
        "with torch.autocast('cpu', torch.bfloat16, True, None):",
        "with torch.autocast('cpu', torch.bfloat16, False, None):",
        "pass",
        "relu = torch.relu(x)",
        "return relu",
    ]


def test_a_nested_class_takes_no_name_of_an_attribute() -> None:
    body = graph_of(lambda g, x: x)

    def build(g: fx.Graph, x: fx.Node) -> tuple[fx.Node, fx.Node]:
        return g.call_module("body", (x,)), g.get_attr("Body")

    source = assert_round_trip(graph_of(build, root={"body": body, "Body": torch.ones(1)}))
    assert "self.body = self.Body_1()" in source.text


def test_names_come_from_the_users_code() -> None:
    graph = fx.Graph()
    names = {
        "L_self_modules_h_modules_0_modules_ln_1_parameters_weight_": "h_0_ln_1_weight",
        "L_x_": "x",
        "L_self_modules_0_buffers_mean_": "layer_0_mean",
        "L_a_modules_w": "w",
        "L_b_modules_w": "w_1",
        "L_lambda_": "lambda_",
        "L_torch_": "torch_",
        "s77": "s77",
        "L_kwargs_input_ids_": "kwargs_input_ids",
    }
    graph.output([graph.placeholder(target) for target in names])
    assert assert_round_trip(module_of(graph)).input_names == tuple(names.values())


def test_lines_say_where_they_come_from() -> None:
    gm = graph_of(lambda g, x, y: g.call_function(torch.add, (x, y)), inputs=2)
    add = next(node for node in gm.graph.nodes if node.op == "call_function")
    add.meta["stack_trace"] = (
        f'  File "/home/me/train.py", line 41, in f\n    y = g(x)\n  File "{torch.__file__}", line 3, in g\n'
    )
    source = assert_round_trip(gm)
    assert source.text == (
        "class Repro(torch.nn.Module):\n"
        "    def forward(self, x, y):\n"
        "        add = torch.add(x, y)  # train.py:41\n"
        "        return add\n"
    )


def local() -> None: ...


local.__module__, local.__qualname__ = "minidbg.codegen.names", "reference_to"  # a name that leads elsewhere
REFUSED = {
    "<lambda>.*no import leads to it": lambda g, x: g.call_function(lambda x: x, (x,)),
    "reference_to.*no import leads to it": lambda g, x: g.call_function(local, (x,)),
    "__call__.*no import leads to it": lambda g, x: g.call_function(torch.relu.__call__, (x,)),
    "of type builtins.object": lambda g, x: g.call_function(torch.add, (x, object())),
    "of type torch.Tensor": lambda g, x: g.call_function(torch.add, (x, torch.ones(2))),
    "'inner' of type Linear.*give the model instead": lambda g, x: g.call_module("inner", (x,)),
    "it takes a varying number of values": lambda g, x: g.placeholder("*args"),
}


def test_what_has_no_form_is_refused_by_name() -> None:
    for message, build in REFUSED.items():
        with pytest.raises(CannotWrite, match=message):
            write_module(graph_of(build, root={"inner": nn.Linear(2, 2)}))


def test_many_inputs_take_as_many_lines_as_they_need() -> None:
    gm = graph_of(lambda g, *xs: xs, inputs=6)
    for index, node in enumerate(list(gm.graph.nodes)[:-1]):
        node.target = f"a_long_name_of_an_input_{index}"
    source = assert_round_trip(gm)
    assert max(map(len, source.text.splitlines()[:-1])) <= 110
    assert "    def forward(\n        self, a_long_name_of_an_input_0, a_long" in source.text


def test_hostile_strings_stay_strings() -> None:
    """Names, file names and values of a graph are text from strangers."""
    evil = 'x"\'\n\r\u2028\x00\\"""\n        import os; raise SystemExit  # '
    graph = fx.Graph()
    x = graph.placeholder(evil)
    y = graph.create_node("call_function", torch.add, (x, evil), {evil: {evil: evil}}, name=evil)
    frames = f'  File "/tmp/{evil}.py", line 3, in {evil}\n', '  File "/tmp/a\r# b\x0c.py", line 4, in f\n'
    y.meta["stack_trace"] = "".join(frames)
    z = graph.call_function(getattr, (y, evil))
    graph.get_attr("holder.import os; raise SystemExit")
    graph.output({evil: z})
    gm = module_of(graph, {"holder.import os; raise SystemExit": torch.ones(2)})
    source = assert_round_trip(gm)
    assert "# a?# b?.py:4" in source.text
    instantiate(source)


def test_nested_graphs_are_nested_classes_and_stay_one_object() -> None:
    inner = graph_of(lambda g, x: g.call_method("relu", (x,)))

    def build(g: fx.Graph, x: fx.Node) -> fx.Node:
        one, two = g.get_attr("body_0"), g.get_attr("again")
        y = g.call_function(torch.ops.higher_order.tag_activation_checkpoint, (one, x))
        return g.call_function(torch.ops.higher_order.tag_activation_checkpoint, (two, y))

    gm = graph_of(build, root={"body_0": inner, "again": inner})
    source = assert_round_trip(gm)
    assert "    class Body0(torch.nn.Module):" in source.text
    assert "        self.again = self.body_0\n" in source.text
    assert source.text.count(".relu()") == 1


def test_constants_are_made_in_init_by_the_given_expression() -> None:
    root = {"free": nn.Parameter(torch.ones(4), requires_grad=False), "in.0": torch.zeros(65)}
    gm = graph_of(lambda g, x: [g.get_attr(name) for name in root], root=root)
    source = write_module(gm, constant_expression=lambda name, value: f"torch.zeros({value.numel()})")
    assert "        self.free = torch.nn.Parameter(torch.zeros(4), requires_grad=False)\n" in source.text
    assert "        self.register_buffer('in_0', torch.zeros(65))\n" in source.text
    assert source.constants["free"] is gm.free
    built = instantiate(write_module(gm)).state_dict()
    assert {name: value.sum() for name, value in built.items()} == {"free": 4, "in_0": 0}


EDITED = """
y = x
y = 3
y = torch.relu(torch.relu(x))
y = x.relu().relu()
y = x + 1 + 2
y = x < 1 < 2
y = x; y = torch.relu(y)
x += 1; y = x
y, z = x.max(0)
y = z.relu()
y = torch.no_such_function(x)
y = torch.pi(x)
y = torch.relu(*x)
y = torch.relu(**x)
y = self.missing
y = self
y = [a for a in x]
y = torch.add(x, lambda: 1)
y = torch.add(x, f'{x}')
y = torch.add(x, x.name)
y = torch.add(x, x == 1)
y = torch.add(x, isinstance(x, torch.Tensor))
y = torch.add(x, torch.ones(2))
y = torch.add(x, 2 ** 3)
"""


def test_what_a_person_has_edited_is_not_taken_for_ours() -> None:
    form = "class Repro(torch.nn.Module):\n    def forward(self, {}):\n        {}\n        return y\n"
    texts = [form.format("x", line) for line in EDITED.strip().splitlines()]
    texts += [form.format(one, "y = torch.relu(x)") for one in ("*x", "**x", "*, x", "x, /")]
    one = form.format("x", "y = torch.relu(x)")
    block, helper = (
        "with torch.no_grad():\n            y = torch.relu(x)",
        "    def helper(self):\n        return 1\n",
    )
    texts += [f"@torch.no_grad\n{one}", one + helper, form.format("x", block), one.replace("return y", "y")]

    def is_taken(text: str) -> bool:
        names: dict[str, object] = {"torch": torch}
        exec(text, names)
        return read_module(text, names) is not None

    assert not list(filter(is_taken, texts))
    assert is_taken(one)
    assert is_taken(one.replace("(x)", "(  x )  # relu"))
    assert is_taken(form.format("x", "y = torch.ones(-1)")), "nothing of it is run"


@pytest.mark.slow
def test_import_torch_alone_brings_the_modules_that_are_taken_for_granted() -> None:
    asked = f"import torch\nfor name in {sorted(LOADED_WITH_TORCH)}: eval(name)"
    subprocess.run([sys.executable, "-c", asked], check=True, timeout=120)
