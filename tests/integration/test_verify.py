"""Verification: wrong results are found, right ones pass in silence, and the user's program notices nothing.

The answer to a failure is a stub here; ``torch.compile`` and the backends are real. No C++ compiler is used.
"""

from __future__ import annotations

import contextlib
import gc
import random
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import wrong_results as planted
from support.new_process import Answers, as_in_a_new_process, warnings_of  # noqa: F401 - a fixture for all tests here
from torch import fx, nn
from torch._subclasses import FakeTensorMode
from torch.overrides import TorchFunctionMode

from minidbg import AccuracyError
from minidbg.core.outcome import Direction, Kind
from minidbg.fx.effects import op_name
from minidbg.judge.undefined import UndefinedResults
from minidbg.wrapper import report_of, stats, wrap
from minidbg.wrapper import verify as verify_module
from minidbg.wrapper.verify import GRADIENTS_REFUSED
from minidbg.wrapper.verify_runs import MOST_TAPPED

pytestmark = pytest.mark.usefixtures("answers")


def call(function: Any, *inputs: Any, backend: Any, **settings: Any) -> Any:
    """``function`` compiled by ``backend``, wrapped, on ``inputs``."""
    return torch.compile(function, backend=wrap(backend, **settings))(*inputs)


def mismatch(function: Any, *inputs: Any, backend: Any, **settings: Any) -> AccuracyError:
    """The error of that call."""
    with pytest.raises(AccuracyError) as caught:
        call(function, *inputs, backend=backend, **settings)
    return caught.value


# ---- what is found


