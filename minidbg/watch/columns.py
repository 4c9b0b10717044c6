"""The columns of the matrix: a device, and what of its environment and its backend's options each run there changes."""

from __future__ import annotations

import ast
import itertools
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


def devices_of(own: str, wanted: Sequence[str] | None, machine: Machine) -> tuple[str, ...]:
    """The devices that a repro is to run on: those wanted, else its ``own``. Missing ones are among them."""
    names = [own]
    if wanted is not None:
        names = [name for one in wanted for name in (machine.present() if one == "all" else (one,))]
    return tuple(dict.fromkeys(names))


@dataclass(frozen=True, slots=True, order=True)
class Column:
    """A device and a variant: ``cpu ACME_FUSE=1 {level=3}``. The history knows it by that name."""

    device: str
    env: str = ""
    """Variables of the environment: ``ACME_FUSE=1``, or several of them."""
    options: str = ""
    """Options that are added to those of the repro's header, a Python dict as text."""

    def __str__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self.given_options.items())
        return " ".join(part for part in (self.device, self.env, options and f"{{{options}}}") if part)

    @property
    def variables(self) -> dict[str, str]:
        """The variables by name."""
        return dict(word.split("=", 1) for word in shlex.split(self.env))

    @property
    def given_options(self) -> dict[str, Any]:
        """The options by name."""
        return dict(ast.literal_eval(self.options)) if self.options else {}


def variants(devices: Iterable[str], env: Sequence[str], options: Sequence[str]) -> tuple[Column, ...]:
    """A column for each device with each of ``env`` and each of ``options``."""
    every = itertools.product(devices, env or ("",), options or ("",))
    return tuple(dict.fromkeys(Column(device, one, other) for device, one, other in every))


def said_aloud(device: str, repros: int, machine: Machine) -> str:
    """What to tell of a missing device."""
    here = ", ".join(machine.present())
    plural = "" if repros == 1 else "s"
    return f"{device} not present (found {here}); {repros} repro{plural} skipped there; 'minidbg doctor' lists what is here"
