"""The table of constructs: each graph comes back as it was written; what is reduced of them is asked of the corpus."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from constructs import CONSTRUCTS, Construct, sandwich
from fails_on import name_of, raises_on, raises_on_two
from support.graphs_to_write import assert_round_trip
from support.new_process import as_in_a_new_process  # noqa: F401 - a fixture for all tests here
from support.travelled import assert_same_case, case_of_program, travelled
from torch._dynamo.exc import BackendCompilerFailed
from torch.testing._internal.two_tensor import TwoTensor

import minidbg

ROUND_TRIPS = {
    "dynamic_not_needed", "checkpoint", "write_through_a_view", "item", "in_a_branch", "graph_break", "conjugated", "float8_e5m2",
    "all_dynamic", "alone_in_a_branch", "in_a_map", "in_an_autocast_block", "grad_mode_block", "aliased_inputs", "no_leaf", "expanded",
    "several_outputs", "uint64", "no_grad_around", "tied_weights",
}  # fmt: skip
"""At least one of each kind; the others are as quick, but there are many."""


ROWS = [
    pytest.param(one, id=one.name, marks=[pytest.mark.slow] * (one.name not in ROUND_TRIPS))
    for one in CONSTRUCTS
    if one.name != "graph_break"
]


@pytest.mark.parametrize("construct", ROWS)
def test_its_graph_is_the_same_where_it_is_read_from_source_and_in_the_child(construct: Construct) -> None:
    dynamic = construct.given.get("dynamic")
    with construct.around():
        case = case_of_program(construct.function, construct.args(), "eager", dynamic)
        assert_round_trip(case.graph_module)
        assert_same_case(case, travelled(case))


@pytest.mark.slow
def test_each_graph_of_a_broken_program_is_answered_for_itself(tmp_path: Path) -> None:
    """Two graphs with different failures, and one of them again for another number of dimensions."""
    backend = minidbg.wrap(raises_on_two, repro_dir=tmp_path, on_failure="fallback")
    compiled = torch.compile(two_bugs, backend=backend)
    for shape in ((4, 4), (4, 4), (2, 3, 4)):
        x = torch.randn(shape)
        assert torch.equal(compiled(x), two_bugs(x))
    graphs = sorted((case.graph_module for case in map(minidbg.load, tmp_path.glob("*.py"))), key=str)
    names = sorted(name_of(node) for gm in graphs for node in gm.graph.nodes if node.op.startswith("call"))
    assert names == ["relu", "tan"]


def two_bugs(x: torch.Tensor) -> torch.Tensor:
    y = x.sin().relu().cos()
    torch._dynamo.graph_break()
    return y.sinh().tan() + 1


def test_what_no_script_can_hold_is_named_and_kept_in_words(tmp_path: Path) -> None:
    """The user's own exception arrives, and the program goes on as it would have."""

    class Local(TwoTensor):
        """No import statement names it."""

    pair = Local(torch.randn(2, 3), torch.randn(2, 3))
    compiled = torch.compile(sandwich, backend=minidbg.wrap(raises_on("relu"), repro_dir=tmp_path))
    with pytest.raises(BackendCompilerFailed, match="cannot lower relu") as caught:
        compiled(pair)
    report = minidbg.report_of(caught.value)
    assert "input x cannot be written into a repro script" in report.line
    assert "<locals>.Local" in report.line
    text = report.capture.read_text()
    assert "relu" in text
    assert "cannot lower relu" in text
    assert "Local torch.float32 of shape (2, 3)" in text
    assert not list(tmp_path.glob("*.py"))


needs_triton = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="user Triton kernels need a GPU, and there is none here"
)


def with_tuned_kernel() -> Any:
    """A program whose kernel has a constexpr, configs and a helper, with a launch that sets ``num_warps`` beside it."""
    import triton
    import triton.language as tl

    factor = tl.constexpr(3)

    @triton.jit
    def scaled(value):
        return value * factor

    @triton.autotune(configs=[triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 32})], key=["size"])
    @triton.jit
    def triples(x_ptr, y_ptr, size, BLOCK: tl.constexpr):
        place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = place < size
        tl.store(y_ptr + place, scaled(tl.load(x_ptr + place, mask=inside)), mask=inside)

    @triton.jit
    def adds(x_ptr, y_ptr, size, BLOCK: tl.constexpr):
        place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = place < size
        tl.store(
            y_ptr + place,
            tl.load(y_ptr + place, mask=inside) + tl.load(x_ptr + place, mask=inside),
            mask=inside,
        )

    def program(x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        triples[(2,)](x, y, x.numel())
        adds[(triton.cdiv(x.numel(), 16),)](x, y, x.numel(), BLOCK=16, num_warps=2)
        return y.exp().sin()

    return program


@pytest.mark.device
@needs_triton
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_a_healthy_graph_with_a_triton_kernel_is_verified(backend: str, tmp_path: Path) -> None:
    """Eager runs the kernel for the comparison, and writes what the compiled program writes."""
    program = with_tuned_kernel()
    x = torch.linspace(-1.0, 1.0, 32, device="cuda")
    compiled = torch.compile(program, backend=minidbg.wrap(backend, repro_dir=tmp_path, verify="always"))
    torch.testing.assert_close(compiled(x), program(x))
    assert not list(tmp_path.glob("*.py"))
