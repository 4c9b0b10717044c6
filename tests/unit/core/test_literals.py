"""Values with a source text come back."""

from __future__ import annotations

import enum
import math

import pytest
import torch

from minidbg.core.literals import NotALiteral, read_literal, write_literal

LITERALS = [
    *(None, True, -3, 2.5, -0.0, float("inf"), -float("inf"), 1 + 2j, 3 - 4j, "it's", b"\x00"),
    *((), (1,), [1, (2, "x")], {"a": {"b": [None]}}, {3, 1, 2}, set(), frozenset({1})),
    *(torch.float16, torch.device("cuda:1"), torch.channels_last, torch.strided, torch.Size([2, 3])),
    {"precisions": {torch.float16, torch.float32}, "devices": (torch.device("cpu"), None)},
]


@pytest.mark.parametrize("value", LITERALS, ids=lambda value: type(value).__name__)
def test_text_of_a_literal_gives_it_back_run_or_read(value: object) -> None:
    for again in (eval(write_literal(value), {"torch": torch}), read_literal(write_literal(value))):
        assert again == value
        assert type(again) is type(value)


def test_nan_comes_back_as_nan() -> None:
    assert math.isnan(eval(write_literal(float("nan"))))


def test_text_of_a_set_does_not_depend_on_its_order() -> None:
    assert write_literal({"b", "a", "c"}) == "{'a', 'b', 'c'}"


class Level(enum.IntEnum):
    HIGH = 3


class Table(dict):  # type: ignore[type-arg]
    pass


@pytest.mark.parametrize(
    "value",
    [object(), len, Level.HIGH, Table(), [1, {"x": object()}]],
    ids=lambda value: type(value).__name__,
)
def test_objects_are_no_literals(value: object) -> None:
    with pytest.raises(NotALiteral):
        write_literal(value)


def test_refusal_names_the_place_of_the_object() -> None:
    with pytest.raises(NotALiteral) as caught:
        write_literal({"passes": [1, len]}, "options")

    assert caught.value.path == "options['passes'][1]"
    assert caught.value.value is len


@pytest.mark.parametrize(
    "text", ["open('x')", "torch.load('x')", "__import__('os')", "torch.nn", "(lambda: 1)()"]
)
def test_what_is_no_literal_is_not_read(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_literal(text)
