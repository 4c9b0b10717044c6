"""Graphs that launch a user's Triton kernel: as text, read back, traced again, and what is refused. Nothing is launched here."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.graphs_to_write import assert_round_trip
from torch import fx

from minidbg import torch_internals
from minidbg.codegen.module_text import ModuleSource, instantiate, write_module
from minidbg.codegen.size import canonical_text
from minidbg.core.errors import CannotWrite
from minidbg.core.outcome import Kind, Signature
from minidbg.core.run_spec import BackendRef, CallPath, Context, RunSpec
from minidbg.fx.case import Case
from minidbg.fx.copying import capture_by_dynamo
from minidbg.fx.edit import CannotExtract, without_arguments
from minidbg.fx.mutation import mutated_placeholders
from minidbg.fx.nested import shorter_arguments, simpler_constants
from minidbg.repro import Form, load, render

triton = pytest.importorskip("triton", reason="Triton is not installed, as with the CPU build of torch")
tl = pytest.importorskip("triton.language")

FACTOR = 3
SHIFT = tl.constexpr(1)


@triton.jit
def scaled(value):
    return value * FACTOR + SHIFT


@triton.jit(do_not_specialize=["size"])
def doubles(x_ptr, y_ptr, size, BLOCK: tl.constexpr, DTYPE: tl.constexpr):
    place = tl.arange(0, BLOCK)
    tl.store(y_ptr + place, scaled(tl.load(x_ptr + place)).to(DTYPE), mask=place < size)


@triton.autotune(
    configs=[triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128}, num_warps=8)],
    key=["size"],
    restore_value=["y_ptr"],
)
@triton.jit
def tuned(x_ptr, y_ptr, size, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + place, tl.load(x_ptr + place, mask=place < size), mask=place < size)


@pytest.fixture(autouse=True)
def _dynamo_takes_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dynamo takes kernels only where a device is that can run them."""
    monkeypatch.setattr("torch.utils._triton.has_triton", lambda **_: True)  # 2.15 asks with include_cpu=True


def graph_of(program: Callable[..., Any]) -> fx.GraphModule:
    return capture_by_dynamo(program, [torch.randn(16)])[0]


