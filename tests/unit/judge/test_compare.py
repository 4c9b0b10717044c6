"""Whether what a backend left is a difference from what eager left, of which category, and at which place."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

from minidbg.judge.compare import DEFAULT_SPEC, Comparison
from minidbg.judge.differences import TOLERANCES, wrong_elements
from minidbg.judge.eager_runs import EagerRuns, Tag
from minidbg.judge.leaves import CannotCompare, Leaf, collect_leaves

ODD_TENSORS_WARN = pytest.mark.filterwarnings("ignore")
Snapshot = dict[str, Leaf]
ONES, INF, NAN = torch.ones(3), math.inf, math.nan


def outputs(*values: Any) -> Snapshot:
    return collect_leaves(values)


def gradient(**values: Any) -> Snapshot:
    return collect_leaves((), (), values)


def never() -> Iterator[Snapshot]:
    raise AssertionError("this run was not needed")
    yield


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def changed(value: torch.Tensor, place: Any, to: Any) -> torch.Tensor:
    value = value.clone()
    value[place] = to
    return value


def first(*runs: Any) -> dict[str, Any] | None:
    return Comparison(*runs).difference()


def difference_of(
    actual: Any, expected: Any, reference: Any = None, again: Any = None, **spec: Any
) -> dict[str, Any] | None:
    """The difference of two single outputs; ``reference`` is eager's in float64, ``again`` that of its second run."""
    values = {Tag.FLOAT64: reference, Tag.AGAIN: again}
    eager_runs = EagerRuns({tag: [outputs(value)] for tag, value in values.items() if value is not None})
    return first(outputs(actual), outputs(expected), eager_runs, replace(DEFAULT_SPEC, **spec))


def twice(again: Snapshot) -> EagerRuns:
    """Eager has run a second time, and left this behind."""
    return EagerRuns({Tag.AGAIN: [again]})


def found(*runs: Any, **more: Any) -> dict[str, Any]:
    difference = difference_of(*runs, **more)
    assert difference is not None
    return difference


def is_silent(*runs: Any, **more: Any) -> bool:
    return difference_of(*runs, **more) is None


def in_float32() -> torch.Tensor:
    """Upstream: test_rmse_improves_over_atol. Eager rounds 655 * 100 to 65504, the compiled graph does not."""
    return (HALF.float() - SCALE.float() * 100).half()


def quantized(value: torch.Tensor, dtype: torch.dtype = torch.qint8) -> torch.Tensor:
    return torch.quantize_per_tensor(value, 0.1, 0, dtype)


def twice_at_2() -> torch.Tensor:
    return torch.sparse_coo_tensor(torch.tensor([[0, 2, 2]]), torch.tensor([1.0, 2.0, 3.0]), (4,))


