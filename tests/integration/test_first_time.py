"""What torch does once, when something runs for the first time, is left to the program: verification runs before it, and must not be that first time.

The list of such state is in ``minidbg.wrapper.rollback``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from support.new_process import as_in_a_new_process  # noqa: F401 - a fixture for all tests here
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.utils import counters

import minidbg

X = torch.randn(8, 8, generator=torch.Generator().manual_seed(1))
Job = Callable[[Callable[..., Any], torch.Tensor], None]


def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    a = x.sin()
    c = (a * 2).exp().cos() * a
    return torch.nn.functional.gelu(c @ c), (c.tanh() * a).sum()


def plain(f: Callable[..., Any], x: torch.Tensor) -> None:
    f(x)[1].backward()
    f(x)[1].backward()


def kept_graph(f: Callable[..., Any], x: torch.Tensor) -> None:
    loss = f(x)[1]
    loss.backward(retain_graph=True)
    loss.backward(retain_graph=True)
    loss.backward()
    f(x)[1].backward()


def kept_graph_later(f: Callable[..., Any], x: torch.Tensor) -> None:
    """Refused by AOTAutograd, with and without us."""
    f(x)[1].backward()
    f(x)[1].backward(retain_graph=True)


def two_forwards_first(f: Callable[..., Any], x: torch.Tensor) -> None:
    first, second = f(x)[1], f(x)[1]
    second.backward(retain_graph=True)
    first.backward()


JOBS = plain, kept_graph, kept_graph_later, two_forwards_first


class Donating:
    """A backend that notes, for each run of a backward, how many saved tensors its code may write to."""

    def __init__(self) -> None:
        self.compiled: list[int] = []
        self.ran: list[int] = []
        self.buckets: Any = None
        self.backend = aot_autograd(fw_compiler=self.forward, bw_compiler=self.backward)

    def forward(self, gm: fx.GraphModule, example_inputs: Any) -> Any:
        context = torch._guards.TracingContext.try_get()
        if self.buckets is not None and context is not None:  # as DDPOptimizer does
            context.ddp_optimizer_ctx = self.buckets
            self.buckets.curr_bucket += 1
            self.buckets.metadata_per_bucket.append(context.fw_metadata)
        return make_boxed_func(gm.forward)

    def backward(self, gm: fx.GraphModule, example_inputs: Any) -> Any:
        warnings.warn("this backward is slow", stacklevel=1)
        counters["donating"]["backwards"] += 1
        context = torch._guards.TracingContext.try_get()  # none in a compile outside of dynamo
        donated = len(context.fw_metadata.bw_donated_idxs) if context is not None else 0
        self.compiled.append(donated)

        def run(*args: Any) -> Any:
            self.ran.append(donated)
            return gm(*args)

        return make_boxed_func(run)


@pytest.fixture
def donating() -> Iterator[Donating]:
    yield Donating()
    torch._dynamo.reset()


def outcome(job: Job, backend: Any) -> tuple[torch.Tensor | None, str]:
    """The gradient that ``job`` leaves, and what it raised."""
    torch._dynamo.reset()
    x = X.clone().requires_grad_()
    try:
        job(torch.compile(program, backend=backend), x)
    except RuntimeError as error:
        return x.grad, str(error)
    return x.grad, ""


def wrapped(backend: Any, folder: Path, verify: Any = "first") -> Any:
    return minidbg.wrap(backend, reduce="later", repro_dir=folder, verify=verify)


@pytest.mark.parametrize("verify", ["first", pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "job", [pytest.param(job, marks=[pytest.mark.slow] * (job is not kept_graph)) for job in JOBS]
)
def test_the_programs_first_backward_decides_what_is_donated(
    job: Job, verify: Any, donating: Donating, tmp_path: Path
) -> None:
    """Gradients, exceptions and the memory that each backward may reuse are those of the bare program, whose graph is verified."""
    bare = Donating()
    with warnings.catch_warnings(action="ignore"):
        gradient, said = outcome(job, bare.backend)
        own_gradient, own_said = outcome(job, wrapped(donating.backend, tmp_path, verify))
    assert own_said == said
    assert torch.equal(own_gradient, gradient)  # type: ignore[arg-type]
    assert minidbg.stats().verified == 1
    assert len(donating.ran) == len(bare.ran) + (2 if verify == 2 else 1)
    keeps_first = job not in (plain, kept_graph_later)
    ours, *programs = donating.compiled
    assert ours > 0
    assert programs == (bare.compiled if keeps_first else [])
    assert bare.compiled == ([0] if keeps_first else [ours])


@pytest.mark.slow
def test_the_backwards_of_a_model_in_buckets_are_told_apart(donating: Donating, tmp_path: Path) -> None:
    """DDPOptimizer expects backwards to be compiled from the last bucket to the first, and counts them."""

    def in_two_buckets(x: torch.Tensor) -> torch.Tensor:
        x = x.sin().exp()
        torch._dynamo.graph_break()
        return (x.cos() * x.sigmoid().tanh()).sum()

    def compiled_in_buckets(backend: Donating, given: Any) -> torch.Tensor | None:
        torch._dynamo.reset()
        backend.buckets = SimpleNamespace(curr_bucket=-1, metadata_per_bucket=[])
        x = X.clone().requires_grad_()
        torch.compile(in_two_buckets, backend=given)(x).backward()
        assert backend.buckets.curr_bucket == -1
        return x.grad

    bare = Donating()
    with warnings.catch_warnings(action="ignore"):
        gradient = compiled_in_buckets(bare, bare.backend)
        own_gradient = compiled_in_buckets(donating, wrapped(donating.backend, tmp_path))
    assert torch.equal(own_gradient, gradient)  # type: ignore[arg-type]
    assert len(set(bare.compiled)) == 2
    assert donating.compiled == bare.compiled[::-1]
    assert minidbg.stats().verified == 2


def gives_its_input(x: torch.Tensor) -> torch.Tensor:
    return x


def test_the_first_calls_check_of_custom_operators_is_the_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AOTAutograd says in the first call that an operator's result is its input, which its schema does not say."""
    monkeypatch.setattr(torch._functorch.config, "error_on_custom_op_aliasing", True)
    library = torch.library.Library("first_time", "DEF")
    library.define("same(Tensor x) -> Tensor")
    library.impl("same", gives_its_input, "CompositeExplicitAutograd")
    library.impl("same", torch.empty_like, "Meta")

    def said(backend: Any) -> str:
        torch._dynamo.reset()
        compiled = torch.compile(lambda x, w: torch.ops.first_time.same(x) * w, backend=backend)
        with pytest.raises(RuntimeError) as caught:
            compiled(X, X.clone().requires_grad_())
        return str(caught.value)

    assert "same" in (bare := said("aot_eager"))
    assert said(wrapped("aot_eager", tmp_path)) == bare


@pytest.mark.slow
def test_inductors_cache_does_not_hand_our_backward_to_a_program_that_keeps_its_graph(tmp_path: Path) -> None:
    """Its key does not say what is donated: ours may write to what it is given, and the program's is run again."""
    from torch._inductor.utils import fresh_cache

    def kept_twice(f: Callable[..., Any], x: torch.Tensor) -> None:
        loss = f(x)[1]
        first, second = (torch.autograd.grad(loss, x, retain_graph=True)[0] for _ in range(2))
        assert torch.equal(first, second)
        x.grad = second

    seen = []
    for backend in ("inductor", wrapped("inductor", tmp_path)):
        counters.clear()
        with fresh_cache():
            gradient, said = outcome(kept_twice, backend)
        assert gradient is not None
        seen.append((said, gradient.tolist(), dict(counters["inductor"]), dict(counters["aot_autograd"])))
    assert seen[0] == seen[1]
    assert seen[0][2]["fxgraph_cache_miss"] == 2
