"""All that is looked at, in order. Each check looks at one thing and never raises for what it finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from minidbg.doctor.backends import backends
from minidbg.doctor.finding import Finding, broken
from minidbg.doctor.machine import caches, compiler, devices, forking, inotify, memory, python, shared_memory
from minidbg.doctor.setup import configuration, folder, private_names, switches, templates, torch_version

Check = Callable[[], Iterator[Finding]]

CHECKS: tuple[Check, ...] = (
    python, torch_version, private_names, devices, compiler, forking, shared_memory, memory, caches, inotify, configuration,
    templates, folder, switches, backends,
)  # fmt: skip


def examine() -> Iterator[Finding]:
    """One finding after the other, as they are made. Takes some seconds: backends are imported in a child."""
    for check in CHECKS:
        try:
            yield from check()
        except Exception as trouble:  # noqa: BLE001 - a machine that breaks one check is why there are others
            name = check.__name__.replace("_", " ")
            yield broken(
                name,
                f"could not be looked at: {type(trouble).__name__}: {trouble}",
                "this is worth a bug report",
            )
