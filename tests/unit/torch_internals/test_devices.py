"""What differs between kinds of devices is one table: each row with a module that behaves like that kind."""

from __future__ import annotations

import runpy
import sys
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from minidbg.torch_internals import devices
from minidbg.torch_internals.devices import DEVICE_TYPES

STAND_IN = Path(__file__).parents[2] / "stand_ins/acme_device"
ACCELERATORS = [name for name, kind in DEVICE_TYPES.items() if kind.synchronize]


class Module:
    """``torch.<kind>``, which notes each call; functions of a kind with one device refuse to be given one."""

    def __init__(self, name: str) -> None:
        self.row, self.calls = DEVICE_TYPES[name], []
        self.name = "privateuseone" if name == "npu" else name  # torch knows npu by its plugin only
        self.error: Exception | None = None
        values: dict[str, Any] = {self.row.get_rng_state: torch.arange(3), self.row.set_rng_state: None}
        values[self.row.free_memory] = 700 if self.row.total_memory else (300, 1000)
        if self.row.total_memory:
            values[self.row.total_memory] = 1000
        values |= dict(zip(self.row.cached, (50, 20), strict=True))
        for function, answer in values.items():
            if function:
                setattr(self, function, self.noting(function, answer))
        setattr(self, self.row.synchronize, self.noting("synchronize", None))
        if self.row.is_initialized:
            setattr(self, self.row.is_initialized, lambda: True)

    def noting(self, function: str, answer: Any) -> Any:
        def call(*arguments: Any) -> Any:
            given = [one for one in arguments if isinstance(one, torch.device)]
            if bool(given) != self.row.by_index:
                raise TypeError(f"torch.{self.name}.{function} got {arguments}")
            self.calls.append((function, *map(str, arguments)))
            if self.error is not None:
                raise self.error
            return answer

        return call

    def device_count(self) -> int:
        return 2


@pytest.fixture
def module(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Module:
    """The device kind of the test's parameter, as if it were here and no other."""
    for name in ACCELERATORS:
        monkeypatch.setitem(sys.modules, f"torch.{name}", SimpleNamespace())
    made = Module(request.param)
    monkeypatch.setitem(DEVICE_TYPES, made.name, made.row)
    monkeypatch.setitem(sys.modules, f"torch.{made.name}", made)
    monkeypatch.setattr(devices, "devices_of", lambda values: [torch.device(value) for value in values])
    monkeypatch.setattr(devices, "BROKEN", set())
    return made


every_kind = pytest.mark.parametrize("module", ACCELERATORS, indirect=True)


@every_kind
def test_a_run_waits_for_its_own_device_and_generators_are_put_back(module: Module) -> None:
    devices.synchronize([f"{module.name}:0"])
    with devices.restoring_generators([f"{module.name}:0"]):
        pass
    called = [call[0] for call in module.calls]
    assert called == ["synchronize", module.row.get_rng_state, module.row.set_rng_state]


@every_kind
def test_a_device_that_refuses_to_wait_is_in_error_from_then_on(module: Module) -> None:
    module.error = RuntimeError("an illegal memory access was encountered")
    assert devices.in_error([f"{module.name}:0"])
    module.error = None
    assert devices.in_error([f"{module.name}:0"])


@every_kind
def test_generators_of_a_device_in_error_are_left_alone(module: Module) -> None:
    """CUDA's cannot be read then: what was to be done about the error goes on without."""
    device = f"{module.name}:0"
    with devices.restoring_generators([device]):
        module.error = RuntimeError("an illegal memory access was encountered")
    assert [name for name, _ in devices.states_of([device])] == ["cpu"]


@every_kind
def test_free_memory_counts_what_the_allocator_keeps(module: Module) -> None:
    cached = 30 if module.row.cached[0] else 0
    assert devices.free_bytes(torch.device(module.name, 0)) == 300 + cached


@every_kind
def test_a_process_that_uses_it_is_not_forked(module: Module) -> None:
    assert devices.in_use() == (module.name if module.row.is_initialized else None)


@pytest.mark.parametrize("name", ["cuda", "xpu", "mps"])
def test_the_functions_of_a_row_are_those_of_torchs_own_module(name: str) -> None:
    values = asdict(DEVICE_TYPES[name]).values()
    named = [one for value in values for one in (value if isinstance(value, tuple) else [value])]
    functions = [one for one in named if isinstance(one, str) and one]
    assert [one for one in functions if not hasattr(getattr(torch, name), one)] == []


def test_the_backend_of_the_device_tests_fails_on_that_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """``--device cuda`` runs the same tests: the planted bugs are there then, not on the stand-in's own device."""
    monkeypatch.setenv("ACME_BUG", "raises:gelu")
    monkeypatch.setenv("ACME_ON", "cuda")
    backend = runpy.run_path(str(STAND_IN / "acme/compiler.py"))["acme"]
    graph = torch.fx.symbolic_trace(lambda x: torch.nn.functional.gelu(x))
    with FakeTensorMode():
        there = torch.empty(2, device="cuda:0")
    with pytest.raises(NotImplementedError, match="no kernel for gelu"):
        backend(graph, [there])
    backend(graph, [torch.ones(2)])


def test_the_cpu_needs_none_of_it() -> None:
    values = [torch.ones(2), torch.empty(2, device="meta"), 3]
    devices.synchronize(values)
    assert not devices.in_error(values)
    assert devices.generator_states(values)[0][0] == "cpu"
