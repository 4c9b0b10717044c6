"""A question in an interpreter of its own, for what does not answer in a fork: ``python -m minidbg.workers.one_question FUNCTION FILE``.

FILE holds the argument as JSON. Each text that the function notes is printed after ``phase``, the answer is the last line.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from minidbg.words.json_lines import last_json
from minidbg.workers.child import JSON, ChildResult, die_with_parent
from minidbg.workers.interpreter import run_python


def call_in_interpreter(
    function: str, argument: Mapping[str, JSON], *, seconds: float, memory_bytes: int | None = None
) -> ChildResult:
    """``function(argument, note)`` in a fresh interpreter; the seconds begin with its first note. Raises OSError when no process can be made."""
    with tempfile.TemporaryDirectory(prefix="minidbg-question-") as folder:
        file = Path(folder, "argument.json")
        path = [one for one in sys.path if isinstance(one, str)]
        question = {"path": path, "parent": os.getpid(), "argument": dict(argument)}
        file.write_text(json.dumps(question))
        arguments = ["-m", __name__, function, str(file)]
        ended = run_python(arguments, seconds=seconds, memory_bytes=memory_bytes, begins_at="phase ")
    value = last_json(ended.stdout) if ended.exit_status == 0 else None
    phases = (
        line.removeprefix("phase ")
        for line in reversed(ended.stdout.splitlines())
        if line.startswith("phase ")
    )
    return replace(ended, value=value, answered=value is not None, note=next(phases, ""))


def main(function: str, file: str) -> None:
    question = json.loads(Path(file).read_text())
    die_with_parent(signal.SIGKILL, question["parent"])
    sys.path[:] = question["path"]
    module, _, name = function.partition(":")
    answer = getattr(importlib.import_module(module), name)
    said = answer(question["argument"], lambda text: print("phase", text, flush=True))
    print("\n" + json.dumps(said), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
