"""What chance does not decide of random numbers: their form, and which values they can have.

Of a backend's draws only the values are believed. A call whose numbers have another form, or values that it cannot give, is
wrong, and ``checks`` makes a graph of that: its results are the same in each run of a right backend.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx

from minidbg.judge.draw_edits import DrawingCall, Drawn

Support: TypeAlias = Callable[[Any], Any]
"""Of a tensor or an ``fx.Proxy`` of one: a bool for each value, or one for all."""

NEAR, NEAR_NARROW = 1e-3, 2e-2
"""Relative error of a dropout's factor; bfloat16 is half a hundredth off."""


def support_of(drawn: Drawn) -> Support | None:
    """Whether values can have come from the call of ``drawn``; None where that is not known."""
    call, value = drawn.call, drawn.value
    if call is None or not isinstance(value, Tensor) or drawn.part is not None:
        return None
    name = getattr(call.target, "__name__", str(call.target)).rpartition(".")[2].strip("_")
    if "dropout" in name and "alpha" not in name:
        return _dropped(call, value)
    return SUPPORTS[name](call, value) if name in SUPPORTS else None


def _dropped(call: DrawingCall, value: Tensor) -> Support:
    return _zero_or_scaled(1.0, _argument(call, "p", 1, 0.5), value.dtype)


def _weights(call: DrawingCall, value: Tensor) -> Support:
    """Of attention that shows its mask: each weight is an equal part before some are dropped."""
    return _zero_or_scaled(1 / call.args[1].shape[-2], call.args[4], call.args[0].dtype)


def _zero_or_scaled(kept: float, probability: float, dtype: torch.dtype) -> Support:
    factor = 0.0 if probability == 1 else kept / (1 - probability)
    near = NEAR if dtype.itemsize >= 4 else NEAR_NARROW
    low, high = (factor * (1 + error) for error in (-near, near))
    return lambda values: (values == 0) | ((values >= low) & (values <= high))


def _rand(call: DrawingCall, value: Tensor) -> Support:
    return lambda values: (values >= 0) & (values <= 1)  # rounding to a narrow type gives 1


def _uniform(call: DrawingCall, value: Tensor) -> Support:
    low, high = _argument(call, "from", 1, 0.0), _argument(call, "to", 2, 1.0)
    room = (NEAR_NARROW if value.dtype.itemsize < 4 else 1e-5) * (abs(low) + abs(high))
    return lambda values: (values >= low - room) & (values <= high + room)


def _integers(call: DrawingCall, value: Tensor) -> Support | None:
    given = [one for one in call.args if type(one) is int]
    low, high = (call.kwargs.get(name, call.kwargs.get(other)) for name, other in BOUNDS)
    if high is None:
        high = given.pop() if given else None
    if low is None:
        low = given.pop() if given else 0
    if type(low) is not int or type(high) is not int:
        return None
    if value.is_floating_point():  # rounding gives the bound
        return lambda values: (values >= low) & (values <= high)
    return lambda values: (values >= low) & (values < high)


BOUNDS = (("low", "from"), ("high", "to"))


def _permuted(call: DrawingCall, value: Tensor) -> Support:
    return lambda values: torch.sort(values)[0].diff(prepend=values.new_full((1,), -1)) == 1


def _zero_or_one(call: DrawingCall, value: Tensor) -> Support:
    return lambda values: (values == 0) | (values == 1)


def _counts(least: int, call: DrawingCall, value: Tensor) -> Support:
    return lambda values: (values >= least) & (values == values.floor())


def _not_negative(call: DrawingCall, value: Tensor) -> Support:
    return lambda values: values >= 0


def _chosen(call: DrawingCall, value: Tensor) -> Support:
    """Places in rows of weights; without replacement, each once."""
    places = _argument(call, "input", 0, None).shape[-1]
    if _argument(call, "replacement", 2, False):
        return lambda values: (values >= 0) & (values < places)

    def each_once(values: Any) -> Any:
        inside = (values >= 0) & (values < places)
        return inside.all() & (torch.sort(values)[0].diff() > 0).all()

    return each_once


def _finite(call: DrawingCall, value: Tensor) -> Support | None:
    return torch.isfinite if bool(value.isfinite().all()) else None


SUPPORTS: dict[str, Callable[[DrawingCall, Tensor], Support | None]] = {
    "rand": _rand,
    "rand_like": _rand,
    "uniform": _uniform,
    "randint": _integers,
    "randint_like": _integers,
    "randperm": _permuted,
    "bernoulli": _zero_or_one,
    "random": _integers,
    "multinomial": _chosen,
    "poisson": partial(_counts, 0),
    "geometric": partial(_counts, 1),
    "exponential": _not_negative,
    "log_normal": _not_negative,
    "randn": _finite,
    "randn_like": _finite,
    "normal": _finite,
    "scaled_dot_product_attention": _weights,
}


def _argument(call: DrawingCall, keyword: str, index: int, default: Any) -> Any:
    if keyword in call.kwargs:
        return call.kwargs[keyword]
    return call.args[index] if len(call.args) > index else default


def is_possible(drawn: Drawn, value: Any) -> bool:
    """Whether ``value``, which a backend drew in place of eager's, has its form and values that the call can give."""
    wanted = drawn.value
    if not (isinstance(value, Tensor) and isinstance(wanted, Tensor)):
        return type(value) is type(wanted)
    if value.dim() != wanted.dim():
        return False
    forms = [(one.dtype, one.shape, one.device, one.layout) for one in (drawn.read(value), wanted)]
    if forms[0] != forms[1]:
        return False
    support = support_of(drawn)
    if value.is_floating_point() and value.isnan().any() and not wanted.isnan().any():
        return False
    return support is None or bool(support(value).all())


def with_checks(graph: fx.GraphModule, drawn: tuple[Drawn, ...]) -> fx.GraphModule:
    """``graph``, which returns the results ``drawn``, made to return for each what chance does not decide.

    That is zeros of its form, made of its values so that they take the way of the values; and whether all can be.
    """
    output = graph.graph.output_node()
    results: Any = output.args[0]
    checks: list[fx.Node] = []
    tracer = fx.proxy.GraphAppendingTracer(graph.graph)
    with graph.graph.inserting_before(output):
        for node, one in zip(results, drawn, strict=True):
            values: Any = fx.Proxy(node, tracer)
            form = values & False if one.value.dtype is torch.bool else values * 0
            checks.append(form.node)
            support = support_of(one)
            if support is not None:
                checks.append(support(values).all().node)
    output.args = (tuple(checks),)
    graph.recompile()
    return graph
