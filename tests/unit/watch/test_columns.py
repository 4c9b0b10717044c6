"""Devices, with torches that have others than this machine: what is found, what is asked for, what is skipped aloud."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from minidbg.watch.probe import accelerators
from minidbg.watch.settings import Machine, WatchSettings, devices_of, parse_devices


def torch_with(
    kind: str, count: int, *, current: int = 0, names: bool = True, version: str | None = "12.8"
) -> Any:
    """A torch with ``count`` accelerators of one kind."""
    named = {"get_device_name": lambda index: f"{kind.upper()} number {index}"} if names else {}
    accelerator = SimpleNamespace(
        is_available=lambda: count > 0,
        current_accelerator=lambda: SimpleNamespace(type=kind),
        device_count=lambda: count,
        current_device_index=lambda: current,
    )
    module, versions = SimpleNamespace(**named), SimpleNamespace(**{kind: version})
    return SimpleNamespace(accelerator=accelerator, version=versions, **{kind: module})


def machine_of(torch: Any) -> Machine:
    devices = {"cpu": {"name": "a processor", "driver": ""}, **accelerators(torch)}
    about = {"torch": "2.13.0", "python": "3.11", "machine": "Linux", "host": "here"}
    return Machine.from_json({"devices": devices, **about})


def test_each_gpu_is_found_under_its_number_and_the_current_one_by_its_kind() -> None:
    machine = machine_of(torch_with("cuda", 2, current=1))
    assert machine.present() == ("cpu", "cuda:0", "cuda:1")
    assert machine.environments["cuda"].name == "CUDA number 1"
    assert "cuda 12.8" in machine.environments["cuda:0"].driver
    assert len({one.key for one in machine.environments.values()}) == 4, "two GPUs are two places"


@pytest.mark.parametrize("kind", ["mps", "xpu"])
def test_other_kinds_are_found_too_also_where_torch_names_nothing(kind: str) -> None:
    machine = machine_of(torch_with(kind, 1, names=kind == "xpu", version=None))
    assert machine.present() == ("cpu", f"{kind}:0")
    assert machine.environments[kind].name == ("XPU number 0" if kind == "xpu" else "mps")


def test_all_means_what_is_here_and_a_name_that_is_not_here_stays() -> None:
    here = machine_of(torch_with("xpu", 1))
    assert devices_of("cpu", parse_devices("all"), here) == ("cpu", "xpu:0")
    wanted = devices_of("cpu", parse_devices("cpu,cuda:1,xpu"), here)
    assert [device for device in wanted if device not in here.environments] == ["cuda:1"]


def test_a_machine_without_accelerators_has_its_processor() -> None:
    assert machine_of(torch_with("cuda", 0)).present() == ("cpu",)


def test_another_driver_is_another_place_and_another_torch_is_not() -> None:
    machines = (machine_of(torch_with("cuda", 1, version=version)) for version in ("12.8", "13.0"))
    old, new = (machine.environments["cuda"] for machine in machines)
    assert old.key != new.key
    assert "2.13.0" not in old.key


def test_each_variable_and_each_option_is_a_column_and_nothing_is_one_too() -> None:
    settings = WatchSettings(env=("", "A=1 B='x y'"), options=("", "{'fuse': False, 'triton.x': 2}"))
    columns = settings.variants(["cpu"])
    assert [str(column) for column in columns] == [
        "cpu", "cpu {fuse=False, triton.x=2}", "cpu A=1 B='x y'", "cpu A=1 B='x y' {fuse=False, triton.x=2}",
    ]  # fmt: skip
    assert columns[3].variables == {"A": "1", "B": "x y"}
    assert columns[3].given_options == {"fuse": False, "triton.x": 2}


def test_a_device_of_a_cluster_is_one_of_each_kind_of_machine() -> None:
    machine = Machine({}, slots={"cpu@box": 4, "cpu@gpu": 2, "cuda:0@gpu": 1})
    assert devices_of("cpu", None, machine) == ("cpu@box", "cpu@gpu")
    assert devices_of("cuda", None, machine) == ("cuda:0@gpu",)
    assert devices_of("cpu", parse_devices("cuda:0,cpu@box,xpu"), machine) == ("cuda:0@gpu", "cpu@box", "xpu")
    (column,) = WatchSettings(env=("A=1",)).variants(["cuda:0@gpu"])
    assert (column.device, column.host, str(column)) == ("cuda:0", "gpu", "cuda:0@gpu A=1")
