"""Text for people. That of others is made safe: exceptions, headers and file names are data, and a
terminal obeys what it reads."""

from __future__ import annotations

import os
import signal
import time


def printable(text: str) -> str:
    """``text`` with what is no printable character shown as an escape; line breaks and tabs stay.

    Control sequences (``\\x1b[2J``), marks that turn the direction of writing, and half surrogates are among them.
    """
    return "".join(one if one.isprintable() or one in "\n\t" else escape(one) for one in text)


def in_one_line(text: str) -> str:
    return printable(text).replace("\n", "\\n")


def escape(character: str) -> str:
    return (
        character.encode("ascii", "backslashreplace").decode()
        if ord(character) > 127
        else f"\\x{ord(character):02x}"
    )


def last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2].strip()


def display_path(path: str | os.PathLike[str]) -> str:
    """``path`` as a person would type it from here: relative where it lies in the working directory, else whole."""
    relative = os.path.relpath(path)
    return os.fspath(path) if relative.startswith("..") else relative


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def shrinkage(before: int, after: int) -> str:
    """``44 -> 1 nodes``; ``1 node, nothing to remove``."""
    if before != after:
        return f"{before} -> {after} nodes"
    return f"{plural(after, 'node')}, {'nothing to remove' if after == 1 else 'none removed'}"


def ordinal(number: int) -> str:
    """``1st``, ``2nd``, ``11th``, of a number that counts from 1."""
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{'th' if number % 100 in (11, 12, 13) else ending}"


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def moment(at: float) -> str:
    """A time, in seconds since the epoch, as people write it."""
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))
    except (OverflowError, ValueError, OSError):
        return f"{at!r} s"  # out of a damaged file: beyond what a calendar holds
