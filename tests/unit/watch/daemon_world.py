"""A daemon without processes, events or sleep: a pool that answers from a table, and hints that the test gives."""

from __future__ import annotations

import json
import os
import queue
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.doubles import Children

from minidbg.judge.command import JUDGE_SCRIPT
from minidbg.watch.daemon import Daemon, FilesChanged, Inbox
from minidbg.watch.events import Event
from minidbg.watch.settings import WatchSettings
from minidbg.watch.views import Announcer, View
from minidbg.workers import Ended, Request

REPRO = """# /// script
# [tool.minidbg]
# schema = 1
# kind_if_unseen = "{kind}"
# expect = "{expect}"
# backend = {{name = "toy", modules = ["toy_backend"]}}
# ///
def backend():
    import toy_backend
"""

MACHINE = {"environments": {"cpu": "cpu|a processor", "cuda:0": "cuda:0|a GPU"}, "torch": "2.13.0"}


def script_of(order: Request) -> str:
    """The script that an order judges; empty for a canary and for a question about devices."""
    return order.argv[1] if order.argv[:1] == (JUDGE_SCRIPT,) and "one_op" not in order.argv[2] else ""


@dataclass
class TablePool:
    """Answers each order at once, by what the sources say: a repro ``x.py`` does what ``toy_backend/x.py`` holds."""

    package: Path
    orders: list[Request] = field(default_factory=list)
    canary: str = "gone"
    """What a program of a single op shows."""
    during: Callable[[Request], None] = lambda order: None
    """What happens in the world while an order runs."""
    lose: int = 0
    """How many of the next runs of a repro the server dies under."""
    stale: Sequence[str] = ()
    """Files that the servers have loaded and that have changed since."""
    closed: bool = False

    def let_go(self) -> None: ...

    def submit(self, order: Request) -> Future[Ended]:
        return Children(self.ends)(order)

    def ends(self, order: Request) -> Ended:
        self.orders.append(order)
        self.during(order)
        if self.lose and script_of(order):
            self.lose -= 1
            return Ended(lost=True, error="out of memory")
        return self.answer(order)

    def answer(self, order: Request) -> Ended:
        if order.call:
            return Ended(value=MACHINE, answered=True)
        if "one_op" in order.argv[2]:
            return Ended(exit_status=0, stdout=json.dumps({"verdict": self.canary, "reason": "because"}))
        source = self.package / Path(script_of(order)).name
        verdict = source.read_text().strip()
        if verdict == "SEGV":
            return Ended(signal=11, stdout="phase compile forward\n")
        files = str(source), str(self.package / "__init__.py"), os.path.realpath(script_of(order))
        files = files if order.fork is not None else None
        return Ended(exit_status=0, stdout=json.dumps({"verdict": verdict, "seconds": 0.1}), files=files)

    def refresh(self) -> Sequence[str]:
        stale, self.stale = self.stale, ()
        return stale

    def close(self) -> None:
        self.closed = True


@dataclass
class GivenEvents:
    """Events that only a test sends; ``why`` makes it say that there are none."""

    why: str = ""
    watched: list[str] = field(default_factory=list)

    def watch(self, roots: Sequence[str], shallow: Sequence[str]) -> None:
        if self.why:
            raise OSError(self.why)
        self.watched = [*roots, *shallow]

    def stop(self) -> None:
        pass


class World:
    """A folder of repros, the backend's package, and a daemon that is moved on by hand."""

    def __init__(self, folder: Path, *views: View) -> None:
        """``views`` are told of events too."""
        self.views = views
        self.folder, self.repros, self.package = folder, folder / "repros", folder / "src" / "toy_backend"
        self.repros.mkdir()
        self.package.mkdir(parents=True)
        (self.package / "__init__.py").write_text("")
        self.told: list[Event] = []
        self.daemon: Daemon = None  # type: ignore[assignment]

    def repro(self, name: str, verdict: str, *, kind: str = "compile", expect: str = "reproduces") -> None:
        (self.repros / f"{name}.py").write_text(REPRO.format(kind=kind, expect=expect))
        (self.package / f"{name}.py").write_text(verdict)

    def start(self, repros: dict[str, str] | None = None, **settings: object) -> Daemon:
        """A daemon that has done all that there is to do at first, with more repros and their verdicts."""
        daemon = self.begin(repros, **settings)
        self.settle()
        return daemon

    def begin(self, repros: dict[str, str] | None = None, **settings: object) -> Daemon:
        for name, verdict in (repros or {}).items():
            self.repro(name, verdict)
        inbox: Inbox = queue.SimpleQueue()
        self.pool, self.events = TablePool(self.package), GivenEvents()
        given = WatchSettings(**{"jobs": 1, **settings})
        views = Announcer([self, *self.views])
        self.daemon = Daemon([self.repros], given, views, inbox, self.events, lambda hidden: self.pool)
        self.daemon.start()
        return self.daemon

    def settle(self) -> None:
        """Let the daemon do all that there is to do."""
        for _ in range(300):
            while not self.daemon.inbox.empty() and self.daemon.status is None:
                self.daemon.guarded(self.daemon.dispatch, self.daemon.inbox.get())
            if self.daemon.status is not None:
                return
            if self.daemon.build is not None:
                self.daemon.guarded(self.daemon.dispatch, self.daemon.inbox.get(timeout=30))
            self.daemon.step(max(time.monotonic(), self.daemon.watched.soonest_rescan))
            idle = self.daemon.sweep is None and not self.daemon.watched.wants_sweep
            if idle and self.daemon.inbox.empty():
                return
        raise AssertionError(f"the daemon does not come to rest: {self.told[-12:]}")

    def save(self, name: str, text: str) -> None:
        """A file of the backend is another now, and the daemon has done all that follows."""
        self.write(self.package / f"{name}.py", text)

    def write(self, path: Path, text: str) -> None:
        self.edit(path, text)
        self.settle()

    def edit(self, path: Path, text: str) -> None:
        path.write_text(text)
        self.daemon.inbox.put(FilesChanged())

    def put(self, message: object) -> None:
        self.daemon.inbox.put(message)
        self.settle()

    def show(self, event: Event) -> None:
        self.told.append(event)

    def close(self) -> None:
        pass

    def data(self, name: str, key: str) -> list[Any]:
        """What the events of that name say under the key."""
        return [getattr(event, key) for event in self.names(name)]

    def names(self, name: str) -> list[Event]:
        return [event for event in self.told if event.name == name]

    def flips(self) -> list[tuple[str, str]]:
        return [(event.kind, event.repro) for event in self.names("flip")]

    def ran(self) -> list[str]:
        """The repros that were run since the last call, canaries left out."""
        orders, self.pool.orders = self.pool.orders, []
        return [Path(script).stem for order in orders if (script := script_of(order))]
