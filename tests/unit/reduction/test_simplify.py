"""``simplify=True``: edits beyond nodes, inputs and outputs."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from graphs_to_reduce import answers, searched
from torch import Tensor, fx

from minidbg.core.kinds import Kind
from minidbg.fx.copying import capture_by_dynamo
from minidbg.reduction.driver import Minimized, minimize

Predicate = Callable[[fx.GraphModule, Sequence[Any]], bool]


def has(target: Any, holds: Callable[[Sequence[Any]], object] = lambda inputs: True) -> Predicate:
    """A node with this target, and inputs of which ``holds`` is true."""
    return lambda graph_module, inputs: (
        any(node.target == target for node in graph_module.graph.nodes) and bool(holds(inputs))
    )


def simplified(
    function: Callable[..., Any] | torch.nn.Module, inputs: Sequence[Any], fails: Predicate
) -> Minimized:
    result = minimize(fx.symbolic_trace(function), inputs, fails, simplify=True)
    assert result.certified
    assert fails(result.graph_module, list(result.inputs))
    result.graph_module(*result.inputs)
    return result


def line(result: Minimized) -> str:
    """The only call of the result."""
    lines = result.graph_module.code.strip().splitlines()
    assert len(lines) == 3, lines
    return lines[1].partition(";")[0].strip()


def test_nothing_beyond_nodes_changes_without_simplify() -> None:
    x = torch.randn(8, 8, dtype=torch.float64)
    graph_module = fx.symbolic_trace(lambda x, y: torch.softmax(x * y, dim=1, dtype=torch.float64))
    result = minimize(graph_module, [x, x.clone()], has(torch.softmax))
    assert result.inputs[0].shape == (8, 8)
    assert result.graph_module.code.count("dim = 1, dtype = torch.float64") == 1


def tanh_only(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> bool:
    return any(node.kwargs.get("approximate") == "tanh" for node in graph_module.graph.nodes)


@pytest.mark.parametrize(
    ("fails", "left"),
    [(has(torch.nn.functional.gelu), "gelu(x)"), (tanh_only, "gelu(x, approximate = 'tanh')")],
)
def test_arguments_go_back_to_their_defaults_where_the_failure_lets_them(fails: Predicate, left: str) -> None:
    result = simplified(lambda x: torch.nn.functional.gelu(x, approximate="tanh"), [torch.randn(3)], fails)
    assert line(result).endswith(left)


AXES: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax(x, dim = -1)": lambda x: torch.softmax(x, dim=-1),
    "softmax(x, 2)": lambda x: torch.softmax(x, 2),
    "sum(3)": lambda x: x.sum(3),
    "mean(dim = (2, 3))": lambda x: x.mean(dim=(2, 3)),
    "permute(0, 2, 3, 1)": lambda x: x.permute(0, 2, 3, 1),
    "topk(1, 1)": lambda x: x.topk(5, 1)[0],
}


@pytest.mark.parametrize("left", AXES)
def test_the_axes_of_an_op_stay(left: str) -> None:
    """Sizes that are the same number as an axis get smaller without it."""
    op = left.partition("(")[0]
    target = torch.softmax if op == "softmax" else op
    result = simplified(AXES[left], [torch.randn(2, 8, 2, 3)], has(target))
    assert left in result.graph_module.code


class Owns(torch.nn.Module):
    """A parameter, a buffer and a constant; the parameter twice."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(6, 5).double())
        self.register_buffer("scale", torch.rand(5).double())
        self.shift = torch.arange(5.0).double()

    def forward(self, x: Tensor) -> Tensor:
        return torch.addcmul(x @ self.weight, self.scale, self.shift) + self.weight[0]


