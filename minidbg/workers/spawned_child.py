"""A worker's own side: a fresh interpreter that answers one question after the other.

Started as ``python -m minidbg.workers.spawned_child DESCRIPTOR``. A question is a line of JSON on stdin,
``{"call": "module:function", "argument": ...}``; the function is called with the argument and a ``note``. Answers go
to the descriptor, one line each: ``{"ready": true}`` once, ``{"note": text}``, ``{"answer": ...}`` or ``{"error": text}``.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any


def main(descriptor: int) -> None:
    """Answer until stdin is closed."""
    os.set_inheritable(descriptor, False)
    questions = os.fdopen(os.dup(0), encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # what backends print is no answer

    def say(message: dict[str, Any]) -> None:
        data = memoryview((json.dumps(message, default=str) + "\n").encode())
        while data:
            data = data[os.write(descriptor, data) :]

    importlib.import_module("torch")
    say({"ready": True})
    for line in questions:
        say(answered(json.loads(line), lambda text: say({"note": text})))
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()


def answered(question: dict[str, Any], note: Callable[[str], object]) -> dict[str, Any]:
    """What the function answered, or the traceback of what it raised."""
    try:
        module, _, name = question["call"].partition(":")
        function = getattr(importlib.import_module(module), name)
        return {"answer": function(question["argument"], note)}
    except Exception:  # noqa: BLE001 - the worker goes on, whatever a question raised
        return {"error": traceback.format_exc()}


if __name__ == "__main__":
    main(int(sys.argv[1]))