def counts_steps(x: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
    steps.add_(1)
    return x * 2


GRID = torch.linspace(-3, 3, 60).reshape(5, 12)
WRONG: list[tuple[Any, Callable[..., Any], tuple[Any, ...], str, str, str]] = [
    (planted.wrong_relu, lambda x: torch.relu(x.sin()).cos(), (GRID,), "float", "output 0", "relu"),
    (planted.wrong_relu_in_aot, lambda x: torch.relu(x.sin()).cos(), (GRID,), "float", "output 0", "relu"),
    (planted.wrong_in_a_range, lambda x: torch.sigmoid(x) + 1, (GRID,), "float", "output 0", "sigmoid"),
    (planted.nan_for_large, lambda x: torch.tanh(x) * 2, (GRID,), "nan", "output 0", "tanh"),
    (planted.wrong_dtype, lambda x: x.cumsum(0), (GRID,), "dtype", "output 0", "cumsum"),
    (planted.wrong_integer, lambda x: x.argmax(1), (GRID,), "integer", "output 0", "argmax"),
    (planted.loses_aliasing, lambda x: (x.sin(), x.view(-1)), (GRID,), "aliasing", "output 1", ""),
    (planted.loses_mutation, counts_steps, (GRID, torch.zeros(3)), "float", "input 0 after the call", ""),
    (planted.writes_to_an_input, lambda x: torch.relu(x) + 1, (GRID,), "float", "input 0 after the call", ""),
    (planted.writes_while_it_compiles, lambda x: x.sin() * 2, (GRID,), "float", "output 0", ""),
    (planted.wrong_gradient, lambda x: x.sin() * 2, (GRID,), "float", "gradient of input 0", ""),
]
INPUTS_BY_NAME = {
    planted.loses_mutation: "input 0 (steps) after the call differs: ",
    planted.writes_to_an_input: "input 0 (x), which eager leaves as it is, differs: ",
    planted.wrong_gradient: "gradient of input 0 (x) differs: ",
}


@pytest.mark.parametrize("wrong", WRONG, ids=lambda one: one[0].__name__)
def test_wrong_results_are_raised_with_where_and_how_much(wrong: Any, answers: Answers) -> None:
    backend, function, inputs, category, where, node = wrong
    inputs = tuple(value.clone() for value in inputs)
    inputs[0].requires_grad_(where.startswith("gradient"))
    before = [value.detach().clone() for value in inputs]
    error = mismatch(function, *inputs, backend=backend)
    assert (error.category, error.where) == (category, where)
    assert backend.__name__ in str(error)
    assert INPUTS_BY_NAME.get(backend, where) in str(error)
    assert error.suspect_nodes == (node,) if node else True
    [case] = answers.cases
    assert case.kind is Kind.ACCURACY
    direction = Direction.BACKWARD if where.startswith("gradient") else Direction.FORWARD
    assert (case.signature.direction, case.spec.backward) == (direction, direction is Direction.BACKWARD)
    assert report_of(error).line == "report 1"
    assert error.__notes__ == ["minidbg: report 1"]
    assert all(map(torch.equal, before, inputs)), "the inputs are as before the call"


def test_writes_are_seen_also_where_no_copy_is_compared_and_outputs_that_nobody_takes_are_not() -> None:
    mismatch(lambda x: x * 2, GRID.clone()[:, :6], backend=planted.writes_beside)
    mismatch(lambda x: x.mul_(2), GRID.clone()[:, :6], backend=planted.writes_beside)
    mismatch(lambda x: x[1:].clone(), GRID.clone()[:, :6], backend=planted.copies_nothing)
    mismatch(lambda x: x[:10] * 2, torch.randn(17 << 20), backend=planted.sorts_its_input)
    mismatch(torch.exp, GRID.clone().requires_grad_(), backend=planted.backward_in_its_output)
    call(lambda x: x * 2, GRID.clone().requires_grad_(), backend=planted.gives_more)
    call(lambda x: x.mul_(2)[1:], GRID.clone()[:, :6], backend="aot_eager")


def test_the_figures_stand_on_the_exception() -> None:
    error = mismatch(lambda x: torch.relu(x), GRID, backend=planted.wrong_relu)
    assert error.figures["wrong"] == error.figures["elements"] == 60
    assert 100 < error.figures["excess"] < 1e5
    assert error.figures["rmse_compiled"] == pytest.approx(1e-2, rel=1e-3)
    assert "allowed" in str(error)


class WrongAtOneNode(fx.Interpreter):
    """One value is off by a hundredth; others of the same op are right."""

    def run_node(self, node: fx.Node) -> Any:
        value = super().run_node(node)
        return value + 1e-2 if node.name == "x_41" else value


def layers(count: int, *relus: int) -> Callable[[torch.Tensor], torch.Tensor]:
    def function(x: torch.Tensor) -> torch.Tensor:
        for layer in range(count):
            x = x.relu() if layer in relus else x + 0.01
        return x

    return function


@pytest.mark.parametrize(
    ("backend", "function", "nodes", "compiles"),
    [
        (planted.wrong_relu, layers(60, 11, 41), ("x_11",), [60, 60]),
        (lambda gm, inputs: WrongAtOneNode(gm).run, layers(60, 11, 41), ("x_41",), [60, 60]),
        pytest.param(
            planted.wrong_relu,
            layers(MOST_TAPPED + 1, MOST_TAPPED),
            (),
            [MOST_TAPPED + 1],
            marks=pytest.mark.slow,
        ),
        (planted.wrong_gradient, lambda x: x.sin() * 2, None, [2]),
    ],
    ids=["each time", "of its kind once", "in a graph of many calls", "only gradients differ"],
)
def test_the_first_differing_node_is_found_by_one_more_compile_or_not_looked_for(
    backend: Any, function: Any, nodes: tuple[str, ...] | None, compiles: list[int]
) -> None:
    sizes: list[int] = []

    def counted(graph_module: fx.GraphModule, example_inputs: Any) -> Any:
        sizes.append(sum(node.op.startswith("call") for node in graph_module.graph.nodes))
        return backend(graph_module, example_inputs)

    error = mismatch(function, GRID.clone().requires_grad_(nodes is None), backend=counted)
    assert error.where.startswith("gradient") is (nodes is None)
    assert nodes is None or error.suspect_nodes == nodes
    assert sizes == compiles


def test_a_failing_backward_is_found_by_the_first_call(answers: Answers) -> None:
    x = torch.randn(3, requires_grad=True)
    with pytest.raises(RuntimeError, match="no kernel for this backward") as caught:
        call(lambda x: x.sin(), x, backend=planted.broken_backward)
    assert caught.value.__notes__ == ["minidbg: report 1"]
    assert answers.cases[0].signature.direction is Direction.BACKWARD
    assert answers.cases[0].kind is Kind.RUNTIME


def test_a_bug_beside_random_numbers_is_found_in_a_graph_that_draws_none(answers: Answers) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 2))
    error = mismatch(model, torch.randn(4, 8), backend=planted.wrong_relu_and_other_random_numbers)
    assert error.category == "float"
    assert error.suspect_nodes == ("input_3",)
    [case] = answers.cases
    assert not any("dropout" in str(node.target) for node in case.graph_module.graph.nodes)
    assert "random numbers were recorded" in " ".join(case.provenance.notes)


