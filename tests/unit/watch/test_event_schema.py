"""What ``minidbg watch --json`` prints, byte for byte: programs read it, so no key, type or order in it may change unawares.

Each session below is played through a whole daemon; together they have every event, and after each session's JSON stand its
lines for people. Moments and durations stand as their type. After a change that is meant, write the file anew with
``MINIDBG_WRITE_GOLDEN=1`` and read the difference.
"""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from daemon_world import REPRO, World, script_of

from minidbg.history import Revision
from minidbg.watch import daemon, events
from minidbg.watch.daemon import FilesChanged, Stop
from minidbg.watch.events import Event, Notice
from minidbg.watch.runner import Built
from minidbg.watch.settings import FailOn
from minidbg.watch.views import Announcer, JsonLines, PlainLines
from minidbg.workers import Ended, Request
from minidbg.workers.pool import Died, Ready

GOLDEN = Path(__file__).parents[2] / "golden" / "watch_events.txt"
MOMENTS = re.compile(r'"(at|since|seconds|first_verdict_seconds)": -?\d+\.\d+(?=[,}])')
SAID_AT = re.compile(r"(?m)^\d\d:\d\d:\d\d ")
TOOK = re.compile(r"\d+\.\d+ s\b")

Play = Callable[[Path, pytest.MonkeyPatch, pytest.CaptureFixture[str]], str]


