"""Which elements are wrong, where the runs to measure by hold no number."""

import math

import torch

from minidbg.judge.differences import wrong_elements

FLOAT32 = (1.3e-6, 1e-5, 3e-5)


def test_another_run_of_eager_that_is_no_number_measures_nothing():
    """Memory that nobody wrote may hold a NaN in one run and a number in the next."""
    actual, expected = torch.tensor([7e4, -1.0]), torch.tensor([1.9158, 0.0410])
    exact = torch.tensor([1.9158, math.inf], dtype=torch.float64)
    for runs in ([], [torch.tensor([math.nan, 0.0])], [torch.tensor([math.inf, -math.inf])]):
        found = wrong_elements(actual, expected, FLOAT32, exact, runs).wrong
        assert (found["category"], found["index"], found["wrong"]) == ("float", [0], 2)
        assert wrong_elements(expected, expected, FLOAT32, exact, runs).wrong is None


def test_what_no_float64_can_measure_is_left_to_the_tolerances():
    huge = torch.tensor([1.7e308, 1.0], dtype=torch.float64)
    found = wrong_elements(-huge, huge, FLOAT32, huge, [huge.flip(0)]).wrong
    assert found["category"] == "float"
