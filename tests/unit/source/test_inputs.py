"""Inputs written as code and made again."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minidbg.fx.copying import clone_values
from minidbg.source.inputs import Exactness, as_scripts_do, materialise, write_inputs
from minidbg.words.errors import CannotWrite

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support")

NUMBERS = [
    torch.bool, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex32, torch.complex64, torch.complex128,
    torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu,
]  # fmt: skip


def text_of(value, exactness=Exactness.SEEDED):
    """The statement for one input called x, without the device and the seed."""
    lines = write_inputs([value], ["x"], exactness).lines
    return "\n".join(line for line in lines if "manual_seed" not in line).replace(", device=device", "")


def remade(*values, exactness=Exactness.SEEDED):
    return materialise(write_inputs(values, [f"x{i}" for i in range(len(values))], exactness))


def bits(value):
    """The bytes of what a tensor shows, in logical order."""
    plain = torch.view_as_real(value.detach().resolve_conj()) if value.is_complex() else value.detach()
    return torch.stack([plain]).flatten().clone().view(torch.uint8).tolist()


def facts(value):
    return (
        type(value), value.dtype, value.shape, value.stride(), value.storage_offset(), value.requires_grad,
        value.is_leaf, value.is_inference(), value.is_conj(), value.is_neg(),
    )  # fmt: skip


def many(dtype, *size):
    """Values of that dtype, neither constant nor regular."""
    generator = torch.Generator().manual_seed(5)
    if dtype is torch.bool:
        return torch.rand(size, generator=generator) < 0.4
    if dtype.is_complex:
        return torch.randn(size, dtype=torch.complex64, generator=generator).to(dtype)
    if dtype.is_floating_point:
        return torch.randn(size, generator=generator).to(dtype)
    return torch.randint(0, 100, size, generator=generator).to(dtype)


@pytest.fixture
def in_float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


class TestText:
    """What a person would write by hand."""

    @pytest.mark.parametrize(
        ("make", "text"),
        [
            (lambda: torch.randn(40, 80), "x = torch.randn(40, 80)"),
            (lambda: torch.randn(64, 64) * 0.02, "x = torch.randn(64, 64) * 0.02"),
            (lambda: torch.rand(32, 32), "x = torch.rand(32, 32)"),
            (lambda: torch.empty(64, 64).uniform_(-0.3, 0.3), "x = torch.empty(64, 64).uniform_(-0.3, 0.3)"),
            (lambda: torch.zeros(3, 4), "x = torch.zeros(3, 4)"),
            (lambda: torch.ones(3), "x = torch.ones(3)"),
            (lambda: torch.full((2, 3), 0.1), "x = torch.full((2, 3), 0.1)"),
            (lambda: torch.tensor(5.0), "x = torch.tensor(5.0)"),
            (lambda: torch.tensor(7), "x = torch.tensor(7)"),
            (lambda: torch.tensor([1.0, math.nan]), 'x = torch.tensor([1.0, float("nan")])'),
            (lambda: torch.arange(10), "x = torch.arange(10)"),
            (lambda: torch.arange(10).unsqueeze(0), "x = torch.arange(10).unsqueeze(0)"),
            (lambda: torch.randperm(20), "x = torch.randperm(20)"),
            (lambda: torch.ones(9, 9).bool().tril(), "x = torch.ones(9, 9, dtype=torch.bool).tril()"),
            (lambda: torch.full((9, 9), -math.inf).triu(1), 'x = torch.full((9, 9), float("-inf")).triu(1)'),
            (lambda: torch.randn(30, 40).bfloat16(), "x = torch.randn(30, 40, dtype=torch.bfloat16)"),
            (
                lambda: torch.nn.Parameter(torch.randn(64, 9) * 0.2),
                "x = torch.nn.Parameter(torch.randn(64, 9) * 0.2)",
            ),
            (lambda: torch.randn(50, requires_grad=True), "x = torch.randn(50, requires_grad=True)"),
            (lambda: torch.randn(50, requires_grad=True) + 0, "x = torch.randn(50, requires_grad=True) * 1"),
            (lambda: torch.randn(8, 9).t(), "x = torch.randn(8, 9).t()"),
            (lambda: torch.randn(9, 20)[:, 2:10], "x = torch.randn(9, 20)[:, 2:10]"),
            (lambda: torch.randn(1, 300).expand(4, 300), "x = torch.randn(1, 300).expand(4, 300)"),
            (
                lambda: torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last),
                "x = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)",
            ),
            (
                lambda: torch.randn(40).as_strided((3, 4), (7, 2), 3),
                "x = torch.randn(24).as_strided((3, 4), (7, 2), 3)",
            ),
            (lambda: torch.zeros(0, 3), "x = torch.zeros(0, 3)"),
        ],
    )
    def test_is_short_and_idiomatic(self, make, text):
        torch.manual_seed(3)
        assert text_of(make()) == text

    def test_integers_keep_their_range(self):
        value = torch.randint(0, 50257, (2, 100))
        assert text_of(value) == f"x = torch.randint({value.min()}, {value.max() + 1}, (2, 100))"

    def test_plain_values_are_literals(self):
        values = [5, -2.5, True, None, 'a"b', 1 + 2j, float("inf"), (1, [2])]
        values += [torch.float16, torch.device("cuda", 1)]
        names = [f"v{i}" for i in range(len(values))]
        namespace = {"torch": torch}
        exec("\n".join(write_inputs(values, names).lines), namespace)
        assert [namespace[name] for name in names] == values

    def test_nothing_is_seeded_where_nothing_is_random(self):
        assert not any("seed" in line for line in write_inputs([torch.zeros(3), 4], ["x", "n"]).lines)

    def test_names_that_the_text_uses_itself_are_changed(self):
        text = write_inputs([torch.randn(3), 1, 2], ["torch", "device", "lambda"])
        assert text.names == ("torch_", "device_", "lambda_")
        assert len(materialise(text)) == 3

    def test_the_accelerator_is_the_main_device(self):
        from torch._subclasses import FakeTensorMode

        with FakeTensorMode():
            values = [torch.empty(3, device=name) for name in ("cpu", "meta", "cuda:1")]
        text = write_inputs(values, ["x", "y", "z"])
        assert text.device == "cuda:1"
        assert text.lines[1:] == [
            'x = torch.randn(3, device="cpu")', 'y = torch.randn(3, device="meta")', "z = torch.randn(3, device=device)",
        ]  # fmt: skip


class TestSeeded:
    """Random values that keep what the failure may depend on."""

    @pytest.mark.parametrize(
        "make",
        [
            *(lambda a=a, s=s: many(a, *s) for a in NUMBERS for s in [(), (1,), (5, 7), (3, 0)]),
            lambda: torch.randn(3, 4, 5).permute(2, 0, 1),
            lambda: torch.randn(4, 5, 6).transpose(1, 2),
            lambda: torch.randn(2, 3, 4, 5, 6).to(memory_format=torch.channels_last_3d),
            lambda: torch.randn(5)[1:],
            lambda: torch.randn(8, 8)[2:5, 1:7],
            lambda: torch.randn(20)[::2],
            lambda: torch.randn(10).unfold(0, 4, 1),
            lambda: torch.randn(1, 4).t(),
            lambda: torch.randn(3, 1, 1).expand(3, 4, 5),
            lambda: torch.nn.Parameter(torch.randn(3), requires_grad=False),
            lambda: torch.nn.Parameter(torch.randn(4, 3).t()),
            lambda: torch.randn(4, 3).t().requires_grad_(),
            lambda: torch.randn(4, 3, requires_grad=True).t(),
            lambda: (torch.randn(40, 3) * 3).requires_grad_() * 1,
            lambda: torch.randn(3, 3, dtype=torch.complex64).conj(),
            lambda: torch.randn(3, 3, dtype=torch.complex64).conj().imag,
            lambda: torch.empty_strided((3, 4), (1, 3)).normal_(),
            lambda: torch.eye(3).to(torch.float8_e4m3fn),
        ],
    )
    def test_keeps_dtype_shape_layout_and_autograd_facts(self, make):
        value = make()
        (made,) = remade(value)
        assert facts(made) == facts(value)

    @pytest.mark.parametrize("view", [lambda x: x, torch.t, lambda x: x[:, 1:3]], ids=["whole", "t", "slice"])
    def test_makes_an_activation_that_eager_can_write_to(self, view):
        value = view(torch.randn(5, 4, requires_grad=True) * 1)
        for made in (clone_values([value])[0], remade(value)[0]):
            assert facts(made) == facts(value)
            # a script keeps a slice's offset, as a view of a leaf
            if value.is_contiguous() or not made._is_view():
                made[:1] += 1

    def test_keeps_inference_tensors(self):
        with torch.inference_mode():
            value = torch.randn(3)
        assert remade(value)[0].is_inference()
        assert not remade(torch.randn(3))[0].is_inference()

    def test_keeps_signs(self):
        torch.manual_seed(0)
        variance = torch.rand(200) * 3 + 0.5
        assert (remade(variance)[0] > 0).all()
        assert (remade(torch.randn(200).abs() * 5)[0] >= 0).all()
        assert (remade(-torch.randn(200).abs())[0] <= 0).all()

    def test_keeps_the_bounds_of_inverse_functions(self):
        """acos and atanh need values within [-1, 1]; tanh makes such."""
        (made,) = remade(torch.randn(500).mul(2).tanh())
        assert made.abs().max() <= 1

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
    def test_keeps_the_places_of_nan_and_infinities(self, dtype):
        value = torch.randn(10, 10, dtype=dtype)
        value[2, 3], value[4, 4], value[9, 9] = math.nan, math.inf, -math.inf
        (made,) = remade(value)
        assert torch.equal(made.isnan(), value.isnan())
        assert torch.equal(made.isposinf(), value.isposinf())
        assert torch.equal(made.isneginf(), value.isneginf())

    def test_many_nan_and_infinities_are_as_many_and_no_value_is_stored_beside_them(self):
        value = torch.randn(60, 60)
        value[torch.rand(60, 60) < 0.3] = math.nan
        value[torch.rand(60, 60) < 0.1] = -math.inf
        text = write_inputs([value], ["x"])
        made = materialise(text)[0]
        assert not text.stored
        for special in (torch.isnan, torch.isneginf, torch.isposinf):
            assert abs(special(made).sum() - special(value).sum()) < 200

    def test_keeps_places_in_views_and_parameters(self):
        value = torch.randn(6, 5)
        value[1, 2] = math.nan
        parameter = torch.nn.Parameter(value.t())
        (made,) = remade(parameter)
        assert facts(made) == facts(parameter)
        assert torch.equal(made.isnan(), parameter.isnan())

    def test_large_tensors_are_fitted_by_a_sample(self):
        torch.manual_seed(0)
        assert text_of(torch.randn(1 << 21) * 5) == "x = torch.randn(2097152) * 5"
        assert text_of(torch.randn(1, 1 << 11).expand(1 << 20, 1 << 11)).endswith("expand(1048576, 2048)")

    def test_the_gigabytes_before_a_view_are_left_out(self):
        far = torch.arange((1 << 20) + 7, dtype=torch.uint8)[1 << 20 :]
        farther = torch.arange((1 << 21) + 10, dtype=torch.uint8)[(1 << 21) + 3 :]
        assert remade(far)[0].storage_offset() == 1 << 20
        assert remade(farther)[0].storage_offset() == 3
        assert "torch.randint(0, 7, (1048583,)" in text_of(far)

    def test_fake_tensors_get_plain_values(self):
        from torch._subclasses import FakeTensorMode

        with FakeTensorMode():
            fake = torch.empty(3, 4, dtype=torch.float16), torch.empty(5, dtype=torch.int64)
        made = remade(*fake)
        assert [(value.shape, value.dtype) for value in made] == [(f.shape, f.dtype) for f in fake]


class TestSharing:
    """Inputs that share a storage share it again."""

    @pytest.mark.parametrize("exactness", Exactness)
    def test_views_of_one_storage(self, exactness):
        base = torch.randn(40)
        rows = base.view(5, 8)
        values = [rows, base[3:7], rows.t(), base[10:30].view(4, 5), base.view(torch.int32)[2:5]]
        made = remade(*values, exactness=exactness)
        assert len({value.untyped_storage().data_ptr() for value in made}) == 1
        assert [facts(value) for value in made] == [facts(value) for value in values]
        if exactness is not Exactness.SEEDED:
            assert [bits(value) for value in made] == [bits(value) for value in values]

    def test_one_object_twice(self):
        value = torch.randn(3)
        one, other, third = remade(value, value, torch.randn(3))
        assert one is other
        assert third is not one

    def test_parameter_and_its_view(self):
        weight = torch.nn.Parameter(torch.randn(4, 5))
        values = [weight, weight.t(), weight.detach(), weight.detach().requires_grad_()]
        made = remade(*values)
        assert [facts(value) for value in made] == [facts(value) for value in values]
        assert len({value.untyped_storage().data_ptr() for value in made}) == 1

    def test_equal_values_do_not_share(self):
        one, other = remade(torch.ones(3), torch.ones(3))
        assert one.data_ptr() != other.data_ptr()

    def test_the_rest_of_a_storage_is_not_told(self):
        secret = torch.full((20,), 12345.0)
        secret[4:8] = torch.tensor([1.0, 2.0, 3.5, 4.0])
        text = write_inputs([secret[4:8], secret[5:7]], ["x", "y"], Exactness.EXACT)
        assert "12345" not in "".join(text.lines)
        assert not text.stored


class TestExact:
    """Values that come back bit for bit."""

    @pytest.mark.parametrize("dtype", NUMBERS, ids=str)
    @pytest.mark.parametrize("size", [(), (1,), (5, 7), (40, 30), (3, 0)], ids=str)
    def test_every_dtype(self, dtype, size):
        value = many(dtype, *size)
        assert bits(remade(value, exactness=Exactness.EXACT)[0]) == bits(value)

    def test_dtypes_without_numbers(self):
        value = torch.randint(0, 256, (4, 6), dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
        (made,) = remade(value, exactness=Exactness.EXACT)
        assert torch.equal(made.view(torch.uint8), value.view(torch.uint8))
        assert remade(value)[0].dtype is value.dtype

    def test_negative_zero_nan_and_subnormal_numbers(self):
        value = torch.tensor([-0.0, 0.0, math.nan, 1e-45, -math.inf, 16777216.0, 0.1])
        (made,) = remade(value, exactness=Exactness.EXACT)
        assert torch.equal(made.signbit(), value.signbit())
        assert torch.equal(made.nan_to_num(7), value.nan_to_num(7))
        zeros = torch.full((100,), -0.0)
        assert remade(zeros, exactness=Exactness.EXACT)[0].signbit().all()

    def test_small_tensors_and_integers_only(self):
        torch.manual_seed(0)
        small, large, tokens = torch.randn(4, 4), torch.randn(100, 100), torch.randint(0, 99, (50, 50))
        made = remade(small, large, tokens, exactness=Exactness.SMALL)
        assert torch.equal(made[0], small)
        assert torch.equal(made[2], tokens)
        assert not torch.equal(made[1], large)

    @given(st.floats(width=32))
    @settings(max_examples=200, deadline=None)
    def test_float_literals_are_exact(self, number):
        value = torch.tensor([number, 1.0])
        assert bits(remade(value.nan_to_num(0), exactness=Exactness.EXACT)[0]) == bits(value.nan_to_num(0))

    def test_stored_bytes_are_what_the_text_reads(self):
        value = torch.randn(30, 30).t()
        text = write_inputs([value], ["x"], Exactness.EXACT)
        assert text.lines == ['x = stored("x", torch.float32, device).view(30, 30).t()']
        assert text.stored["x"].dtype is torch.uint8
        assert text.stored["x"].numel() == 3600


class TestRefusals:
    """What has no form is refused by name, never replaced in silence."""

    @pytest.mark.parametrize(
        ("value", "why"),
        [
            (torch.eye(3).to_sparse(), "sparse"),
            (torch.nested.nested_tensor([torch.randn(2), torch.randn(3)]), "nested"),
            (object(), "object"),
            ([torch.zeros(2)], "Tensor"),
        ],
        ids=["sparse", "nested", "object", "list of tensors"],
    )
    def test_names_the_input(self, value, why):
        with pytest.raises(CannotWrite, match=why) as caught:
            write_inputs([1, value], ["n", "bad"])
        assert caught.value.part == "input bad"


class TestMaterialise:
    """The same text, seed and order as the script."""

    def test_is_what_the_text_makes(self):
        torch.manual_seed(1)
        values = [torch.randn(40, 50), torch.randint(0, 9, (30,)), torch.rand(30), torch.randn(20).half()]
        text = write_inputs(values, list("abcd"))
        namespace = {"torch": torch, "device": "cpu"}
        exec("\n".join(text.lines), namespace)
        made = materialise(text)
        assert all(torch.equal(namespace[name], value) for name, value in zip(text.names, made, strict=True))

    def test_leaves_random_streams_and_modes_alone(self):
        text = write_inputs([torch.randn(9)], ["x"])
        torch.manual_seed(4)
        before = torch.get_rng_state()
        with torch.inference_mode():
            (value,) = materialise(text)
        assert torch.equal(torch.get_rng_state(), before)
        assert not value.is_inference()

    def test_does_not_depend_on_the_default_dtype(self, request):
        text = write_inputs([torch.randn(9)], ["x"])
        (expected,) = materialise(text)
        request.getfixturevalue("in_float64")
        assert torch.equal(materialise(text)[0], expected)

    def test_writing_leaves_values_alone(self):
        value = torch.randn(5, 5, requires_grad=True)
        version = value._version
        write_inputs([value, value.t()], ["x", "y"], Exactness.EXACT)
        assert value._version == version
        assert value.grad is None


def test_scripts_start_from_plain_modes(in_float64):
    with torch.no_grad(), as_scripts_do():
        assert torch.get_default_dtype() is torch.float32
        assert torch.is_grad_enabled()
    assert torch.get_default_dtype() is torch.float64


DTYPES = [torch.float32, torch.float16, torch.int64, torch.bool, torch.complex64, torch.float8_e5m2]


@st.composite
def strided(draw):
    """A tensor of any layout that as_strided can make: overlapping, expanded, permuted, with gaps."""
    size = tuple(draw(st.lists(st.integers(0, 4), max_size=4)))
    stride = tuple(draw(st.integers(0, 9)) for _ in size)
    offset = draw(st.integers(0, 5))
    span = offset + 1 + sum(max(length - 1, 0) * step for length, step in zip(size, stride, strict=True))
    return many(draw(st.sampled_from(DTYPES)), span).as_strided(size, stride, offset)


@given(st.lists(strided(), min_size=1, max_size=3), st.sampled_from(Exactness))
@settings(max_examples=150, deadline=None)
def test_every_layout_comes_back(values, exactness):
    made = remade(*values, exactness=exactness)
    assert [facts(value) for value in made] == [facts(value) for value in values]
    if exactness is Exactness.EXACT:
        assert [bits(value) for value in made] == [bits(value) for value in values]
        names = [f"x{i}" for i in range(len(values))]
        assert write_inputs(made, names, exactness).lines == write_inputs(values, names, exactness).lines


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, torch.int64, torch.bool])
@pytest.mark.parametrize("exactness", list(Exactness))
def test_a_tensor_without_elements_keeps_its_shape(dtype, exactness):
    made = remade(torch.empty(0, 0, dtype=dtype), torch.empty(0, 3, 0, dtype=dtype), exactness=exactness)
    assert [(tuple(value.shape), value.dtype) for value in made] == [((0, 0), dtype), ((0, 3, 0), dtype)]
