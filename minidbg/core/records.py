"""Records as tables of plain values, and back: script headers, parcels, answers, the history.

msgspec checks each value of a table against its field's type. Keys of no field are passed over.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import EnumType
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec

from minidbg.core.errors import nearest
from minidbg.core.literals import read_literal, write_literal

AnyRecord = TypeVar("AnyRecord")

LITERALS = ("options", "config")
"""Fields of a backend and of a context that a table holds as the text of a Python literal: their
values may be None, tuples and torch's dtypes."""
MALFORMED = (ValueError, TypeError, SyntaxError, OverflowError, RuntimeError, MemoryError)
"""What reading a table that anybody may edit can raise; torch refuses a device by RuntimeError."""


def table_of(record: Any) -> dict[str, Any]:
    """The fields of ``record`` that differ from their defaults. Raises NotALiteral."""
    table: dict[str, Any] = {}
    for one in fields(record):
        usual = one.default if one.default_factory is MISSING else one.default_factory()
        value = getattr(record, one.name)
        if value == usual:
            continue
        if one.name in LITERALS:
            table[one.name] = write_literal(dict(value))
        else:
            table[one.name] = table_of(value) if is_dataclass(value) else plain(value)
    return table


def plain(value: Any) -> Any:
    """``value`` with each record as a dict of all its fields, and as JSON can hold it."""
    return msgspec.to_builtins(value, enc_hook=of_another_class)


def of_another_class(value: Any) -> Any:
    """What an instance of a subclass of somebody's is to everybody."""
    if isinstance(value, str):
        return str.__str__(value)
    return float(value) if isinstance(value, float) else str(value)


def record_of(table: Any, kind: type[AnyRecord]) -> AnyRecord:
    """The record that ``table_of`` or ``plain`` made ``table`` of. Raises one of MALFORMED, mostly
    ValueError with the place, the value and what belongs there."""
    record: AnyRecord = converted(_with_literals(table), kind)
    return record


def converted(value: Any, kind: Any, *, strict: bool = True) -> Any:
    """``value`` as that type; if not ``strict``, numbers and booleans may be texts. Raises
    ValueError as ``record_of`` does."""
    try:
        return msgspec.convert(value, kind, strict=strict)
    except msgspec.ValidationError as error:
        what, _, place = str(error).partition(" - at ")
        parts = re.findall(r"\.(\w+)|\[(\d+)\]", place.partition("[...]")[0])
        for name, index in parts:
            value = value[name or int(index)]
        where = "".join(f".{name}" if name else f"[{index}]" for name, index in parts)
        # the keys of a header's spec are the header's own
        where = where.removeprefix(".spec").removeprefix(".")
        what = f"{what[0].lower()}{what[1:]}"
        if "enum" in what:
            words = words_of(kind, [name for name, _ in parts])
            what = f"must be one of {', '.join(map(repr, words))}{nearest(value, words)}"
        raise ValueError(f"{where} = {value!r:.80}: {what}" if where else what) from None


def words_of(kind: Any, names: Iterable[str]) -> list[str]:
    """What may stand at a place of which the type is an enum or some words."""
    for name in (*names, ""):
        hint = get_type_hints(kind)[name] if name else kind
        inner = (arg for arg in get_args(hint) if is_dataclass(arg) or isinstance(arg, EnumType))
        kind = next(inner, hint)
    return [str(word) for word in (kind if isinstance(kind, EnumType) else get_args(kind))]


def _with_literals(table: Any) -> Any:
    if isinstance(table, Mapping):
        table = dict(table)
        for name in table.keys() & {"spec", "backend", "context"}:
            table[name] = _with_literals(table[name])
        for name in table.keys() & {*LITERALS}:
            table[name] = read_literal(table[name]) if isinstance(table[name], str) else table[name]
    return table


def describe_malformed(error: BaseException) -> str:
    match error:
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
