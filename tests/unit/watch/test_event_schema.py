"""What ``minidbg watch`` prints of each event: its JSON, byte for byte, since programs read it, and its line for people.

After a change that is meant, write the golden file anew with ``MINIDBG_WRITE_GOLDEN=1`` and read the difference.
"""

from __future__ import annotations

import io
import os
from dataclasses import replace
from pathlib import Path

from minidbg.core.outcome import Verdict
from minidbg.watch import events
from minidbg.watch.events import Event, Flipped, Judged, Notice, Unconfirmed
from minidbg.watch.states import Transition
from minidbg.watch.views import Announcer, JsonLines, PlainLines

GOLDEN = Path(__file__).parents[2] / "golden" / "watch_events.txt"
GONE, REPRODUCES, CHANGED = Verdict.GONE, Verdict.REPRODUCES, Verdict.CHANGED
FLIP = Flipped(
    "ops/a.py", "cpu", "FIXED", REPRODUCES, GONE, 2, 1, ("src/toy/x.py",), "aaaaaaaaaa", "aaaaaaaaaa+12345678", "/r/ops/a.py"
)  # fmt: skip
JUDGED = Judged(2, "a.py", "cpu", Transition.STILL_FAILING, REPRODUCES, 0.25, 1, "", expected=True, since=9.5)
EVENTS: list[Event] = [
    events.Started(7, "/r", ("a.py", "b.py"), ("src/toy", "csrc"), files=3, jobs=2),
    FLIP,
    replace(FLIP, files=("src/toy/__init__.py",), first_after="aaaaaaaaaa"),
    replace(
        FLIP, files=("a.py", "b.py", "c.py"), last_before="one a, two b", first_after="one a, two b+12345678"
    ),
    replace(FLIP, kind="changed", after=CHANGED, files=(), last_before="", first_after=""),
    replace(FLIP, files=(), watched=False),
    events.ReproFileChanged("added", "new.py"),
    events.ReproFileChanged("edited", "new.py"),
    events.ReproFileChanged("damaged", "new.py", "damaged: no block"),
    events.ReproFileChanged("removed", "new.py"),
    events.SweepStarted(2, 1, 2, (), 0),
    events.SweepStarted(2, 2, 2, ("src/a.py", "src/b.py", "src/c.py", "src/d.py"), 4),
    Unconfirmed(2, "a.py", "cpu", REPRODUCES, seen=True, verdict=GONE, seconds=0.25),
    Unconfirmed(2, "a.py", "cpu", GONE, seen=False, verdict=REPRODUCES, seconds=0.25),
    JUDGED,
    replace(JUDGED, transition=Transition.REGRESSED, verdict=CHANGED, message="KeyError: 'x'\nmore"),
    replace(
        JUDGED, transition=Transition.SKIPPED, verdict=None, reason="no device", expected=None, since=None
    ),
    replace(JUDGED, transition=Transition.NEW, reason="\x1b]0;owned\x07 \x1b[2J"),
    events.SweepFinished(2, "complete", 1.5, {"still failing": 1, "FIXED": 1}, 0),
    events.SweepFinished(2, "superseded", 1.5, {}, 2),
    events.BackendBroken("toy", "cpu", "SyntaxError", 1),
    events.BackendBack("toy", "cpu"),
    events.BuildStarted("make"),
    events.BuildFailed(2, 0.5, "cc x.c\nx.c:1: error: no", "x.c:1: error: no"),
    events.BuildFailed(2, 0.5, "make: *** [all] Error 1", "x.c:1: error: no"),
    events.BuildFinished(0.5),
    Notice("stopping: SIGTERM"),
    events.Fault("a fault in minidbg itself", "Traceback"),
]


def test_events_are_printed_as_ever() -> None:
    stream = io.StringIO()
    for event in EVENTS:
        event = replace(event, at=10.0)
        JsonLines(stream).show(event)
        stream.write("".join(f"    {line}\n" for line in event.line().splitlines()))
    if os.environ.get("MINIDBG_WRITE_GOLDEN"):
        GOLDEN.write_text(stream.getvalue())
    assert stream.getvalue() == GOLDEN.read_text()
    kinds = {one for one in vars(events).values() if isinstance(one, type) and "name" in vars(one)}
    assert kinds - {Event} == {type(event) for event in EVENTS}, "each is in the table"


def test_something_that_is_to_be_said_once_is() -> None:
    stream = io.StringIO()
    announce = Announcer([PlainLines(stream)])
    for key, text in (("disk", "full"), ("disk", "still full"), ("git", "away")):
        announce.once(key, Notice(text))
    assert [line[9:] for line in stream.getvalue().splitlines()] == ["full", "away"]
