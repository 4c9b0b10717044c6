"""Devices, with torches that have others than this machine: what is found, what is asked for, what is skipped aloud."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from minidbg.watch.probe import accelerators
from minidbg.watch.settings import (
    Machine,
    devices_of,
    load,
    parse_devices,
    whole_name,
)
from minidbg.words.errors import BadSetting


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


def test_the_first_device_of_a_kind_goes_by_both_names() -> None:
    assert [whole_name(one) for one in ("cuda", "cuda:0", "cuda:1", "cpu")] == [
        "cuda:0",
        "cuda:0",
        "cuda:1",
        "cpu",
    ]


def test_the_project_file_of_a_parent_folder_names_where_commands_run_only_if_it_is_about_watch(
    tmp_path: Path,
) -> None:
    (inner := tmp_path / "inner").mkdir()
    (tmp_path / "pyproject.toml").write_text("[tool.minidbg]\nseconds = 5\n")
    assert load({}, folder=inner).folder == inner
    (tmp_path / "pyproject.toml").write_text('[tool.minidbg.watch]\nbuild = "ninja"\n')
    assert load({}, folder=inner).folder == tmp_path


def test_arguments_that_were_not_given_leave_the_file_its_word(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.minidbg.watch]\njobs = 3\n")
    settings = load({"jobs": None, "poll_s": 0.5}, folder=tmp_path)
    assert (settings.jobs, settings.poll_s) == (3, 0.5)


@pytest.mark.parametrize(
    ("name", "value"),
    [("jobs", 0), ("device_jobs", 0), ("poll_s", 0.04), ("seconds", 0.09), ("memory_bytes", (1 << 20) - 1)],
)
def test_limits_that_leave_nothing_are_refused(tmp_path: Path, name: str, value: float) -> None:
    with pytest.raises(BadSetting, match=f"{name}="):
        load({name: value}, folder=tmp_path)
    least = {"jobs": 1, "device_jobs": 1, "poll_s": 0.05, "seconds": 0.1, "memory_bytes": 1 << 20}[name]
    assert getattr(load({name: least}, folder=tmp_path), name) == least


def test_a_machine_without_any_device_is_not_asked_what_it_has() -> None:
    machine = Machine({})
    assert machine.present() == ()
    assert devices_of("cuda", None, machine) == ("cuda",)
    assert devices_of("cuda", ("cpu", "cpu", "xpu"), machine) == ("cpu", "xpu")
