"""The kinds of failure: each one's words, and what the rest of the program must know of it.

A new kind is a member and row here; ARCHITECTURE says who sees it, and where its script has lines.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Traits:
    title: str
    """The first line of a repro."""
    warning: str
    """After the backend's name: of a program that goes on, and in a bug report."""
    happened: str = "failed"
    """Of graphs: ``3 graphs failed to compile``."""
    raises: bool = False
    """An exception of the backend, or of what it made, is the failure."""
    compares: bool = False
    """The results are held against eager's; its message is ``leaf: category``."""
    dies: bool = False
    """It ends the process, or must be ended with it: judged in a child, and the same by its kind
    alone, since stacks vary."""
    endless: bool = False
    """Each run takes its whole time limit."""
    compiles: bool = True
    """The backend comes to an end of compiling, which a cache may then save."""
    otherwise: str = "changed"
    """The verdict on such a failure where another one is expected."""
    said: str = ""
    """What a short script's own error says, where it is none of the backend's."""

    @property
    def raises_when_run(self) -> bool:
        """What was compiled raises, so that eager may be asked first."""
        return self.raises and self.compiles


UNSEEN = Traits(title="", warning="", compiles=False)
"""Of a case whose failure nobody has seen yet: nothing may be concluded."""


class Kind(enum.StrEnum):
    """In which way a backend fails.

    ``compile``: it raises. ``runtime``: what it compiled raises. ``accuracy``: that differs from
    eager. ``crash``: the process dies. ``hang``: it does not come back within the time limit.
    """

    COMPILE = "compile"
    RUNTIME = "runtime"
    ACCURACY = "accuracy"
    CRASH = "crash"
    HANG = "hang"

    @property
    def traits(self) -> Traits:
        return TRAITS[self]


TRAITS: Mapping[Kind, Traits] = {
    Kind.COMPILE: Traits(
        title="{backend} fails to compile {ops}.",
        warning="failed to compile",
        happened="failed to compile",
        raises=True,
        compiles=False,
    ),
    Kind.RUNTIME: Traits(
        title="The code that {backend} makes of {ops} fails.",
        warning="failed to run",
        happened="failed to run",
        raises=True,
    ),
    Kind.ACCURACY: Traits(
        title="{backend} gives wrong results for {ops}.",
        warning="gives wrong results for",
        happened="gave wrong results",
        compares=True,
    ),
    Kind.CRASH: Traits(
        title="The process dies in {backend} with {ops}.",
        warning="ended a process with",
        dies=True,
        otherwise="crashed",
        said="the process died",
    ),
    Kind.HANG: Traits(
        title="{backend} does not come back from {ops}.",
        warning="did not come back from",
        dies=True,
        endless=True,
        otherwise="timeout",
        said="TimeoutExpired",
    ),
}