def launches(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    doubles[(1,)](x, y, x.numel(), BLOCK=16, DTYPE=tl.float32)
    doubles[(2, 3)](x, y, 8, BLOCK=16, DTYPE=tl.float32, num_warps=8)
    tuned[(4,)](x, y, x.numel())
    return y.sin()


def without_comments(source: ModuleSource) -> str:
    return "\n".join(line.partition("  # ")[0] for line in source.text.splitlines())


def test_a_launch_is_written_as_a_user_writes_it() -> None:
    source = write_module(graph_of(launches))
    float32 = "triton.language.core.float32"
    by_keyword = f"BLOCK=16, DTYPE={float32}" if has_launch_kwargs() else f"16, {float32}"
    lines = [line.strip() for line in without_comments(source).splitlines()]
    assert lines[3:6] == [
        f"doubles[(1,)](x, y, 16, {by_keyword})",
        f"doubles_tuned[(2, 3)](x, y, 8, {by_keyword})",
        "tuned_tuned[(4,)](x, y, 16)",
    ]
    names = "triton tl FACTOR SHIFT scaled doubles doubles_tuned tuned tuned_tuned"
    assert list(source.kernels) == names.split()
    assert source.kernels["doubles"].startswith('@triton.jit(do_not_specialize=["size"])\ndef doubles(x_ptr')
    assert source.kernels["doubles_tuned"] == (
        "doubles_tuned = triton.autotune(configs=[triton.Config({}, num_warps=8)], key=[])(doubles)"
    )
    assert "restore_value=['y_ptr']" in source.kernels["tuned_tuned"]
    assert_round_trip(graph_of(launches))


def has_launch_kwargs() -> bool:
    """Whether this torch keeps which arguments were given by keyword."""
    (node, *_) = filter(torch_internals.is_kernel_launch, graph_of(launches).graph.nodes)
    return "launch_kwargs" in node.kwargs


def test_dynamo_traces_the_text_into_the_same_graph() -> None:
    gm = graph_of(launches)
    module = instantiate(write_module(gm))
    again, _ = capture_by_dynamo(module, [torch.randn(16)])
    assert canonical_text(again) == canonical_text(gm)
    assert without_comments(write_module(again)) == without_comments(write_module(gm))


def case_of(graph: fx.GraphModule, call: CallPath = CallPath.TORCH_COMPILE) -> Case:
    signature = Signature(Kind.COMPILE, types=("ValueError",))
    return Case(
        graph, (torch.ones(16),), RunSpec(BackendRef("eager", '"eager"'), Context(), signature, call=call)
    )


@pytest.mark.parametrize("form", Form)
@pytest.mark.parametrize("call", CallPath)
def test_a_script_gives_the_case_back(form: Form, call: CallPath, tmp_path: Path) -> None:
    case = case_of(graph_of(launches), call)
    path = tmp_path / "repro.py"
    path.write_text(render(case, form).text)
    again = load(path)
    assert canonical_text(again.graph_module) == canonical_text(case.graph_module)
    assert not again.backend.embedded
    assert render(again, form).text == path.read_text()


def test_a_name_of_the_script_is_no_kernels_name(tmp_path: Path) -> None:
    graph = graph_of(defined_in(tmp_path, KERNEL.replace("fills", "inputs"), "inputs[(1,)](x, 1.0)"))
    with pytest.raises(CannotWrite, match=r"global inputs cannot .*: the script uses that name itself"):
        render(case_of(graph))


def test_what_a_kernel_takes_counts_as_written() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        tuned[(4,)](x, x, 16)
        return x.sin()

    assert mutated_placeholders(graph_of(program)) == {0}


def test_reductions_leave_numbers_of_the_table_alone() -> None:
    for node in filter(torch_internals.is_kernel_launch, graph_of(launches).graph.nodes):
        assert not [*shorter_arguments(node), *simpler_constants(node)]
        with pytest.raises(CannotExtract):
            without_arguments(node, set(node.all_input_nodes[:1]))


def test_getting_ready_to_fork_forgets_no_kernel() -> None:
    gm = graph_of(launches)
    with torch_internals.preserving_kernels():
        torch._dynamo.reset()
    assert write_module(gm).kernels


KERNEL = """
@triton.jit
def fills(x_ptr, value):
    tl.store(x_ptr, value)
"""


def defined_in(folder: Path, text: str, call: str, head: str = "") -> Callable[..., Any]:
    """A program of a module that no process finds again, whose function ``make`` defines the kernel ``text``."""
    lines = [head, "def make():", *(f"    {line}" for line in text.splitlines())]
    lines += ["    def program(x):", f"        {call}", "        return x.sin()", "    return program"]
    path = folder / "of_a_user.py"
    path.write_text("\n".join(["import torch", "import triton", "import triton.language as tl", *lines]))
    namespace: dict[str, Any] = {"__name__": "of_a_user"}
    exec(compile(path.read_text(), str(path), "exec"), namespace)
    made: Callable[..., Any] = namespace["make"]()
    return made


def test_a_kernel_defined_in_a_function_is_copied_with_what_is_around_it(tmp_path: Path) -> None:
    kernel = KERNEL.replace("tl.store(x_ptr, value)", "language.store(x_ptr, value + bound)")
    text = "import triton.language as language\nbound = 7" + kernel
    source = write_module(graph_of(defined_in(tmp_path, text, "fills[(1,)](x, 1.5)")))
    linecache.clearcache()
    assert list(source.kernels.values())[:2] == ["import triton.language as language", "import triton"]
    assert source.kernels["bound"] == "bound = 7"
    assert source.kernels["fills"].endswith("language.store(x_ptr, value + bound)")
    assert "fills[(1,)](x, 1.5)" in source.text
    instantiate(source)


@pytest.mark.parametrize(
    ("kernel", "call", "why"),
    [
        ("table = object()" + KERNEL.replace("tl.store(x_ptr, value)", "tl.store(x_ptr, table)"), "fills[(1,)](x, 1.0)", "object cannot .*: it has no literal form"),
        (
            "configs = [triton.Config({'value': 1.0}), triton.Config({'value': 2.0})]\n@triton.autotune(configs, key=[])" + KERNEL,
            "fills[lambda meta: (int(meta['value']),)](x)",
            "its grid depends on the config",
        ),
        (
            KERNEL + "def other():\n    @triton.jit\n    def fills(x_ptr):\n        tl.store(x_ptr, 2.0)\n    return fills\nsecond = other()",
            "fills[(1,)](x, 1.0); second[(1,)](x)",
            "the name fills cannot .*: the kernels of the graph use it for two different things",
        ),
    ],
)  # fmt: skip
def test_what_no_script_can_say_is_refused(kernel: str, call: str, why: str, tmp_path: Path) -> None:
    gm = graph_of(defined_in(tmp_path, kernel, call))
    with pytest.raises(CannotWrite, match=why):
        write_module(gm)


def test_hooks_and_descriptors_are_refused() -> None:
    gm = graph_of(launches)
    node = next(node for node in gm.graph.nodes if len(node.kwargs.get("grid", ())) == 2)
    node.kwargs = {**node.kwargs, "tma_descriptor_metadata": {"x_ptr": ("stable", ([16],))}}
    with pytest.raises(CannotWrite, match="it takes TMA descriptors"):
        write_module(gm)
    hooked = triton.autotune([triton.Config({"BLOCK": 16}, pre_hook=lambda args: None)], key=[])(tuned.fn)
    number = torch_internals.table_of_kernels().add_kernel(hooked)
    node.kwargs = {**node.kwargs, "tma_descriptor_metadata": {}, "kernel_idx": number}
    with pytest.raises(CannotWrite, match="a function of its own, pre_hook"):
        write_module(gm)


def test_a_table_that_was_emptied_is_named() -> None:
    gm = graph_of(launches)
    torch_internals.table_of_kernels().reset_table()
    with pytest.raises(CannotWrite, match=r"torch\._dynamo\.reset"):
        write_module(gm)
