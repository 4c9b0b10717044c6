"""A question in an interpreter of its own, for what does not answer in a fork: ``python -m minidbg.workers.one_question FUNCTION FILE``.

FILE holds the argument as JSON. Each text that the function notes is printed after ``phase``, the answer is the last line.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from minidbg.words.json_lines import last_json, last_phase
from minidbg.workers.child import JSON, ChildResult, die_with_parent
from minidbg.workers.interpreter import run_python
from minidbg.workers.serving import import_path, named


def call_in_interpreter(
    function: str, argument: Mapping[str, JSON], *, seconds: float, memory_bytes: int | None = None
) -> ChildResult:
    """``function(argument, note)`` in a fresh interpreter; the seconds begin with its first note. Raises OSError when no process can be made."""
    with tempfile.TemporaryDirectory(prefix="minidbg-question-") as folder:
        file = Path(folder, "argument.json")
        question = {"path": import_path(), "parent": os.getpid(), "argument": dict(argument)}
        file.write_text(json.dumps(question))
        arguments = ["-m", __name__, function, str(file)]
        ended = run_python(arguments, seconds=seconds, memory_bytes=memory_bytes, begins_at="phase ")
    value = last_json(ended.stdout) if ended.exit_status == 0 else None
    return replace(ended, value=value, answered=value is not None, note=last_phase(ended.stdout))


def main(function: str, file: str) -> None:
    question = json.loads(Path(file).read_text())
    die_with_parent(signal.SIGKILL, question["parent"])
    sys.path[:] = question["path"]
    said = named(function)(question["argument"], lambda text: print("phase", text, flush=True))
    print("\n" + json.dumps(said), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