def pair(*values: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


NOISE = random(5000, seed=1).double() * 1e-3
EXACT = random(5000).double()
NOISY = (EXACT + NOISE).float()
HALF, SCALE = torch.tensor(65500, dtype=torch.half), torch.tensor(655, dtype=torch.half)
FLOAT8 = torch.float8_e4m3fn
MILLION = random(1000, 1000)
FIVE_BY_TWENTY = torch.ones(5, 20)
OVERFLOWS = pair(INF, 2.0, dtype=torch.half), pair(1000.0, 2.0, dtype=torch.float64)
NEAR_65520 = pair(65519.9, 65530.0, dtype=torch.float64)
HUGE = pair(1e200, 1e-200, dtype=torch.float64)
BOOLS = torch.tensor([True, False, True, False])
TWO_ODD = torch.tensor([NAN, INF, -INF, 1.0])
AGAIN = [random(100) + random(100, seed=seed) * 1e-4 for seed in (1, 2, 3)]
"""Atomic additions: each run of eager is a little different."""


def silent() -> dict[str, tuple[Any, ...]]:
    return {
        "nearer to float64 than eager": (in_float32(), HALF - SCALE * 100, HALF.double() - 65500),
        "noise of the size of eager's own": ((EXACT - NOISE).float(), NOISY, EXACT),
        "complex32": (torch.ones(3, dtype=torch.complex32), torch.ones(3, dtype=torch.complex32)),
        "a rounding step of float8": (pair(1.0, 1.125).to(FLOAT8), pair(1.0, 1.0).to(FLOAT8)),
        "no elements": (torch.empty(0, 3), torch.empty(0, 3)),
        "nan and inf in the same places": (TWO_ODD * 1.0000001, TWO_ODD, TWO_ODD.double()),
        "nan and inf in the same places, without float64": (TWO_ODD.clone(), TWO_ODD),
        "near float64, where only eager overflows": (OVERFLOWS[1].half(), *OVERFLOWS),
        "an overflow that rounding float64 gives too": (
            pair(65504.0, INF).half(), pair(65504.0, 65504.0).half(), NEAR_65520,
        ),
        "nan in one part of a number": (torch.tensor(complex(NAN, 1)), torch.tensor(complex(NAN, 1))),
        "rounding beside an infinite part": (
            torch.tensor(complex(-INF, 3.1415925)), torch.tensor(complex(-INF, 3.1415927)),
        ),
        "a bool that rounding decides in eager": (BOOLS, changed(BOOLS, 1, True), BOOLS),
        "noise between runs of eager": (AGAIN[2], AGAIN[0], None, AGAIN[1]),
        "quantized": (quantized(ONES), quantized(ONES)),
        "sparse, coalesced or not": (twice_at_2().coalesce(), twice_at_2()),
    }  # fmt: skip


@ODD_TENSORS_WARN
def test_what_is_no_difference_passes_in_silence() -> None:
    assert [name for name, runs in silent().items() if not is_silent(*runs)] == []


def row(*runs: Any, **facts: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return runs, facts


def wrong() -> dict[str, tuple[tuple[Any, ...], dict[str, Any]]]:
    """The runs, and what the difference must say; ``says`` is how its message goes on."""
    numbers, large = torch.arange(10), torch.tensor([2**62, 5])
    complex32 = torch.ones(3, dtype=torch.complex32)
    lucky, exact = HALF - SCALE * 100, HALF.double() - 65500
    return {
        # form
        "dtype": row(ONES.long(), ONES.bfloat16(), category="dtype", signature="dtype int64 for bfloat16"),
        "shape": row(torch.ones(2), ONES, category="shape", signature="shape"),
        "shape of no elements": row(torch.empty(0, 3), torch.empty(0, 4), category="shape"),
        "device": row(torch.ones(2), torch.ones(2, device="meta"), category="device", signature="device"),
        "a number for a tensor": row(torch.ones(2), 1.0, category="structure", signature="structure"),
        "a number for a bool": row(1, True, category="structure"),
        "sparse for dense": row(torch.ones(2).to_sparse(), torch.ones(2), category="structure"),
        "another layout": row(torch.eye(3).to_sparse_csr(), torch.eye(3).to_sparse(), category="structure"),
        "a word": row("sum", "mean", category="structure"),
        "an int": row(3, 4, category="integer", signature="integer"),
        "a bool": row(True, False, category="bool", signature="bool"),
        "a float": row(1.0, 1.1, category="float", signature="float"),
        "requires_grad": row(torch.ones(2, requires_grad=True), torch.ones(2), category="requires_grad"),
        # floats
        "one element": row(
            changed(FIVE_BY_TWENTY, (4, 17), 1.5), FIVE_BY_TWENTY, FIVE_BY_TWENTY.double(),
            says="differs: relative error 5.0e-01 at [4, 17], allowed 1.2e-05 (float32, cpu); "
            "RMSE against float64: backend 5.0e-02, eager 0.0e+00",
        ),
        "eager's, which float64 is far from": row(lucky, in_float32(), exact, category="float"),
        "five times eager's own noise": row((EXACT - 5 * NOISE).float(), NOISY, EXACT, category="float"),
        "one in a million": row(
            changed(MILLION, (999, 999), MILLION[999, 999] + 1e-3), MILLION, MILLION.double(), index=[999, 999]
        ),
        "complex32": row(complex32.to(torch.complex64).mul(2).to(torch.complex32), complex32, category="float"),
        "steps of float8": row(pair(1.0, 1.5).to(FLOAT8), pair(1.0, 1.0).to(FLOAT8), index=[1]),
        "no dimension": row(torch.tensor(2.0), torch.tensor(1.0), says="differs: relative error 1.0e+00, "),
        "where eager gives zero": row(pair(0.5, 1.0), pair(0.0, 1.0), says="differs: absolute error 5.0e-01 at [0]"),
        "farthest beyond what is allowed": row(
            pair(0.5, 1.0, 3.0), pair(1e-17, 1.0, 2.0), says="differs: relative error 5.0e-01 at [2]"
        ),
        "no relative error of about 0": row(
            pair(0.5, 1.0, 2.0), pair(1e-17, 1.0, 2.0), says="differs: absolute error 5.0e-01 at [0]"
        ),
        "very large numbers": row(HUGE * 2, HUGE, HUGE, index=[0]),
        "beside the noise of eager's runs": row(AGAIN[2] * 1.01, AGAIN[0], None, AGAIN[1], category="float"),
        "noise in one run": row(AGAIN[2], AGAIN[0], category="float"),
        "quantized": row(quantized(ONES + 1), quantized(ONES), category="float"),
        "in another format": row(
            quantized(ONES, torch.quint8), quantized(ONES), where="output 0.quantization"
        ),
        "sparse": row(twice_at_2().coalesce() * 1.01, twice_at_2(), category="float"),
        "conjugated": row(torch.tensor([1j]).conj(), torch.tensor([1j]), category="float"),
        # nan and inf
        **not_finite(NAN, 1.0, "nan"), **not_finite(0.0, NAN, "nan"), **not_finite(INF, 1.0, "inf"),
        **not_finite(1.0, -INF, "inf"), **not_finite(INF, -INF, "inf"), **not_finite(NAN, INF, "nan"),
        **not_finite(complex(NAN, 0), complex(INF, 0), "nan"),
        **not_finite(complex(INF, NAN), complex(NAN, INF), "nan"),
        **not_finite(complex(NAN, 0), complex(INF, NAN), "nan"), **not_finite(1j, complex(INF, NAN), "nan"),
        **not_finite(complex(-INF, 1), complex(-INF, 3.14), "inf"),
        **not_finite(complex(INF, 1), complex(-INF, 1), "inf"),
        "wrong, where only eager overflows": row(pair(500.0, 2.0).half(), *OVERFLOWS, category="inf"),
        # integers and bools
        **{
            str(dtype): row(changed(numbers, 7, 8).to(dtype), numbers.to(dtype), says=ONE_OF_TEN)
            for dtype in INTEGERS
        },
        "beyond the precision of float64": row(changed(large, 0, 2**62 + 1), large, large, index=[0]),
        "a wrong bool": row(changed(BOOLS, 1, True), BOOLS, BOOLS, category="bool", index=[1]),
        "a wrong bool, without float64": row(changed(BOOLS, 1, True), BOOLS, category="bool"),
        "beside a bool that rounding decides": row(
            changed(BOOLS, 2, False), changed(BOOLS, 1, True), BOOLS, index=[2]
        ),
    }  # fmt: skip


def not_finite(actual: complex, expected: complex, category: str) -> dict[str, Any]:
    """As the second of two elements, with and without a run in float64."""
    runs = torch.tensor([1.0, actual]), torch.tensor([1.0, expected])
    wide = torch.complex128 if runs[1].is_complex() or runs[0].is_complex() else torch.float64
    facts = {"category": category, "index": [1], "margin": 1000.0}
    return {
        f"{actual} for {expected}, {reference is None}": ((*runs, reference), facts)
        for reference in (None, runs[1].to(wide))
    }


ONE_OF_TEN = "is 8 at [7], eager gives 7 (1 of 10 elements wrong"
INTEGERS = [getattr(torch, f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)]


@ODD_TENSORS_WARN
def test_a_difference_is_found_with_its_category_its_place_and_what_it_says() -> None:
    troubles = []
    for name, (runs, wanted) in wrong().items():
        difference = difference_of(*runs, margin=wanted.pop("margin", 1.0))
        if difference is None:
            troubles.append(f"{name}: silent")
            continue
        json.dumps(difference, allow_nan=False)
        signature = difference["signature"]["message"].removeprefix("output: ")
        message = difference["message"].removeprefix("output 0 ")
        facts = {**difference, "signature": signature, "says": message[: len(wanted.get("says", ""))]}
        troubles += [f"{name}: {key} is {facts[key]}" for key in wanted if facts[key] != wanted[key]]
    assert not troubles, "\n".join(troubles)


# ---- leaves


def test_a_bare_tensor_is_output_0_which_is_not_copied_and_a_subclass_is_opened() -> None:
    x = torch.ones(2, requires_grad=True)
    leaf = collect_leaves(x)["output 0"]
    assert leaf.requires_grad
    assert not leaf.value.requires_grad
    assert leaf.value.data_ptr() == x.data_ptr()
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    assert {"output 0._values", "output 0._offsets"} <= set(collect_leaves((nested,)))


def test_a_missing_output_and_one_too_many_are_differences_of_structure() -> None:
    one, two = outputs(torch.ones(2)), outputs(torch.ones(2), torch.ones(2))
    fewer, more = first(one, two), first(two, one)
    assert fewer["message"] == "output 1 is not given by the compiled graph"
    assert more["message"] == "output 1 is not given by eager"


def test_a_wrong_gradient_is_a_failure_in_backward_and_none_is_as_good_as_zero() -> None:
    one, zero, none = (gradient(x=value) for value in (torch.ones(2), torch.zeros(2), None))
    difference = first(one, zero)
    assert difference["where"] == "gradient of x"
    assert difference["signature"] == {"direction": "backward", "message": "gradient: float"}
    assert first(zero, none) is None
    assert first(none, zero) is None
    assert first(none, one) is not None


def test_an_input_that_only_one_run_wrote_to_is_a_difference() -> None:
    difference = first(collect_leaves((), {"x": torch.ones(2)}), collect_leaves((), {"x": torch.zeros(2)}))
    assert difference["where"] == "input x after the call"


X = torch.arange(3.0)


@ODD_TENSORS_WARN
@pytest.mark.parametrize(
    ("left", "labels"),
    [
        (X, ["output 0"]),
        ((X, X), ["output 0", "output 1"]),
        ([(X, [X])], ["output 0[0]", "output 0[1][0]"]),
        ({"a": X, "b": (X,)}, ["output a", "output b[0]"]),
        (({1: X},), ["output 0[1]"]),
        ((torch.Size([2, 3]),), ["output 0"]),
        (lambda: torch.masked.masked_tensor(X, X > 0), ["output 0.mask", "output 0.data"]),
        (lambda: torch.eye(2).to_sparse(), ["output 0.layout", "output 0"]),
        (lambda: torch.eye(2).to_sparse_csr(), ["output 0.layout", "output 0"]),
        ((), []),
    ],
    ids=["one", "two", "nested", "dict", "a number as key", "a size", "masked", "coo", "csr", "none"],
)  # fmt: skip
def test_each_leaf_has_the_label_by_which_people_find_it(left: Any, labels: list[str]) -> None:
    leaves = collect_leaves(left() if callable(left) else left)  # some are made with a warning
    assert list(leaves) == labels
    assert {leaf.role for leaf in leaves.values()} <= {"output"}


def test_inputs_and_gradients_are_called_by_their_number_or_name() -> None:
    by_number = collect_leaves((), inputs_after=[X], gradients=[None, X])
    assert {label: leaf.role for label, leaf in by_number.items()} == {
        "input 0 after the call": "input",
        "gradient of input 0": "gradient",
        "gradient of input 1": "gradient",
    }
    by_name = collect_leaves((), inputs_after={"weight": X}, gradients={"weight": X})
    assert list(by_name) == ["input weight after the call", "gradient of weight"]


def test_a_sparse_meta_tensor_stays_what_it_is_since_it_has_no_values() -> None:
    assert list(collect_leaves(torch.eye(2).to_sparse().to("meta"))) == ["output 0"]


# ---- what is allowed


def test_no_other_run_is_asked_for_when_all_is_close() -> None:
    x = random(100)
    assert first(outputs(x * (1 + 1e-7)), outputs(x), EagerRuns({tag: never() for tag in Tag})) is None


def test_tolerances_can_be_given_for_all_dtypes_or_one() -> None:
    actual = ONES + 1e-3
    assert is_silent(actual, ONES, tolerances={"any": (1e-2, 0.0)})
    assert is_silent(actual, ONES, tolerances={"float32": (1e-2, 0.0)})
    assert found(actual, ONES, tolerances={"float64": (1e-2, 0.0)})
    assert found(actual, ONES, tolerances={"any": (1e-2, 0.0), "float32": (1e-6, 0.0)})


def test_excess_is_the_margin_up_to_which_a_difference_counts() -> None:
    expected = random(50)
    actual = expected + 1e-3
    for reference in (None, expected.double()):
        excess = found(actual, expected, reference)["excess"]
        assert excess > 1
        assert found(actual, expected, reference, margin=excess * 0.99)
        assert is_silent(actual, expected, reference, margin=excess * 1.01)


def test_values_read_from_elsewhere_are_a_float_difference_even_if_some_are_nan() -> None:
    """A read out of bounds gives other rubbish each time, and the failure must stay the same one."""
    expected, rubbish = random(64), random(64, seed=1) * 1e30
    with_nan = changed(rubbish, 3, NAN)
    assert found(rubbish, expected)["signature"] == found(with_nan, expected)["signature"]


def test_another_run_of_eager_that_is_no_number_measures_nothing():
    """Memory that nobody wrote may hold a NaN in one run and a number in the next."""
    actual, expected = torch.tensor([7e4, -1.0]), torch.tensor([1.9158, 0.0410])
    exact = torch.tensor([1.9158, INF], dtype=torch.float64)
    for runs in ([], [torch.tensor([NAN, 0.0])], [torch.tensor([INF, -INF])]):
        found = wrong_elements(actual, expected, TOLERANCES[torch.float32], exact, runs).wrong
        assert (found["category"], found["index"], found["wrong"]) == ("float", [0], 2)
        assert wrong_elements(expected, expected, TOLERANCES[torch.float32], exact, runs).wrong is None


def test_what_no_float64_can_measure_is_left_to_the_tolerances():
    huge = torch.tensor([1.7e308, 1.0], dtype=torch.float64)
    found = wrong_elements(-huge, huge, TOLERANCES[torch.float32], huge, [huge.flip(0)]).wrong
    assert found["category"] == "float"


# ---- nondeterminism


def test_what_eager_gives_otherwise_each_time_is_left_out_and_said_and_hides_nothing_beside_it() -> None:
    eager, again, actual = (outputs(random(5, seed=seed), torch.ones(2)) for seed in range(3))
    runs = Comparison(actual, eager, twice(again))
    assert runs.difference() is None
    assert runs.notes() == [
        "output 0 is not judged: eager differs from itself, or may with other random numbers"
    ]
    difference = first(outputs(random(5, seed=2), torch.zeros(2)), eager, twice(again))
    assert difference["where"] == "output 1"
    by_chance = [outputs(random(100, seed=seed) > 0) for seed in range(3)]
    assert first(by_chance[2], by_chance[0], twice(by_chance[1])) is None, "bools, of which some agree"
    shapes = [outputs(torch.ones(size)) for size in (3, 4, 5)]
    assert first(shapes[0], shapes[1], twice(shapes[2])) is None


# ---- what cannot be compared


def test_what_cannot_be_compared_is_refused_by_name_after_a_difference_elsewhere() -> None:
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    with pytest.raises(CannotCompare, match=r"output 0 .*nested"):
        first(outputs(nested), outputs(nested.clone()))
    difference = first(outputs(nested, torch.ones(2)), outputs(nested, torch.zeros(2)))
    assert difference["where"] == "output 1"


# ---- relations


@pytest.mark.parametrize(
    ("wrong", "right", "category"),
    [
        ((), (), None),
        ((torch.ones(2),), (torch.zeros(2),), "float"),
        ((torch.ones(2, requires_grad=True),), (torch.ones(2),), "requires_grad"),
        ((ONES, ONES), (ONES, ONES.clone()), "aliasing"),
        ((TwoTensor(ONES, ONES),), (TwoTensor(ONES, ONES).requires_grad_(),), "bool"),
    ],
)
def test_other_strides_are_no_difference_and_hide_none_in_a_later_output(
    wrong: Any, right: Any, category: str | None
) -> None:
    x = random(3, 4)
    difference = first(outputs(x.t().contiguous().t(), *wrong), outputs(x, *right))
    assert (difference and difference["category"]) == category


def test_an_output_that_is_its_input_in_one_run_only_is_a_difference() -> None:
    x, y = torch.ones(4, 4).t(), torch.ones(4, 4).t()
    view, copy = collect_leaves((x[1:3],), {"x": x}), collect_leaves((y[1:3].clone(),), {"x": y})
    for actual, expected in ((view, copy), (copy, view)):
        difference = first(actual, expected)
        assert difference["category"] == "aliasing"
    assert first(view, collect_leaves((y[1:3],), {"x": y})) is None


def test_outputs_that_share_a_storage_but_no_element_may_be_apart() -> None:
    whole, other = torch.ones(4, 6), torch.ones(4, 6)
    interleaved = outputs(whole[:, :3], whole[:, 3:])
    assert first(interleaved, outputs(other[:, :3], torch.ones(4, 6)[:, 3:])) is None


def test_outputs_that_are_one_tensor_in_eager_only_are_a_difference() -> None:
    x = torch.ones(3)
    difference = first(outputs(x, x.clone()), outputs(x, x))
    assert difference["message"] == "output 1 and output 0 do not share memory; in eager they do"


def test_memory_that_both_runs_share_is_not_read() -> None:
    weight = torch.full((3,), NAN)
    assert first(collect_leaves((), {"w": weight}), collect_leaves((), {"w": weight})) is None


def test_what_a_mask_hides_is_not_compared() -> None:
    import torch.masked  # warns that it is a prototype

    shown, other = torch.tensor([1.0, 5.0]), torch.tensor([1.0, 7.0])
    mask = torch.tensor([True, False])
    with warnings.catch_warnings(action="ignore"):
        masked = [torch.masked.masked_tensor(value, mask) for value in (shown, other, other + 1)]
    left = [collect_leaves((one,)) for one in masked]
    assert first(left[0], left[1]) is None
    assert str(first(left[0], left[2])).count("output 0.data")


def test_many_results_that_torch_does_not_define_are_one_sentence() -> None:
    runs = [
        collect_leaves(tuple(torch.full((2,), value) for _ in range(count)))
        for value in (1.0, 2.0)
        for count in (3, 9)
    ]
    for one, other, expected in ((runs[0], runs[2], 3), (runs[1], runs[3], 1)):
        both = Comparison(other, one, EagerRuns({Tag.UNDEFINED: [one, other]}))
        assert both.difference() is None
        assert len(both.notes()) == expected
    assert both.notes() == [
        "output 0 and 8 other results are not judged: torch does not define what rounding decides"
    ]
