from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from minidbg.judge.compare import DEFAULT_SPEC, mismatch
from minidbg.judge.eager_runs import EagerRuns, Tag
from minidbg.judge.leaves import CannotCompare, Leaf, collect_leaves

Snapshot = dict[str, Leaf]
ONES = torch.ones(3)


def outputs(*values: Any) -> Snapshot:
    return collect_leaves(values)


def never() -> Iterator[Snapshot]:
    raise AssertionError("this run was not needed")
    yield


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def difference_of(
    actual: Any, expected: Any, reference: Any = None, again: Any = None, **spec: Any
) -> dict[str, Any] | None:
    """The difference of two single outputs; ``reference`` is eager's in float64, ``again`` that of its second run."""
    values = {Tag.FLOAT64: reference, Tag.AGAIN: again}
    eager_runs = EagerRuns({tag: [outputs(value)] for tag, value in values.items() if value is not None})
    return mismatch(outputs(actual), outputs(expected), eager_runs, replace(DEFAULT_SPEC, **spec))


def twice(again: Snapshot) -> EagerRuns:
    """Eager has run a second time, and left this behind."""
    return EagerRuns({Tag.AGAIN: [again]})


def found(*runs: Any, **more: Any) -> dict[str, Any]:
    difference = difference_of(*runs, **more)
    assert difference is not None
    return difference


def is_silent(*runs: Any, **more: Any) -> bool:
    return difference_of(*runs, **more) is None


# ---- labels ----------------------------------------------------------------------------------------------


def test_snapshot_of_a_bare_tensor_is_output_0_and_copies_nothing() -> None:
    x = torch.ones(2, requires_grad=True)
    leaf = collect_leaves(x)["output 0"]
    assert leaf.requires_grad
    assert not leaf.value.requires_grad
    assert leaf.value.data_ptr() == x.data_ptr()


def test_snapshot_opens_tensor_subclasses() -> None:
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    assert {"output 0._values", "output 0._offsets"} <= set(collect_leaves((nested,)))


# ---- form ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("actual", "expected", "category", "signature"),
    [
        (ONES.long(), ONES.bfloat16(), "dtype", "output: dtype int64 for bfloat16"),
        (torch.ones(2), torch.ones(3), "shape", "output: shape"),
        (torch.ones(2), torch.ones(2, device="meta"), "device", "output: device"),
        (torch.ones(2), 1.0, "structure", "output: structure"),
        (1, True, "structure", "output: structure"),
        (torch.ones(2).to_sparse(), torch.ones(2), "structure", "output: structure"),
        ("sum", "mean", "structure", "output: structure"),
        (3, 4, "integer", "output: integer"),
        (True, False, "bool", "output: bool"),
        (1.0, 1.1, "float", "output: float"),
    ],
)
def test_differences_of_form_have_their_category(
    actual: Any, expected: Any, category: str, signature: str
) -> None:
    difference = found(actual, expected)
    assert (difference["category"], difference["signature"]["message"]) == (category, signature)


def test_a_missing_output_and_one_too_many_are_differences_of_structure() -> None:
    one, two = outputs(torch.ones(2)), outputs(torch.ones(2), torch.ones(2))
    fewer, more = mismatch(one, two), mismatch(two, one)
    assert fewer["message"] == "output 1 is not given by the compiled graph"
    assert more["message"] == "output 1 is not given by eager"


def test_the_signature_names_neither_the_output_nor_its_numbers() -> None:
    first = mismatch(outputs(torch.ones(2), torch.ones(2)), outputs(torch.ones(2), torch.zeros(2)))
    other = mismatch(outputs(torch.zeros(5)), outputs(torch.ones(5)))
    assert first["signature"] == other["signature"] == {"direction": "forward", "message": "output: float"}


def test_a_wrong_gradient_is_a_failure_in_backward() -> None:
    difference = mismatch(
        collect_leaves((), (), {"x": torch.ones(2)}), collect_leaves((), (), {"x": torch.zeros(2)})
    )
    assert difference["where"] == "gradient of x"
    assert difference["signature"] == {"direction": "backward", "message": "gradient: float"}


