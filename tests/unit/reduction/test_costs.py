"""What a reduction asks, in numbers: each heuristic of order has its price here.

Who changes one reads in these tables what became dearer and what cheaper, and writes the new numbers down where that is a good
bargain on the whole. What a reduction ends with may not change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from graphs_to_reduce import Needs, answers, call_names, chain, searched

from minidbg.core.kinds import Kind


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
