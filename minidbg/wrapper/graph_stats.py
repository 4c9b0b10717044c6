"""Which graphs of this process are verified: ``minidbg.stats()``."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
from collections import Counter
from dataclasses import asdict, dataclass

from minidbg.wrapper.process import PROCESS

VARIABLE = "MINIDBG_STATS"


@dataclass(frozen=True, slots=True)
class Stats:
    """How many graphs this process gave to wrapped backends, and how many of them were compared with eager.

    ``graphs`` is the sum of ``verified``, ``failed``, ``not_run`` and the values of ``not_verified`` and ``eager_raises``.
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
    eager_raises: dict[str, int]
    """Graphs for whose inputs eager raises where the backend returned a result, by what is said of them."""
    left_out: dict[str, int]
    """Graphs of which a part was not judged (an output that eager itself gives differently each time), by reason."""


def stats() -> Stats:
    """How many graphs of this process are verified, and why the others are not. Raises nothing.

    At its end a process appends the same as a line of JSON to the file named by ``MINIDBG_STATS``.
    """
    own = [one for one in PROCESS.graphs if one.process == os.getpid() and not one.restarted]
    judged = [one for one in own if one.failed or one.verified]
    others = [one for one in own if not (one.failed or one.verified)]
    why_not = [one.handed_back or one.why_not for one in others if not one.eager_raises]
    return Stats(
        graphs=len(own),
        verified=sum(not one.failed for one in judged),
        failed=sum(one.failed for one in judged),
        not_run=why_not.count(""),
        not_verified=dict(Counter(filter(None, why_not))),
        eager_raises=dict(Counter(one.eager_raises for one in others if one.eager_raises)),
        left_out=dict(Counter(note for one in own for note in one.left_out)),
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