def test_no_gradient_is_the_same_as_a_zero_one() -> None:
    zero, none, one = (
        collect_leaves((), (), {"x": value}) for value in (torch.zeros(2), None, torch.ones(2))
    )
    assert mismatch(zero, none) is None
    assert mismatch(none, zero) is None
    assert mismatch(none, one) is not None


def test_an_input_that_only_one_run_wrote_to_is_a_difference() -> None:
    difference = mismatch(collect_leaves((), {"x": torch.ones(2)}), collect_leaves((), {"x": torch.zeros(2)}))
    assert difference["where"] == "input x after the call"


def test_every_difference_can_be_written_as_json() -> None:
    nan = torch.tensor([math.nan, 1.0])
    for actual, expected in ((nan, torch.ones(2)), (torch.ones(2) * 1j, torch.ones(2) * 2j), (1, 2.0)):
        json.dumps(found(actual, expected), allow_nan=False)
    json.dumps(found(torch.ones(3, dtype=torch.int8), torch.zeros(3, dtype=torch.int8)), allow_nan=False)


# ---- floats ----------------------------------------------------------------------------------------------


def test_the_message_says_which_output_where_how_much_and_what_was_allowed() -> None:
    expected = torch.ones(5, 20)
    actual = expected.clone()
    actual[4, 17] = 1.5
    assert found(actual, expected, expected.double())["message"] == (
        "output 0 differs: relative error 5.0e-01 at [4, 17], allowed 1.2e-05 (float32, cpu); "
        "RMSE against float64: backend 5.0e-02, eager 0.0e+00"
    )


def test_no_other_run_is_asked_for_when_all_is_close() -> None:
    x = random(100)
    assert mismatch(outputs(x * (1 + 1e-7)), outputs(x), EagerRuns({tag: never() for tag in Tag})) is None


def test_a_compiled_result_nearer_to_float64_than_eager_is_no_difference() -> None:
    """Upstream: test_rmse_improves_over_atol. Eager rounds 655 * 100 to 65504, the compiled graph does not."""
    x, scale = torch.tensor(65500, dtype=torch.half), torch.tensor(655, dtype=torch.half)
    eager, compiled, exact = x - scale * 100, (x.float() - scale.float() * 100).half(), x.double() - 65500
    assert (eager.item(), compiled.item()) == (0, 4)
    assert is_silent(compiled, eager, exact)
    assert found(eager, compiled, exact)["category"] == "float"


@pytest.mark.parametrize("seed", range(5))
def test_a_sum_in_another_order_is_no_difference(seed: int) -> None:
    x = random(300_000, seed=seed)
    one_by_one = torch.from_numpy(x.numpy().reshape(-1, 16).cumsum(0, dtype="float32"))[-1].sum()
    assert is_silent(one_by_one, x.sum(), x.double().sum())


def test_the_order_of_a_sum_is_seen_at_the_tolerance_of_a_single_operation() -> None:
    """The test above would show nothing if the sums were equal."""
    x = random(300_000, seed=0)
    one_by_one = torch.from_numpy(x.numpy().reshape(-1, 16).cumsum(0, dtype="float32"))[-1].sum()
    assert found(one_by_one, x.sum(), tolerances={"any": (1e-8, 0.0)})


def test_noise_of_the_size_of_eagers_own_is_no_difference_and_much_more_is() -> None:
    exact = random(5000).double()
    noise = random(5000, seed=1).double() * 1e-3
    eager = (exact + noise).float()
    assert is_silent((exact - noise).float(), eager, exact)
    assert found((exact - 5 * noise).float(), eager, exact)["category"] == "float"


def test_a_single_wrong_element_in_a_million_is_found() -> None:
    expected = random(1000, 1000)
    actual = expected.clone()
    actual[999, 999] += 1e-3
    assert found(actual, expected, expected.double())["index"] == [999, 999]


