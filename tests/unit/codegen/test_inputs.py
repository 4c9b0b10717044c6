"""Values written as code and made again, for a script and for another process."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.travelled import assert_same_case, case_over, described, shared, travelled
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.testing._internal.two_tensor import TwoTensor

from minidbg.codegen.inputs import Exactness, as_scripts_do, materialise, write_inputs
from minidbg.core.errors import CannotWrite
from minidbg.fx.copying import clone_values

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support")

NUMBERS = [
    torch.bool, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex32, torch.complex64, torch.complex128,
    torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu,
]  # fmt: skip


def names_of(values: tuple[Any, ...]) -> list[str]:
    return [f"x{index}" for index in range(len(values))]


def text_of(value: Any, exactness: Exactness = Exactness.SEEDED) -> str:
    """The statement for one input called x, without the device and the seed."""
    lines = write_inputs([value], ["x"], exactness).lines
    return "\n".join(line for line in lines if "manual_seed" not in line).replace(", device=device", "")


def remade(*values: Any, exactness: Exactness = Exactness.SEEDED) -> list[Any]:
    return materialise(write_inputs(values, names_of(values), exactness))


def without_bytes(value: Any) -> Any:
    found = described(value)
    return found[:-1] if isinstance(found, tuple) else found


def many(dtype: torch.dtype, *size: int) -> Tensor:
    """Values of that dtype, neither constant nor regular."""
    generator = torch.Generator().manual_seed(5)
    if dtype is torch.bool:
        return torch.rand(size, generator=generator) < 0.4
    if dtype.is_complex:
        return torch.randn(size, dtype=torch.complex64, generator=generator).to(dtype)
    if dtype.is_floating_point:
        return torch.randn(size, generator=generator).to(dtype)
    return torch.randint(0, 100, size, generator=generator).to(dtype)


LOCAL = type("Local", (Tensor,), {"__module__": "__main__"})


def in_inference() -> Tensor:
    with torch.inference_mode():
        return torch.randn(3)


def sharing() -> tuple[Any, ...]:
    base, weight = torch.randn(40), torch.nn.Parameter(torch.randn(4, 5))
    views = (
        base.view(5, 8),
        base[3:7],
        base.view(5, 8).t(),
        base[10:30].view(4, 5),
        base.view(torch.int32)[2:5],
    )
    more = weight.t(), weight.detach(), weight.detach().requires_grad_(), weight
    return (*views, weight, *more, torch.ones(3), torch.ones(3))


# layouts of plain tensors are left to test_every_layout_comes_back
VALUES: dict[str, Callable[[], Any]] = {
    **{f"{dtype} {size}": lambda dtype=dtype, size=size: many(dtype, *size) for dtype in NUMBERS for size in [(), (1,), (40, 3), (3, 0)]},
    "numbers": lambda: (3, 2.5, True, None, torch.randn(2)),
    "no elements": lambda: (torch.empty(0, 0), torch.empty(0, 3, 0, dtype=torch.bool)),
    "nan and negative zero": lambda: (torch.tensor([math.nan, -0.0, 0.0, math.inf, -math.inf, 1e-45, 16777216.0, 0.1]), torch.full((100,), -0.0)),
    "complex nan": lambda: torch.complex(torch.tensor([math.nan, 1.0, -math.inf]).repeat(30), torch.ones(90)),
    "first and last integers": lambda: tuple(torch.tensor([torch.iinfo(d).min, torch.iinfo(d).max, 1, 5] * 3, dtype=d) for d in NUMBERS if not (d is torch.bool or d.is_floating_point or d.is_complex)),
    "digits": lambda: torch.randn(60).exp() * torch.randn(60).exp(),
    "bits": lambda: torch.randint(0, 256, (6,), dtype=torch.uint8).view(torch.bits8),
    "float4": lambda: torch.randint(0, 256, (4, 6), dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
    "powers of two": lambda: torch.eye(3).to(torch.float8_e8m0fnu),
    "parameter": lambda: (torch.nn.Parameter(torch.randn(4, 3).t()), torch.nn.Parameter(torch.randn(3), requires_grad=False)),
    "leaf": lambda: (torch.randn(4, 3).t().requires_grad_(), torch.randn(3).requires_grad_()),
    "no leaf": lambda: (torch.randn(4, 3, requires_grad=True).t(), (torch.randn(40, 3) * 3).requires_grad_() * 1),
    "no leaf with an offset": lambda: (torch.randn(5, 4, requires_grad=True) * 1)[:, 1:3],
    "inference": in_inference,
    "conjugated": lambda: torch.randn(3, 3, dtype=torch.complex64).conj(),
    "negated": lambda: torch.randn(3, 3, dtype=torch.complex64).conj().imag,
    "zero tensor": lambda: torch._efficientzerotensor((2, 3)),
    "sharing": sharing,
    "subclass": lambda: TwoTensor(torch.randn(2, 3), torch.randn(2, 3)),
    "parameter of a subclass": lambda: torch.nn.Parameter(TwoTensor(torch.randn(2), torch.randn(2))),
    "bare subclass": lambda: torch.arange(6.0).reshape(3, 2).t().as_subclass(LOCAL),
    "jagged": lambda: torch.nested.nested_tensor_from_jagged(torch.randn(6, 3), torch.tensor([0, 2, 6])),
}  # fmt: skip


@pytest.mark.parametrize("make", VALUES.values(), ids=list(VALUES))
def test_values_come_back(make: Callable[[], Any]) -> None:
    """Exactly, in another process too; drawn ones with all but their numbers. What they share and what they are stays as it is."""
    made = make()
    values = made if isinstance(made, tuple) else (made,)
    before = list(map(described, values)), versions_of(values)
    case = case_over(*values)
    assert_same_case(case, travelled(case))
    exact, drawn = remade(*values, exactness=Exactness.EXACT), remade(*values)
    assert list(map(described, exact)) == before[0]
    assert list(map(without_bytes, drawn)) == list(map(without_bytes, values))
    assert shared(exact) == shared(drawn) == shared(values)
    assert (list(map(described, values)), versions_of(values)) == before


def versions_of(values: tuple[Any, ...]) -> list[int]:
    return [one._version for one in values if isinstance(one, Tensor) and not one.is_inference()]


TEXTS: list[tuple[Callable[[], Tensor], str]] = [
    (lambda: torch.randn(40, 80), "torch.randn(40, 80)"),
    (lambda: torch.randn(64, 64) * 0.02, "torch.randn(64, 64) * 0.02"),
    (lambda: torch.randn(1 << 21) * 5, "torch.randn(2097152) * 5"),
    (lambda: torch.randn(1, 1 << 11).expand(1 << 20, 1 << 11), "torch.randn(1, 2048).expand(1048576, 2048)"),
    (lambda: torch.rand(32, 32), "torch.rand(32, 32)"),
    (lambda: torch.empty(64, 64).uniform_(-0.3, 0.3), "torch.empty(64, 64).uniform_(-0.3, 0.3)"),
    (lambda: torch.zeros(3, 4), "torch.zeros(3, 4)"),
    (lambda: torch.zeros(0, 3), "torch.zeros(0, 3)"),
    (lambda: torch.ones(3), "torch.ones(3)"),
    (lambda: torch.full((2, 3), 0.1), "torch.full((2, 3), 0.1)"),
    (lambda: torch.tensor(5.0), "torch.tensor(5.0)"),
    (lambda: torch.tensor(7), "torch.tensor(7)"),
    (lambda: torch.tensor(True), "torch.tensor(True)"),
    (lambda: torch.tensor([1.0, math.nan]), 'torch.ones(2)\nx[1] = float("nan")'),
    (lambda: torch.arange(10), "torch.arange(10)"),
    (lambda: torch.arange(3, 30, 3, dtype=torch.int32), "torch.arange(3, 30, 3, dtype=torch.int32)"),
    (lambda: torch.arange(10).unsqueeze(0), "torch.arange(10).unsqueeze(0)"),
    (lambda: torch.arange(10).repeat(2, 1), "torch.arange(10).repeat(2, 1)"),
    (lambda: torch.randperm(20), "torch.randperm(20)"),
    (lambda: torch.randint(0, 2, (99,)) * 7, "torch.randint(0, 8, (99,))"),
    (lambda: torch.ones(9, 9).bool().tril(), "torch.ones(9, 9, dtype=torch.bool).tril()"),
    (lambda: torch.full((9, 9), -math.inf).triu(1), 'torch.full((9, 9), float("-inf")).triu(1)'),
    (lambda: torch.randn(30, 40).bfloat16(), "torch.randn(30, 40, dtype=torch.bfloat16)"),
    (lambda: torch.nn.Parameter(torch.randn(64, 9) * 0.2), "torch.nn.Parameter(torch.randn(64, 9) * 0.2)"),
    (lambda: torch.randn(50, requires_grad=True), "torch.randn(50).requires_grad_()"),
    (lambda: torch.randn(50, requires_grad=True) + 0, "torch.randn(50).requires_grad_() * 1"),
    (lambda: torch.randn(8, 9).t(), "torch.randn(8, 9).t()"),
    (lambda: torch.randn(9, 20)[:, 2:10], "torch.randn(9, 20)[:, 2:10]"),
    (lambda: torch.randn(1, 300).expand(4, 300), "torch.randn(1, 300).expand(4, 300)"),
    (lambda: in_channels_last(2, 3, 8, 8), "torch.randn(2, 8, 8, 3).permute(0, 3, 1, 2)"),
    (lambda: in_channels_last(2, 1, 8, 8), "torch.randn(2, 8, 8, 1).permute(0, 3, 1, 2)"),
    (lambda: torch.randn(40).as_strided((3, 4), (7, 2), 3), "torch.randn(24).as_strided((3, 4), (7, 2), 3)"),
]  # fmt: skip


def in_channels_last(*size: int) -> Tensor:
    return torch.randn(size).to(memory_format=torch.channels_last)


def test_text_is_short_and_idiomatic() -> None:
    torch.manual_seed(3)
    assert [text_of(make()) for make, _ in TEXTS] == [f"x = {text}" for _, text in TEXTS]


def test_plain_values_are_literals_and_seed_nothing() -> None:
    some = (5, -2.5, True, None, 'a"b', 1 + 2j, float("inf"))
    values = [*some, (1, [2]), torch.float16, torch.device("cuda", 1)]
    text = write_inputs([*values, torch.zeros(3)], [f"v{i}" for i in range(len(values) + 1)])
    assert materialise(text)[:-1] == values
    assert not any("seed" in line for line in text.lines)


def test_names_that_the_text_uses_itself_are_changed() -> None:
    text = write_inputs([torch.randn(3), 1, 2], ["torch", "device", "lambda"])
    assert text.names == ("torch_", "device_", "lambda_")
    assert len(materialise(text)) == 3


def test_the_accelerator_is_the_main_device_and_fake_tensors_get_plain_values() -> None:
    with FakeTensorMode():
        values = [torch.empty(3, device=name) for name in ("cpu", "meta", "cuda:1")]
        fake = torch.empty(3, 4, dtype=torch.float16), torch.empty(5, dtype=torch.int64)
    text = write_inputs(values, ["x", "y", "z"])
    assert text.device == "cuda:1"
    assert text.lines[1:] == [
        'x = torch.randn(3, device="cpu")', 'y = torch.randn(3, device="meta")', "z = torch.randn(3, device=device)",
    ]  # fmt: skip
    assert [(value.shape, value.dtype) for value in remade(*fake)] == [(f.shape, f.dtype) for f in fake]


@pytest.mark.parametrize("view", [lambda x: x, torch.t, lambda x: x[:, 1:3]], ids=["whole", "t", "slice"])
def test_an_activation_is_one_that_eager_can_write_to(view: Callable[[Tensor], Tensor]) -> None:
    value = view(torch.randn(5, 4, requires_grad=True) * 1)
    for made in (clone_values([value])[0], remade(value)[0]):
        assert without_bytes(made) == without_bytes(value)
        made[:1] += 1


KEPT: list[tuple[Callable[[Tensor], Tensor], Callable[[Tensor], object]]] = [
    (lambda x: x.abs() + 0.5, lambda made: (made > 0).all()),
    (lambda x: x.abs() * 5, lambda made: (made >= 0).all()),
    (lambda x: -x.abs(), lambda made: (made <= 0).all()),
    (lambda x: (x * 2).tanh(), lambda made: made.abs().max() <= 1),
    (lambda x: x.sigmoid(), lambda made: (made >= 0).all() and made.max() <= 1),
    (lambda x: (x * 50257).long(), lambda made: made.unique().numel() > 400),
    (lambda x: torch.randperm(900)[:500], lambda made: made.unique().numel() == 500),
    (lambda x: (torch.randperm(60)[:20] + 7).byte().view(4, 5), lambda made: made.unique().numel() == 20),
    (lambda x: torch.where(x < 0.3, x, math.nan), lambda made: 120 < made.isnan().sum() < 260),
    (lambda x: torch.where(x < 0.3, x, -math.inf), lambda made: 120 < made.isneginf().sum() < 260),
]


def test_drawn_values_keep_signs_bounds_and_how_many_are_odd_and_none_is_stored() -> None:
    torch.manual_seed(0)
    texts = [write_inputs([make(torch.randn(500))], ["x"]) for make, _ in KEPT]
    made = [materialise(text)[0] for text in texts]
    assert [bool(look(one)) for one, (_, look) in zip(made, KEPT, strict=True)] == [True] * len(KEPT)
    assert not any(text.stored for text in texts)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_drawn_values_keep_the_places_of_nan_and_infinities(dtype: torch.dtype) -> None:
    value = torch.randn(10, 12, dtype=dtype)
    value[2, 3], value[4, 4], value[9, 9] = math.nan, math.inf, -math.inf
    for one in (value, torch.nn.Parameter(value.t()), value[1:, 2:]):
        (made,) = remade(one)
        assert without_bytes(made) == without_bytes(one)
        for special in (torch.isnan, torch.isposinf, torch.isneginf):
            assert torch.equal(special(made), special(one))


def test_the_gigabytes_before_a_view_are_left_out() -> None:
    far = torch.arange((1 << 20) + 7, dtype=torch.uint8)[1 << 20 :]
    farther = torch.arange((1 << 21) + 10, dtype=torch.uint8)[(1 << 21) + 3 :]
    assert remade(far)[0].storage_offset() == 1 << 20
    assert remade(farther)[0].storage_offset() == 3
    assert "torch.randint(0, 7, (1048583,)" in text_of(far)


def test_the_rest_of_a_storage_is_not_told() -> None:
    secret = torch.full((20,), 12345.0)
    secret[4:8] = torch.tensor([1.0, 2.0, 3.5, 4.0])
    text = write_inputs([secret[4:8], secret[5:7]], ["x", "y"], Exactness.EXACT)
    assert "12345" not in "".join(text.lines)
    assert not text.stored


def test_small_exactness_is_that_of_small_tensors_and_integers_only() -> None:
    values = torch.randn(4, 4), torch.randn(100, 100), torch.randint(0, 99, (50, 50))
    made = remade(*values, exactness=Exactness.SMALL)
    assert list(map(torch.equal, made, values)) == [True, False, True]


def test_stored_bytes_are_what_the_text_reads() -> None:
    text = write_inputs([torch.randn(30, 30).t()], ["x"], Exactness.EXACT)
    assert text.lines == ['x = stored("x", torch.float32, device=device).view(30, 30).t()']
    assert (text.stored["x"].dtype, text.stored["x"].numel()) == (torch.uint8, 3600)


REFUSED: dict[str, Callable[[], Any]] = {
    "sparse": lambda: torch.eye(3).to_sparse(),
    "nested": lambda: torch.nested.nested_tensor([torch.randn(2), torch.randn(3)]),
    "quantized": lambda: torch.quantize_per_tensor(torch.randn(3), 0.1, 0, torch.qint8),
    "object": object,
    "Tensor": lambda: [torch.zeros(2)],
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("why", REFUSED)
def test_what_has_no_form_is_refused_by_the_inputs_name(why: str) -> None:
    with pytest.raises(CannotWrite, match=why) as caught:
        write_inputs([1, REFUSED[why]()], ["n", "bad"])
    assert caught.value.part == "input bad"


@pytest.fixture
def in_float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def test_what_is_made_is_what_a_script_makes_and_depends_on_nothing_around_it(in_float64: None) -> None:
    drawn = torch.randn(40, 50), torch.rand(30), torch.randn(20)
    values = *(one.float() for one in drawn), torch.randint(0, 9, (30,))
    text = write_inputs(values, list("abcd"))
    before = torch.get_rng_state()
    with torch.inference_mode():
        made = materialise(text)
    assert torch.equal(torch.get_rng_state(), before)
    assert not any(value.is_inference() for value in made)
    namespace: dict[str, Any] = {"torch": torch, "device": "cpu"}
    with torch.no_grad(), as_scripts_do():
        assert torch.is_grad_enabled()
        exec("\n".join(text.lines), namespace)
    assert torch.get_default_dtype() is torch.float64
    assert all(torch.equal(namespace[name], value) for name, value in zip(text.names, made, strict=True))


DTYPES = [torch.float32, torch.float16, torch.int64, torch.bool, torch.complex64, torch.float8_e5m2]


@st.composite
def strided(draw: st.DrawFn) -> Tensor:
    """A tensor of any layout that as_strided can make: overlapping, expanded, permuted, with gaps."""
    size = tuple(draw(st.lists(st.integers(0, 4), max_size=4)))
    stride = tuple(draw(st.integers(0, 9)) for _ in size)
    offset = draw(st.integers(0, 5))
    span = offset + 1 + sum(max(length - 1, 0) * step for length, step in zip(size, stride, strict=True))
    return many(draw(st.sampled_from(DTYPES)), span).as_strided(size, stride, offset)


@given(st.lists(strided(), min_size=1, max_size=3), st.sampled_from(Exactness))
@settings(max_examples=150, deadline=None)
def test_every_layout_comes_back(values: list[Tensor], exactness: Exactness) -> None:
    made = remade(*values, exactness=exactness)
    assert list(map(without_bytes, made)) == list(map(without_bytes, values))
    if exactness is Exactness.EXACT:
        assert list(map(described, made)) == list(map(described, values))
        again, before = (write_inputs(one, names_of(tuple(one)), exactness) for one in (made, values))
        assert again.lines == before.lines
