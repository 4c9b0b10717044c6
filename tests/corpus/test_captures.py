"""What ``minidbg reduce`` makes of each capture, held against ``captures.json``: more questions than stand there are too many.

After a change that is meant, ``MINIDBG_WRITE_CORPUS=1 pytest tests/corpus/test_captures.py`` writes them anew; read the difference.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from support import PLANTED, TESTS
from support.command_line import python

from corpus.captures import CAPTURES, Capture
from corpus.writing import WRITES

FACTS = Path(__file__).with_name("captures.json")
MORE = 2
"""Where a question takes long, another one is asked beside it, whether it will be needed or not."""


def asked(rows: list[Capture], folder: Path) -> dict[str, Any]:
    """The facts of each row, from one interpreter."""
    path = os.pathsep.join(map(str, (TESTS, PLANTED, *filter(None, [os.environ.get("PYTHONPATH")]))))
    done = python(
        "-m",
        "corpus.captures",
        folder,
        *(row.name for row in rows),
        env={"PYTHONPATH": path},
        timeout=1200,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    return {facts.pop("name"): facts for facts in map(json.loads, done.stdout.splitlines())}


def troubles_of(rows: list[Capture], folder: Path) -> str:
    """What is otherwise than the table and the file say, a line for each."""
    found, kept = asked(rows, folder), json.loads(FACTS.read_text()) if FACTS.exists() else {}
    if WRITES:
        kept |= found
        lines = (
            f"{json.dumps(row.name)}: {json.dumps(kept[row.name])}" for row in CAPTURES if row.name in kept
        )
        FACTS.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    troubles = []
    for row in rows:
        facts, before = found[row.name], kept.get(row.name, {})
        if facts.get("ops") != row.ops:
            troubles.append(f"{row.name}: {row.ops} must be left, and there is {facts}")
        for name in ("inputs", "nodes_before", "nodes_after", "certified", "verdict"):
            if facts.get(name) != before.get(name):
                troubles.append(f"{row.name}: {name} is {facts.get(name)}, not {before.get(name)}")
        if facts.get("questions", 0) > before.get("questions", 0) + MORE:
            troubles.append(f"{row.name}: {facts['questions']} questions, not {before.get('questions')}")
    return "\n".join(troubles)


@pytest.mark.slow
def test_some_captures(tmp_path: Path) -> None:
    assert not (troubles := troubles_of([one for one in CAPTURES if one.quick], tmp_path)), troubles


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_the_other_captures(tmp_path: Path) -> None:
    assert not (troubles := troubles_of([one for one in CAPTURES if not one.quick], tmp_path)), troubles
