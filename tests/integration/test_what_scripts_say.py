"""What a script says to a stranger: names he can look up, nothing of one process, no explanation that explains nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from support.quick_path import failing_program, take_the_quick_path
from torch import fx
from torch._dynamo.backends.common import aot_autograd

import minidbg


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    take_the_quick_path(monkeypatch)


def refuses_sin(gm: fx.GraphModule, example_inputs: Any) -> Callable[..., Any]:
    for node in gm.graph.nodes:
        if "sin" in str(node.target):
            where = (
                f'File "<minidbg_source_{id(gm) % 9}>", line 3, in {object.__repr__(gm.graph)} of {id(gm):#x}'
            )
            raise NotImplementedError(f"no kernel for {node.name}\n  {where}")
    return make_boxed_func(gm.forward)


aot_without_sin = aot_autograd(fw_compiler=refuses_sin)


def program(x: torch.Tensor) -> torch.Tensor:
    return x.sin() * 2


def docstring_of(found: Any) -> str:
    return str(found.text.split('"""')[1])


def test_the_docstring_has_nothing_of_the_process_that_failed(tmp_path: Path) -> None:
    found = failing_program(program, (torch.randn(3),), refuses_sin, tmp_path)
    said = docstring_of(found)
    assert "minidbg_source" not in said
    assert " at 0x" not in said
    assert hex(id(0))[:4] not in said
    assert "line 3" not in said, "no frame of a run of ours is quoted"
    assert "no kernel for sin" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "name"),
    [
        (aot_without_sin, f"{__name__}.aot_without_sin"),
        (aot_autograd(fw_compiler=refuses_sin), f"aot_autograd(fw_compiler={__name__}.refuses_sin)"),
    ],
    ids=["global", "made in place"],
)
def test_an_aot_autograd_backend_has_the_name_that_the_program_gives_it(
    backend: Any, name: str, tmp_path: Path
) -> None:
    found = failing_program(program, (torch.randn(3),), backend, tmp_path)
    assert found.text.startswith(f'"""{name} fails to compile sin')
    assert "compiler_fn" not in found.text
    assert minidbg.wrap(backend).__name__ == "compiler_fn", "what torch's own message says is not changed"


class Marked(torch.Tensor):
    """Bare: a plain tensor of another type."""


LOCAL = type("Local", (torch.Tensor,), {"__module__": "__main__"})


def refuses_own(gm: fx.GraphModule, example_inputs: Any) -> Callable[..., Any]:
    if any(type(value).__name__ in ("Local", "Marked") for value in example_inputs):
        raise NotImplementedError("a tensor of one's own")
    return gm.forward


@pytest.mark.slow
@pytest.mark.parametrize("backend", [refuses_sin, refuses_own])
@pytest.mark.parametrize("kind", [Marked, LOCAL])
def test_a_bare_subclass_is_in_a_script_only_if_it_is_needed_and_needs_neither_its_module_nor_values(
    tmp_path: Path, kind: Any, backend: Any
) -> None:
    found = failing_program(program, (torch.randn(3).as_subclass(kind),), backend, tmp_path)
    assert (f'.as_subclass(type("{kind.__name__}"' in found.text) is (backend is refuses_own)
    assert ("as_subclass" in found.text) is (backend is refuses_own)
    assert "values of the failing run" not in found.text


class Amplified(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return gradient * 1.5


def amplifies_gradients(gm: fx.GraphModule, example_inputs: Any) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        return tuple(Amplified.apply(one) if one.requires_grad else one for one in gm(*args))  # type: ignore[no-untyped-call]

    return run


@pytest.mark.slow
def test_a_wrong_gradient_is_not_explained_by_an_input_without_one(tmp_path: Path) -> None:
    x = torch.randn(3, requires_grad=True)
    said = docstring_of(failing_program(lambda x: x.exp() * 2, (x,), amplifies_gradients, tmp_path))
    assert "in backward" in said
    assert "It passes when" not in said
    assert "plainer values" not in said


def mapped(x: torch.Tensor) -> Any:
    return torch.vmap(lambda row: row.sin() * 2)(x)


def differentiated(x: torch.Tensor) -> Any:
    return torch.func.jvp(lambda y: (y.sin() * y).exp(), (x,), (x + 1,))


@pytest.mark.slow
def test_a_level_that_the_failure_lies_in_stays_whole(tmp_path: Path) -> None:
    for function, level in ((mapped, "vmap"), (differentiated, "jvp")):
        found = failing_program(function, (torch.randn(3, 4),), refuses_sin, tmp_path / function.__name__)
        for name in ("increment", "decrement"):
            assert f"{level}_{name}_nesting" in found.text
