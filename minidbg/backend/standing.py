"""Which graphs of this process are verified, and why the others are not: ``minidbg.stats()``."""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
from collections import Counter
from dataclasses import asdict, dataclass, field

from minidbg.backend.budget import PROCESS

log = logging.getLogger("minidbg")
VARIABLE = "MINIDBG_STATS"
NOT_ASKED = "verify='never'"


@dataclass(slots=True)
class GraphStanding:
    """What is known of one graph; the last fact that is set counts least, in the order of the fields."""

    failed: bool = False
    """The backend failed on it, or gave wrong results."""
    verified: bool = False
    """A call of it was compared with eager and agreed."""
    why_not: str = ""
    """Why no call of it was compared."""
    left_out: tuple[str, ...] = ()
    """What was not judged in a call that was compared."""
    restarted: bool = False
    """Dynamo stopped the compile, to begin again with another graph."""
    process: int = field(default_factory=os.getpid)

    def not_verified(self, reason: str) -> None:
        """Note why the graph is not verified, and say it once in this process."""
        self.why_not = self.why_not or reason
        if PROCESS.is_new(f"not verified: {reason}"):
            log.warning("minidbg: a graph is not verified: %s", reason)

    def leave_out(self, note: str) -> None:
        """Note what a comparison leaves out, and say it once in this process."""
        self.left_out = tuple(dict.fromkeys((*self.left_out, note)))
        if PROCESS.is_new(f"left out: {note}"):
            log.warning("minidbg: a part of a graph is not verified: %s", note)


@dataclass(frozen=True, slots=True)
class Stats:
    """How many graphs this process gave to wrapped backends, and how many of them were compared with eager.

    ``graphs`` is the sum of ``verified``, ``failed``, ``not_run`` and the values of ``not_verified``.
    """

    graphs: int
    verified: int
    """At least one call was compared with eager and agreed."""
    failed: int
    """The backend raised, or gave wrong results."""
    not_run: int
    """Compiled, and not called yet."""
    not_verified: dict[str, int]
    """By reason."""
    left_out: dict[str, int]
    """Graphs of which a part was not judged (an output that eager itself gives differently each time), by reason."""


GRAPHS: list[GraphStanding] = []


def of_new_graph() -> GraphStanding:
    """The standing of one more graph."""
    standing = GraphStanding()
    GRAPHS.append(standing)
    return standing


def stats() -> Stats:
    """How many graphs of this process are verified, and why the others are not. Raises nothing.

    At its end a process appends the same as a line of JSON to the file named by ``MINIDBG_STATS``.
    """
    own = [one for one in GRAPHS if one.process == os.getpid() and not one.restarted]
    judged = [one for one in own if one.failed or one.verified]
    others = [one for one in own if not (one.failed or one.verified)]
    return Stats(
        graphs=len(own),
        verified=sum(not one.failed for one in judged),
        failed=sum(one.failed for one in judged),
        not_run=sum(not one.why_not for one in others),
        not_verified=dict(Counter(one.why_not for one in others if one.why_not)),
        left_out=dict(Counter(note for one in judged for note in one.left_out)),
    )


@atexit.register
def write_stats() -> None:
    """Append this process's line to the file that ``MINIDBG_STATS`` names; of several processes each line stays whole."""
    path = os.environ.get(VARIABLE)
    found = stats()
    if path and found.graphs:
        line = json.dumps({**asdict(found), "pid": os.getpid()}) + "\n"
        with contextlib.suppress(OSError), open(path, "a", encoding="utf-8") as file:
            file.write(line)
