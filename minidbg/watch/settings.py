"""What a person may set of watch, in ``[tool.minidbg.watch]`` of pyproject.toml, then the command
line; and the devices of this machine."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from minidbg.core import settings as base
from minidbg.core.errors import BadSetting
from minidbg.core.machine import HERE
from minidbg.core.settings import Count, Memory, Text, path, setting, text_lines


class FailOn(enum.StrEnum):
    ANY = "any"
    """A repro that reproduces (1) or fails differently (3)."""
    UNEXPECTED = "unexpected"
    """A repro that does not do what its header expects: a fix as well as a regression."""


class Workers(enum.StrEnum):
    AUTO = "auto"
    FORK = "fork"
    SPAWN = "spawn"


def folder_paths(value: Any) -> tuple[Path, ...]:
    if not isinstance(value, list | tuple):
        raise ValueError("must be a list of paths")
    return tuple(map(path, value))


def commands(value: Any) -> Any:
    """A list of them, or one, which may have several lines."""
    return (value,) if isinstance(value, str) else value


@dataclass(frozen=True, slots=True)
class WatchSettings:
    devices: tuple[str, ...] | None = setting(None, lambda value: parse_devices(",".join(text_lines(value))))
    """``cpu`` and ``cuda:1``, or ``all``; None runs each repro on the device its header names."""
    sources: tuple[Path, ...] = setting((), folder_paths)
    """Folders to watch besides those of the repros' backends."""
    ignore: tuple[str, ...] = setting((), text_lines)
    """Further patterns, as in ``.gitignore``, relative to each watched folder."""
    build: Text | None = None
    """A shell command that runs before each sweep that a change of code has caused."""
    on_flip: tuple[Text, ...] = setting((), commands)
    """Shell commands that get what flipped within one sweep as JSON Lines on stdin."""
    poll_s: Annotated[float, Meta(ge=0.05)] | None = None
    """Look every so many seconds instead of waiting for events."""
    jobs: Count = dataclasses.field(default=min(8, HERE.processors()))
    """Runs at the same time."""
    device_jobs: Count = 1
    """Runs at the same time on one device that is not the CPU."""
    seconds: Annotated[float, Meta(ge=0.1)] | None = None
    """Time limit of a run; None derives it from the repro's own runs."""
    memory_bytes: Memory | None = None
    workers: Workers = Workers.AUTO
    fail_on: FailOn = FailOn.ANY
    once: bool = False
    folder: Path = dataclasses.field(default_factory=Path.cwd)
    """Where build command and hook run: the folder of the settings file, else the current one."""


def load_watch_settings(arguments: Mapping[str, Any]) -> WatchSettings:
    """Of the nearest pyproject.toml, overridden by arguments that are given. Raises BadSetting."""
    project, table = base.project_table(Path.cwd())
    values = {name: value for name, (value, _) in load_watch_with_origins(arguments).items()}
    return WatchSettings(**values, folder=project.parent if table.get("watch") else Path.cwd())


def load_watch_with_origins(arguments: Mapping[str, Any]) -> base.Origins:
    """Paths in a file are relative to it. Raises BadSetting."""
    project, table = base.project_table(Path.cwd())
    values = dict(base.as_table(table.get("watch", {}), "watch", project))
    where = f"[tool.minidbg.watch] of {project}"
    if "sources" in values:
        found = base.checked("sources", values["sources"], where, WatchSettings)
        values["sources"] = [project.parent / one for one in found]
    given = {name: value for name, value in arguments.items() if value not in (None, ())}
    sources = ((where, values), ("the arguments", given))
    return base.merged(WatchSettings(), sources, "once", "folder")


def whole_name(device: str) -> str:
    """``acme:0`` for ``acme``: the first device of a kind goes by both names."""
    return device if is_cpu(device) or ":" in device else f"{device}:0"


def machine_of(device: str) -> str:
    """``box`` for ``box/cuda:0``, a device of another machine; empty for one that is here."""
    return device.rpartition("/")[0]


def is_cpu(device: str) -> bool:
    return device.rpartition("/")[2] == "cpu"


# Devices


DEVICES_CALL = f"{__name__}:devices_of_machine"
"""The question to a child, since the daemon holds no torch."""


def devices_of_machine(argument: Mapping[str, Any], note: object) -> dict[str, Any]:
    """``Devices`` as a dict; only the processor where scripts need no torch: ``preload_for``."""
    named, version = {"cpu": (processor(), "")}, ""
    if os.environ.get("MINIDBG__WATCH_PRELOAD") != "none":
        import torch

        version = torch.__version__
        named |= accelerators(torch)
    machine = f"{platform.system()} {platform.machine()}"
    keys = {name: "|".join((name, what, machine, driver)) for name, (what, driver) in named.items()}
    return {"environments": keys, "torch": version}


def accelerators(torch: Any) -> dict[str, tuple[str, str]]:
    """What each device that torch sees besides the processor is, and its driver, under all names it
    can be asked for by."""
    if not torch.accelerator.is_available():
        return {}
    kind = torch.accelerator.current_accelerator().type
    current = torch.accelerator.current_device_index()
    name_of = getattr(getattr(torch, kind, None), "get_device_name", lambda index: kind)
    driver = str(getattr(torch.version, kind, None) or "")
    count = torch.accelerator.device_count()
    named = {f"{kind}:{index}": (str(name_of(index)), driver) for index in range(count)}
    return {kind: named[f"{kind}:{current}"], **named}


def processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


@dataclass(frozen=True, slots=True)
class Devices:
    environments: Mapping[str, str]
    """By the name that a device is asked for by, what tells it from those of other machines, and of
    another driver."""
    torch: str = ""

    def present(self) -> tuple[str, ...]:
        """The devices to name to a person: ``cuda:0``, not ``cuda`` as well."""
        with_index = {name.partition(":")[0] for name in self.environments if ":" in name}
        return tuple(name for name in self.environments if name not in with_index)


def parse_devices(text: str | None) -> tuple[str, ...] | None:
    """``cpu,cuda:1`` as names, None when each repro runs on its own device. Raises BadSetting."""
    if text is None:
        return None
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise BadSetting("--devices is empty; give names such as cpu,cuda:1, or all")
    for name in names:
        kind, _, index = name.rpartition("/")[2].partition(":")
        if not kind.isidentifier() or (index and not index.isdecimal()):
            raise BadSetting(f"{name!r} is not a device; expected cpu, cuda, cuda:1, mps, xpu, or all")
    return names


def chosen_devices(own: str, wanted: Sequence[str] | None, here: Devices) -> tuple[str, ...]:
    """Those wanted, else the repro's ``own``, on other machines too; also missing ones."""
    names = [name for name in here.environments if name.endswith(f"/{own}")] or [own]
    if wanted is not None:
        names = [name for one in wanted for name in (here.present() if one == "all" else (one,))]
    return tuple(dict.fromkeys(names))
