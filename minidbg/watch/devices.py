"""Devices: which were asked for, which are here, and what a result was seen on."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from minidbg.errors import BadSetting
from minidbg.history import Environment


@dataclass(frozen=True, slots=True)
class Machine:
    """What ``device_script`` found. ``environments`` are by the name that a device is asked for by."""

    environments: Mapping[str, Environment]
    torch: str = ""
    python: str = ""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Machine:
        """Read the script's line. Raises KeyError or TypeError when it is damaged."""
        environments = {
            device: Environment(
                device=device,
                name=facts["name"],
                machine=data["machine"],
                driver=facts["driver"],
                torch=data["torch"],
                facts={"host": data["host"], "python": data["python"]},
            )
            for device, facts in data["devices"].items()
        }
        return cls(environments, data["torch"], data["python"])

    def present(self) -> tuple[str, ...]:
        """The devices to name to a person: ``cuda:0``, not ``cuda`` as well."""
        return tuple(name for name in self.environments if name == "cpu" or not self.has_indices(name))

    def has_indices(self, name: str) -> bool:
        """Whether the name stands for one of several names with an index."""
        return any(other.startswith(name + ":") for other in self.environments)


def parse_devices(text: str | None) -> tuple[str, ...] | None:
    """``cpu,cuda:1`` as names, None when each repro is to run on its own device. Raises BadSetting."""
    if text is None:
        return None
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise BadSetting("--devices is empty; give names such as cpu,cuda:1, or all")
    for name in names:
        kind, _, index = name.partition(":")
        if not kind.isidentifier() or (index and not index.isdecimal()):
            raise BadSetting(f"{name!r} is no device; devices look like cpu, cuda, cuda:1, mps, xpu, or all")
    return names


def devices_of(
    own: str, wanted: Sequence[str] | None, machine: Machine, variants: Sequence[str] = ()
) -> tuple[str, ...]:
    """The columns that a repro is to run in: the devices wanted, else its ``own``, each once for every variant.

    Missing devices are among them. A variant is variables of the environment: ``ACME_FUSE=1``; its column ``cpu ACME_FUSE=1``.
    """
    names = [own]
    if wanted is not None:
        names = [name for one in wanted for name in (machine.present() if one == "all" else (one,))]
    return tuple(
        dict.fromkeys(f"{name} {variant}".strip() for name in names for variant in variants or ("",))
    )


def device_in(column: str) -> str:
    """The device of a column."""
    return column.partition(" ")[0]


def variables_in(column: str) -> dict[str, str]:
    """The variables of a column's variant."""
    return dict(word.split("=", 1) for word in shlex.split(column.partition(" ")[2]))


def missing(devices: Iterable[str], machine: Machine) -> tuple[str, ...]:
    """Those of ``devices`` that are not here."""
    return tuple(device for device in devices if device_in(device) not in machine.environments)


def said_aloud(device: str, repros: int, machine: Machine) -> str:
    """What to tell of a missing device."""
    here = ", ".join(machine.present())
    plural = "" if repros == 1 else "s"
    return f"{device} not present (found {here}); {repros} repro{plural} skipped there; 'minidbg doctor' lists what is here"
