"""What a person may set of watch: ``[tool.minidbg.watch]`` in pyproject.toml, then the command line."""

from __future__ import annotations

import dataclasses
import enum
import os
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minidbg import settings as base
from minidbg.errors import BadSetting, nearest


class OnChange(enum.StrEnum):
    """What a change during a sweep does to the runs under way."""

    QUEUE = "queue"
    """They have two seconds to end, nothing more is started, and one sweep follows."""
    RESTART = "restart"
    """They are killed."""


class FailOn(enum.StrEnum):
    """What makes ``--once`` exit with a failure."""

    ANY = "any"
    """A repro that reproduces (1) or fails differently (3)."""
    UNEXPECTED = "unexpected"
    """A repro that does not do what its header expects: a fix as well as a regression."""


class Workers(enum.StrEnum):
    """How runs are started."""

    AUTO = "auto"
    FORK = "fork"
    SPAWN = "spawn"


@dataclass(frozen=True, slots=True)
class WatchSettings:
    """Checked values."""

    devices: str | None = None
    """``cpu,cuda:1`` or ``all``; None runs each repro on the device its header names."""
    env: tuple[str, ...] = ()
    """Variants: each repro runs once with each of these assignments, ``ACME_FUSE=1`` or several of them, as its own column."""
    sources: tuple[Path, ...] = ()
    """Folders to watch besides those of the repros' backends."""
    ignore: tuple[str, ...] = ()
    """Further patterns, as in ``.gitignore``, relative to each watched folder."""
    build: str | None = None
    """A shell command that runs before each sweep that a change of code has caused."""
    on_flip: str | None = None
    """A shell command that is given each flip as JSON on its stdin."""
    on_change: OnChange = OnChange.QUEUE
    poll_s: float | None = None
    """Look every so many seconds instead of waiting for events."""
    quiet_s: float = 0.2
    max_wait_s: float = 5.0
    rescan_s: float = 30.0
    """How often everything is looked at although no event said so."""
    jobs: int = dataclasses.field(default_factory=lambda: min(8, os.cpu_count() or 1))
    """Runs at the same time."""
    seconds: float | None = None
    """Time limit of a run; None derives it from the repro's own runs."""
    memory_bytes: int | None = None
    workers: Workers = Workers.AUTO
    reduce: bool = True
    """Reduce captures in the background."""
    once: bool = False
    fail_on: FailOn = FailOn.ANY
    folder: Path = dataclasses.field(default_factory=Path.cwd)
    """Where the build command and the hook run: the folder of the settings file, else the current one."""


def assignments(value: Any) -> tuple[str, ...]:
    """Texts of one or more ``NAME=value``."""
    found = base.texts(value)
    for text in found:
        if not all(re.match(r"[A-Za-z_]\w*=", word) for word in shlex.split(text)):
            raise ValueError(f"{text!r} is no assignment; variants look like ACME_FUSE=1")
    return found


CONVERT: Mapping[str, Callable[[Any], Any]] = {
    "devices": lambda value: value if isinstance(value, str) else ",".join(value),
    "env": assignments,
    "sources": lambda value: tuple(Path(one).expanduser() for one in value),
    "ignore": base.texts,
    "build": base.text,
    "on_flip": base.text,
    "on_change": base.choice(OnChange),
    "poll_s": lambda value: base.number(value, at_least=0.05),
    "quiet_s": lambda value: base.number(value, at_least=0.0),
    "max_wait_s": lambda value: base.number(value, at_least=0.1),
    "rescan_s": lambda value: base.number(value, at_least=0.1),
    "jobs": lambda value: base.whole(value, at_least=1),
    "seconds": lambda value: base.number(value, at_least=0.1),
    "memory_bytes": lambda value: base.whole(value, at_least=1 << 20),
    "workers": base.choice(Workers),
    "reduce": base.flag,
    "fail_on": base.choice(FailOn),
}
"""Of the settings that a file may hold."""


def load(arguments: Mapping[str, Any], *, folder: Path | None = None) -> WatchSettings:
    """``[tool.minidbg.watch]`` of the nearest pyproject.toml, overridden by the arguments that are not None. Raises BadSetting.

    Paths in the file are relative to it.
    """
    start = folder or Path.cwd()
    project = next(
        (file for one in (start, *start.parents) if (file := one / "pyproject.toml").is_file()), None
    )
    values = from_table(project) if project is not None else {}
    given = {name: value for name, value in arguments.items() if value not in (None, ())}
    return WatchSettings(
        **values | {name: checked(name, value, "the arguments") for name, value in given.items()}
    )


def from_table(project: Path) -> dict[str, Any]:
    """``[tool.minidbg.watch]`` of the file, checked; paths in it are relative to it."""
    table = base.read_toml(project).get("tool", {}).get("minidbg", {}).get("watch", {})
    source = f"[tool.minidbg.watch] of {project}"
    values: dict[str, Any] = {}
    for name, value in table.items():
        if name not in CONVERT:
            known = sorted(CONVERT)
            near = nearest(name, known)
            raise BadSetting(f"no setting named {name!r} (in {source}){near}. Settings: {', '.join(known)}")
        values[name] = checked(name, value, source)
    if values:
        values["folder"] = project.parent
        values["sources"] = tuple(project.parent / path for path in values.get("sources", ()))
    return values


def checked(name: str, value: Any, source: str) -> Any:
    """``value`` in the setting's own type. Raises BadSetting with the value and what it may be."""
    try:
        return CONVERT[name](value) if name in CONVERT else value
    except (ValueError, TypeError) as error:
        raise BadSetting(f"{name}={value!r} (in {source}): {error}") from None
