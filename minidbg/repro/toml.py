"""A small TOML writer: ``tomllib.loads`` of the lines gives the table back, whatever its strings hold."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_SHORT_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f"}
DOTTED = frozenset({"signature"})
"""Tables whose values get a line each; others are written in one line."""


def write_lines(table: Mapping[str, Any]) -> Iterator[str]:
    """A line ``key = value`` for each value of ``table``, without the table's own name.

    Values: bool, int, float, str, lists and mappings of these. Half surrogates, which TOML cannot hold, become U+FFFD.
    No line holds a character that any reader takes for a line break.
    """
    for key, value in table.items():
        if key in DOTTED and isinstance(value, Mapping) and value:
            yield from (f"{_key(key)}.{_key(part)} = {write_value(item)}" for part, item in value.items())
        else:
            yield f"{_key(key)} = {write_value(value)}"


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _string(key)


def write_value(value: Any) -> str:
    """``value`` as TOML, on one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(key)} = {write_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, Sequence):
        return "[" + ", ".join(map(write_value, value)) + "]"
    raise TypeError(f"TOML has no form for a {type(value).__name__}: {value!r}")


def _float(value: float) -> str:
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    text = repr(float(value))
    return text if "." in text or "e" in text else f"{text}.0"


def _string(text: str) -> str:
    return '"' + "".join(map(_character, text)) + '"'


def _character(character: str) -> str:
    if character in _SHORT_ESCAPES:
        return _SHORT_ESCAPES[character]
    if character.isprintable():
        return character
    code = ord(character)
    if 0xD800 <= code <= 0xDFFF:
        return "\ufffd"
    return f"\\u{code:04X}" if code <= 0xFFFF else f"\\U{code:08X}"