def test_small_gradients_are_judged_by_their_own_size_and_noise_beside_large_ones_is_no_difference() -> None:
    """The gradient of a bias before a normalisation is zero but for rounding."""
    small = random(100) * 1e-7
    assert (
        mismatch(collect_leaves((), (), {"x": 2 * small}), collect_leaves((), (), {"x": small})) is not None
    )
    large, noise = random(100), random(8, seed=1) * 1e-9
    eager = collect_leaves((), (), {"weight": large, "bias": noise})
    assert mismatch(collect_leaves((), (), {"weight": large, "bias": -7 * noise}), eager) is None


FLOATS = "float64 float32 float16 bfloat16 float8_e4m3fn float8_e5m2 complex64 complex128"


@pytest.mark.parametrize("dtype", [getattr(torch, name) for name in FLOATS.split()])
def test_every_float_dtype_is_silent_on_itself_and_finds_a_wrong_element(dtype: torch.dtype) -> None:
    expected = (random(4, 8) + 3).to(dtype)
    wrong = (random(4, 8) + 3).clone()
    wrong[1, 2] *= 2
    wide = expected.to(torch.complex128 if dtype.is_complex else torch.float64)
    for reference in (wide, None):
        assert is_silent(expected.clone(), expected, reference)
        assert found(wrong.to(dtype), expected, reference)["index"] == [1, 2]


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_half_complex_numbers_are_compared_as_well() -> None:
    expected = torch.ones(3, dtype=torch.complex32)
    assert is_silent(expected.clone(), expected)
    assert found(expected.to(torch.complex64).mul(2).to(torch.complex32), expected)["category"] == "float"


def test_one_rounding_step_of_float8_is_no_difference() -> None:
    expected, one_step, more = (torch.tensor([1.0, x]).to(torch.float8_e4m3fn) for x in (1.0, 1.125, 1.5))
    assert is_silent(one_step, expected)
    assert found(more, expected)["index"] == [1]


def test_scalars_and_tensors_without_dimensions_have_no_index_in_the_message() -> None:
    message = found(torch.tensor(2.0), torch.tensor(1.0))["message"]
    assert message.startswith("output 0 differs: relative error 1.0e+00, ")


def test_an_error_where_eager_gives_zero_is_absolute() -> None:
    difference = found(torch.tensor([0.5, 1.0]), torch.tensor([0.0, 1.0]))
    assert difference["message"].startswith("output 0 differs: absolute error 5.0e-01 at [0]")


def test_tensors_without_elements_are_equal_when_their_form_is() -> None:
    assert is_silent(torch.empty(0, 3), torch.empty(0, 3))
    assert found(torch.empty(0, 3), torch.empty(0, 4))["category"] == "shape"


def test_very_large_numbers_do_not_overflow_the_judge() -> None:
    expected = torch.tensor([1e200, 1e-200], dtype=torch.float64)
    assert found(expected * 2, expected, expected)["max_rel"] == 1.0


def test_tolerances_can_be_given_for_all_dtypes_or_one() -> None:
    expected = torch.ones(3)
    actual = expected + 1e-3
    assert is_silent(actual, expected, tolerances={"any": (1e-2, 0.0)})
    assert is_silent(actual, expected, tolerances={"float32": (1e-2, 0.0)})
    assert found(actual, expected, tolerances={"float64": (1e-2, 0.0)})


def test_excess_is_the_margin_up_to_which_a_difference_counts() -> None:
    expected = random(50)
    actual = expected + 1e-3
    for reference in (None, expected.double()):
        excess = found(actual, expected, reference)["excess"]
        assert excess > 1
        assert found(actual, expected, reference, margin=excess * 0.99)
        assert is_silent(actual, expected, reference, margin=excess * 1.01)


# ---- NaN and inf -----------------------------------------------------------------------------------------


def test_nan_and_inf_in_the_same_places_are_no_difference() -> None:
    x = torch.tensor([math.nan, math.inf, -math.inf, 1.0])
    assert is_silent(x.clone(), x)
    assert is_silent(x * 1.0000001, x, x.double())


