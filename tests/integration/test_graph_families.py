"""Each thing that dynamo puts into a graph, with a backend that fails on just that: captured, reduced, written, verified.

``ops`` are the calls of the smallest graph, those inside nested graphs first.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from fails_on import name_of, raises_on, raises_where
from functorch.experimental.control_flow import map as map_rows
from quick_path import Found, failing_program, take_the_quick_path
from torch import nn
from torch._dynamo.exc import BackendCompilerFailed
from torch._higher_order_ops import scan, while_loop
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils.checkpoint import checkpoint

import minidbg
from minidbg.backend.budget import PROCESS


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Iterator[None]:
    torch.manual_seed(0)
    yield
    PROCESS.reset()
    torch._dynamo.reset()


@dataclass(frozen=True)
class Family:
    """A program, the backend that fails on it, and what must be left of it."""

    name: str
    function: Callable[..., Any]
    args: Callable[[], tuple[Any, ...]]
    backend: Any
    ops: list[str]
    given: dict[str, Any] = field(default_factory=dict)
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    check: Callable[[Found], bool] = lambda found: True
    full: bool = False
    """Whether the slow test takes it the whole way, through fresh interpreters."""


def square() -> tuple[Any, ...]:
    return (torch.randn(4, 4),)


def square_with_grad() -> tuple[Any, ...]:
    return (torch.randn(4, 4, requires_grad=True),)


def sandwich(x: torch.Tensor) -> torch.Tensor:
    return x.sin().relu().cos()


def marked() -> tuple[Any, ...]:
    x = torch.randn(6, 4)
    torch._dynamo.mark_dynamic(x, 0)
    return (x,)


def scalar_outputs() -> AbstractContextManager[Any]:
    return torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True)


def is_dynamic(found: Found) -> bool:
    return found.case.dynamic is True and any(found.case.dynamic_dims) and "maybe_mark_dynamic(" in found.text


def is_static(found: Found) -> bool:
    return found.case.dynamic is False and "mark_dynamic" not in found.text.partition("# ---- Below")[0]


SHAPES = [
    Family("all_dynamic", sandwich, square, raises_where("symbolic"), ["relu"], {"dynamic": True}, check=is_dynamic, full=True),
    Family("dynamic_not_needed", sandwich, square, raises_on("relu"), ["relu"], {"dynamic": True}, check=is_static),
    Family("marked", sandwich, marked, raises_where("symbolic"), ["relu"], check=is_dynamic),
    Family(
        "size_in_the_graph",
        lambda x: torch.ones(x.shape[0] * 2).sin().sum() + x.sum(),
        marked,
        raises_on("mul"),
        ["mul"],
    ),
    Family(
        "int_argument", lambda x, n: (x.sin() * n).view(n, -1), lambda: (torch.randn(4, 4), 4),
        raises_where("symbolic"), ["mul"], {"dynamic": True}, check=is_dynamic,
    ),
    Family(
        "item", lambda x, n: torch.zeros(n.sum().item()).cos() + x.sum(), lambda: (torch.randn(4), torch.tensor([3])),
        raises_on("item", "zeros"), ["item", "zeros"], around=scalar_outputs,
    ),
    Family(
        "nonzero", lambda x: torch.nonzero(x.sin() > 0).cos().sum(), square,
        raises_on("nonzero", "cos"), ["nonzero", "cos"], around=scalar_outputs,
    ),
]  # fmt: skip


def branching(x: torch.Tensor) -> torch.Tensor:
    one, other = lambda x: x.sin().relu().cos(), lambda x: x.cos().tan()
    return torch.cond(x.sum() > 0, one, other, (x.sinh(),)).exp()


def looping(x: torch.Tensor) -> Any:
    start = (torch.tensor(0), x.sinh())
    return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x.sin().relu().cos()), start)[1].exp()


def scanning(x: torch.Tensor) -> Any:
    return scan(lambda carry, x: (carry + x.relu().cos(), carry.sin()), torch.zeros(4), x.sinh())[1].exp()


def mapping(x: torch.Tensor) -> Any:
    return map_rows(lambda x, y: x.sin().relu() + y, x.sinh(), torch.ones(4)).exp()


def checkpointed(x: torch.Tensor) -> Any:
    return checkpoint(sandwich, x.sinh(), use_reentrant=False).exp()


region = torch.compiler.nested_compile_region(sandwich)


def regions(x: torch.Tensor) -> Any:
    return region(region(x.sinh())).exp()


def heads() -> tuple[Any, ...]:
    return (torch.randn(1, 1, 16, 16),)


def scored(q: torch.Tensor) -> Any:
    return flex_attention(q.sin(), q, q, score_mod=lambda s, b, h, i, j: torch.relu(s) + i).exp()


MASK = create_block_mask(lambda b, h, i, j: i >= j, 1, 1, 16, 16, device="cpu")


def masked(q: torch.Tensor) -> Any:
    return flex_attention(q.sin(), q, q, block_mask=MASK).exp()


def chosen_kernel(q: torch.Tensor) -> Any:
    with sdpa_kernel(SDPBackend.MATH):
        return functional.scaled_dot_product_attention(q.sin(), q, q).exp()


class Custom(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.sin().relu()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return grad * x.cos()


HIGHER_ORDER = [
    Family("cond", branching, square, raises_on("cond"), ["sin", "cos", "cond"], full=True),
    Family("in_a_branch", branching, square, raises_on("cond", "relu"), ["relu", "cos", "cond"]),
    Family("alone_in_a_branch", branching, square, raises_on("relu"), ["relu"]),
    Family("while_loop", looping, square, raises_on("while_loop"), ["lt", "add", "sin", "while_loop"], full=True),
    Family("in_a_loop", looping, square, raises_on("while_loop", "relu"), ["lt", "add", "relu", "while_loop"]),
    Family("scan", scanning, square, raises_on("scan"), ["scan"], full=True),
    Family("in_a_scan", scanning, square, raises_on("scan", "relu"), ["relu", "scan"]),
    Family("map", mapping, square, raises_on("map_impl"), ["sin", "map_impl"]),
    Family("in_a_map", mapping, square, raises_on("map_impl", "relu"), ["relu", "map_impl"]),
    Family("region", regions, square, raises_on("invoke_subgraph"), ["invoke_subgraph"], full=True),
    Family("in_a_region", regions, square, raises_on("invoke_subgraph", "relu"), ["relu", "invoke_subgraph"]),
    Family(
        "checkpoint", checkpointed, square_with_grad,
        raises_on("tag_activation_checkpoint"), ["tag_activation_checkpoint"], full=True,
    ),
    Family(
        "in_a_checkpoint", checkpointed, square_with_grad,
        raises_on("tag_activation_checkpoint", "relu"), ["relu", "tag_activation_checkpoint"],
    ),
    Family("masked_attention", masked, heads, raises_on("flex_attention"), ["ge", "flex_attention"], full=True),
    Family(
        "autograd_function", lambda x: Custom.apply(x.sinh()).exp(), square_with_grad,
        raises_on("autograd_function_apply"), ["autograd_function_apply"], full=True,
    ),
    Family(
        "in_an_autograd_function", lambda x: Custom.apply(x.sinh()).exp(), square_with_grad,
        raises_on("autograd_function_apply", "relu"), ["relu", "autograd_function_apply"],
    ),
    Family(
        "in_its_backward", lambda x: Custom.apply(x.sinh()).exp(), square_with_grad,
        raises_on("autograd_function_apply", "cos"), ["cos", "autograd_function_apply"],
    ),
    Family("in_a_score", scored, heads, raises_on("flex_attention", "relu"), ["relu", "new_ones", "flex_attention"]),
    Family("attention_kernel", chosen_kernel, heads, raises_on("_sdpa_kernel"), ["_backend_from_string", "_sdpa_kernel"]),
]  # fmt: skip


class Block(nn.Module):
    """Parameters, a tied weight, a buffer, a constant and an index."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.embedding = nn.Embedding(4, 4)
        self.out = nn.Linear(4, 4, bias=False)
        self.out.weight = self.embedding.weight
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.linear(x)).relu() * self.scale
        return self.out(hidden) + self.embedding(torch.arange(4)) + torch.tensor([1.0, 2.0, 3.0, 4.0])


