from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch._dynamo.backends.registry import lookup_backend
from torch._higher_order_ops import scan, while_loop
from torch._higher_order_ops.map import map as map_rows
from torch.utils.checkpoint import checkpoint

from minidbg.fx.copying import capture_by_dynamo, clone_values, copy_graph_module
from minidbg.fx.randomness import Derandomized, draws_alone, feed_recorded
from minidbg.judge.compare import Comparison
from minidbg.judge.leaves import collect_leaves

Program = Callable[..., Any]


def captured(program: Program, *inputs: Any) -> tuple[fx.GraphModule, tuple[Any, ...]]:
    gm, given = capture_by_dynamo(program, inputs)
    return gm, tuple(given)


def fed(program: Program, *inputs: Any) -> Derandomized:
    return feed_recorded(*captured(program, *inputs))


def run(gm: fx.GraphModule, inputs: Any, seed: int) -> Any:
    torch.manual_seed(seed)
    return gm(*clone_values(inputs))


def agree(*values: Any) -> bool:
    return Comparison(*map(collect_leaves, values)).difference() is None


def is_deterministic(one: Derandomized) -> bool:
    return agree(*(run(one.graph_module, one.inputs, seed) for seed in (0, 1)))


X = torch.linspace(0.5, 2.0, 64).reshape(8, 8)

ONE = torch.tensor(1)

DRAWS: dict[str, Program] = {
    "dropout": lambda x: F.dropout(x),
    "torch.dropout": lambda x: torch.dropout(x, 0.5, True),
    "dropout in place": lambda x: F.dropout(x.sin(), inplace=True),
    "dropout of channels": lambda x: F.dropout2d(x[None, None]),
    "alpha_dropout": lambda x: F.alpha_dropout(x, training=True),
    "rrelu": lambda x: F.rrelu(x - 1, training=True),
    "rand": lambda x: x + torch.rand(8),
    "rand_like": lambda x: x + torch.rand_like(x),
    "randn": lambda x: x + torch.randn(8, 8),
    "randint": lambda x: x + torch.randint(0, 9, (8,)),
    "randperm": lambda x: x[torch.randperm(8)],
    "bernoulli": lambda x: torch.bernoulli(x / 2),
    "bernoulli_": lambda x: x.clone().bernoulli_(0.5) + x,
    "normal": lambda x: torch.normal(x, 1.0),
    "multinomial": lambda x: torch.multinomial(x, 3),
    "poisson": lambda x: torch.poisson(x),
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.5),
    "attention with shared heads": lambda x: F.scaled_dot_product_attention(
        x.expand(1, 4, 8, 8),
        x.expand(1, 2, 8, 8),
        x.expand(1, 2, 8, 8),
        dropout_p=0.5,
        enable_gqa=True,
        scale=0.1,
    ),
    "gumbel_softmax": lambda x: F.gumbel_softmax(x),
    "fractional pooling": lambda x: F.fractional_max_pool2d(x[None], 2, output_size=5),
    "dropout in a checkpoint": lambda x: checkpoint(lambda y: F.dropout(y.sin()), x, use_reentrant=False),
    "two outputs": lambda x: torch.ops.aten.native_dropout.default(x, 0.5, True),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_fed_graph_draws_nothing_and_gives_the_same_each_time(name: str) -> None:
    gm, inputs = captured(DRAWS[name], X)
    assert not agree(*(run(gm, inputs, seed) for seed in (0, 1))), "it does draw"
    one = feed_recorded(gm, inputs)
    assert one.fed
    assert not one.left
    state = torch.get_rng_state()
    one.graph_module(*clone_values(one.inputs))
    assert torch.equal(state, torch.get_rng_state())
    assert is_deterministic(one)


@pytest.mark.parametrize(
    "program",
    [
        lambda x: F.dropout(x, training=False) + x,
        lambda x: F.dropout(x, 0.0) + x,
        lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None]),
        lambda x: F.rrelu(x - 1),
        lambda x: x.sin() + torch.zeros(8),
    ],
)
def test_a_graph_without_draws_stays_as_it_is(program: Program) -> None:
    gm, inputs = captured(program, X)
    one = feed_recorded(gm, inputs)
    assert (one.fed, one.left, one.inputs) == ((), (), inputs)
    assert str(one.graph_module.graph) == str(gm.graph)


def test_a_fed_dropout_zeroes_some_scales_the_rest_and_passes_gradients() -> None:
    one = fed(lambda x: F.dropout(x, 0.75), X.clone().requires_grad_())
    [x, mask] = clone_values(one.inputs)
    assert set(mask.unique().tolist()) == {0.0, 4.0}
    [result] = one.graph_module(x, mask)
    [gradient] = torch.autograd.grad(result.sum(), x)
    assert torch.equal(result, x * mask)
    assert torch.equal(gradient, mask)


ALONE = (
    "dropout", "dropout in place", "rand", "rand_like", "randint", "randperm", "bernoulli_", "normal", "multinomial",
    "attention with shared heads", "gumbel_softmax", "dropout in a checkpoint", "two outputs",
)  # fmt: skip
"""Of each kind of call one."""


