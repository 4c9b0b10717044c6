"""What a reduction asks, in numbers: each heuristic of order has its price here.

Who changes one reads in these tables what became dearer and what cheaper, and writes the new numbers down where that is a good
bargain on the whole. What a reduction ends with may not change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from graphs_to_reduce import Needs, answers, call_names, chain, searched
from torch import Tensor, fx

from minidbg.core.kinds import Kind
from minidbg.reduction.core import Minimized, minimize


def frames(*groups: tuple[int, ...]) -> dict[str, Any]:
    """The nodes that the frames of the failure held, the innermost frame first."""
    return {"frames": lambda: tuple(tuple(f"op_{place}" for place in group) for group in groups)}


CAUSES: dict[str, tuple[int, Sequence[int], dict[str, Any], int]] = {
    "the first": (300, [0], {}, 4),
    "in the middle": (300, [150], {}, 11),
    "the last": (300, [299], {}, 11),
    "two with one between": (300, [149, 151], {}, 17),
    "two near each other": (300, [100, 140], {}, 21),
    "at both ends": (300, [3, 290], {}, 26),
    "four neighbours": (300, [100, 101, 102, 103], {}, 22),
    "a pair and one far off": (300, [100, 220, 230], {}, 37),
    "a loose cluster": (200, range(100, 140, 4), {}, 65),
    "spread out": (300, [10, 120, 230, 290], {}, 44),
    "ten of a hundred": (100, range(0, 100, 10), {}, 68),
    "hint: two neighbours": (300, [221, 222], {"hints": ("op_221",)}, 6),
    "hint: some steps apart": (300, [221, 225], {"hints": ("op_221",)}, 12),
    "hint: nine steps apart": (300, [221, 230], {"hints": ("op_221",)}, 20),
    "hint: both": (300, [10, 221], {"hints": ("op_221", "op_10")}, 3),
    "hint: the wrong one": (300, [10], {"hints": ("op_221",)}, 13),
    "frames: the outer one": (300, [221, 222], frames((221,), (221, 222, 223)), 5),
    "frames: one each": (300, [121, 200], frames((121,), (200,)), 3),
    "frames: another node": (300, [121], frames((200,)), 14),
    "at run time: near": (300, [215, 221], {**frames((221,)), "traits": Kind.RUNTIME.traits}, 9),
    "at run time: far back": (300, [100, 221], {**frames((221,)), "traits": Kind.RUNTIME.traits}, 29),
    "small: one": (12, [3], {}, 12),
    "small: two": (12, [3, 9], {}, 14),
    "small: four": (12, [0, 4, 8, 11], {}, 16),
    "thirty: two": (30, [3, 20], {}, 15),
    "four: one": (4, [0], {}, 4),
    "four: two": (4, [0, 3], {}, 6),
    "four: frames name it": (4, [1], frames((1,)), 1),
    "four: frames name another": (4, [1], frames((2,)), 4),
    "four: the text names it": (4, [1], {"hints": ("op_1",)}, 1),
}


def cost_of(calls: int, places: Sequence[int], how: dict[str, Any]) -> int:
    needs = Needs(*(f"op_{place}" for place in places))
    search = searched(*chain(calls), answers(needs), **how)
    assert call_names(search.best.graph_module) == [f"op_{place}" for place in places]
    assert search.proven is search.best
    return needs.calls


@pytest.mark.parametrize(("calls", "places", "how", "questions"), CAUSES.values(), ids=CAUSES)
def test_a_cause_is_found_in_so_many_questions(
    calls: int, places: Sequence[int], how: dict[str, Any], questions: int
) -> None:
    assert cost_of(calls, places, how) == questions


def values(*size: int) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(0))


def whatever(inputs: Sequence[Any]) -> bool:
    return True


SIMPLIFIED: dict[str, tuple[Callable[..., Any], Sequence[Any], Callable[[Sequence[Any]], bool], int]] = {
    "nothing matters": (lambda a: torch.relu(a), [values(8, 12)], whatever, 2),
    "a size": (lambda a: torch.relu(a), [values(60, 12)], lambda given: given[0].shape[0] >= 37, 16),
    "a multiple of 8": (lambda a: torch.relu(a), [values(64)], lambda given: given[0].shape[0] % 8 == 0, 8),
    "two sizes": (
        lambda a, b: a @ b,
        [values(20, 24), values(24, 28)],
        lambda given: given[0].shape[0] > 3 and given[1].shape[0] > 9,
        18,
    ),
    "a dtype": (
        lambda a: torch.relu(a),
        [values(8).double()],
        lambda given: given[0].dtype is torch.float64,
        3,
    ),
    "a gradient": (
        lambda a: torch.relu(a),
        [values(8, 3).requires_grad_()],
        lambda given: given[0].requires_grad,
        6,
    ),
    "strides": (
        lambda a: torch.relu(a),
        [values(8, 3).t()],
        lambda given: not given[0].is_contiguous(),
        8,
    ),
    "a value": (lambda a: torch.relu(a), [values(8)], lambda given: bool((given[0] < 0).any()), 4),
    "two inputs": (
        lambda a, b, c: torch.stack((a, b, c)),
        [values(4), values(4) + 1, values(4) + 2],
        lambda given: len(given) >= 2,
        7,
    ),
    "arguments": (
        lambda a: torch.nn.functional.layer_norm(a, (6,), None, None, 0.25),
        [values(5, 6)],
        whatever,
        6,
    ),
}


def simplified(
    program: Callable[..., Any], inputs: Sequence[Any], holds: Callable[[Sequence[Any]], bool]
) -> Minimized:
    graph_module = fx.symbolic_trace(program)
    target = next(node.target for node in graph_module.graph.nodes if node.op == "call_function")

    def fails(candidate: fx.GraphModule, given: Sequence[Any]) -> bool:
        return any(node.target is target for node in candidate.graph.nodes) and holds(given)

    return minimize(graph_module, inputs, fails, simplify=True)


@pytest.mark.parametrize(("program", "inputs", "holds", "questions"), SIMPLIFIED.values(), ids=SIMPLIFIED)
def test_a_small_graph_is_made_plain_in_so_many_questions(
    program: Callable[..., Any], inputs: Sequence[Any], holds: Callable[[Sequence[Any]], bool], questions: int
) -> None:
    result = simplified(program, inputs, holds)
    assert result.certified
    assert holds(result.inputs)
    assert result.oracle_calls == questions