@pytest.mark.parametrize(
    ("actual", "expected", "category"),
    [
        (math.nan, 1.0, "nan"),
        (0.0, math.nan, "nan"),
        (math.inf, 1.0, "inf"),
        (1.0, -math.inf, "inf"),
        (math.inf, -math.inf, "inf"),
        (math.nan, math.inf, "nan"),
    ],
)
def test_nan_or_inf_in_other_places_is_a_difference(actual: float, expected: float, category: str) -> None:
    a, e = torch.tensor([1.0, actual]), torch.tensor([1.0, expected])
    for reference in (None, e.double()):
        difference = found(a, e, reference, margin=1000.0)
        assert (difference["category"], difference["index"]) == (category, [1])


def test_a_reference_that_is_nan_rightly_hides_nothing() -> None:
    """Eager and float64 are NaN, the compiled value is not."""
    e = torch.tensor([math.nan, 1.0])
    assert found(torch.tensor([0.0, 1.0]), e, e.double())["category"] == "nan"


def test_where_only_eager_overflows_a_value_near_float64_is_right_and_a_wrong_one_is_not() -> None:
    exact = torch.tensor([70000.0 - 69000.0, 2.0], dtype=torch.float64)
    eager = torch.tensor([math.inf, 2.0], dtype=torch.half)
    assert is_silent(exact.half(), eager, exact)
    assert found(torch.tensor([500.0, 2.0]).half(), eager, exact)["category"] == "inf"


def test_overflow_that_rounding_the_float64_result_gives_too_is_right() -> None:
    exact = torch.tensor([65519.9, 65530.0], dtype=torch.float64)
    assert is_silent(torch.tensor([65504.0, math.inf]).half(), torch.tensor([65504.0, 65504.0]).half(), exact)


def test_values_read_from_elsewhere_are_a_float_difference_even_if_some_are_nan() -> None:
    """A read out of bounds gives other rubbish each time, and the failure must stay the same one."""
    expected = random(64)
    rubbish = random(64, seed=1) * 1e30
    with_nan = rubbish.clone()
    with_nan[3] = math.nan
    assert found(rubbish, expected)["signature"] == found(with_nan, expected)["signature"]


INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("given", "wanted", "category"),
    [
        (complex(NAN, 0), complex(INF, 0), "nan"),
        (complex(INF, NAN), complex(NAN, INF), "nan"),
        (complex(NAN, 0), complex(INF, NAN), "nan"),
        (complex(-INF, 1), complex(-INF, 3.14), "inf"),
        (complex(INF, 1), complex(-INF, 1), "inf"),
        (1j, complex(INF, NAN), "nan"),
        (complex(NAN, 1), complex(NAN, 1), ""),
        (complex(-INF, 3.1415925), complex(-INF, 3.1415927), ""),
    ],
)
def test_complex_numbers_that_are_not_finite_agree_in_their_real_and_imaginary_parts(
    given: complex, wanted: complex, category: str
) -> None:
    actual, expected = torch.tensor([given, 1j]), torch.tensor([wanted, 1j])
    assert found(actual, expected)["category"] == category if category else is_silent(actual, expected)


@pytest.mark.parametrize(
    ("given", "wanted", "said"),
    [
        ([0.5, 1.0, 3.0], [1e-17, 1.0, 2.0], "relative error 5.0e-01 at [2]"),
        ([0.5, 1.0, 2.0], [1e-17, 1.0, 2.0], "absolute error 5.0e-01 at [0]"),
    ],
)
def test_the_element_that_is_shown_is_farthest_beyond_what_is_allowed_and_no_relative_error_of_about_0(
    given: list[float], wanted: list[float], said: str
) -> None:
    assert said in found(torch.tensor(given), torch.tensor(wanted))["message"]


# ---- integers and bools ----------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
@pytest.mark.parametrize("sign", ["", "u"])
def test_every_integer_dtype_is_exact(sign: str, bits: int) -> None:
    dtype = getattr(torch, f"{sign}int{bits}")
    expected = torch.arange(10).to(dtype)
    wrong = torch.arange(10)
    wrong[7] += 1
    assert is_silent(expected.clone(), expected)
    difference = found(wrong.to(dtype), expected)
    assert difference["message"].startswith("output 0 is 8 at [7], eager gives 7 (1 of 10 elements wrong")


