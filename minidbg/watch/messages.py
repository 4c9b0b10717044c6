"""What reaches the daemon's loop, from other threads and processes, through one queue."""

from __future__ import annotations

import queue
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from minidbg.history import Revision
from minidbg.watch.builder import Built
from minidbg.watch.pool import Died, Ended, Ready


@dataclass(frozen=True, slots=True)
class Hint:
    """A path may have changed; None: some events were lost."""

    path: str | None


@dataclass(frozen=True, slots=True)
class Key:
    """A person asked for something: rerun, failing, pause, quit; or to bisect the repro at ``path`` between two revisions."""

    name: str
    path: str = ""
    good: str = ""
    bad: str = ""


@dataclass(frozen=True, slots=True)
class Stop:
    """The daemon is to end."""

    reason: str
    status: int = 0


@dataclass(frozen=True, slots=True)
class Revised:
    """What git said of the sources at a sweep."""

    sweep: int
    revisions: Mapping[str, Revision]


Message: TypeAlias = Hint | Key | Stop | Revised | Built | Ended | Ready | Died
Inbox: TypeAlias = "queue.SimpleQueue[Message]"
