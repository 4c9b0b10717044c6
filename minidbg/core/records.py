"""Records that are read from a file which anybody may have edited: each field has the type that its
class says, or the file is damaged."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import MISSING, fields
from typing import Any

FIELD_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "str": ((str,), "a string"),
    "bool": ((bool,), "a boolean"),
    "int": ((int,), "an integer"),
    "float": ((int, float), "a number"),
}
"""What an annotation allows, and its name in a sentence; ``X | None`` allows None as well."""


def check_types(record: Any) -> None:
    """Raises ValueError, with name and value, where a field of the dataclass ``record`` holds
    another type than its annotation says.

    Fields that are no string, number or boolean are left to who reads them.
    """
    for one in fields(record):
        plain = str(one.type).removesuffix(" | None")
        value = getattr(record, one.name)
        if plain not in FIELD_TYPES or (value is None and plain != one.type):
            continue
        allowed, name = FIELD_TYPES[plain]
        if not isinstance(value, allowed) or (isinstance(value, bool) and plain != "bool"):
            raise ValueError(f"{one.name} = {value!r:.80}: expected {name}")


def differing(record: Any, without: Collection[str] = ()) -> dict[str, Any]:
    """The fields of a record that differ from their defaults, but those named in ``without``."""
    table = {}
    for item in fields(record):
        usual = item.default if item.default_factory is MISSING else item.default_factory()
        if item.name not in without and (value := getattr(record, item.name)) != usual:
            table[item.name] = list(value) if isinstance(value, tuple) else value
    return table


def describe_malformed(error: BaseException) -> str:
    match error:
        case KeyError():
            what = f"its header has no {error}"
        case MemoryError() | RecursionError():
            what = "its code or its header is nested too deeply to be read"
        case SyntaxError():
            what = f"not a Python script any more: {error}"
        case UnicodeDecodeError():
            what = f"not UTF-8 text ({error.reason})"
        case ValueError():
            what = str(error)
        case _:
            what = f"{type(error).__name__}: {error}"
    return what if "; " in what else f"{what}; fix it or move it away"


def string_list(value: Any, name: str) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
        raise ValueError(f"{name} = {value!r:.80}: expected a list of strings")
    return tuple(value)


def mapping(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{name} = {value!r:.80}: expected a mapping")
    return value