@pytest.mark.parametrize(
    ("op", "needed", "shapes"),
    [
        (torch.addcmul, set(), [(1, 1), (1,)]),
        (operator.matmul, set(), [(1, 1)]),
        (torch.addcmul, {"scale"}, [(1, 1), (1,)]),
        (torch.addcmul, {"scale", "shift"}, [(1, 1)]),
        (operator.matmul, {"weight"}, [(1, 6)]),
    ],
)
def test_what_a_graph_owns_is_an_input_unless_the_failure_needs_it(
    op: Any, needed: set[str], shapes: Sequence[tuple[int, ...]]
) -> None:
    def fails(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> bool:
        owned = {node.target for node in graph_module.graph.find_nodes(op="get_attr")}
        return needed <= owned and any(node.target is op for node in graph_module.graph.nodes)

    result = simplified(Owns(), [torch.randn(4, 6).double()], fails)
    assert {node.target for node in result.graph_module.graph.find_nodes(op="get_attr")} == needed
    assert [tuple(value.shape) for value in result.inputs] == shapes
    assert not any(isinstance(value, torch.nn.Parameter) for value in result.inputs)


def of_each(*values: Tensor) -> list[Tensor]:
    half = len(values) // 2
    scaled = torch._foreach_mul(list(values[:half]), 2.0)
    return torch._foreach_sqrt(torch._foreach_add(scaled, list(values[half:])))


def in_place(*values: Tensor) -> Tensor:
    torch._foreach_addcmul_([*values[:3]], [*values[3:6]], [*values[6:]], [1.5, 2.5, 3.5])
    return values[0].sum()


LISTS: dict[str, tuple[Callable[..., Any], int, str]] = {
    "two lists": (lambda *x: torch._foreach_add(list(x[:9]), list(x[9:])), 18, "_foreach_add"),
    "the first of a chain": (of_each, 12, "_foreach_mul"),
    "inside a chain": (of_each, 12, "_foreach_add"),
    "before a cat": (lambda *x: torch.cat([one.view(-1) for one in of_each(*x)]), 12, "_foreach_add"),
    "in place, and numbers": (in_place, 9, "_foreach_addcmul_"),
    "one list": (lambda *x: torch.stack(torch._foreach_norm(list(x))), 7, "_foreach_norm"),
    "of a cat": (lambda *x: torch.cat([one.view(-1) for one in x]), 6, "cat"),
}


@pytest.mark.parametrize("needed", [None, 2])
@pytest.mark.parametrize("name", LISTS)
def test_the_same_element_goes_from_all_lists_at_once(name: str, needed: int | None) -> None:
    function, count, op = LISTS[name]
    inputs = [torch.rand(3, place % 3 + 1) for place in range(count)]
    graph_module, values = capture_by_dynamo(function, tuple(inputs))

    def fails(candidate: fx.GraphModule, given: Sequence[Any]) -> bool:
        calls = {getattr(node.target, "__name__", node.target): node for node in candidate.graph.nodes}
        return op in calls and (needed is None or len(calls[op].args[0]) >= needed)

    result = minimize(graph_module, values, fails, simplify=True)
    (call,) = [node for node in result.graph_module.graph.nodes if node.op.startswith("call")]
    assert {len(one) for one in call.args if isinstance(one, tuple | list)} == {needed or 1}
    assert result.certified


def test_lists_that_go_together_go_so_beside_a_list_of_that_length_alone() -> None:
    inputs = [torch.rand(3) for _ in range(12)]
    graph_module, values = capture_by_dynamo(
        lambda *x: torch.cat(torch._foreach_add([*x[:6]], [*x[6:]])), tuple(inputs)
    )

    def fails(candidate: fx.GraphModule, given: Sequence[Any]) -> bool:
        return {torch._foreach_add, torch.cat} <= {node.target for node in candidate.graph.nodes}

    result = minimize(graph_module, values, fails)
    assert (len(result.inputs), result.oracle_calls) == (3, 6)


@pytest.mark.parametrize(("needed", "questions"), [(1, 6), (64, 67)])
def test_a_long_list_goes_by_halves_and_costs_two_questions_where_none_may_go(
    needed: int, questions: int
) -> None:
    inputs = [torch.rand(2, 3) for _ in range(64)]
    graph_module, values = capture_by_dynamo(lambda *x: torch.stack(x), tuple(inputs))

    def fails(candidate: fx.GraphModule, given: Sequence[Any]) -> bool:
        return any(
            node.target is torch.stack and len(node.args[0]) >= needed for node in candidate.graph.nodes
        )

    result = minimize(graph_module, values, fails)
    assert (len(result.inputs), result.oracle_calls) == (needed, questions)


def test_an_argument_that_has_become_the_cause_stays_as_it_was() -> None:
    """A backend that permutes wrongly, and gets a clamp between other numbers wrong too: that alone is not what the program had."""

    def fails(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> bool:
        calls = {node.target: node.args[1:] for node in graph_module.graph.nodes if node.op == "call_method"}
        return "clamp" in calls and ("permute" in calls or calls["clamp"] != (-3.0, 7.5))

    result = simplified(lambda x: x.permute(1, 0).clamp(-3.0, 7.5), [torch.randn(2, 2)], fails)
    assert "permute(1, 0)" in result.graph_module.code
    assert "clamp(-3.0, 7.5)" in result.graph_module.code


@pytest.mark.parametrize(
    ("holds", "left"),
    [
        *((lambda size, least=least: size >= least, least) for least in (1, 2, 17, 64)),
        (lambda size: size % 8 == 0, 8),
    ],
)
def test_sizes_shrink_to_the_smallest_that_fails(holds: Callable[[int], bool], left: int) -> None:
    fails = has("sin", lambda inputs: holds(inputs[0].shape[0]))
    result = simplified(lambda x: x.sin(), [torch.randn(64, 3)], fails)
    assert tuple(result.inputs[0].shape) == (left, 1)


@pytest.mark.parametrize(("least", "most"), [(1025, 1025), (1 << 13, 1 << 13), (4_700, 4_841)])
def test_a_huge_size_costs_few_questions(least: int, most: int) -> None:
    fails = has("sin", lambda inputs: inputs[0].shape[0] >= least)
    result = simplified(lambda x: x.sin(), [torch.zeros(1 << 14)], fails)
    assert least <= result.inputs[0].shape[0] <= most
    assert result.oracle_calls < 24


def test_a_size_is_searched_for_less_exactly_where_the_failure_is_deadly() -> None:
    """Where memory ends that may be read is chance; and each question compiles kernels of its own."""

    ask = answers(lambda graph_module, inputs: inputs[0].shape[0] >= 4_700)
    graph_module = fx.symbolic_trace(lambda x: x.sin())
    exact, near = (
        searched(graph_module, [torch.zeros(1 << 14)], ask, simplify=True, traits=traits)
        for traits in (Kind.ACCURACY.traits, Kind.CRASH.traits)
    )
    assert 4_700 <= exact.best.inputs[0].shape[0] <= 4_841
    assert near.best.inputs[0].shape[0] == 1 << 13
    assert near.asked < exact.asked - 4


@pytest.mark.slow
def test_each_simplification_of_many_nodes_is_a_question_of_its_own() -> None:
    def chain(x: torch.Tensor) -> torch.Tensor:
        for _ in range(300):
            x = x.sin()
        return x

    def fails(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> bool:
        sines = sum(node.target == "sin" for node in graph_module.graph.nodes)
        return sines == 300 and inputs[0].numel() >= 2

    assert simplified(chain, [torch.randn(4)], fails).inputs[0].shape == (2,)


def test_sizes_among_the_arguments_shrink_with_the_inputs() -> None:
    fails = has("view", lambda inputs: inputs[0].dim() == 2)
    result = simplified(lambda x: x.view(6, 5), [torch.randn(5, 6)], fails)
    assert tuple(result.inputs[0].shape) == (1, 1)


def test_indices_stay_inside_what_they_index() -> None:
    result = simplified(
        lambda ids, table: torch.nn.functional.embedding(ids, table),
        [torch.tensor([90, 3]), torch.randn(100, 16)],
        has(torch.nn.functional.embedding),
    )
    assert result.inputs[1].numel() <= 4


@pytest.mark.parametrize("needed", [torch.float32, torch.bfloat16])
def test_a_dtype_becomes_float32_unless_the_failure_needs_it(needed: torch.dtype) -> None:
    fails = has("sin", lambda inputs: needed in (inputs[0].dtype, torch.float32))
    result = simplified(lambda x: x.sin(), [torch.randn(3, dtype=torch.bfloat16)], fails)
    assert result.inputs[0].dtype is needed


def test_gradients_parameters_and_strides_go() -> None:
    weight = torch.nn.Parameter(torch.randn(4, 6).t().detach())
    fails = has("sin", lambda inputs: inputs[0].numel() == 24)
    (value,) = simplified(lambda x: x.sin(), [weight], fails).inputs
    assert not isinstance(value, torch.nn.Parameter)
    assert not value.requires_grad
    assert value.is_contiguous()


def test_strides_of_sizes_that_are_gone_go_too() -> None:
    result = simplified(lambda x: x.sin(), [torch.randn(1, 4)], has("sin"))
    assert (tuple(result.inputs[0].shape), result.inputs[0].stride()) == ((1, 1), (1, 1))


def test_as_much_of_the_way_to_plain_inputs_is_taken_as_still_fails() -> None:
    fails = has(operator.mul, lambda inputs: all(value.shape[-1] == 20 for value in inputs))
    result = simplified(lambda x, y: x * y, [torch.randn(48, 36, 20), torch.randn(48, 36, 20)], fails)
    assert {tuple(value.shape) for value in result.inputs} == {(1, 1, 20)}


@pytest.mark.parametrize(
    "value",
    [
        torch.eye(32).to_sparse(),
        torch.ones(32, 32).to(torch.float8_e4m3fn),
        torch.ones(32, dtype=torch.bool),
        torch.arange(9).to_sparse(),
        torch.ones(32, dtype=torch.complex64),
        torch.ones(32, device="meta"),
    ],
    ids=["sparse", "float8", "bool", "sparse integers", "complex", "meta"],
)
def test_tensors_of_odd_kinds_are_no_obstacle(value: Tensor) -> None:
    result = simplified(lambda x: x.clone(), [value], lambda graph_module, inputs: len(inputs) == 1)
    assert result.inputs[0].layout == value.layout
