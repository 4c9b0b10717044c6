"""The matrix of a daemon that is none, and its page from a server in this process."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from minidbg.extras.serve.serving import WebServer
from minidbg.history import State
from minidbg.watch import events
from minidbg.watch.page import Live
from minidbg.watch.repros import read_repros
from minidbg.words.outcome import Verdict


@contextmanager
def serving(home: Path, live: Live, asked: list[str] | None = None) -> Iterator[str]:
    server = WebServer("127.0.0.1:0", live, home, None if asked is None else asked.append)
    server.start()
    try:
        yield server.url
    finally:
        server.close()


COLUMNS = ("cpu", "cuda:0", "cuda:1", "acme:0", "acme:1", "cpu ACME_FUSE=1", "cpu {fuse=False}", "mps")
VERDICTS = tuple(
    map(Verdict, ("gone", "gone", "gone", "reproduces", "changed", "crashed", "timeout", "flaky", "skipped"))
)


def filled(home: Path, *, repros: int, columns: int) -> Live:
    """A matrix of that size, as a daemon tells of it when it starts."""
    home.mkdir(exist_ok=True)
    live, now = Live(), time.time()
    found = read_repros([home], home)
    live.repros = lambda: found
    more = range(repros - len(found))
    names = [*found, *(f"compile_op{number:04d}_{number * 7919 % 16**6:06x}.py" for number in more)]
    states = tuple(
        State(
            name, column, VERDICTS[(row * 7 + place) % len(VERDICTS)], now - 60 * row, now, "s", "e", "c",
            reason=f"LoweringException: no lowering for aten.op{row}.default" if row % 3 == 0 else "",
        )
        for row, name in enumerate(names) for place, column in enumerate(COLUMNS[:columns])
    )  # fmt: skip
    live.show(events.Started(7, str(home), tuple(names), (), 1, 2, states=states, at=now))
    return live
