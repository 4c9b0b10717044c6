"""What a person may set, and where: defaults < user file < ``[tool.minidbg]`` < ``MINIDBG_*`` < arguments.

The user file is ``minidbg.toml`` in the platform's configuration folder; ``[tool.minidbg]`` is looked up in the
nearest ``pyproject.toml`` of the working directory and its parents. A name that is no setting is an error that
names its source and the nearest setting, wherever it was written.
"""

from __future__ import annotations

import dataclasses
import enum
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import platformdirs

from minidbg.errors import BadSetting, nearest

DEFAULT_FOLDER = Path("minidbg_repros")
GIB = 1024**3


class OnFailure(enum.StrEnum):
    """What the user's program goes on with after its backend has failed."""

    RAISE = "raise"
    """The backend's own exception, with a note."""
    FALLBACK = "fallback"
    """Eager, for this graph, from then on."""


class Reduce(enum.StrEnum):
    """When a captured failure is reduced."""

    NOW = "now"
    LATER = "later"
    """By ``minidbg reduce``: only the capture is written."""


class Verify(enum.StrEnum):
    """Which calls of a compiled graph are compared with eager. A number stands for that many first calls."""

    FIRST = "first"
    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Settings:
    """Checked values, ready to be used, compared and hashed."""

    verify: Verify | int = Verify.FIRST
    on_failure: OnFailure = OnFailure.RAISE
    reduce: Reduce | None = None
    """None decides at the failure: now, or later in a job of several ranks."""
    repro_dir: Path = DEFAULT_FOLDER
    seconds: float = 300.0
    """For all reductions of this process together."""
    max_calls: int | None = None
    """Oracle calls of one reduction."""
    setup: tuple[str, ...] = ()
    """Statements that make the backend known in a fresh process."""
    reference: str | None = None
    """``module:qualname`` of the backend, or of a function without arguments that returns it."""
    value_limit_bytes: int = GIB
    """Most bytes of real tensor values that are written for one failure, or kept while a graph is unverified."""
    reduce_oom: bool = False
    """Reduce failures for want of memory too."""
    match: str | None = None
    """A regular expression; a failure whose text does not contain it is captured and not reduced."""
    env: tuple[str, ...] = ()
    """Names of further environment variables that a repro needs; their values are written into it."""
    flight_recorder: bool = True
    """Write down what a backend is about to do, for the case that the process dies in it."""


def load(
    arguments: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
    user_file: Path | None = None,
) -> Settings:
    """The settings of all sources; an argument that is None counts as not given.

    ``environ``, ``folder`` (where the search for pyproject.toml starts) and ``user_file`` are the process's own
    unless given. Raises BadSetting for an unknown name or a value out of range, saying where it was written.
    """
    given = {name: value for name, value in (arguments or {}).items() if value is not None}
    values: dict[str, Any] = {}
    for source, table in (
        *files(folder or Path.cwd(), user_file or user_settings_file()),
        ("the environment", from_environment(os.environ if environ is None else environ)),
        ("the arguments", given),
    ):
        for name, value in table.items():
            values[name] = checked(known(name, source), value, source)
    return Settings(**values)