def test_attention_with_dropout_is_judged_without_it(answers: Answers) -> None:
    def program(q: torch.Tensor) -> torch.Tensor:
        return attention(q, q, q, dropout_p=0.1, is_causal=True).sin()

    q = torch.randn(2, 4, 16, 8, requires_grad=True)
    error = mismatch(program, q, backend=planted.attention_without_its_mask)
    assert error.op == "scaled_dot_product_attention"


def test_what_goes_into_a_draw_is_judged(answers: Answers) -> None:
    backend = planted.wrong_relu_and_other_random_numbers
    program = lambda x: torch.bernoulli((torch.relu(x) * 200).sigmoid())  # noqa: E731
    assert mismatch(program, GRID, backend=backend).op == "relu"


class Tied(nn.Module):
    """One weight used twice, a buffer that a training step writes to, and dropout in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8)
        self.second.weight = self.first.weight
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = nn.functional.dropout(self.norm(self.first(x)).sin(), 0.3)
        q = h.view(2, 2, -1, 4)
        return nn.functional.dropout(self.second(h), 0.2) + attention(q, q, q, dropout_p=0.2).reshape(h.shape)


attention = nn.functional.scaled_dot_product_attention


class Checkpointed(Tied):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)  # eager itself fails where a checkpoint holds a buffer that is written to

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.utils.checkpoint.checkpoint(super().forward, x, use_reentrant=False)
        return result


CONSTRUCTS: dict[str, tuple[type[nn.Module], bool | None, bool]] = {
    "parameters, tied weights, buffers": (Tied, None, False),
    "autocast": (Tied, None, True),
    "checkpoint": (Checkpointed, None, False),
    "dynamic shapes": (Tied, True, False),
}


@pytest.mark.slow
def test_gradients_that_eager_refuses_are_counted_as_left_out() -> None:
    class NormInCheckpoint(Checkpointed):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(8)  # writes to buffers, which dynamo hands to the checkpoint

    compiled = torch.compile(NormInCheckpoint(), backend=wrap(planted.numbers_of_its_own))
    compiled(torch.randn(8, 8))  # eager's backward is refused, and on torch 2.11 AOTAutograd's, too
    left_out = [GRADIENTS_REFUSED, "what attention drops out is not judged"]
    assert (stats().verified, [*stats().left_out]) == (1, left_out)


def masked_in_place(scores: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    scores += 1
    return scores.sin() * weight


@pytest.mark.parametrize("backend", ["aot_eager", planted.wrong_gradient])
def test_the_gradient_of_an_activation_is_that_from_before_the_graph_writes_to_it(backend: Any) -> None:
    """Longformer with dynamic shapes: after ``+=`` eager's is that of the new value, which AOTAutograd's graph does not know."""
    scores = (torch.randn(2, 6, 4, requires_grad=True) * 2).transpose(1, 2)[:, 1:3]
    weight = torch.ones(scores.shape, requires_grad=True)
    compiled = torch.compile(masked_in_place, backend=wrap(backend, reduce="later"))
    if backend == "aot_eager":
        compiled(scores, weight).sum().backward()
        assert (stats().verified, stats().failed, stats().left_out) == (1, 0, {})
    else:
        with pytest.raises(AccuracyError, match="gradient of input 0"):
            compiled(scores, weight)


@pytest.mark.parametrize(
    "construct", [pytest.param(name, marks=[pytest.mark.slow] * (n > 0)) for n, name in enumerate(CONSTRUCTS)]
)
def test_a_wrong_gradient_beside_dropout_is_found(construct: str) -> None:
    model, dynamic, autocast = CONSTRUCTS[construct]
    backend = wrap(planted.wrong_gradient_and_numbers_of_its_own)
    compiled = torch.compile(model(), backend=backend, dynamic=dynamic)
    with (
        pytest.raises(AccuracyError, match="gradient of "),
        torch.autocast("cpu", torch.bfloat16, enabled=autocast),
    ):
        compiled(torch.randn(8, 8))


def test_the_whole_graph_is_compiled_once_where_the_drawing_calls_give_the_same_numbers() -> None:
    compiles = []

    def counted(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        compiles.append([node.target for node in graph_module.graph.nodes if node.op == "call_function"])
        return planted.other_random_numbers(graph_module, example_inputs)

    call(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3)), torch.randn(4, 8), backend=counted)
    assert [len(targets) for targets in compiles] == [2, 1]
    assert compiles[1] == [nn.functional.dropout]


WRONGLY_DRAWN: dict[str, tuple[Callable[..., Any], str, Callable[..., Any], str]] = {
    "another number of dimensions": (
        lambda x: nn.functional.dropout(x, 0.25) * 2, "dropout", lambda r: r.expand(3, 16), "shape",
    ),
    "another dtype": (
        lambda x: torch.normal(x, 1.0) + 1, "normal", lambda r: torch.randn(16).double(), "dtype",
    ),
}  # fmt: skip


def wrong_in(op: str, change: Callable[..., Any]) -> Callable[..., Any]:
    """A backend that changes what an op draws and runs all else in eager."""

    class Draws(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            result = super().run_node(n)
            return change(result) if n.op.startswith("call") and op_name(n) == op else result

    return lambda gm, example_inputs: Draws(gm).run


@pytest.mark.parametrize("what", WRONGLY_DRAWN)
def test_wrong_random_numbers_are_found(what: str, capfd: pytest.CaptureFixture[str]) -> None:
    program, op, change, words = WRONGLY_DRAWN[what]
    error = mismatch(program, torch.linspace(0.1, 2.0, 16), backend=wrong_in(op, change))
    assert words in str(error)
    assert "Call using an FX-traced Module" not in capfd.readouterr().err


# ---- what torch does not define


def other_answers(gm: fx.GraphModule, inputs: Sequence[Any]) -> Any:
    """Right, and nowhere as eager where torch leaves the answer open."""
    return UndefinedResults(6).around(gm.forward)


def wrong_relu_among_other_answers(gm: fx.GraphModule, inputs: Sequence[Any]) -> Any:
    return UndefinedResults(6).around(planted.wrong_relu(gm, inputs))


def undefined_in_places(x: torch.Tensor, index: torch.Tensor) -> tuple[torch.Tensor, ...]:
    bytes_ = (x * 100).to(torch.uint8)
    order = x.round().argsort(-1)
    written = torch.zeros(12).scatter(0, index, x[0])
    return bytes_, order, written.cos(), torch.relu(x[:, 0]) + 0 * bytes_[:, 0], x.gather(1, order).sum(1)


PLACES = torch.tensor([0, 1, 2, 3, 4, 5, 5, 5, 5, 5, 5, 6])


def test_other_legal_answers_pass_and_are_told_once(
    answers: Answers, caplog: pytest.LogCaptureFixture
) -> None:
    call(undefined_in_places, GRID, PLACES, backend=other_answers)
    assert not answers.cases
    told = warnings_of(caplog)
    parts = [one.partition(" is not judged")[0].rpartition(": ")[2] for one in told]
    elements = "35 of 60", "58 of 60", "1 of 12"
    assert parts == [f"output {n} ({count} elements)" for n, count in enumerate(elements)]
    assert "casts of floats to integers that cannot hold them" in told[0]


def test_a_bug_beside_what_is_undefined_is_found_and_named(answers: Answers) -> None:
    error = mismatch(undefined_in_places, GRID, PLACES, backend=wrong_relu_among_other_answers)
    assert (error.category, error.where) == ("float", "output 3")
    assert error.suspect_nodes == ("relu",)


def out_of_place(gm: fx.GraphModule, inputs: Sequence[Any]) -> Any:
    """Right about ``written_over``, with gradients that eager refuses and other answers where torch leaves them open."""

    def run(*args: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x, places = sorted(args, key=lambda one: not one.requires_grad)
        cast = UndefinedResults(6).around(lambda: places.to(torch.uint8))
        return (x.exp() + 1).sum(), cast()

    return run


def written_over(x: torch.Tensor, places: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x.exp()
    y.add_(1)  # what autograd has kept for the backward of exp
    return y.sum(), places.to(torch.uint8)


def test_what_is_undefined_is_left_out_where_eager_has_no_gradients(
    answers: Answers, caplog: pytest.LogCaptureFixture
) -> None:
    """The other runs of eager ask for no gradients then: they would fail, and explain nothing."""
    call(written_over, GRID.clone().requires_grad_(), GRID * 100, backend=out_of_place)
    assert not answers.cases
    assert stats().verified == 1
    left_out = list(stats().left_out)
    assert left_out[0] == GRADIENTS_REFUSED
    assert "torch does not define casts of floats to integers" in left_out[1]


def a_little_more_gradient(gm: fx.GraphModule, inputs: Sequence[Any]) -> Any:
    """The gradient of tanh is 0.3 % too large."""
    return planted.after_each(gm, "tanh", lambda value: value * 1.003 - value.detach() * 0.003)


def in_float32(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", enabled=False):
        return torch.tanh(model(x) / 8)


def as_autocast_has_it(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(model(x) / 8)


@pytest.mark.parametrize(
    ("function", "backend", "autocast", "is_wrong"),
    [
        (in_float32, "aot_eager", True, True),  # traces its backward under the forward's autocast
        (as_autocast_has_it, "aot_eager", True, False),
        (in_float32, a_little_more_gradient, False, True),
    ],
)
def test_gradients_are_compared_as_a_program_has_them_after_the_block_of_autocast(
    function: Any, backend: Any, autocast: bool, is_wrong: bool, answers: Answers
) -> None:
    model = nn.Linear(64, 64)
    compiled = torch.compile(lambda x: function(model, x), backend=wrap(backend))
    with (
        pytest.raises(AccuracyError, match="gradient of input") if is_wrong else contextlib.nullcontext(),
        torch.autocast("cpu", torch.bfloat16, enabled=autocast),
    ):
        compiled(torch.randn(32, 64))
    assert len(answers.cases) == is_wrong
    assert stats().verified == (not is_wrong)


# ---- what passes in silence


class Counts(nn.Module):
    """A buffer that each call writes to."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        return x - self.mean


