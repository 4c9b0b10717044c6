"""Checks of settings: from what a person wrote, in a call, a file or a variable, to the type of the setting."""

from __future__ import annotations

import dataclasses
import enum
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from minidbg.core.errors import nearest

Converter: TypeAlias = Callable[[Any], Any]
"""From what was written to the setting's type. Raises ValueError or TypeError that says what is allowed."""


def choice(kind: type[enum.StrEnum]) -> Converter:
    return lambda value: kind(one_of(value, [str(member) for member in kind]))


def number(value: Any, *, at_least: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("must be a number")
    try:
        result = float(value)
    except (ValueError, OverflowError):
        raise ValueError("must be a number") from None
    if not result >= at_least:
        raise ValueError(f"must be {at_least:g} or more")
    return result


def integer(value: Any, *, at_least: int) -> int:
    result = number(value, at_least=at_least)
    if not result.is_integer():
        raise ValueError("must be an integer")
    return int(result)


def boolean(value: Any) -> bool:
    yes, no = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in yes + no:
        return value.lower() in yes
    raise ValueError("must be a boolean (true or false)")


def strings(value: Any) -> tuple[str, ...]:
    """One text, or a list of them. From the environment, one a line."""
    if not isinstance(value, str | list | tuple) or not all(isinstance(item, str) for item in value):
        raise ValueError("must be a string or a list of strings")
    items = value.splitlines() if isinstance(value, str) else value
    return tuple(item for item in items if item.strip())


def string(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("must be a string")
    return value


def one_of(value: Any, words: Sequence[str]) -> str:
    if isinstance(value, str) and value in words:
        return str(value)
    near = nearest(value, words) if isinstance(value, str) else ""
    raise ValueError(f"must be one of {', '.join(map(repr, words))}{near}")


def pattern(value: Any) -> str:
    try:
        re.compile(string(value))
    except re.error as error:
        raise ValueError(f"must be a regular expression: {error}") from None
    return str(value)


def path(value: Any) -> Path:
    if not isinstance(value, str | os.PathLike) or not str(value) or "\0" in str(value):
        raise ValueError("must be a path")
    try:
        return Path(value).expanduser()
    except RuntimeError as error:
        raise ValueError(f"must be a path: {error}") from None


def setting(default: Any, check: Converter) -> Any:
    return dataclasses.field(default=default, metadata={"check": check})
