"""How a child process ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

JSON: TypeAlias = Any
"""What ``json`` can write, or ``bytes``."""


@dataclass(frozen=True, slots=True)
class ChildResult:
    """How a child ended, and what it answered if it did."""

    value: JSON = None
    """The answer; None also when there is none: see ``answered``."""
    answered: bool = False
    error: str = ""
    """The traceback, when the question itself raised."""
    signal: int | None = None
    exit_status: int | None = None
    """Neither is known when someone else has reaped the child."""
    timed_out: bool = False
    out_of_memory: bool = False
    """Whether the child was ended for passing ``memory_bytes``."""
    note: str = ""
    """The last thing that the child noted."""
    stderr_tail: str = ""
    """The end of what it wrote to stderr (and stdout, if forked), with the stack that faulthandler wrote."""
    stdout: str = ""
    """What a program wrote to stdout."""
    seconds: float = 0.0
