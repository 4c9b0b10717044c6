"""Each thing that dynamo puts into a graph, in a small program, with a backend that fails on just that.

Each graph is written, read back and traced again as it was; what is reduced of some stands in the corpus.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from fails_on import DTYPES, raises_on, raises_where
from functorch.experimental.control_flow import map as map_rows
from torch import Tensor, nn
from torch._higher_order_ops import scan, while_loop
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True)
class Construct:
    """A program, and the backend that fails on it."""

    name: str
    function: Callable[..., Any]
    args: Callable[[], tuple[Any, ...]]
    backend: Any = None
    """None: nothing is planted, the program is only written and read back."""
    given: dict[str, Any] = field(default_factory=dict)
    around: Callable[[], AbstractContextManager[Any]] = nullcontext


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


SHAPES = [
    Construct("all_dynamic", sandwich, square, raises_where("symbolic"), given={"dynamic": True}),
    Construct("dynamic_not_needed", sandwich, square, raises_on("relu"), given={"dynamic": True}),
    Construct("marked", sandwich, marked, raises_where("symbolic")),
    Construct(
        "size_in_the_graph",
        lambda x: torch.ones(x.shape[0] * 2).sin().sum() + x.sum(),
        marked,
        raises_on("mul"),
    ),
    Construct(
        "int_argument", lambda x, n: (x.sin() * n).view(n, -1), lambda: (torch.randn(4, 4), 4),
        raises_where("symbolic"), given={"dynamic": True},
    ),
    Construct(
        "item", lambda x, n: torch.zeros(n.sum().item()).cos() + x.sum(), lambda: (torch.randn(4), torch.tensor([3])),
        raises_on("item", "zeros"), around=scalar_outputs,
    ),
    Construct(
        "nonzero", lambda x: torch.nonzero(x.sin() > 0).cos().sum(), square,
        raises_on("nonzero", "cos"), around=scalar_outputs,
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
        return F.scaled_dot_product_attention(q.sin(), q, q).exp()


class Custom(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.sin().relu()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return grad * x.cos()


def pushed_forward(x: Tensor) -> Any:
    primal, tangent = torch.func.jvp(lambda y: y.relu().sin(), (x.exp(),), (x.cos(),))
    return primal.sum() + tangent.tan()


def forward_jacobian(x: Tensor) -> Tensor:
    return torch.func.jacfwd(torch.sigmoid)(x[0].exp()).tan() + torch.vmap(torch.sinh)(x)


def forward_over_reverse(x: Tensor) -> Any:
    row = torch.func.grad(lambda y: y.relu().sum())
    return torch.func.jvp(row, (x[0].exp(),), (x[1],))[1].tan() + torch.func.grad(torch.sum)(x[0])


HIGHER_ORDER = [
    Construct("cond", branching, square, raises_on("cond")),
    Construct("in_a_branch", branching, square, raises_on("cond", "relu")),
    Construct("alone_in_a_branch", branching, square, raises_on("relu")),
    Construct("while_loop", looping, square, raises_on("while_loop")),
    Construct("in_a_loop", looping, square, raises_on("while_loop", "relu")),
    Construct("scan", scanning, square, raises_on("scan")),
    Construct("in_a_scan", scanning, square, raises_on("scan", "relu")),
    Construct("map", mapping, square, raises_on("map_impl")),
    Construct("in_a_map", mapping, square, raises_on("map_impl", "relu")),
    Construct("region", regions, square, raises_on("invoke_subgraph")),
    Construct("in_a_region", regions, square, raises_on("invoke_subgraph", "relu")),
    Construct(
        "checkpoint", checkpointed, square_with_grad,
        raises_on("tag_activation_checkpoint"),
    ),
    Construct(
        "in_a_checkpoint", checkpointed, square_with_grad,
        raises_on("tag_activation_checkpoint", "relu"),
    ),
    Construct("masked_attention", masked, heads, raises_on("flex_attention")),
    Construct(
        "autograd_function", lambda x: Custom.apply(x.sinh()).exp(), square_with_grad,
        raises_on("autograd_function_apply"),
    ),
    Construct(
        "in_an_autograd_function", lambda x: Custom.apply(x.sinh()).exp(), square_with_grad,
        raises_on("autograd_function_apply", "relu"),
    ),
    Construct(
        "in_its_backward", lambda x: Custom.apply(x.sinh()).exp(), square_with_grad,
        raises_on("autograd_function_apply", "cos"),
    ),
    Construct("in_a_score", scored, heads, raises_on("flex_attention", "relu")),
    Construct("jvp", pushed_forward, square, raises_on("relu")),
    Construct(
        "jacfwd", forward_jacobian, square, raises_on("sigmoid"),
    ),
    Construct(
        "jvp_of_grad", forward_over_reverse, square, raises_on("relu"),
    ),
    Construct("attention_kernel", chosen_kernel, heads, raises_on("_sdpa_kernel")),
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
    Construct(
        "autocast_block", with_autocast, square, raises_on("_enter_autocast", "mm"),
    ),
    Construct("in_an_autocast_block", with_autocast, square, raises_on("mm")),
    Construct(
        "grad_mode_block", without_grad, square_with_grad, raises_on("_set_grad_enabled", "relu"),
    ),
    Construct("in_a_grad_mode_block", without_grad, square_with_grad, raises_on("relu")),
    Construct("no_grad_around", sandwich, square, raises_where("no_grad"), around=torch.no_grad),
    Construct(
        "inference_around", sandwich, square, raises_where("inference", when="run"), around=torch.inference_mode
    ),
    Construct(
        "autocast_around", sandwich, square, raises_where("autocast"),
        around=lambda: torch.autocast("cpu", torch.bfloat16),
    ),
    Construct("write_through_a_view", through_a_view, square, raises_on("relu_")),
    Construct("written_input", writes_its_input, square, raises_on("mul_")),
    Construct(
        "aliased_inputs", writes_one_of_two, two_views, raises_where("aliased"),
    ),
    Construct("assignment", assigns, square, raises_on("setitem")),
    Construct("graph_break", breaks, square, raises_on("relu")),
    Construct("fullgraph", sandwich, square, raises_on("relu"), given={"fullgraph": True}),
]  # fmt: skip


def tensors(make: Callable[[], torch.Tensor]) -> Callable[[], tuple[Any, ...]]:
    return lambda: (make(),)


VALUES = [
    Construct(
        "no_leaf", plus_one, tensors(lambda: torch.ones(4, requires_grad=True) * 2), raises_where("non_leaf"),
    ),
    Construct(
        "expanded", plus_one, tensors(lambda: torch.randn(4, 1).expand(4, 4)), raises_where("expanded"),
    ),
    Construct(
        "transposed", plus_one, tensors(lambda: torch.randn(3, 4).t()), raises_where("transposed"),
    ),
    Construct(
        "channels_last", plus_one, tensors(lambda: torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)),
        raises_where("channels_last"),
    ),
    Construct("no_elements", plus_one, tensors(lambda: torch.randn(0, 4)), raises_where("zero_size")),
    Construct(
        "no_dimensions", lambda x, y: (x + y).sin(), lambda: (torch.randn(3), torch.tensor(2.0)),
        raises_where("scalar"),
    ),
    Construct("conjugated", lambda c: (c + 1).abs(), tensors(lambda: torch.randn(4, dtype=torch.complex64).conj()),
           raises_where("conjugated")),
    Construct("quantized", quantizing, square, raises_on("dequantize")),
    Construct("module", Block(), square, raises_on("relu")),
    Construct("parameter", Block(), square, raises_where("parameter")),
    Construct("statistics", Block(), square, raises_on("batch_norm")),
    Construct("tied_weights", Block(), square, raises_on("embedding", "linear")),
    Construct("constant", lambda x: x.sin() * torch.tensor([1.0, 2.0, 3.0, 4.0]), square, raises_on("mul")),
    Construct("several_outputs", lambda x: torch.std_mean(x.sin(), 0)[1].cos(), square, raises_on("std_mean")),
    Construct("two_of_several_outputs", lambda x: operator.add(*torch.topk(x.sin(), 2)).cos(), square,
           raises_on("topk", "add")),
    Construct("list_of_outputs", lambda x: torch.cat(torch.split(x.sin(), 2)).cos(), square, raises_on("split")),
    Construct("dropout", lambda x: F.dropout(x.sin(), 0.5).relu(), square, raises_on("dropout", "relu")),
]  # fmt: skip


def widened(x: torch.Tensor) -> torch.Tensor:
    return x.clone().to(torch.complex64 if x.dtype.is_complex else torch.float32).sin().sum()


def of_dtype(name: str) -> Construct:
    dtype = getattr(torch, name)

    def make() -> torch.Tensor:
        return torch.randint(0, 2, (4, 4)).to(dtype)

    # on the widening: a clone of some of these dtypes is all that torch can do with them
    return Construct(
        name, widened, tensors(make), raises_where(name),
    )  # fmt: skip


# ---- programs that hold many constructs at once: nothing is planted in them


class Norms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding="same")
        self.batch = nn.BatchNorm2d(8)
        self.group = nn.GroupNorm(2, 8)
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.dropout(F.relu(self.group(self.batch(self.conv(x))), inplace=True), 0.1, self.training)
        return F.cross_entropy(self.head(hidden.mean((2, 3))), torch.tensor([0, 1]))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return x.logsumexp(-1).sum()


def views_and_writes(x: Tensor) -> tuple[Tensor, ...]:
    y = x.clone()
    y += 1
    y[0] = 1
    y[:, 1] += 2
    y[x > 0] = 0
    y[-1:, ::2].mul_(2)
    y.masked_fill_(y > 1, float("-inf"))
    return y, x[None, ..., 0], x[1:-1], x.T, y.data + 1, x[torch.tensor([0, 1])]


def many_results(x: Tensor) -> dict[str, Any]:
    values, places = x.topk(2, dim=1, largest=False)
    return {"top": [values, places], "sorted": torch.sort(x).values, "parts": x.split([1, 3]), "s": x.size(0)}


def nested_modes(x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
        y = x @ x
        with torch.autocast("cpu", enabled=False):
            z = x @ x
    with torch.no_grad():
        w = z.sum()
    with torch.inference_mode():
        v = z * 2
    return y + z + w + v.clone()


def nested_branches(x: Tensor) -> Tensor:
    weight = torch.ones(4) * 3

    def inner(a: Tensor) -> Tensor:
        return torch.cond(a.max() > 1, lambda b: b + weight, lambda b: b.cos(), (a,))

    return torch.cond(x.sum() > 0, lambda a: checkpoint(torch.sin, a, use_reentrant=False), inner, (x,))


def loop(x: Tensor) -> Any:
    return while_loop(lambda i, v: i < 3, lambda i, v: (i + 1, v * 2), (torch.tensor(0), x))


def arithmetic_of_sizes(a: Tensor, b: Tensor, n: int) -> tuple[Any, ...]:
    size = a.shape[0] * 2 + b.size(1) // 3
    return (
        a.view(-1).sum() * size,
        a.reshape(a.shape[1], -1),
        torch.zeros(math.ceil(size / 3)),
        b[: n - 1] * n,
    )


def derivative(x: Tensor) -> Tensor:
    return torch.vmap(lambda row: row.sin().sum())(x) + torch.func.grad(lambda r: (r * r).sum())(x[0]).sum()


def literals(x: Tensor) -> tuple[Tensor, ...]:
    return (
        x.to("cpu", torch.half, copy=True),
        torch.empty_like(x, memory_format=torch.contiguous_format).zero_(),
        torch.full((2,), complex(float("inf"), -0.0)),
        torch.einsum("ij,jk->ik", x, x),
        torch.div(x, 2, rounding_mode="floor"),
        torch.tensor([[1, 2], [3, 4]]).float(),
        F.pad(x, (1, 1), value=float("nan")),
        2**x - -1 * (1 - x) // 3 % 5,
    )


DYNAMIC = {"dynamic": True}
MIXED = [
    Construct("norms", Norms().train(), lambda: (torch.randn(2, 3, 5, 5),)),
    Construct("attention", Attention().train(), lambda: (torch.randn(2, 3, 16),)),
    Construct("views_and_writes", views_and_writes, square),
    Construct("many_results", many_results, square),
    Construct("nested_modes", nested_modes, square_with_grad),
    Construct("nested_branches", nested_branches, square_with_grad),
    Construct("nested_branches_dynamic", nested_branches, square, given=DYNAMIC),
    Construct("loop", loop, square),
    Construct("arithmetic_of_sizes", arithmetic_of_sizes, lambda: (*square(), *square(), 3), given=DYNAMIC),
    Construct("derivative", derivative, square),
    Construct("literals", literals, square),
]

CONSTRUCTS = [*SHAPES, *HIGHER_ORDER, *MODES_AND_WRITES, *VALUES, *map(of_dtype, DTYPES), *MIXED]