class Session(World):
    """A world whose events are written as JSON lines. Its backend is at one revision in each sweep."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.json, self.lines = io.StringIO(), io.StringIO()
        super().__init__(folder, JsonLines(self.json), PlainLines(self.lines, every_result=True))
        patch.syspath_prepend(str(folder / "src"))
        patch.chdir(folder)
        patch.setattr(daemon, "revisions", lambda roots: {"/src": Revision("a" * 40, "b" * 40)})

    def begin(self, repros: dict[str, str] | None = None, **settings: object) -> Any:
        found = super().begin(repros, **settings)
        self.pool.during = self.with_revision
        return found

    def with_revision(self, order: Request) -> None:
        """Git answers before the first run, and not from its own thread at some moment."""
        sweep = self.daemon.sweep
        if sweep is not None:
            self.daemon.history.set_revisions(sweep.number, daemon.revisions([]))

    def end(self) -> str:
        """What was printed until the daemon has ended."""
        self.put(Stop("SIGTERM"))
        self.daemon.end()
        return self.printed()

    def printed(self) -> str:
        return self.json.getvalue() + SAID_AT.sub("", self.lines.getvalue())


def a_day(folder: Path, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """Repros that come and go, flips, a broken backend, a device that is not here."""
    world = Session(folder, patch)
    world.repro("a", "reproduces")
    world.repro("b", "SEGV", kind="crash")
    (world.repros / "cut_off.py").write_text("# /// script\n")
    world.start(devices="cpu,cuda:1")
    world.put(Ready(1.25))
    world.put(Died(-9, "out of memory"))
    world.put(Notice("a machine has joined"))
    world.save("a", "gone")
    answer = world.pool.answer

    def changed(order: Request) -> Ended:
        said = {"verdict": "changed", "seconds": 0.1, "message": "KeyError: 'x'\nmore", "reason": ""}
        is_run = script_of(order).endswith("a.py")
        return Ended(exit_status=0, stdout=json.dumps(said)) if is_run else answer(order)

    world.pool.answer = changed  # type: ignore[method-assign]
    world.save("a", "gone ")
    world.pool.answer = answer  # type: ignore[method-assign]
    for canary, text in (("invalid", "gone"), ("skipped", "gone  "), ("gone", "gone   ")):
        world.pool.canary = canary
        world.save("a", text)
    (world.package / "new.py").write_text("reproduces")
    new = world.repros / "new.py"
    world.write(new, REPRO.format(kind="compile", expect="reproduces"))
    world.write(new, REPRO.format(kind="runtime", expect="gone"))
    world.write(new, "# /// script\n")
    new.unlink()
    world.put(FilesChanged())
    return world.end()


def with_a_build(folder: Path, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """A build that fails, then one that does not."""
    ends = iter([(2, "cc x.c\nx.c:1: error: no", "x.c:1: error: no"), (0, "done", "")])

    class ScriptedBuild:
        def __init__(self, command: str, folder: Path) -> None: ...

        def wait(self) -> Built:
            status, output, error = next(ends)
            return Built(self, status, 0.5, output, error)  # type: ignore[arg-type]

        def cancel(self) -> None: ...

    patch.setattr(daemon, "Build", ScriptedBuild)
    world = Session(folder, patch)
    world.start({"a": "reproduces"}, build="make")
    world.save("a", "reproduces ")
    return world.end()


def with_new_workers(folder: Path, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """A save when files have changed that the workers had loaded."""
    world = Session(folder, patch)
    world.start({"a": "reproduces"})
    for others in ((), (str(folder / "other.py"),)):
        world.pool.stale = (str(folder / "library.py"), *others)
        world.save("a", f"reproduces{' ' * len(others)} ")
    return world.end()


def once(folder: Path, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """``--once --fail-on unexpected`` with a repro that contradicts its header."""
    world = Session(folder, patch)
    world.repro("fixed", "gone")
    world.start(once=True, fail_on=FailOn.UNEXPECTED)
    world.daemon.end()
    return world.printed()


def begun_again(folder: Path, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """A second daemon goes on from the states of the first, and says the flip that was stored and not told."""
    world = Session(folder, patch)
    world.start({"a": "reproduces"})
    world.save("a", "gone")
    world.daemon.history.connection.execute("update flips set announced = 0")
    world.daemon.end()
    world.json.truncate(world.json.seek(0))
    world.lines.truncate(world.lines.seek(0))
    world.start()
    return world.end()


SESSIONS = (a_day, with_a_build, with_new_workers, once, begun_again)


def as_types(text: str, folder: Path) -> str:
    """``text`` with the type of each moment in its place, and without this folder and this process."""
    text = MOMENTS.sub(r'"\1": float', text.replace(str(folder), "FOLDER"))
    text = TOOK.sub("0.0 s", text.replace(f'"pid": {os.getpid()},', '"pid": int,'))
    return text.replace(f"(process {os.getpid()})", "(process int)")


def written() -> Iterator[tuple[str, str]]:
    """Each session's name and lines in the golden file."""
    if GOLDEN.exists():
        parts = re.split(r"(?m)^# (\w+)\n", GOLDEN.read_text())
        yield from zip(parts[1::2], parts[2::2], strict=True)


@pytest.mark.parametrize("play", SESSIONS, ids=lambda play: play.__name__)
def test_events_are_printed_as_ever(
    play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write = os.environ.get("MINIDBG_WRITE_GOLDEN")
    monkeypatch.delenv("MINIDBG_WRITE_GOLDEN", raising=False)  # it is no setting of minidbg
    found = as_types(play(tmp_path, monkeypatch, capsys), tmp_path)
    if write:
        known = {**dict(written()), play.__name__: found}
        GOLDEN.write_text("".join(f"# {name}\n{lines}" for name, lines in known.items()))
    assert found == dict(written())[play.__name__]


def test_the_sessions_have_every_event() -> None:
    printed = set(re.findall(r'(?m)^{"event": "(\w+)"', GOLDEN.read_text()))
    assert printed == {
        kind.name
        for kind in vars(events).values()
        if isinstance(kind, type) and "name" in vars(kind) and kind is not Event
    }


def test_something_that_is_to_be_said_once_is() -> None:
    stream = io.StringIO()
    announce = Announcer([PlainLines(stream)])
    for key, text in (("disk", "full"), ("disk", "still full"), ("git", "away")):
        announce.once(key, Notice(text))
    assert SAID_AT.sub("", stream.getvalue()) == "full\naway\n"
