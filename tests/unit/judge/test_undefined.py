"""Results that torch does not define: another legal answer passes, and a wrong one beside it does not."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from open_answers import Open, judged, only
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from minidbg.fx.copying import capture_by_dynamo
from minidbg.judge.compare import DEFAULT_SPEC, comparison_of
from minidbg.judge.undefined import UndefinedResults

NAN, INF = math.nan, math.inf


def ints(*values: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.tensor(values, dtype=dtype)


TIES = torch.tensor([3.0, 1.0, 3.0, 2.0, 1.0])
MATRIX = torch.tensor([[2.0, 1.0, 0.5], [1.0, 3.0, 0.25], [0.5, 0.25, 5.0]])
POOLED = torch.tensor([[[[1.0, 1.0], [0.0, 1.0]]]])
U, S, V = torch.linalg.svd(MATRIX)
Q, R = torch.linalg.qr(MATRIX)
W, E = torch.linalg.eigh(MATRIX)
SIGNS = torch.tensor([1.0, -1.0, 1.0])


def writes(x: Tensor, index: Tensor, values: Tensor) -> Tensor:
    x[index] = values
    return x


def pool_gradient(x: Tensor) -> Tensor:
    x.requires_grad_(True)
    pooled = torch.nn.functional.max_pool2d(x, 2)
    with torch.enable_grad():
        return torch.autograd.grad(pooled.sum(), x)[0]


CASTS = torch.tensor([1.5, -3.0, 300.0, NAN, 7.9])
KINDS = [
    Open(
        "cast",
        lambda x: (x.to(torch.uint8), x.sin()),
        (CASTS,),
        (ints(1, 0, 255, 9, 7, dtype=torch.uint8), CASTS.sin()),
        (ints(1, 0, 255, 9, 8, dtype=torch.uint8), CASTS.sin()),
    ),
    Open("cast in place", lambda x: ints(0, 0).copy_(x), (torch.tensor([NAN, 2.0]),), ints(5, 2), ints(5, 3)),
    Open(
        "after a cast",
        lambda x: (x.to(torch.uint8) > 50).float() + x.abs().clamp(max=2).nan_to_num(),
        (CASTS,),
        torch.tensor([1.5, 3.0, 3.0, 1.0, 2.0]),
        torch.tensor([1.6, 2.0, 2.0, 0.0, 2.0]),
    ),
    Open("shift", lambda x, n: x << n, (ints(1, 3, 5), ints(1, 64, -1)), ints(2, 3, 99), ints(4, 3, 99)),
    Open("shift right", lambda x, n: x >> n, (ints(8, -3), ints(1, 70)), ints(4, -3), ints(2, -1)),
    Open(
        "sort",
        lambda x: x.sort(),
        (TIES,),
        (TIES.sort()[0], ints(4, 1, 3, 2, 0)),
        (TIES.sort()[0], ints(4, 3, 1, 2, 0)),
    ),
    Open("argsort", lambda x: x.argsort(), (TIES,), ints(4, 1, 3, 2, 0), ints(1, 4, 2, 3, 0)),
    Open(
        "topk",
        lambda x: x.topk(2),
        (TIES,),
        (torch.tensor([3.0, 3.0]), ints(2, 0)),
        (torch.tensor([3.0, 2.0]), ints(2, 3)),
    ),
    Open(
        "median",
        lambda x: x.median(0),
        (torch.tensor([1.0, 3.0, 3.0]),),
        (torch.tensor(3.0), ints(2)[0]),
        (torch.tensor(1.0), ints(1)[0]),
    ),
    Open(
        "cummax",
        lambda x: x.cummax(0),
        (TIES,),
        (torch.full((5,), 3.0), ints(0, 0, 0, 0, 0)),
        (torch.full((5,), 3.0), ints(1, 0, 0, 0, 0)),
    ),
    Open(
        "max_pool indices",
        lambda x: torch.nn.functional.max_pool2d(x, 2, return_indices=True),
        (POOLED,),
        (torch.ones(1, 1, 1, 1), torch.full((1, 1, 1, 1), 3)),
        (torch.zeros(1, 1, 1, 1), torch.full((1, 1, 1, 1), 2)),
    ),
    Open(
        "max_pool indices of NaN",
        lambda x: torch.nn.functional.max_pool2d(x, 2, return_indices=True)[1],
        (torch.tensor([[[[NAN, 5.0], [NAN, math.inf]]]]),),
        torch.full((1, 1, 1, 1), 0),
        None,
    ),
    Open(
        "the mean beside a variance",
        lambda x: torch.var_mean(x, 0),
        (torch.tensor([[1.0, 2.0], [math.inf, 4.0], [2.0, 3.0]]),),
        (torch.tensor([NAN, 1.0]), torch.tensor([math.inf, 3.0])),
        (torch.tensor([NAN, 1.0]), torch.tensor([math.inf, 4.0])),
    ),
    Open(
        "gradient of max_pool",
        pool_gradient,
        (POOLED,),
        torch.tensor([[[[0.0, 0.0], [0.0, 1.0]]]]),
        torch.tensor([[[[0.0, 0.0], [1.0, 0.0]]]]),
    ),
    Open(
        "unique",
        lambda x: torch.unique(x, sorted=False, return_inverse=True)[1].bincount() + x[:3],
        (ints(5, 5, 7, 9),),
        ints(6, 7, 8),
        None,
    ),
    Open(
        "scatter",
        lambda x, i, s: x.scatter(0, i, s),
        (torch.zeros(3), ints(0, 0, 2), torch.tensor([1.0, 2.0, 3.0])),
        torch.tensor([1.0, 0.0, 3.0]),
        torch.tensor([1.0, 0.5, 3.0]),
    ),
    Open(
        "index_put",
        writes,
        (torch.zeros(3), ints(0, 0, 2), torch.tensor([1.0, 2.0, 3.0])),
        torch.tensor([1.0, 0.0, 3.0]),
        torch.tensor([1.0, 0.0, 4.0]),
    ),
    Open(
        "index_copy",
        lambda x, i, s: x.index_copy(0, i, s),
        (torch.zeros(3, 2), ints(1, 1), torch.tensor([[1.0, 2.0], [3.0, 4.0]])),
        torch.tensor([[0.0, 0.0], [1.0, 2.0], [0.0, 0.0]]),
        torch.tensor([[0.0, 1.0], [1.0, 2.0], [0.0, 0.0]]),
    ),
    Open(
        "put",
        lambda x, i, s: x.put_(i, s),
        (torch.zeros(2, 2), ints(3, 3), torch.tensor([1.0, 2.0])),
        torch.tensor([[0.0, 0.0], [0.0, 1.0]]),
        torch.tensor([[5.0, 0.0], [0.0, 1.0]]),
    ),
    Open(
        "empty",
        lambda x: torch.cat([torch.empty(2), x]),
        (torch.ones(2),),
        torch.tensor([7.0, 8.0, 1.0, 1.0]),
        torch.tensor([7.0, 8.0, 1.0, 2.0]),
    ),
    Open(
        "svd", lambda x: torch.linalg.svd(x), (MATRIX,), (U * SIGNS, S, V * SIGNS[:, None]), (U, S * 1.1, V)
    ),
    Open("qr", lambda x: torch.linalg.qr(x), (MATRIX,), (Q * SIGNS, R * SIGNS[:, None]), None),
    Open("eigh", lambda x: torch.linalg.eigh(x), (MATRIX,), (W, E * SIGNS), (W + 0.1, E)),
    Open(
        "eig",
        lambda x: torch.linalg.eigvals(x).abs(),
        (torch.diag(torch.tensor([1.0, 2.0])),),
        torch.tensor([2.0, 1.0]),
        None,
    ),
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_another_legal_answer_is_silent_and_says_what_is_left_out(kind: Open) -> None:
    notes: list[str] = []
    assert kind.judged(kind.legal, notes) is None
    assert not notes or "torch does not define" in notes[0]
    no_other_answer = ("cummax", "median", "shift right", "empty")
    assert notes or kind.name in no_other_answer


@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if kind.wrong is not None], ids=lambda kind: kind.name
)
def test_a_wrong_result_beside_it_is_found(kind: Open) -> None:
    assert kind.judged(kind.wrong) is not None


def test_order_of_distinct_elements_and_of_stable_sorts_is_defined() -> None:
    """Each index counts, and a leaf that is left out hides no other."""
    x = torch.tensor([[3.0, 1.0, 2.0], [1.0, 1.0, 2.0]])
    right = x.argsort()
    assert judged(lambda x: x.argsort(), (x,), right.flip(0)) is not None
    difference = judged(lambda x: (x.argsort(), x + 1), (x,), (ints(1, 2, 0, 1, 0, 2).reshape(2, 3), x + 2))
    assert difference["where"] == "output 1"
    assert judged(lambda x: x.argsort(stable=True), (TIES,), ints(4, 1, 3, 2, 0)) is not None


def test_what_rubbish_is_far_from_in_float64_hides_nothing_else() -> None:
    x = torch.linspace(0, 1, 8)

    def program(x: Tensor) -> Tensor:
        return torch.cat([torch.full((2,), NAN).to(torch.int64) * 1e-3, x])

    result = program(x)
    result[5] += 0.5
    assert judged(program, (x,), result) is not None


def test_an_answer_that_the_program_cannot_bear_is_passed_over() -> None:
    """An index out of bounds, say: the other answers tell."""
    table, x = torch.arange(4.0), torch.tensor([NAN, 1.0])

    def program(x: Tensor) -> Tensor:
        return table[x.to(torch.int64).clamp(min=0)]

    assert judged(program, (x,), torch.tensor([3.0, 1.0])) is None
    assert judged(program, (x,), torch.tensor([3.0, 2.0])) is not None


def test_numbers_and_sizes_that_depend_on_it_are_not_judged() -> None:
    x = torch.tensor([NAN, 1.0])
    assert judged(lambda x: int(x.to(torch.int32)[0]), (x,), 7) is None
    assert judged(lambda x: int(x.to(torch.int32)[1]), (x,), 7) is not None
    assert judged(lambda x: x.to(torch.uint8).nonzero(), (x,), torch.zeros(2, 1, dtype=torch.int64)) is None


def test_it_holds_in_inference_mode_and_inside_higher_order_ops() -> None:
    def branch(x: Tensor) -> Tensor:
        return torch.argsort(x)

    def program(x: Tensor) -> Any:
        return torch.cond(x.sum() > 0, branch, lambda x: x.long(), (x,))

    conditional, _ = capture_by_dynamo(program, (TIES,))
    for run, mode in ((branch, torch.inference_mode), (lambda x: conditional(x)[0], torch.no_grad)):
        with mode():
            assert judged(run, (TIES,), ints(4, 1, 3, 2, 0)) is None
            assert judged(run, (TIES,), ints(4, 3, 1, 2, 0)) is not None


def test_small_results_of_a_program_that_draws_are_not_judged_and_large_ones_are() -> None:
    """Two draws of few possible numbers agree by chance."""
    small, large = TIES, torch.linspace(0, 1, 2000)

    def program(x: Tensor) -> Any:
        return torch.randint(0, 2, ()), x + 1

    assert judged(program, (small,), (ints(0)[0], small + 2)) is None
    assert judged(program, (small,), (ints(1)[0], small + 2)) is None
    assert judged(program, (large,), (ints(0)[0], large + 2)) is not None


def test_random_numbers_are_those_of_eager() -> None:
    """Else dropout beside a sort would hide what it touches."""

    def program(x: Tensor) -> Any:
        return x.argsort(), torch.rand(3)

    torch.manual_seed(0)
    expected = program(TIES)[1]
    assert judged(program, (TIES,), (ints(4, 1, 3, 2, 0), expected)) is None
    notes: list[str] = []
    judged(program, (TIES,), (TIES.argsort(), expected + 1), notes)
    assert notes == ["output 1 is not judged: eager differs from itself, or may with other random numbers"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.complex64, torch.int8, torch.bool])
def test_what_is_never_written_is_rubbish_of_another_kind(dtype: torch.dtype) -> None:
    values = torch.stack(
        [UndefinedResults(number).around(torch.empty)(4, dtype=dtype) for number in range(2)]
    )
    assert dtype is torch.bool or not torch.equal(*values)


def test_what_is_written_after_empty_is_as_it_was() -> None:
    def forward(x: Tensor) -> Tensor:
        return torch.empty_like(x).copy_(x)

    class Model(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return forward(x)

    x = torch.ones(3)
    assert torch.equal(UndefinedResults().applied_to(forward)(x), x)
    assert torch.equal(UndefinedResults().applied_to(Model())(x), x)
    assert UndefinedResults().applied_to((x,)) == (x,)


def test_an_ordinary_failure_costs_ten_more_eager_runs() -> None:
    runs = []

    def eager(change: Callable[[Any], Any] = lambda value: value, seed: int = 0, **_: Any) -> Any:
        runs.append(seed)
        return only(change(torch.sin)(TIES))

    assert comparison_of(only(TIES.cos()), eager(), eager, DEFAULT_SPEC).difference() is not None
    assert len(runs) == 11, "eager itself, with another seed, in float64, and eight with other rounding"


def test_an_infinity_is_not_excused_by_the_range_of_float64() -> None:
    """The number below inf is 65504 in float16, and in float64 one that float16 rounds to inf."""
    x, y = torch.tensor([INF, 1.0], dtype=torch.float16), torch.zeros(2, dtype=torch.float16)
    right = torch.nextafter(x, y)
    assert judged(torch.nextafter, (x, y), right) is None
    found = judged(torch.nextafter, (x, y), torch.where(right > 2, INF, right))
    assert found["category"] == "inf"


class Garbage(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Memory that nobody wrote holds a NaN in the first run, and then numbers of any size."""

    runs = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.empty_like.default:
            result.fill_(0.5 if not self.runs else 1e30)[-1] = float("nan") if not self.runs else -0.5
            self.runs += 1
        return result


def test_the_size_of_garbage_says_nothing_about_what_is_open() -> None:
    notes: list[str] = []
    with Garbage():  # type: ignore[no-untyped-call]
        judged(torch.empty_like, (torch.ones(4),), torch.tensor([0.5, 0.5, 0.5, -0.5]), notes)
    assert notes == ["output 0 is not judged: torch does not define uninitialised memory"]
