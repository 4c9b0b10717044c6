"""``minidbg watch`` as a process: what it tells in each session, and what ``list``, ``status`` and ``history`` print after it.

After a change that is meant, ``MINIDBG_WRITE_CORPUS=1 pytest tests/corpus/test_sessions.py`` writes the texts anew; read the difference.
"""

from __future__ import annotations

import difflib
import json
import re
from pathlib import Path

import pytest
from support.command_line import cli

from corpus.sessions import SESSIONS, Desk, Session
from corpus.writing import WRITES

TEXTS = Path(__file__).with_name("sessions")
COMMANDS = (["list"], ["history"], ["history", "relu.py"])
VOLATILE = (
    (r"^.*\bsweep \d+, probe\b.*\n", ""),
    (r"\d{4}-\d\d-\d\d \d\d:\d\d(:\d\d)?", "TIME"), (r"\+[0-9a-f]{8}\b|\([0-9a-f]{8}\)", "+EDITS"),
    (r"\b[0-9a-f]{10}\b", "COMMIT"), (r"\bsweep:? \d+", "sweep N"), (r"\b(the last of \d+ runs|run)$", "RUNS"), (r"\b\d+\.\d+ s\b", "SECONDS"), (r"\b(process|pid) \d+", r"\1 PID"),
)  # fmt: skip


def texts_after(desk: Desk) -> str:
    """What the daemon and the commands print, without what differs from run to run."""
    printed = ["$ minidbg watch --json", *desk.json[1:], ""]
    for words in COMMANDS:
        done = cli(*words, cwd=desk.folder, env=desk.env)
        lines = done.stdout.splitlines()
        # the order of two flips of one sweep is chance
        printed += [
            f"$ minidbg {' '.join(words)}",
            *(sorted(lines) if words == ["history"] else lines),
            done.stderr,
        ]
    text = "\n".join(printed).replace(str(desk.folder), "DESK")
    for pattern, word in VOLATILE:
        text = re.sub(pattern, word, text, flags=re.MULTILINE)
    return text


def sweeps_are_told_whole(desk: Desk) -> list[str]:
    """What is wrong about the order in which the last daemon has told of its sweeps: verdicts and flips come within one."""
    wrong, current = [], None
    for event in desk.running.events:
        if event["event"] == "sweep_started":
            wrong += [f"sweep {current} has no end"] if current is not None else []
            current = event["sweep"]
        elif event["event"] in ("result", "flip", "sweep_finished") and event["sweep"] != current:
            wrong.append(f"outside its sweep: {event}")
        if event["event"] == "sweep_finished":
            current = None
    return wrong


def troubles_of(session: Session, folder: Path) -> list[str]:
    """What came out otherwise than the session says."""
    desk = Desk(folder, session.ops, session.kinds)
    troubles = []
    try:
        for number, step in enumerate(session.steps):
            troubles += [f"step {number}: {line}" for line in step.differences(desk)]
        troubles += sweeps_are_told_whole(desk)
        if desk.running.process.poll() is None and (status := desk.running.stop()):
            troubles.append(f"ended with {status}")
    except AssertionError as error:
        troubles.append(str(error))
    finally:
        desk.running.close()
    hook = folder / "hooked.jsonl"
    kinds = (
        [json.loads(line)["kind"] for line in hook.read_text().splitlines() if line] if hook.exists() else []
    )
    troubles += [f"on_flip got {kinds}"] if sorted(kinds) != session.hooked else []
    troubles += [line for line in (folder / "daemon-stderr.txt").read_text().splitlines() if "Error" in line]
    text, golden = texts_after(desk), TEXTS / f"{session.name}.txt"
    if WRITES:
        golden.write_text(text)
    kept = golden.read_text() if golden.exists() else ""
    return [
        *troubles,
        *difflib.unified_diff(kept.splitlines(), text.splitlines(), golden.name, "now", lineterm=""),
    ]


def played(sessions: list[Session], folder: Path) -> str:
    """All that came out otherwise, session by session; nothing when all is well."""
    found = {session.name: troubles_of(session, make(folder / session.name)) for session in sessions}
    return "\n".join("\n    ".join([name, *troubles]) for name, troubles in found.items() if troubles)


def make(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_sessions_that_are_over_soon(tmp_path: Path) -> None:
    assert not (troubles := played([one for one in SESSIONS if one.quick], tmp_path)), troubles


@pytest.mark.slow
def test_the_other_sessions(tmp_path: Path) -> None:
    assert not (troubles := played([one for one in SESSIONS if not one.quick], tmp_path)), troubles