def chaotic(x: torch.Tensor) -> torch.Tensor:
    """Rounding grows to the size of the values; eager in float64 shows that eager is no better."""
    for _ in range(40):
        x = 3.9 * x * (1 - x)
    return x


HEALTHY: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "dropout": (nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3), nn.ReLU()), (torch.randn(4, 8),)),
    "chaotic": (chaotic, (torch.rand(100),)),
    "buffers": (Counts(), (torch.randn(16, 8),)),
    "views": (lambda x: (x, x.view(-1), x[1:], x.T, x.expand(3, 4, 8)), (torch.randn(4, 8),)),
}


@pytest.mark.parametrize(
    "backend", [pytest.param("aot_eager", marks=pytest.mark.slow), planted.other_random_numbers]
)
@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_model_passes_in_silence(
    name: str, backend: Any, answers: Answers, caplog: pytest.LogCaptureFixture
) -> None:
    function, inputs = HEALTHY[name]
    call(function, *inputs, backend=backend)
    assert not answers.cases
    assert not [text for text in warnings_of(caplog) if "a part of" not in text]


class DoublesSin(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **kwargs or {})
        return result * 2 if function in (torch.sin, torch.Tensor.sin) else result


def test_what_a_function_mode_does_is_done_once(answers: Answers) -> None:
    """Dynamo's graph has the doubling; eager must not double once more, and a default device stays."""
    with torch.device("meta"), DoublesSin():
        found = call(lambda x: x.sin() + 1, GRID, backend="aot_eager")
        assert torch.empty(1).sin().device.type == "meta"
        assert torch.overrides._len_torch_function_stack() == 2
    assert torch.equal(found, GRID.sin() * 2 + 1)
    assert not answers.cases


