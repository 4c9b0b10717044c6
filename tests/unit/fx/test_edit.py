"""Graphs cut out of graphs: what becomes an input, what comes out, what stays around."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx

from minidbg import torch_internals
from minidbg.fx.copying import capture_by_dynamo
from minidbg.fx.edit import CannotExtract, Piece, extract
from minidbg.fx.effects import is_call
from minidbg.fx.record import Recording


def recorded(function: Callable[..., Any], *inputs: Any) -> Recording:
    return Recording(fx.symbolic_trace(function), inputs)


def cut(recording: Recording, *names: str, **how: Any) -> Piece:
    piece = extract(recording, nodes(recording, *names), **how)
    piece.graph_module.graph.lint()
    return piece


def nodes(recording: Recording, *names: str) -> set[fx.Node]:
    found = {node for node in recording.nodes if node.name in names}
    assert len(found) == len(names)
    return found


def body(piece: Piece) -> list[str]:
    """The lines of forward, without what frees values."""
    lines = piece.graph_module.code.strip().splitlines()
    return [line.partition(";")[0].strip() for line in lines]


def chain(x: Tensor) -> Tensor:
    return x.sin().cos().tanh()


def split(x: Tensor) -> Tensor:
    first, second = x.split(2)
    return torch.cat([second, first])


def test_tuple_values_become_one_input_for_each_part() -> None:
    piece = cut(recorded(lambda x: torch.cat(x.split(2)), torch.arange(4.0)), "cat")
    assert body(piece)[:2] == ["def forward(self, split_0, split_1):", "cat = torch.cat((split_0, split_1))"]
    assert [value.tolist() for value in piece.inputs] == [[0, 1], [2, 3]]


def test_tuple_that_nothing_takes_apart_gives_its_first_tensor_or_all_of_it() -> None:
    recording = recorded(split, torch.arange(4.0))
    first = ["split = x.split(2)", "getitem = split[0]", "return (getitem,)"]
    assert body(cut(recording, "split"))[1:] == first
    assert body(cut(recording, "split", whole_tuples=True))[1:] == ["split = x.split(2)", "return (split,)"]


def test_numbers_and_sizes_become_constants() -> None:
    piece = cut(recorded(lambda x: x.view(x.size(0) * 2, 2), torch.ones(2, 4)), "view")
    assert body(piece)[1] == "view = x.view(4, 2)"


def test_bypass_puts_a_kept_value_of_the_same_shape_in_the_place_of_a_dropped_one() -> None:
    piece = cut(recorded(chain, torch.ones(3)), "sin", "tanh", bypass=True)
    assert body(piece)[1:] == ["sin = x.sin()", "tanh = sin.tanh()", "return (tanh,)"]


def test_stand_in_takes_the_place_of_one_node() -> None:
    recording = recorded(chain, torch.ones(3))
    (cos,), (x,) = nodes(recording, "cos"), nodes(recording, "x")
    piece = cut(recording, "sin", "tanh", stand_ins={cos: x})
    assert body(piece)[1:] == ["sin = x.sin()", "tanh = x.tanh()", "return (tanh, sin)"]
    assert not piece.faithful


def test_input_is_taken_out_of_a_list_or_gives_way_to_none() -> None:
    values = torch.ones(2, 2), torch.ones(2, 2), torch.ones(2)
    recording = recorded(lambda x, w, b: (torch.cat([x, w]), torch.nn.functional.linear(x, w, b)), *values)
    assert body(cut(recording, "cat", without=nodes(recording, "w")))[1] == "cat = torch.cat([x])"
    assert "linear(x, w, None)" in body(cut(recording, "linear", without=nodes(recording, "b")))[1]
    with pytest.raises(CannotExtract, match="first argument"):
        cut(recording, "linear", without=nodes(recording, "x"))


def test_input_that_ends_a_slice_gives_way_to_none() -> None:
    recording = recorded(lambda x, n: x[:, 1:n] + 1, torch.ones(2, 4), 3)
    piece = cut(recording, "getitem", without=nodes(recording, "n"))
    assert body(piece)[1] == "getitem = x[(slice(None, None, None), slice(1, None, None))]"


def test_a_level_of_vmap_stays_around_what_is_inside_it() -> None:
    """Entering it gives a number that nothing uses."""
    x = torch.rand(3, 4)
    recording = Recording(*capture_by_dynamo(torch.vmap(lambda row: row.sin() + 1), (x,)))
    piece = extract(recording, set(filter(is_call, recording.nodes)))
    assert torch.equal(piece.graph_module(*piece.inputs)[0], x.sin() + 1)


# --- writes ---


def writes(x: Tensor) -> Tensor:
    y = x.sin()
    y[0].add_(1)
    return y.tan()


def test_value_after_a_dropped_write_is_the_written_one_and_before_a_kept_one_the_unwritten() -> None:
    assert cut(recorded(writes, torch.zeros(2, 2)), "tan").inputs[0].tolist() == [[1, 1], [0, 0]]
    piece = cut(recorded(writes, torch.zeros(2, 2)), "getitem", "add_")
    assert piece.inputs[0].tolist() == [[0, 0], [0, 0]]
    assert body(piece)[-1] == "return (add_,)"


def test_what_is_only_written_comes_out_when_the_graph_made_it() -> None:
    graph = fx.Graph()
    y = graph.call_method("sin", (graph.placeholder("x"),))
    graph.call_function(operator.setitem, (y, 0, 1.0))
    graph.output((graph.call_method("tan", (y,)),))
    recording = Recording(fx.GraphModule(torch.nn.Module(), graph), (torch.zeros(2, 2),))
    assert body(cut(recording, "sin", "setitem"))[-1] == "return (sin,)"


def masked(x: Tensor, rows: Tensor) -> Tensor:
    mask = x * 2
    mask.index_fill_(0, rows, 0.0)
    return (x.sin() + mask).cos()


def test_what_is_written_and_then_read_stays_inside() -> None:
    """Returned, it would be allocated: a compiler fuses otherwise, and the failure may be gone."""
    recording = recorded(masked, torch.ones(3), torch.tensor([1]))
    assert body(cut(recording, "mul", "index_fill_", "add"))[-1] == "return (add,)"
    assert body(cut(recording, "mul", "index_fill_", "cos"))[-1] == "return (cos, index_fill_)"
    assert body(cut(recording, "mul", "index_fill_"))[-1] == "return (index_fill_,)"


def rolled(x: Tensor, y: Tensor) -> Tensor:
    x.copy_(x.roll(1))
    return y.sin()


@pytest.mark.parametrize(
    ("function", "how", "returned"),
    [
        (rolled, {}, "(copy_,)"),
        (rolled, {"returns_writes": False}, "()"),
        (lambda x, y: y.cos().copy_(y.roll(1)).sin(), {"returns_writes": False}, "(copy_,)"),
        (lambda x, y: (x.copy_(y.roll(1)), None)[1], {}, "()"),
    ],
    ids=["an output is wrong", "an input is wrong", "what a later call takes", "the program returns nothing"],
)
def test_a_graph_that_only_writes_returns_what_is_to_be_seen(
    function: Callable[..., Any], how: dict[str, Any], returned: str
) -> None:
    graph_module = fx.symbolic_trace(function)
    output = graph_module.graph.output_node()
    if output.args[0] is None:
        output.args = ((),)
    piece = cut(Recording(graph_module, (torch.ones(3), torch.ones(3))), "roll", "copy_", **how)
    assert body(piece)[-1] == f"return {returned}"


def test_input_that_is_written_and_requires_grad_is_no_leaf() -> None:
    recording = recorded(lambda x: x.sin().add_(1), torch.zeros(2, requires_grad=True))
    piece = cut(recording, "add_")
    piece.graph_module(*piece.inputs)
    assert piece.inputs[0].requires_grad


# --- modes ---


def with_modes() -> Recording:
    graph = fx.Graph()
    x = graph.placeholder("x")
    enter, leave = torch_internals.AUTOCAST_FUNCTIONS
    set_grad = torch_internals.SET_GRAD
    opened = graph.call_function(enter, ("cpu", torch.bfloat16, True, None), name="enter")
    first = graph.call_function(torch.mm, (x, x), name="first")
    graph.call_function(leave, (opened,), name="leave")
    graph.call_function(set_grad, (False,), name="off")
    second = graph.call_function(torch.mm, (x, x), name="second")
    graph.call_function(set_grad, (True,), name="on")
    third = graph.call_function(torch.mm, (x, x), name="third")
    graph.output((first, second, third))
    return Recording(fx.GraphModule(torch.nn.Module(), graph), (torch.eye(2),))


def test_cut_never_leaves_grad_mode_changed() -> None:
    recording = with_modes()
    piece = cut(recording, "second", without_modes=nodes(recording, "on"))
    piece.graph_module(*piece.inputs)
    assert torch.is_grad_enabled()


# --- symbolic sizes ---


def test_symbolic_int_that_a_shape_is_made_of_stays_an_input() -> None:
    function = lambda x: (x.sin().view(-1) * x.shape[0]).cos()  # noqa: E731
    recording = Recording(*capture_by_dynamo(function, (torch.ones(3, 4),), dynamic=True))
    sizes = [
        node.name for node in recording.placeholders if not isinstance(node.meta["example_value"], Tensor)
    ]
    cos = next(node for node in recording.nodes if node.target == "cos")
    piece = extract(recording, {cos})
    names = [node.name for node in piece.graph_module.graph.nodes if node.op == "placeholder"]
    assert set(sizes) & set(names)
    assert isinstance(piece.inputs[-1], Tensor)


def test_meta_and_names_stay() -> None:
    recording = recorded(chain, torch.ones(3))
    for node in recording.nodes:
        node.meta["mark"] = node.name
    piece = cut(recording, "cos")
    assert [node.meta.get("mark") for node in piece.graph_module.graph.nodes] == ["sin", "cos", None]
