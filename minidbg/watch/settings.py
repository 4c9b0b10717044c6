"""What a person may set of watch: ``[tool.minidbg.watch]`` in pyproject.toml, then the command line."""

from __future__ import annotations

import ast
import dataclasses
import enum
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minidbg import checks
from minidbg import settings as base
from minidbg.cluster.members import Cluster
from minidbg.errors import BadSetting


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
    """Each repro runs once with each of these, as columns of their own: ``ACME_FUSE=1``, several of them, or nothing."""
    options: tuple[str, ...] = ()
    """The same with options of the backend, each a Python dict as text or nothing; they are added to those of the repro's header."""
    sources: tuple[Path, ...] = ()
    """Folders to watch besides those of the repros' backends."""
    ignore: tuple[str, ...] = ()
    """Further patterns, as in ``.gitignore``, relative to each watched folder."""
    build: str | None = None
    """A shell command that runs before each sweep that a change of code has caused."""
    on_flip: tuple[str, ...] = ()
    """Shell commands that are given each flip as JSON on their stdin, and recipes of ``notices``, which get each burst of them."""
    on_change: OnChange = OnChange.QUEUE
    poll_s: float | None = None
    """Look every so many seconds instead of waiting for events."""
    quiet_s: float = 0.2
    max_wait_s: float = 5.0
    rescan_s: float = 30.0
    """How often everything is looked at although no event said so."""
    jobs: int = dataclasses.field(default_factory=lambda: min(8, os.cpu_count() or 1))
    """Runs at the same time."""
    device_jobs: int = 1
    """Runs at the same time on one device that is not the CPU."""
    seconds: float | None = None
    """Time limit of a run; None derives it from the repro's own runs."""
    memory_bytes: int | None = None
    workers: Workers = Workers.AUTO
    reduce: bool = True
    """Reduce captures in the background."""
    cluster: Cluster | None = None
    """The machines that runs go to; None: this one."""
    once: bool = False
    fail_on: FailOn = FailOn.ANY
    folder: Path = dataclasses.field(default_factory=Path.cwd)
    """Where the build command and the hook run: the folder of the settings file, else the current one."""


def is_recipe(text: str) -> bool:
    """Whether an entry of ``on_flip`` is a recipe; else it is a shell command. Raises BadSetting for an unknown recipe."""
    name, colon, _ = text.partition(":")
    if name == "desktop" and not colon:
        return True
    if colon and name in ("slack", "matrix", "webhook", "github"):
        return True
    if re.match(r"\w+:https?://", text):
        raise BadSetting(
            f"on_flip has no recipe {name!r}; recipes are desktop, slack:URL, matrix:URL, webhook:URL, github:FILE"
        )
    return False


def assignments(value: Any) -> tuple[str, ...]:
    """Texts of no, one or more ``NAME=value``."""
    found = (value,) if isinstance(value, str) else tuple(value)
    for text in found:
        if not isinstance(text, str) or not all(
            re.match(r"[A-Za-z_]\w*=", word) for word in shlex.split(text)
        ):
            raise ValueError(f"{text!r} is no assignment; variants look like ACME_FUSE=1")
    return found


def backend_options(value: Any) -> tuple[str, ...]:
    """Tables of options, each as the text of a Python dict in one order."""
    tables = [value] if isinstance(value, Mapping) else list(value)
    found = []
    for table in tables:
        text = repr(dict(sorted(table.items()))) if isinstance(table, Mapping) else ""
        try:
            ast.literal_eval(text)
        except (ValueError, SyntaxError):
            raise ValueError(
                f"{table!r} is no table of options; variants look like {{ fuse = false }}"
            ) from None
        found.append(text if table else "")
    return tuple(found)


CONVERT: Mapping[str, checks.Converter] = {
    "devices": lambda value: value if isinstance(value, str) else ",".join(value),
    "env": assignments,
    "options": backend_options,
    "sources": lambda value: tuple(Path(one).expanduser() for one in value),
    "ignore": checks.texts,
    "build": checks.text,
    "on_flip": lambda value: (checks.text(value),) if isinstance(value, str) else checks.texts(value),
    "on_change": checks.choice(OnChange),
    "poll_s": lambda value: checks.number(value, at_least=0.05),
    "quiet_s": lambda value: checks.number(value, at_least=0.0),
    "max_wait_s": lambda value: checks.number(value, at_least=0.1),
    "rescan_s": lambda value: checks.number(value, at_least=0.1),
    "jobs": lambda value: checks.whole(value, at_least=1),
    "device_jobs": lambda value: checks.whole(value, at_least=1),
    "seconds": lambda value: checks.number(value, at_least=0.1),
    "memory_bytes": lambda value: checks.whole(value, at_least=1 << 20),
    "workers": checks.choice(Workers),
    "reduce": checks.flag,
    "fail_on": checks.choice(FailOn),
}
"""Of the settings that a file may hold."""


def load(arguments: Mapping[str, Any], *, folder: Path | None = None) -> WatchSettings:
    """``[tool.minidbg.watch]`` of the nearest pyproject.toml, overridden by the arguments that are given. Raises BadSetting."""
    start = folder or Path.cwd()
    once = bool(arguments.get("once"))
    found = load_with_origins(
        {name: value for name, value in arguments.items() if name != "once"}, folder=start
    )
    project, table = base.project_table(start)
    where = project.parent if table.get("watch") else start
    return WatchSettings(**{origin.name: origin.value for origin in found}, once=once, folder=where)


def load_with_origins(
    arguments: Mapping[str, Any] | None = None, *, folder: Path | None = None
) -> tuple[base.Origin, ...]:
    """Each setting with its value and where that was written. Paths in a file are relative to it. Raises BadSetting."""
    project, table = base.project_table(folder or Path.cwd())
    values = dict(table.get("watch", {}))
    if "sources" in values:
        values["sources"] = [project.parent / path for path in values["sources"]]
    given = {name: value for name, value in (arguments or {}).items() if value not in (None, ())}
    sources = ((f"[tool.minidbg.watch] of {project}", values), ("the arguments", given))
    return base.merged(WatchSettings(), CONVERT, sources)