@pytest.mark.parametrize("name", ALONE)
def test_the_drawing_calls_alone_draw_what_the_whole_graph_draws(name: str) -> None:
    def program(x: Tensor) -> Any:
        return F.dropout(x, 0.2), DRAWS[name](x), torch.rand_like(x)

    gm, inputs = captured(program, X)
    one = feed_recorded(gm, inputs)
    alone = draws_alone(one)
    assert alone is not None
    again = one.with_results(run(*alone, seed=5))
    wanted = run(gm, inputs, 5)
    assert agree(again.graph_module(*clone_values(again.inputs)), wanted)
    assert not agree(one.graph_module(*clone_values(one.inputs)), wanted)


BELOW = torch.ones(8, 8).tril().bool()


@pytest.mark.parametrize(("dtype", "autocast"), [(torch.float32, False), (torch.bfloat16, True)])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"attn_mask": BELOW},
        {"attn_mask": torch.where(BELOW, 0.5, -torch.inf), "scale": 0.1},
        {"is_causal": True},
    ],
    ids=["plain", "mask of bools", "mask of floats", "causal"],
)
def test_fed_attention_rounds_as_eager_does(
    options: dict[str, Any], dtype: torch.dtype, autocast: bool
) -> None:
    if isinstance(mask := options.get("attn_mask"), Tensor) and mask.dtype is not torch.bool and not autocast:
        options = options | {"attn_mask": mask.to(dtype)}

    def attention(x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x.sin(), x.cos(), dropout_p=0.1, **options)

    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        gm, inputs = captured(attention, X[None].to(dtype))
        one = feed_recorded(gm, inputs)
        alone = draws_alone(one)
        assert alone is not None
        again = one.with_results(run(*alone, seed=5))
        assert torch.equal(again.graph_module(*again.inputs)[0], run(gm, inputs, 5)[0])


def test_no_call_is_tried_alone_where_others_draw_too() -> None:
    hidden = fed(lambda x: F.dropout(x) + F.alpha_dropout(x, training=True), X)
    assert hidden.switched_off == ("alpha_dropout",)
    assert draws_alone(hidden) is None


def test_aot_autograd_takes_a_fed_graph_of_dynamos() -> None:
    one = fed(lambda x: F.dropout(x.sin()), X)
    one.graph_module.meta["dynamo_compile_id"] = 0
    one.graph_module._param_name_to_source = {}
    compiled = lookup_backend("aot_eager")(copy_graph_module(one.graph_module), list(one.inputs))
    assert torch.equal(compiled(*one.inputs)[0], one.graph_module(*one.inputs)[0])


def test_what_only_a_draw_had_used_goes_and_what_writes_stays() -> None:
    one = fed(lambda x, y: torch.bernoulli(x.sigmoid()) + torch.poisson(y.mul_(2)), X, X)
    assert [node.target for node in one.graph_module.graph.nodes if node.op == "call_method"] == [
        "clone",
        "mul_",
        "clone",
    ]


def test_a_value_that_the_graph_writes_to_is_a_clone() -> None:
    one = fed(lambda x: torch.rand_like(x).mul_(x), X)
    assert is_deterministic(one)
    [x, drawn] = clone_values(one.inputs)
    one.graph_module(x, drawn)
    assert torch.equal(drawn, one.inputs[1])


def test_a_draw_inside_a_checkpoint_gets_its_value_through_the_checkpoint() -> None:
    one = fed(DRAWS["dropout in a checkpoint"], X)
    assert len(one.inputs) == 2
    [node] = [node for node in one.graph_module.graph.nodes if node.name == "tag_activation_checkpoint"]
    assert len(node.args) == 3


LEFT: dict[str, Program] = {
    "a branch": lambda x: torch.cond(x.sum() > 0, lambda y: F.dropout(y.sin()), lambda y: y.cos(), (x,)),
    "the other branch": lambda x: torch.cond(
        x.sum() < 0, lambda y: y.cos(), lambda y: y + torch.rand_like(y), (x,)
    ),
    "a loop": lambda x: while_loop(
        lambda i, y: i < 3, lambda i, y: (i + 1, F.dropout(y) + torch.rand(8)), (ONE, x)
    ),
    "a map": lambda x: map_rows(lambda y, z: F.dropout(y) + torch.rand_like(z), x, x[0] + 1),
    "a scan": lambda x: scan(lambda c, y, z=X[0] * 2: (F.dropout(c) + y, y + torch.rand(8) + z), x[0], x),
    "vmap": lambda x: torch.vmap(lambda y: F.dropout(y), randomness="different")(x),
}


@pytest.mark.parametrize("name", LEFT)
def test_a_draw_inside_a_loop_a_branch_or_vmap_is_left_and_said(name: str) -> None:
    one = feed_recorded(*captured(LEFT[name], X))
    assert one.fed == ()
    assert len(one.left) == 1
    assert draws_alone(one) is None


def test_a_block_that_an_error_leaves_open_is_closed() -> None:
    def program(x: Tensor, index: Tensor) -> Tensor:
        with torch.autocast("cpu"):
            return x[index] @ x

    gm, inputs = captured(program, X, torch.tensor([0, 1]))
    with pytest.raises(IndexError):
        feed_recorded(
            gm, (inputs[0], torch.tensor([99])) if inputs[0].dim() == 2 else (torch.tensor([99]), inputs[1])
        )
    assert not torch.is_autocast_enabled("cpu")
