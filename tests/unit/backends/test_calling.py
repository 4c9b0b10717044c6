"""A backend is called as torch.compile would call it."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.backends import registry

from minidbg.backends import compiler_fn, hook, named
from minidbg.core.errors import UnknownBackend
from minidbg.torch_internals import BACKEND_HOOKS


def keeps(gm: Any, inputs: Any, **given: Any) -> Callable[..., Any]:
    keeps.given = given  # type: ignore[attr-defined]
    return gm


def test_an_unknown_option_is_torchs_own_error_and_an_unknown_name_is_told_the_nearest() -> None:
    with pytest.raises(RuntimeError, match="Unexpected optimization option nonsense"):
        compiler_fn("inductor", options={"nonsense": 1})
    with pytest.raises(UnknownBackend, match="did you mean 'inductor'"):
        compiler_fn("inducter")


def test_object_of_torch_compile_is_taken_apart() -> None:
    compiler_fn(torch._TorchCompileWrapper(keeps, "fast", {"level": 3}, None))("gm", [])
    assert keeps.given == {"mode": "fast", "options": {"level": 3}}  # type: ignore[attr-defined]


REGISTERS_ITSELF = """
import torch
from torch._dynamo import register_backend

@register_backend
def packaged_backend(gm, inputs):
    return gm

register_backend(torch.nn.Identity(), name="other_name")
"""


def test_a_name_on_a_command_line_is_one_that_the_import_of_its_package_registers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch._dynamo.list_backends()  # torch fills its tables once: not in the copies below
    monkeypatch.setattr(registry, "_BACKENDS", dict(registry._BACKENDS))
    monkeypatch.setattr(registry, "_COMPILER_FNS", dict(registry._COMPILER_FNS))
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "packaged_backend.py").write_text(REGISTERS_ITSELF)
    assert named("nobody_has_this") == "nobody_has_this"
    assert named("inductor") == "inductor"
    assert named("packaged_backend") == "packaged_backend"
    assert compiler_fn("packaged_backend")("gm", []) == "gm"
    assert named("packaged_backend:other_name") == "other_name"
    assert named("packaged_backend:packaged_backend") is sys.modules["packaged_backend"].packaged_backend
    with pytest.raises(NameError):
        named("packaged_backend:third_name")
    with pytest.raises(ImportError):
        named("nobody_has_this:name")
    del sys.modules["packaged_backend"]


def test_hooks_are_those_of_the_backend_behind_its_arguments() -> None:
    class Backend:
        def __call__(self, gm: Any, inputs: Any, **given: Any) -> Any:
            return gm

        def reset(self) -> None: ...

        def get_compiler_config(self) -> None: ...

        def _dynamo_backend_init(self) -> None: ...

    backend = Backend()
    behind = compiler_fn(functools.partial(backend, more=1), options={"level": 2})
    for name in BACKEND_HOOKS:
        assert hook(behind, name) == getattr(backend, name)