def test_an_error_of_the_program_prints_nothing(answers: Answers, capfd: pytest.CaptureFixture[str]) -> None:
    """Eager runs to see whether the backend is to blame, and fx prints what its modules raise."""
    compiled = torch.compile(lambda x, i: x[i], backend=wrap("aot_eager"))
    with pytest.raises(IndexError) as caught:
        compiled(torch.ones(3), torch.tensor([7]))
    assert report_of(caught.value) is None
    assert not answers.cases
    assert capfd.readouterr() == ("", "")


# ---- which calls, and what they cost


class Counting:
    """Eager, counting its calls, and remembering what they were given."""

    __name__ = "counting"

    def __init__(self) -> None:
        self.given: list[tuple[Any, ...]] = []

    def __call__(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        def compiled_fn(*args: Any) -> Any:
            self.given.append(args)
            return gm.forward(*args)

        return compiled_fn


@pytest.mark.parametrize(("verify", "compared"), [("first", 1), ("never", 0), (3, 3), ("always", 5)], ids=str)
def test_verify_says_how_many_calls_are_compared(
    verify: Any, compared: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged = []
    judge = verify_module.Verification.judge
    monkeypatch.setattr(verify_module.Verification, "judge", lambda *given: judged.append(1) or judge(*given))
    compiled = torch.compile(lambda x: x.sin(), backend=wrap(Counting(), verify=verify))
    for _ in range(5):
        compiled(GRID)
    assert len(judged) == compared


def test_the_compiled_function_runs_once_on_the_users_own_inputs() -> None:
    backend = Counting()
    compiled = torch.compile(lambda x: x.sin(), backend=wrap(backend))
    compiled(GRID)
    compiled(GRID)
    assert [given[0] is GRID for given in backend.given] == [True, True]


@pytest.mark.slow
def test_with_gradients_it_runs_once_more_before_on_copies_that_do_not_outlive_the_call() -> None:
    backend = Counting()
    x = GRID.clone().requires_grad_()
    torch.compile(lambda x: x.sin(), backend=wrap(backend))(x)
    assert [given[0] is x for given in backend.given] == [False, True]
    assert x.grad is None
    copied = weakref.ref(backend.given[0][0])
    backend.given.clear()
    gc.collect()
    assert copied() is None


def test_a_call_with_fake_tensors_is_a_tracers_and_settles_nothing() -> None:
    compiled = wrap(Counting())(fx.symbolic_trace(lambda x: (x + 1,)), [GRID])
    with FakeTensorMode() as mode:
        compiled(mode.from_tensor(GRID))
    assert stats().verified == 0
    compiled(GRID)
    assert stats().verified == 1


def test_results_in_memory_that_is_used_again_stay_what_they_are(answers: Answers) -> None:
    result = call(lambda x: x.sin(), GRID.clone(), backend=planted.same_buffer_each_time)
    assert torch.equal(result, GRID.sin())
    assert not answers.cases


# ---- what the program goes on with


def test_with_fallback_the_caller_gets_eagers_results_and_gradients(
    answers: Answers, caplog: pytest.LogCaptureFixture
) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU())
    expected = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU())
    expected.load_state_dict(model.state_dict())
    compiled = torch.compile(model, backend=wrap(planted.wrong_relu, on_failure="fallback"))
    generator = random.getstate()
    for step in range(2):
        x = torch.randn(8, 4)
        result, wanted = compiled(x), expected(x)
        assert torch.equal(result, wanted), step
        result.sum().backward()
        wanted.sum().backward()
    pairs = zip(model.parameters(), expected.parameters(), strict=True)
    assert all(torch.equal(one.grad, other.grad) for one, other in pairs)
    assert all(map(torch.equal, model.buffers(), expected.buffers()))
    assert len(answers.cases) == 1
    assert random.getstate() == generator
    [text] = warnings_of(caplog)
    assert "wrong_relu gives wrong results for a graph" in text
    assert "going on with eager" in text


