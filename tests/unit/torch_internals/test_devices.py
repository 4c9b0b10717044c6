"""What differs between kinds of devices is one table: each row with a module that behaves like that kind."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from minidbg.codegen.inputs import Exactness, materialise, write_inputs
from minidbg.torch_internals import devices
from minidbg.torch_internals.devices import ACCELERATORS, ONE_DEVICE

FUNCTIONS = {"synchronize": None, "get_rng_state": torch.arange(3), "set_rng_state": None}
IN_THE_POOL = {"memory_reserved": 50, "memory_allocated": 20}
SAYS_MEMORY = {"mem_get_info": (300, 1000), **IN_THE_POOL}


class Module:
    """``torch.<kind>``, which notes each call; functions of a kind with one device refuse to be given one."""

    def __init__(self, name: str) -> None:
        self.calls: list[tuple[str, ...]] = []
        self.kind = "privateuseone" if name == "npu" else name  # torch knows npu by its plugin only
        self.error: Exception | None = None
        for function, answer in (FUNCTIONS | ({} if name in ONE_DEVICE else SAYS_MEMORY)).items():
            setattr(self, function, self.noting(function, answer))
        if name not in ONE_DEVICE:
            self.is_initialized = lambda: True

    def noting(self, function: str, answer: Any) -> Any:
        def call(*arguments: Any) -> Any:
            passed = [one for one in arguments if isinstance(one, torch.device)]
            if bool(passed) == (self.kind in ONE_DEVICE):
                raise TypeError(f"torch.{self.kind}.{function} got {arguments}")
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
    monkeypatch.setitem(sys.modules, f"torch.{made.kind}", made)
    if made.kind not in ACCELERATORS:
        there = torch.device(made.kind)
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda *_: there)
    monkeypatch.setattr(devices, "devices_of", lambda values: [torch.device(value) for value in values])
    monkeypatch.setattr(devices, "BROKEN", set())
    return made


every_kind = pytest.mark.parametrize("module", ACCELERATORS, indirect=True)


@every_kind
def test_a_run_waits_for_its_own_device_and_generators_are_put_back(module: Module) -> None:
    devices.synchronize([f"{module.kind}:0"])
    with devices.restoring_random_numbers([f"{module.kind}:0"]):
        pass
    called = list(dict.fromkeys(call[0] for call in module.calls))
    assert called == ["synchronize", "get_rng_state", "set_rng_state"]


@every_kind
def test_a_device_that_refuses_to_wait_is_in_error_from_then_on(module: Module) -> None:
    module.error = RuntimeError("an illegal memory access was encountered")
    assert devices.in_error([f"{module.kind}:0"])
    module.error = None
    assert devices.in_error([f"{module.kind}:0"])


@every_kind
def test_generators_of_a_device_in_error_are_left_alone(module: Module) -> None:
    """CUDA's cannot be read then: what was to be done about the error goes on without."""
    device = f"{module.kind}:0"
    with devices.restoring_random_numbers([device]):
        module.error = RuntimeError("an illegal memory access was encountered")
    assert [name for name, _ in devices.generator_states([device])] == ["cpu"]


@every_kind
def test_free_memory_counts_what_the_allocator_keeps(module: Module) -> None:
    """The host's is that of a kind which does not tell; Gaudi's free bytes hold what the allocator keeps."""
    expected = {"mps": None, "hpu": 300}.get(module.kind, 330)
    assert devices.free_bytes(torch.device(module.kind, 0)) == expected


@every_kind
def test_a_process_that_uses_it_is_not_forked(module: Module) -> None:
    assert devices.in_use() == (None if module.kind in ONE_DEVICE else module.kind)


@pytest.mark.parametrize("name", ["cuda", "xpu", "mps"])
def test_torchs_own_modules_have_the_functions_that_are_called(name: str) -> None:
    functions = [*FUNCTIONS, *(() if name in ONE_DEVICE else (*SAYS_MEMORY, "is_initialized"))]
    assert [one for one in functions if not hasattr(getattr(torch, name), one)] == []


def test_the_cpu_needs_none_of_it() -> None:
    values = [torch.ones(2), torch.empty(2, device="meta"), 3]
    devices.synchronize(values)
    assert not devices.in_error(values)
    assert devices.generator_states(values)[0][0] == "cpu"


def test_what_one_process_may_open_is_in_the_table_or_declared_by_an_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "tenstream-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tenstream\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[minidbg_exclusive_devices]\ntenstream = tenstream\n")
    assert not devices.is_exclusive("tenstream:0")
    monkeypatch.syspath_prepend(tmp_path)
    kinds = ("spyre", "spyre:1", "tenstream:0", "cpu", "cuda:0", "meta")
    assert [kind for kind in kinds if devices.is_exclusive(kind)] == ["spyre", "spyre:1", "tenstream:0"]


def test_values_that_are_kept_on_the_cpu_are_written_for_their_device_and_made_here() -> None:
    x = torch.arange(100.0).reshape(10, 10).sin()
    with devices.kept_on_cpu("spyre:1"):
        text = write_inputs([x, x[0]], ["x", "y"], Exactness.EXACT)
        assert (text.device, devices.place_of([x])) == ("spyre:1", "spyre:1")
        assert all("device=device" in line for line in text.lines if "stored(" in line)
        made, _ = materialise(text)
    assert made.device.type == "cpu"
    assert torch.equal(made, x)
    with devices.kept_on_cpu("cuda:0"):
        assert devices.place_of([x]) == write_inputs([x], ["x"]).device == "cpu"
