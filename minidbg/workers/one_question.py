"""``submit``; and a question in an interpreter of its own, for what does not answer in a fork:
``python -m minidbg.workers.one_question FUNCTION FILE``.

FILE holds the argument as JSON. Each text that the function notes is printed after ``phase``, the
answer is the last line.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

from minidbg.core.json_lines import last_json, last_phase
from minidbg.workers.child import Ended, die_with_parent
from minidbg.workers.forkserver import call_in_server
from minidbg.workers.interpreter import run_python
from minidbg.workers.request import Request
from minidbg.workers.serving import function_named, import_path


def submit(request: Request) -> Future[Ended]:
    """Have a child of this process do it. It is waited for in this thread, so that the future that
    is returned is done."""
    end: Future[Ended] = Future()
    ways = call_in_interpreter if request.call else run_in_interpreter
    end.set_result((call_in_server if request.fork is not None else ways)(request))
    return end


def run_in_interpreter(request: Request) -> Ended:
    with tempfile.TemporaryDirectory(prefix="minidbg-run-") as folder:
        return run_python(
            request.argv,
            seconds=request.seconds,
            cwd=folder,
            env=request.env,
            memory_bytes=request.memory_bytes,
        )


def call_in_interpreter(request: Request) -> Ended:
    """The seconds begin with the function's first note."""
    with tempfile.TemporaryDirectory(prefix="minidbg-question-") as folder:
        file = Path(folder, "argument.json")
        question = {"path": import_path(), "parent": os.getpid(), "argument": dict(request.argument)}
        file.write_text(json.dumps(question))
        ended = run_python(
            ["-m", __name__, request.call, str(file)],
            seconds=request.seconds,
            memory_bytes=request.memory_bytes,
            begins_at="phase ",
        )
    value = last_json(ended.stdout) if ended.exit_status == 0 else None
    return replace(ended, value=value, answered=value is not None, note=last_phase(ended.stdout))


def main(function: str, file: str) -> None:
    question = json.loads(Path(file).read_text())
    die_with_parent(signal.SIGKILL, question["parent"])
    sys.path[:] = question["path"]
    said = function_named(function)(question["argument"], lambda text: print("phase", text, flush=True))
    print("\n" + json.dumps(said), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