def test_wrong_results_of_a_call_that_cannot_be_repeated_are_kept_and_later_calls_run_in_eager(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Autograd has had the written tensor in its graph since."""

    def adds_one(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        return lambda *args: tuple(value + 1 for value in gm.forward(*args))

    w = torch.ones(2, requires_grad=True)
    compiled = wrap(adds_one, on_failure="fallback")(
        fx.symbolic_trace(lambda x, w: (x.mul_(w) * 2,)), [w * 1, w]
    )
    assert [compiled(w * 1, w)[0].tolist() for _ in range(2)] == [[3.0] * 2, [2.0] * 2]
    assert "these results, and eager in later calls" in warnings_of(caplog)[-1]


def test_in_a_chain_the_next_link_takes_over_and_is_verified_too(answers: Answers) -> None:
    chain = wrap([planted.wrong_relu, planted.wrong_relu_in_aot, "aot_eager"])
    result = torch.compile(lambda x: torch.relu(x) * 2, backend=chain)(GRID)
    assert torch.equal(result, torch.relu(GRID) * 2)
    names = [case.backend.name for case in answers.cases]
    assert names == ["wrong_results.wrong_relu", "wrong_results.wrong_relu_in_aot"]


def test_tolerances_are_the_users_to_give(answers: Answers) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x)

    call(function, GRID, backend=planted.wrong_relu, atol=0.1)
    call(function, GRID, backend=planted.wrong_relu, tolerances={torch.float32: (0.1, 0.1)})
    assert not answers.cases
    mismatch(function, GRID, backend=planted.wrong_relu, tolerances={"float16": (0.1, 0.1)})
    assert answers.cases[0].spec.tolerances == {"float16": (0.1, 0.1)}


MLP_OF_64 = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 8)).requires_grad_(False)


def test_a_precision_that_a_backend_computes_in_by_design_is_a_pair_of_tolerances(answers: Answers) -> None:
    x = torch.linspace(-2, 2, 160).reshape(10, 16)
    mismatch(MLP_OF_64, x, backend=planted.computes_in_bfloat16)
    torch._dynamo.reset()
    call(MLP_OF_64, x, backend=planted.computes_in_bfloat16, tolerances="bfloat16")
    assert len(answers.cases) == 1
    x = GRID.clone().requires_grad_()
    mismatch(lambda x: x.sin() * 2, x, backend=planted.wrong_gradient, tolerances="bfloat16")
    assert answers.cases[1].spec.tolerances["float32"] == (3e-2, 3e-2)


def test_the_case_has_the_match_and_a_margin_that_grows_with_the_error(answers: Answers) -> None:
    mismatch(lambda x: torch.relu(x), GRID, backend=planted.wrong_relu, match="output 0")
    assert (answers.cases[0].spec.match, answers.cases[0].spec.margin) == ("output 0", 10.0)


# ---- what is not verified


def test_stats_count_what_was_verified_and_why_the_rest_was_not_which_is_said_once(
    answers: Answers, caplog: pytest.LogCaptureFixture
) -> None:
    for verify in ("first", "never"):
        torch._dynamo.reset()
        call(lambda x: x.sin(), torch.ones(3), backend="aot_eager", verify=verify)
    mismatch(lambda x: torch.relu(x), GRID, backend=planted.wrong_relu)
    for size in (5, 6):
        call(
            lambda x: torch.relu(x.add_(1)),
            torch.zeros(size),
            backend=planted.wrong_relu,
            value_limit_bytes=8,
        )
    found = stats()
    assert (found.graphs, found.verified, found.failed) == (5, 1, 1)
    assert found.not_verified == {"verify='never'": 1, "what it writes to cannot be copied": 2}
    assert len([text for text in warnings_of(caplog) if "not verified" in text]) == 1


def test_a_graph_that_the_backend_gives_back_is_no_success_and_nothing_to_print(
    answers: Answers, caplog: pytest.LogCaptureFixture
) -> None:
    def lazy(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        return gm

    for size in (2, 3):
        torch._dynamo.reset()
        call(lambda x: x.sin(), torch.ones(size), backend=lazy)
    assert not warnings_of(caplog)
    assert (stats().verified, sum(stats().not_verified.values())) == (0, 2)


@pytest.mark.skipif(
    torch.__version__ < (2, 14), reason="dynamo of torch 2.13 traces no number of Python's generator"
)
def test_a_backend_that_believes_what_dynamo_declared_is_not_blamed(
    answers: Answers, caplog: pytest.LogCaptureFixture
) -> None:
    """Dynamo declares the number that Python draws as float32, and passes float64."""

    def believes(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        declared = [node.meta["example_value"].dtype for node in gm.graph.find_nodes(op="placeholder")]

        def run(*args: torch.Tensor) -> Any:
            return gm(
                *(
                    torch.zeros_like(arg) if arg.dtype != one else arg
                    for arg, one in zip(args, declared, strict=True)
                )
            )

        return run

    call(lambda x: x * random.random(), torch.ones(4), backend=believes)
    declared = "dynamo declared random_value_0 as float32 and passed float64: not the backend's failure"
    assert warnings_of(caplog) == [f"minidbg: a graph is not verified: {declared}"]
    assert stats().failed == 0
    assert not answers.cases


# ---- optimizers, whose parameters dynamo makes attributes of the graph


def test_wrong_step_of_an_optimizer_is_found() -> None:
    """Only the parameters show it: the momenta that the graph returns are right."""

    def too_long_a_step(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        return planted.after_each(graph_module, "add", planted.a_little_more)

    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    step = torch.compile(optimizer.step, backend=wrap(too_long_a_step))
    model(torch.randn(4, 3)).square().sum().backward()
    with pytest.raises(AccuracyError, match="after the call differs"):
        step()


# ---- sparse gradients


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 4, sparse=True)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.table(ids).sin().sum(1)


def ids() -> torch.Tensor:
    return torch.tensor([[1, 2, 2], [0, 1, 8]])


def nested_words() -> torch.Tensor:
    parts = [torch.randn(2, 3), torch.randn(4, 3)]
    return torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True)


@pytest.mark.parametrize(("backend", "is_right"), [("aot_eager", True), (planted.wrong_gradient, False)])
@pytest.mark.parametrize(
    ("program", "inputs"),
    [(Words(), ids), pytest.param(lambda x: x.sin() * 2, nested_words, marks=pytest.mark.slow)],
    ids=["sparse", "nested"],
)
def test_gradients_of_every_layout_are_compared(
    program: Any, inputs: Any, backend: Any, is_right: bool, caplog: pytest.LogCaptureFixture
) -> None:
    if is_right:
        call(program, inputs(), backend=backend)
        assert (stats().verified, stats().left_out) == (1, {})
        assert not warnings_of(caplog)
    else:
        error = mismatch(program, inputs(), backend=backend)
        assert error.signature["direction"] == "backward"
