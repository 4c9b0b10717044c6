"""torch.func, control flow and operators of one's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import func, nn

Compile = Callable[..., Any]


def scalar(x: torch.Tensor) -> torch.Tensor:
    return (x.relu() * x.sin()).sum()


def grad(compile: Compile) -> Any:
    x = torch.randn(5)
    nested = compile(func.grad(lambda x: func.grad(scalar)(x).cos().sum()))(x)
    both = compile(func.grad_and_value(scalar, has_aux=False))(x)
    return {"nested": nested, "both": both, "around": attempt(lambda: func.grad(compile(scalar))(x))}


def attempt(call: Callable[[], Any]) -> Any:
    """What a call gives, or what it raises: some of these are not to be had."""
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - compared
        return error


def vmap(compile: Compile) -> Any:
    x, y = torch.randn(3, 4), torch.randn(4, 2)
    each = compile(func.vmap(lambda row, y: row.relu() @ y, in_dims=(0, None)))(x, y)
    drawn = compile(func.vmap(lambda row: row.relu() + torch.rand_like(row), randomness="different"))(x)
    samples = compile(func.vmap(func.grad(scalar)))(x)
    around = attempt(lambda: func.vmap(compile(lambda row: row.relu() + 1))(x))
    return {"each": each, "drawn": drawn.shape, "samples": samples, "around": around}


def jvp(compile: Compile) -> Any:
    x, v = torch.randn(4), torch.randn(4)
    forward = compile(lambda x, v: func.jvp(lambda x: x.exp().relu().cumsum(0), (x,), (v,)))(x, v)
    backward = compile(lambda x, v: func.vjp(lambda x: x.relu().cumsum(0), x)[1](v))(x, v)
    return {"forward": forward, "backward": backward}


def dual_numbers(compile: Compile) -> Any:
    """Forward-mode AD around what is compiled."""
    compiled = compile(lambda x: x.relu() * 2)
    compiled(torch.randn(3, requires_grad=True)).sum().backward()
    with torch.autograd.forward_ad.dual_level():
        x = torch.autograd.forward_ad.make_dual(torch.randn(3), torch.randn(3))
        return attempt(lambda: list(torch.autograd.forward_ad.unpack_dual(compiled(x))))


def hessian(compile: Compile) -> Any:
    x = torch.randn(3)
    second = compile(lambda x: func.hessian(lambda x: (x.sin().relu() * x).prod())(x))(x)
    jacobian = compile(lambda x: func.jacrev(lambda x: x.relu().cumsum(0))(x))(x)
    return {"second": second, "jacobian": jacobian}


def ensemble(compile: Compile) -> Any:
    models = [nn.Sequential(nn.Linear(4, 3), nn.ReLU()) for _ in range(3)]
    weights, buffers = func.stack_module_state(models)

    def call(weights: Any, buffers: Any, x: torch.Tensor) -> torch.Tensor:
        return func.functional_call(models[0], (weights, buffers), (x,))

    return {"each": compile(func.vmap(call, in_dims=(0, 0, None)))(weights, buffers, torch.randn(2, 4))}


def control_flow(compile: Compile) -> Any:
    """cond, while_loop, map and scan, with closures."""
    from torch._higher_order_ops import map as each
    from torch._higher_order_ops import scan, while_loop

    x, weight = torch.randn(4), torch.randn(4)

    def branches(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.relu() * weight, lambda x: x.relu() - weight, (x,))

    def loop(n: torch.Tensor, x: torch.Tensor) -> Any:
        return while_loop(lambda n, x: n > 0, lambda n, x: (n - 1, x.relu() + weight), (n, x))

    def running(x: torch.Tensor) -> Any:
        return scan(lambda carried, row: (carried + row.relu(), carried * 2), torch.zeros(()), x)

    return {
        "cond": [compile(branches)(x), compile(branches)(-x)],
        "while": compile(loop)(torch.tensor(3), x),
        # inductor has neither for the CPU, in 2.14
        "scan": attempt(lambda: compile(running)(x)),
        "map": attempt(lambda: compile(lambda x: each(lambda row: row.relu().sum(), x))(x.reshape(2, 2))),
    }


def nested_regions(compile: Compile) -> Any:
    own = nn.Linear(4, 4)

    @torch.compiler.nested_compile_region
    def block(x: torch.Tensor) -> torch.Tensor:
        return own(x).relu() + x

    x = torch.randn(2, 4, requires_grad=True)
    compile(lambda x: block(block(block(x))).sum())(x).backward()
    return {
        "x": x,
        "weight": own.weight,
        "no grad": attempt(lambda: torch.no_grad()(compile(lambda x: block(x) * 2))(x)),
    }


CALLS: list[str] = []


def define() -> None:
    """An operator that gives, and one that writes; with gradients and fakes."""

    @torch.library.custom_op("transparency::shifted", mutates_args=())
    def shifted(x: torch.Tensor, by: float) -> torch.Tensor:
        CALLS.append("shifted")
        return x + by

    @shifted.register_fake
    def _(x: torch.Tensor, by: float) -> torch.Tensor:
        return torch.empty_like(x)

    shifted.register_autograd(lambda ctx, gradient: (gradient * 2, None))

    @torch.library.custom_op("transparency::fill", mutates_args=("x",))
    def fill(x: torch.Tensor, value: float) -> None:
        x.fill_(value)


def own_operators(compile: Compile) -> Any:
    define()
    ops = torch.ops.transparency

    def work(x: torch.Tensor, into: torch.Tensor) -> torch.Tensor:
        ops.fill(into, 3.0)
        return ops.shifted(x.relu(), 1.5) * into

    compiled = compile(work)
    x, into = torch.randn(4, requires_grad=True), torch.zeros(4)
    y = compiled(x, into)
    y.sum().backward()
    CALLS.clear()
    y = compiled(x, into)
    return {"x": x, "y": y, "into": into, "calls once it runs": list(CALLS)}


def flex_attention(compile: Compile) -> Any:
    from torch.nn.attention.flex_attention import flex_attention as attend

    q, k, v = (torch.randn(1, 2, 16, 16) for _ in range(3))
    bias = torch.randn(2)

    def work(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return attend(q.relu(), k, v, score_mod=lambda score, b, h, i, j: score + i - j)

    return {"y": compile(work)(q, k, v), "bias": bias}
