"""What rounding decides is left out, and hides no bug beside it."""

from __future__ import annotations

import pytest
import torch
from open_answers import Open
from torch import Tensor


def by_expert(tokens: Tensor, router: Tensor, experts: Tensor) -> tuple[Tensor, Tensor]:
    """A mixture of experts: each token goes to the one that the router likes best."""
    chosen = (tokens @ router).topk(1).indices[:, 0]
    return torch.einsum("td,tde->te", tokens, experts[chosen]), chosen


TOKENS = torch.tensor([[1.0, 1.0], [1.0, -2.0], [3.0, 0.5]])
ROUTER = torch.tensor([[0.3, 0.2], [0.7, 0.8 + 2e-7]])  # the first token's experts are as good as equal
EXPERTS = torch.stack([torch.eye(2), 5 * torch.eye(2)])
ROUTED, CHOSEN = by_expert(TOKENS, ROUTER, EXPERTS)
OTHER = 1 - CHOSEN[0]
ELSEWHERE = torch.cat([TOKENS[:1] @ EXPERTS[OTHER], ROUTED[1:]]), torch.cat([OTHER[None], CHOSEN[1:]])
NINE = torch.tensor([0.9, 1.8, 7.0])
ABOVE = NINE / 3 > 0.3
BELOW = torch.tensor([not ABOVE[0], ABOVE[1], ABOVE[2]])
DECISIONS = [
    Open(
        "routing",
        by_expert,
        (TOKENS, ROUTER, EXPERTS),
        ELSEWHERE,
        (ELSEWHERE[0] + torch.tensor([0.0, 0.0, 0.01])[:, None], ELSEWHERE[1]),
    ),
    Open(
        "rounded to an integer",
        lambda x, y: torch.cat([x.log2(), y.sum(0, keepdim=True), x.sum(0, keepdim=True)]).floor(),
        (torch.tensor([8.0, 3.0, 16.0]), torch.tensor([0.3, 0.3, 0.4])),
        torch.tensor([2.0, 1.0, 4.0, 0.0, 27.0]),
        torch.tensor([2.0, 1.0, 4.0, 0.0, 26.0]),
    ),
    Open("a size", lambda x: (x / 3 > 0.3).nonzero(), (NINE,), BELOW.nonzero(), None),
]


@pytest.mark.parametrize("case", DECISIONS, ids=lambda case: case.name)
def test_what_rounding_decides_is_left_out_and_what_is_wrong_beside_it_is_found(case: Open) -> None:
    notes: list[str] = []
    assert case.judged(case.legal, notes) is None
    assert any("what rounding decides" in note for note in notes), notes
    if case.wrong is not None:
        assert case.judged(case.wrong) is not None


@pytest.mark.parametrize(
    ("dtype", "large", "step"),
    [(torch.bfloat16, 24, 2.0**-3), (torch.float16, 24, 2.0**-6), (torch.float32, 2000, 2.0**-12)],
)
def test_eager_that_is_exact_by_luck_forbids_no_rounding_errors(
    dtype: torch.dtype, large: int, step: float
) -> None:
    def program(x: Tensor) -> Tensor:
        return (x * (large + 0.1) - x * (large - 0.9)).float()

    every = (1 + torch.arange(128) / 128).to(dtype)
    lucky = every[program(every) == every].repeat(10)
    case = Open("lucky", program, (lucky,), program(lucky) + step, program(lucky) + 50 * step)
    assert case.judged(case.legal) is None
    assert case.judged(case.wrong) is not None
    case = Open("clear", lambda x: program(x.double()), (lucky,), case.legal, None)
    assert case.judged(case.legal) is not None


def added_one_by_one(terms: Tensor) -> Tensor:
    """The sum of each row as a plain loop in the terms' dtype makes it."""
    total = torch.zeros(len(terms))
    for column in terms.T.contiguous():
        total = total + column
    return total


def test_a_long_sum_may_be_as_wrong_as_adding_one_by_one_makes_it() -> None:
    """Eager adds in a tree; the gradient of a bias is such a sum, and inductor's loop for it adds one by one."""
    terms = torch.randn(16, 40_000, generator=torch.Generator().manual_seed(3)) + 0.5
    terms -= terms.mean(1, keepdim=True)
    slowly = added_one_by_one(terms)
    case = Open("sum", lambda x: x.sum(1), (terms,), slowly, slowly + 0.05)
    assert (case.legal - terms.sum(1)).abs().max() > 20 * (terms.double().sum(1) - terms.sum(1)).abs().max()
    assert case.judged(case.legal) is None
    assert case.judged(case.wrong) is not None
    few = terms[:, :4].contiguous()
    assert Open("few", lambda x: x.sum(1), (few,), None, None).judged(few.sum(1) + 1e-4) is not None


def test_a_sum_in_float64_has_errors_of_float64() -> None:
    x = torch.randn(8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    case = Open("double", lambda x: x - x.mean(0) + x.sum() + x.argmax(1)[:, None], (x,), None, None)
    assert case.judged(case.program(x) * (1 + 1e-6)) is not None


def test_rounding_excuses_no_other_dtype() -> None:
    case = DECISIONS[0]
    found = case.judged((ELSEWHERE[0].double(), ELSEWHERE[1]))
    assert found["category"] == "dtype"


def test_rounding_excuses_no_other_choice_where_it_does_not_decide() -> None:
    case = Open("clear", by_expert, (TOKENS[1:], ROUTER, EXPERTS), None, None)
    others = 1 - CHOSEN[1:]
    given = torch.einsum("td,tde->te", TOKENS[1:], EXPERTS[others]), others
    assert case.judged(given) is not None