def test_integers_beyond_the_precision_of_float64_are_exact_too() -> None:
    expected = torch.tensor([2**62, 5])
    assert found(expected + torch.tensor([1, 0]), expected, expected)["index"] == [0]


def test_a_wrong_bool_is_found_with_and_without_a_float64_run() -> None:
    expected = torch.tensor([True, False, True])
    for reference in (None, expected):
        assert found(torch.tensor([True, True, True]), expected, reference)["category"] == "bool"


def test_a_bool_that_rounding_decides_in_eager_may_be_either_and_excuses_no_other() -> None:
    exact = torch.tensor([True, False, True, False])
    eager, compiled = exact.clone(), exact.clone()
    eager[1] = True
    compiled[2] = False
    assert is_silent(exact, eager, exact)
    assert found(compiled, eager, exact)["index"] == [2]


# ---- nondeterminism --------------------------------------------------------------------------------------


def test_a_leaf_in_which_eager_differs_from_itself_is_left_out_and_said() -> None:
    eager, again, actual = (outputs(random(5, seed=seed), torch.ones(2)) for seed in range(3))
    notes: list[str] = []
    assert mismatch(actual, eager, twice(again), notes=notes) is None
    assert notes == ["output 0 is not judged: eager differs from itself, or may with other random numbers"]


def test_a_real_difference_beside_a_random_leaf_is_found() -> None:
    eager, again = (outputs(random(5, seed=seed), torch.ones(2)) for seed in range(2))
    difference = mismatch(outputs(random(5, seed=2), torch.zeros(2)), eager, twice(again))
    assert difference["where"] == "output 1"


def test_random_bools_of_which_some_agree_by_chance_are_left_out() -> None:
    eager, again, actual = (outputs(random(100, seed=seed) > 0) for seed in range(3))
    assert mismatch(actual, eager, twice(again)) is None


def test_a_shape_that_is_random_in_eager_is_left_out() -> None:
    runs = [outputs(torch.ones(size)) for size in (3, 4, 5)]
    assert mismatch(runs[0], runs[1], twice(runs[2])) is None


def test_rounding_noise_between_eager_runs_widens_the_tolerance_and_does_not_blind() -> None:
    """Atomic additions: each run is a little different."""
    eager, again, compiled = (random(100) + random(100, seed=seed) * 1e-4 for seed in (1, 2, 3))
    assert found(compiled, eager)
    assert is_silent(compiled, eager, again=again)
    assert found(compiled * 1.01, eager, again=again)


# ---- what cannot be compared -----------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*quantiz.*", "ignore:.*deprecated.*")
def test_quantized_tensors_are_compared_by_what_they_stand_for() -> None:
    def quantized(value: torch.Tensor, dtype: torch.dtype = torch.qint8) -> torch.Tensor:
        return torch.quantize_per_tensor(value, 0.1, 0, dtype)

    assert is_silent(quantized(ONES), quantized(ONES))
    assert found(quantized(ONES + 1), quantized(ONES))["category"] == "float"
    assert found(quantized(ONES, torch.quint8), quantized(ONES))["where"] == "output 0.quantization"


def test_what_cannot_be_compared_is_refused_by_name_after_a_difference_elsewhere() -> None:
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    with pytest.raises(CannotCompare, match=r"output 0 .*nested"):
        mismatch(outputs(nested), outputs(nested.clone()))
    difference = mismatch(outputs(nested, torch.ones(2)), outputs(nested, torch.zeros(2)))
    assert difference["where"] == "output 1"


@pytest.mark.filterwarnings(
    "ignore:Sparse CSR tensor support:UserWarning", "ignore:Sparse invariant:UserWarning"
)
def test_sparse_tensors_agree_when_what_they_stand_for_does() -> None:
    indices, values = torch.tensor([[0, 2, 2]]), torch.tensor([1.0, 2.0, 3.0])
    twice = torch.sparse_coo_tensor(indices, values, (4,))
    once = twice.coalesce()
    assert is_silent(once, twice)
    difference = found(once * 1.01, twice)
    assert difference["category"] == "float"
    rows = torch.eye(3).to_sparse()
    assert found(rows.to_sparse_csr(), rows)["category"] == "structure"


