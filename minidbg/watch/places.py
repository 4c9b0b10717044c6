"""Where runs may take place: what a cluster tells the daemon about its machines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from minidbg.history import Environment


@dataclass(frozen=True, slots=True)
class Place:
    """A device of a kind of machine: a column of the matrix."""

    environment: Environment
    resource: str
    """What Dask calls it."""
    slots: int
    """Runs that it takes at the same time."""


@dataclass(frozen=True, slots=True)
class Members:
    """The places that there are now, by name: ``cuda:0@gpubox``. A message to the daemon."""

    places: Mapping[str, Place]


def whole_name(device: str) -> str:
    """``acme:0`` for ``acme``: the first device of a kind goes by both names."""
    return device if device == "cpu" or ":" in device else f"{device}:0"