def with_autocast(x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        y = torch.mm(x.sin(), x)
    return y.cos()


def without_grad(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    with torch.no_grad():
        z = y.relu().cos()
    return (y + z).tan()


def through_a_view(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    z = y[0]
    z.add_(1)
    z.relu_()
    return y.cos()


def writes_its_input(x: torch.Tensor) -> torch.Tensor:
    x.mul_(2)
    return x.cos().tan()


def writes_one_of_two(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.relu_()
    return (y.cos() + 1).tan()


def assigns(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    y[1:, 0] = 2.0
    return y.cos()


def two_views() -> tuple[Any, ...]:
    base = torch.randn(4, 4)
    return base, base[1:]


def breaks(x: torch.Tensor) -> torch.Tensor:
    y = x.sin().cos()
    torch._dynamo.graph_break()
    return y.relu().tan()


def plus_one(x: torch.Tensor) -> torch.Tensor:
    return (x + 1).sin()


def quantizing(x: torch.Tensor) -> torch.Tensor:
    return torch.quantize_per_tensor(x.sin(), 0.1, 0, torch.qint8).dequantize().relu()


MODES_AND_WRITES = [
    Family(
        "autocast_block", with_autocast, square, raises_on("_enter_autocast", "mm"),
        ["_enter_autocast", "mm", "_exit_autocast"], check=lambda found: "with torch.autocast(" in found.text, full=True,
    ),
    Family("in_an_autocast_block", with_autocast, square, raises_on("mm"), ["mm"]),
    Family(
        "grad_mode_block", without_grad, square_with_grad, raises_on("_set_grad_enabled", "relu"),
        ["_set_grad_enabled", "relu", "_set_grad_enabled"],
    ),
    Family("in_a_grad_mode_block", without_grad, square_with_grad, raises_on("relu"), ["relu"]),
    Family("no_grad_around", sandwich, square, raises_where("no_grad"), ["relu"], around=torch.no_grad, full=True),
    Family(
        "inference_around", sandwich, square, raises_where("inference", when="run"), ["relu"], around=torch.inference_mode
    ),
    Family(
        "autocast_around", sandwich, square, raises_where("autocast"), ["relu"],
        around=lambda: torch.autocast("cpu", torch.bfloat16),
    ),
    Family("write_through_a_view", through_a_view, square, raises_on("relu_"), ["relu_"]),
    Family("written_input", writes_its_input, square, raises_on("mul_"), ["mul_"]),
    Family(
        "aliased_inputs", writes_one_of_two, two_views, raises_where("aliased"), ["relu_", "cos"],
        check=lambda found: "storage[1:]" in found.text, full=True,
    ),
    Family("assignment", assigns, square, raises_on("setitem"), ["setitem"]),
    Family("graph_break", breaks, square, raises_on("relu"), ["relu"]),
    Family("fullgraph", sandwich, square, raises_on("relu"), ["relu"], {"fullgraph": True}),
]  # fmt: skip


def tensors(make: Callable[[], torch.Tensor]) -> Callable[[], tuple[Any, ...]]:
    return lambda: (make(),)


VALUES = [
    Family(
        "no_leaf", plus_one, tensors(lambda: torch.ones(4, requires_grad=True) * 2), raises_where("non_leaf"), ["add"],
        check=lambda found: not found.case.inputs[0].is_leaf, full=True,
    ),
    Family(
        "expanded", plus_one, tensors(lambda: torch.randn(4, 1).expand(4, 4)), raises_where("expanded"), ["add"],
        check=lambda found: found.case.inputs[0].stride() == (1, 0),
    ),
    Family(
        "transposed", plus_one, tensors(lambda: torch.randn(3, 4).t()), raises_where("transposed"), ["add"],
        check=lambda found: found.case.inputs[0].stride()[0] < found.case.inputs[0].stride()[1],
    ),
    Family(
        "channels_last", plus_one, tensors(lambda: torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)),
        raises_where("channels_last"), ["add"],
    ),
    Family("no_elements", plus_one, tensors(lambda: torch.randn(0, 4)), raises_where("zero_size"), ["add"]),
    Family(
        "no_dimensions", lambda x, y: (x + y).sin(), lambda: (torch.randn(3), torch.tensor(2.0)),
        raises_where("scalar"), ["add"],
    ),
    Family("conjugated", lambda c: (c + 1).abs(), tensors(lambda: torch.randn(4, dtype=torch.complex64).conj()),
           raises_where("conjugated"), ["add"], check=lambda found: found.case.inputs[0].is_conj()),
    Family("quantized", quantizing, square, raises_on("dequantize"), ["quantize_per_tensor", "dequantize"], full=True),
    Family("module", Block(), square, raises_on("relu"), ["relu"]),
    Family("parameter", Block(), square, raises_where("parameter"), ["linear"],
           check=lambda found: "torch.nn.Parameter(" in found.text),
    Family("statistics", Block(), square, raises_on("batch_norm"), ["batch_norm"]),
    Family("tied_weights", Block(), square, raises_on("embedding", "linear"), ["linear", "embedding"], full=True),
    Family("constant", lambda x: x.sin() * torch.tensor([1.0, 2.0, 3.0, 4.0]), square, raises_on("mul"), ["mul"]),
    Family("several_outputs", lambda x: torch.std_mean(x.sin(), 0)[1].cos(), square, raises_on("std_mean"), ["std_mean"]),
    Family("two_of_several_outputs", lambda x: operator.add(*torch.topk(x.sin(), 2)).cos(), square,
           raises_on("topk", "add"), ["topk", "add"]),
    Family("list_of_outputs", lambda x: torch.cat(torch.split(x.sin(), 2)).cos(), square, raises_on("split"), ["split"]),
    Family("dropout", lambda x: functional.dropout(x.sin(), 0.5).relu(), square, raises_on("dropout", "relu"), ["dropout", "relu"]),
]  # fmt: skip


DTYPES = (
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
    "float16", "bfloat16", "float64", "float8_e4m3fn", "float8_e5m2", "complex64", "complex128",
)  # fmt: skip


def widened(x: torch.Tensor) -> torch.Tensor:
    return x.clone().to(torch.complex64 if x.dtype.is_complex else torch.float32).sin().sum()


def of_dtype(name: str) -> Family:
    dtype = getattr(torch, name)

    def make() -> torch.Tensor:
        return torch.randint(0, 2, (4, 4)).to(dtype)

    # on the widening: a clone of some of these dtypes is all that torch can do with them
    return Family(
        name, widened, tensors(make), raises_where(name), ["to"],
        check=lambda found: found.case.inputs[0].dtype is dtype,
    )  # fmt: skip


FAMILIES = [*SHAPES, *HIGHER_ORDER, *MODES_AND_WRITES, *VALUES, *map(of_dtype, DTYPES)]


def by_name(families: list[Family]) -> Any:
    return pytest.mark.parametrize("family", families, ids=lambda family: family.name)


QUICK = {
    "all_dynamic", "dynamic_not_needed", "item", "alone_in_a_branch", "in_a_map", "checkpoint", "in_an_autocast_block",
    "grad_mode_block", "no_grad_around", "write_through_a_view", "aliased_inputs", "graph_break", "no_leaf", "expanded",
    "conjugated", "tied_weights", "several_outputs", "uint64", "float8_e5m2",
}  # fmt: skip
"""At least one of each kind; the others are as quick, but there are many."""


@by_name([family for family in FAMILIES if family.name in QUICK])
def test_what_fails_is_reduced_to_just_that(
    family: Family, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_the_quick_path(monkeypatch)
    assert_smallest(family, tmp_path)


@pytest.mark.slow
@pytest.mark.exhaustive
@by_name([family for family in FAMILIES if family.name not in QUICK])
def test_so_is_what_fails_more_rarely(
    family: Family, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_the_quick_path(monkeypatch)
    assert_smallest(family, tmp_path)


@pytest.mark.slow
@pytest.mark.exhaustive
@by_name([family for family in FAMILIES if family.full])
def test_its_repro_fails_again_in_a_fresh_interpreter(family: Family, tmp_path: Path) -> None:
    assert_smallest(family, tmp_path)


def assert_smallest(family: Family, folder: Path) -> None:
    with family.around():
        found = failing_program(family.function, family.args(), family.backend, folder, **family.given)
    assert found.ops == family.ops
    assert found.case.provenance.certified
    assert family.check(found), found.path


def test_each_graph_of_a_broken_program_is_answered_for_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two graphs with different failures, and one of them again for another number of dimensions."""
    take_the_quick_path(monkeypatch)
    backend = minidbg.wrap(raises_on_two, repro_dir=tmp_path, on_failure="fallback")
    compiled = torch.compile(two_bugs, backend=backend)
    for shape in ((4, 4), (4, 4), (2, 3, 4)):
        x = torch.randn(shape)
        assert torch.equal(compiled(x), two_bugs(x))
    graphs = sorted((case.graph_module for case in map(minidbg.load, tmp_path.glob("*.py"))), key=str)
    names = sorted(name_of(node) for gm in graphs for node in gm.graph.nodes if node.op.startswith("call"))
    assert names == ["relu", "tan"]


def raises_on_two(gm: torch.fx.GraphModule, example_inputs: Any) -> Any:
    """A backend with two bugs."""
    for name in ("relu", "tan"):
        raises_on(name)(gm, example_inputs)
    return gm.forward


def two_bugs(x: torch.Tensor) -> torch.Tensor:
    y = x.sin().relu().cos()
    torch._dynamo.graph_break()
    return y.sinh().tan() + 1


def test_what_no_script_can_hold_is_named_and_kept_in_words(tmp_path: Path) -> None:
    """The user's own exception arrives, and the program goes on as it would have."""
    ragged = torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(4, 3)], layout=torch.jagged)
    compiled = torch.compile(sandwich, backend=minidbg.wrap(raises_on("relu"), repro_dir=tmp_path))
    with pytest.raises(BackendCompilerFailed, match="cannot lower relu") as caught:
        compiled(ragged)
    report = minidbg.report_of(caught.value)
    assert report is not None
    assert "NestedTensor is a tensor subclass" in report.line
    assert report.capture is not None
    text = report.capture.read_text()
    assert "relu" in text
    assert "cannot lower relu" in text
    assert "NestedTensor torch.float32 of shape (2, j" in text
    assert not list(tmp_path.glob("*.py"))


@pytest.mark.device
@pytest.mark.skipif(
    not torch.cuda.is_available(), reason="user Triton kernels need a GPU, and there is none here"
)
def test_a_users_triton_kernel_is_refused_by_name(tmp_path: Path) -> None:
    import triton
    import triton.language as tl

    @triton.jit
    def doubles(x_ptr: Any, y_ptr: Any, size: tl.constexpr) -> None:
        place = tl.arange(0, size)
        tl.store(y_ptr + place, tl.load(x_ptr + place) * 2)

    def program(x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        doubles[(1,)](x, y, x.numel())
        return y.sin()

    compiled = torch.compile(program, backend=minidbg.wrap(raises_on("sin"), repro_dir=tmp_path))
    with pytest.raises(BackendCompilerFailed) as caught:
        compiled(torch.randn(16, device="cuda"))
    report = minidbg.report_of(caught.value)
    assert report is not None
    assert "its kernel lives in a table of this process" in report.line
