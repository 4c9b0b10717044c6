"""Text for people. That of others is made safe: exceptions, headers and file names are data, and a
terminal obeys what it reads. And JSON and phases among other lines: what a process says to one that
reads its stdout, and logs."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any


def printable(text: str, shown: str = "\n\t") -> str:
    """``text`` with what is no printable character, nor ``shown``, shown as an escape.

    Among them: control sequences (``\\x1b[2J``), marks of writing direction, half surrogates.
    """
    plain = {sign for sign in text if sign.isprintable() or sign in shown}
    return "".join(sign if sign in plain else sign.encode("unicode_escape").decode() for sign in text)


def in_one_line(text: str) -> str:
    return printable(text, shown="\t")


def abridged(text: str, width: int) -> str:
    """The first line of ``text``, cut between words where it is longer than ``width``."""
    line = " ".join(text[: 4 * width].strip().partition("\n")[0].split())  # it may hold megabytes
    end = line.rfind(" ", width // 2, width - 3)
    return line if len(line) <= width else f"{line[: end if end > 0 else width - 4]} ..."


def last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2].strip()


def display_path(path: str | os.PathLike[str]) -> str:
    """``path`` as one would type it here: relative inside the working directory, else whole."""
    relative = os.path.relpath(path)
    return os.fspath(path) if relative.startswith("..") else relative


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def signal_name(number: int) -> str:
    return signal.Signals(number).name if number in [*signal.Signals] else f"signal {number}"


def moment(at: float) -> str:
    """A time, in seconds since the epoch, as people write it."""
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))
    except (OverflowError, ValueError, OSError):
        return f"{at!r} s"  # out of a damaged file: beyond what a calendar holds


def last_json(text: str) -> Mapping[str, Any] | None:
    return next(json_objects(reversed(text.splitlines())), None)


def json_objects(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The lines that are JSON objects, without those that a kill or a full disk has cut off."""
    for line in lines:
        if line.startswith("{"):
            with contextlib.suppress(ValueError, RecursionError):
                yield json.loads(line)


def last_phase(text: str) -> str:
    """The last phase that a run named on stdout (``phase compile forward``); empty without one."""
    phases = (line for line in reversed(text.splitlines()) if line.startswith("phase "))
    return next(phases, "").removeprefix("phase ")