def files(folder: Path, user_file: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The tables found in files, the weakest first, each with what to call it."""
    if user_file.is_file():
        yield str(user_file), read_toml(user_file)
    for parent in (folder, *folder.parents):
        project = parent / "pyproject.toml"
        if project.is_file():
            table = dict(read_toml(project).get("tool", {}).get("minidbg", {}))
            if isinstance(table.get("repro_dir"), str):
                table["repro_dir"] = parent / path(table["repro_dir"])
            # [tool.minidbg.watch] is read, and checked, by watch
            own = {name: value for name, value in table.items() if name != "watch"}
            yield f"[tool.minidbg] of {project}", own
            return


def user_settings_file() -> Path:
    """Where a person's own settings lie on this platform."""
    return platformdirs.user_config_path("minidbg") / "minidbg.toml"


def read_toml(path: Path) -> dict[str, Any]:
    """The file's tables. Raises BadSetting when it is no TOML."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadSetting(f"{path} is no readable TOML: {error}") from error


def from_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """``MINIDBG_*`` as settings. ``MINIDBG_DIR`` is the folder; two underscores mark names that are no settings."""
    prefix = "MINIDBG_"
    found = {}
    for variable, value in environ.items():
        if variable.startswith(prefix) and not variable.startswith(prefix + "_"):
            name = variable.removeprefix(prefix).lower()
            found["repro_dir" if name == "dir" else name] = value
    return found


def known(name: str, source: str) -> str:
    """``name``, when it is a setting. Raises BadSetting with the nearest ones."""
    names = [field.name for field in dataclasses.fields(Settings)]
    if name not in names:
        raise BadSetting(
            f"no setting named {name!r} (in {source}){nearest(name, names)}. Settings: {', '.join(names)}"
        )
    return name


def checked(name: str, value: Any, source: str) -> Any:
    """``value`` in the setting's own type. Raises BadSetting with the value and what it may be."""
    try:
        return CONVERT[name](value)
    except (ValueError, TypeError, re.error) as error:
        raise BadSetting(f"{name}={value!r} (in {source}): {error}") from None


Converter: TypeAlias = Callable[[Any], Any]
"""From what was written to the setting's type. Raises ValueError or TypeError that says what is allowed."""


def choice(kind: type[enum.StrEnum]) -> Converter:
    """One of the words of ``kind``."""

    def convert(value: Any) -> Any:
        if isinstance(value, str) and value in list(kind):
            return kind(value)
        words = [str(member) for member in kind]
        near = nearest(value, words) if isinstance(value, str) else ""
        raise ValueError(f"must be one of {', '.join(map(repr, words))}{near}")

    return convert


def verification(value: Any) -> Verify | int:
    """A word of Verify, or a number of calls."""
    if isinstance(value, bool):
        raise ValueError("must be 'first', 'always', 'never' or a number of calls")
    if isinstance(value, int) or (isinstance(value, str) and value.isdecimal()):
        calls = int(value)
        if calls < 1:
            raise ValueError("a number of calls must be 1 or more; 'never' compares none")
        return calls
    try:
        return Verify(choice(Verify)(value))
    except ValueError as error:
        raise ValueError(f"{error}, or a number of calls") from None


def number(value: Any, *, at_least: float) -> float:
    """A number; text is read as one."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("must be a number")
    try:
        result = float(value)
    except ValueError:
        raise ValueError("must be a number") from None
    if not result >= at_least:
        raise ValueError(f"must be {at_least:g} or more")
    return result


def whole(value: Any, *, at_least: int) -> int:
    """A whole number; text is read as one."""
    result = number(value, at_least=at_least)
    if result != int(result):
        raise ValueError("must be a whole number")
    return int(result)


def flag(value: Any) -> bool:
    """True or false; text as people write it."""
    words = {
        "1": True,
        "true": True,
        "yes": True,
        "on": True,
        "0": False,
        "false": False,
        "no": False,
        "off": False,
    }
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in words:
        return words[value.lower()]
    raise ValueError("must be true or false")


def texts(value: Any) -> tuple[str, ...]:
    """One text, or a list of them. From the environment, one a line."""
    items = value.splitlines() if isinstance(value, str) else list(value)
    if not all(isinstance(item, str) for item in items):
        raise ValueError("must be a text or a list of texts")
    return tuple(item for item in items if item.strip())


def text(value: Any) -> str:
    """One text."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError("must be a text")
    return value


def pattern(value: Any) -> str:
    """A regular expression."""
    try:
        re.compile(text(value))
    except re.error as error:
        raise ValueError(f"must be a regular expression: {error}") from None
    return str(value)


def path(value: Any) -> Path:
    """A folder."""
    if not isinstance(value, str | os.PathLike) or not str(value):
        raise ValueError("must be a path")
    return Path(value).expanduser()


CONVERT: Mapping[str, Converter] = {
    "verify": verification,
    "on_failure": choice(OnFailure),
    "reduce": choice(Reduce),
    "repro_dir": path,
    "seconds": lambda value: number(value, at_least=0.0),
    "max_calls": lambda value: whole(value, at_least=1),
    "setup": texts,
    "reference": text,
    "value_limit_bytes": lambda value: whole(value, at_least=0),
    "reduce_oom": flag,
    "match": pattern,
    "env": texts,
    "flight_recorder": flag,
}
