"""What the comparison owes for all tensors: silence on rounding, an alarm on a wrong element, and no surprise between."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minidbg.judge.compare import DEFAULT_SPEC, mismatch
from minidbg.judge.eager_runs import EagerRuns, Tag
from minidbg.judge.leaves import Leaf, collect_leaves

settings.register_profile("compare", deadline=None, max_examples=60, derandomize=True)
settings.load_profile("compare")

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64]
SHAPES = st.lists(st.integers(1, 40), max_size=3).map(tuple)
SIZES = st.sampled_from([1e-6, 1e-2, 1.0, 1e3])


def values(shape: tuple[int, ...], seed: int, size: float, dtype: torch.dtype) -> torch.Tensor:
    """Random numbers in float64 that ``dtype`` has exactly, none of them near 0."""
    generator = torch.Generator().manual_seed(seed)
    number = torch.rand(shape, generator=generator, dtype=torch.float64) + 0.5
    sign = torch.randint(0, 2, shape, generator=generator) * 2 - 1
    exact = (number * sign * size).to(dtype)
    return exact.to(torch.complex128 if dtype.is_complex else torch.float64)


def one_output(value: torch.Tensor) -> dict[str, Leaf]:
    return collect_leaves((value,))


def in_float64(value: torch.Tensor) -> EagerRuns:
    """Eager's one output in float64."""
    return EagerRuns({Tag.FLOAT64: [one_output(value)]})


@given(SHAPES, st.integers(0, 999), SIZES, st.sampled_from(DTYPES), st.booleans())
def test_a_result_that_is_off_by_one_rounding_step_is_silent(
    shape: tuple[int, ...], seed: int, size: float, dtype: torch.dtype, with_reference: bool
) -> None:
    exact = values(shape, seed, size, dtype)
    step = torch.finfo(dtype).eps * (torch.rand(shape, dtype=torch.float64) - 0.5)
    reference = in_float64(exact) if with_reference else None
    rounded = one_output((exact * (1 + step)).to(dtype))
    assert mismatch(rounded, one_output(exact.to(dtype)), reference) is None


@given(SHAPES, st.integers(0, 999), SIZES, st.sampled_from(DTYPES), st.data())
def test_one_element_that_is_off_by_a_quarter_is_found_at_its_place(
    shape: tuple[int, ...], seed: int, size: float, dtype: torch.dtype, data: st.DataObject
) -> None:
    exact = values(shape, seed, size, dtype)
    place = tuple(data.draw(st.integers(0, length - 1)) for length in shape)
    wrong = exact.clone()
    wrong[place] *= 1.25
    expected, actual = (one_output(value.to(dtype)) for value in (exact, wrong))
    difference = mismatch(actual, expected, in_float64(exact))
    assert (difference["category"], difference["index"]) == ("float", list(place))


@pytest.mark.slow
@given(SHAPES, st.integers(0, 999), st.sampled_from(DTYPES), st.floats(1e-9, 1.0), st.floats(1.0, 50.0))
def test_a_difference_at_a_margin_is_one_at_every_smaller_margin(
    shape: tuple[int, ...], seed: int, dtype: torch.dtype, error: float, margin: float
) -> None:
    exact = values(shape, seed, 1.0, dtype)
    runs = one_output((exact * (1 + error)).to(dtype)), one_output(exact.to(dtype)), in_float64(exact)
    strict, plain = mismatch(*runs, replace(DEFAULT_SPEC, margin=margin)), mismatch(*runs)
    assert strict is None or plain is not None
    if plain is not None:
        assert (strict is not None) == (plain["excess"] > margin)


@given(
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20),
    st.integers(0, 19),
    st.integers(1, 2**63 - 1),
)
def test_integers_are_exact(numbers: list[int], place: int, by: int) -> None:
    expected = torch.tensor(numbers, dtype=torch.int64)
    wrong = expected.clone()
    wrong[place % len(numbers)] ^= by
    assert mismatch(one_output(expected.clone()), one_output(expected), in_float64(expected)) is None
    difference = mismatch(one_output(wrong), one_output(expected), in_float64(expected))
    assert difference["index"] == [place % len(numbers)]


@given(
    SHAPES, st.integers(0, 999), st.sampled_from(DTYPES), st.sampled_from(["nan", "inf", "-inf"]), st.data()
)
def test_a_number_that_is_none_is_found_on_either_side(
    shape: tuple[int, ...], seed: int, dtype: torch.dtype, what: str, data: st.DataObject
) -> None:
    exact = values(shape, seed, 1.0, dtype)
    place = tuple(data.draw(st.integers(0, length - 1)) for length in shape)
    other = exact.clone()
    other[place] = float(what)
    runs = one_output(other.to(dtype)), one_output(exact.to(dtype))
    for actual, expected in (runs, runs[::-1]):
        reference = in_float64(expected["output 0"].value.to(exact.dtype))
        difference = mismatch(actual, expected, reference, replace(DEFAULT_SPEC, margin=1e6))
        category = "nan" if what == "nan" else "inf"
        assert (difference["category"], difference["index"]) == (category, list(place))
    assert mismatch(runs[0], runs[0]) is None
