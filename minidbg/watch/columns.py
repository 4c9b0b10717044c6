"""The columns of the matrix: a device, and what of its environment and its backend's options each run there changes."""

from __future__ import annotations

import ast
import itertools
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from minidbg.errors import BadSetting
from minidbg.history import Environment


@dataclass(frozen=True, slots=True)
class Machine:
    """What ``device_script`` found here, or the machines of a cluster. ``environments`` are by the name that a device is asked for by."""

    environments: Mapping[str, Environment]
    torch: str = ""
    python: str = ""
    slots: Mapping[str, int] = field(default_factory=dict)
    """Of a cluster: runs at the same time in each place (``cuda:0@gpubox``), by which ``environments`` are called too."""

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
        kind, _, index = name.partition("@")[0].partition(":")
        if not kind.isidentifier() or (index and not index.isdecimal()):
            raise BadSetting(f"{name!r} is no device; devices look like cpu, cuda, cuda:1, mps, xpu, or all")
    return names


def devices_of(own: str, wanted: Sequence[str] | None, machine: Machine) -> tuple[str, ...]:
    """The devices that a repro is to run on: those wanted, else its ``own``. Missing ones are among them.

    Of a cluster, that device of each kind of machine.
    """
    names = [own]
    if wanted is not None:
        names = [name for one in wanted for name in (machine.present() if one == "all" else (one,))]
    if machine.slots:
        here = [(name, [place for place in machine.slots if is_at(name, place)]) for name in names]
        names = [place for name, places in here for place in places or [name]]
    return tuple(dict.fromkeys(names))


def is_at(name: str, place: str) -> bool:
    """Whether ``cuda``, ``cuda:0`` or ``cuda:0@gpubox`` means the place ``cuda:0@gpubox``."""
    return name == place or whole_name(name) == place.partition("@")[0]


def whole_name(device: str) -> str:
    """``acme:0`` for ``acme``: the first device of a kind goes by both names."""
    return device if device == "cpu" or ":" in device else f"{device}:0"


@dataclass(frozen=True, slots=True, order=True)
class Column:
    """A device and a variant: ``cpu ACME_FUSE=1 {level=3}``. The history knows it by that name."""

    device: str
    env: str = ""
    """Variables of the environment: ``ACME_FUSE=1``, or several of them."""
    options: str = ""
    """Options that are added to those of the repro's header, a Python dict as text."""
    host: str = ""
    """The kind of machine, where there are several."""
    name: str = field(init=False, repr=False, compare=False)
    """What the column is called everywhere. It is asked for several times for each run."""

    def __post_init__(self) -> None:
        options = ", ".join(f"{name}={value!r}" for name, value in self.given_options.items())
        parts = (self.place, self.env, options and f"{{{options}}}")
        object.__setattr__(self, "name", " ".join(part for part in parts if part))

    def __str__(self) -> str:
        return self.name

    @property
    def place(self) -> str:
        """The device and the kind of machine: ``cuda:0@gpubox``."""
        return f"{self.device}@{self.host}" if self.host else self.device

    @property
    def variables(self) -> dict[str, str]:
        """The variables by name."""
        return dict(word.split("=", 1) for word in shlex.split(self.env))

    @property
    def given_options(self) -> dict[str, Any]:
        """The options by name."""
        return dict(ast.literal_eval(self.options)) if self.options else {}


def variants(devices: Iterable[str], env: Sequence[str], options: Sequence[str]) -> tuple[Column, ...]:
    """A column for each device or place with each of ``env`` and each of ``options``."""
    every = itertools.product((device.partition("@") for device in devices), env or ("",), options or ("",))
    return tuple(dict.fromkeys(Column(device, one, other, host) for (device, _, host), one, other in every))


def said_aloud(device: str, repros: int, machine: Machine) -> str:
    """What to tell of a missing device."""
    here = ", ".join(machine.present())
    plural = "" if repros == 1 else "s"
    return f"{device} not present (found {here}); {repros} repro{plural} skipped there; 'minidbg doctor' lists what is here"