# ---- relations -------------------------------------------------------------------------------------------


def transposed_in_memory(value: torch.Tensor) -> torch.Tensor:
    return value.t().contiguous().t()


def test_other_strides_alone_are_no_mismatch() -> None:
    x = random(3, 4)
    assert mismatch(outputs(transposed_in_memory(x)), outputs(x)) is None


@pytest.mark.parametrize(
    ("wrong", "right", "category"),
    [
        ((torch.ones(2),), (torch.zeros(2),), "float"),
        ((torch.ones(2, requires_grad=True),), (torch.ones(2),), "requires_grad"),
        ((ONES, ONES), (ONES, ONES.clone()), "aliasing"),
    ],
)
def test_other_strides_hide_no_difference_in_a_later_output(wrong: Any, right: Any, category: str) -> None:
    x = random(3, 4)
    difference = mismatch(outputs(transposed_in_memory(x), *wrong), outputs(x, *right))
    assert difference["category"] == category


def test_requires_grad_of_an_output_counts() -> None:
    assert found(torch.ones(2, requires_grad=True), torch.ones(2))["category"] == "requires_grad"


def test_an_output_that_is_its_input_in_one_run_only_is_a_difference() -> None:
    x, y = torch.ones(4), torch.ones(4)
    view, copy = collect_leaves((x[1:3],), {"x": x}), collect_leaves((y[1:3].clone(),), {"x": y})
    for actual, expected in ((view, copy), (copy, view)):
        difference = mismatch(actual, expected)
        assert difference["category"] == "aliasing"
    assert mismatch(view, collect_leaves((y[1:3],), {"x": y})) is None


def test_outputs_that_share_a_storage_but_no_element_may_be_apart() -> None:
    whole, other = torch.ones(4, 6), torch.ones(4, 6)
    interleaved = outputs(whole[:, :3], whole[:, 3:])
    assert mismatch(interleaved, outputs(other[:, :3], torch.ones(4, 6)[:, 3:])) is None


def test_outputs_that_are_one_tensor_in_eager_only_are_a_difference() -> None:
    x = torch.ones(3)
    difference = mismatch(outputs(x, x.clone()), outputs(x, x))
    assert difference["message"] == "output 1 and output 0 do not share memory; in eager they do"


def test_memory_that_both_runs_share_is_not_read() -> None:
    weight = torch.full((3,), math.nan)
    assert mismatch(collect_leaves((), {"w": weight}), collect_leaves((), {"w": weight})) is None
    assert found(torch.tensor([1j]).conj(), torch.tensor([1j]))["category"] == "float"


def test_what_a_mask_hides_is_not_compared() -> None:
    import torch.masked  # warns that it is a prototype

    shown, other = torch.tensor([1.0, 5.0]), torch.tensor([1.0, 7.0])
    mask = torch.tensor([True, False])
    with warnings.catch_warnings(action="ignore"):
        masked = [torch.masked.masked_tensor(value, mask) for value in (shown, other, other + 1)]
    left = [collect_leaves((one,)) for one in masked]
    assert mismatch(left[0], left[1]) is None
    assert str(mismatch(left[0], left[2])).count("output 0.data")


def test_many_results_that_torch_does_not_define_are_one_sentence():
    runs = [
        collect_leaves(tuple(torch.full((2,), value) for _ in range(count)))
        for value in (1.0, 2.0)
        for count in (3, 9)
    ]
    for first, other, expected in ((runs[0], runs[2], 3), (runs[1], runs[3], 1)):
        notes: list[str] = []
        assert mismatch(other, first, EagerRuns({Tag.UNDEFINED: [other]}), notes=notes) is None
        assert len(notes) == expected
    assert notes == [
        "output 0 and 8 other results are not judged: torch does not define what rounding decides"
    ]
