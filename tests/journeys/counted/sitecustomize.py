"""Read by every Python interpreter that a journey starts: a line for each, and one for each graph that a wrapped backend is called with.

A fork is no interpreter, but its calls are written down.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import json
import os
import sys
from typing import Any


def tell(event: str) -> None:
    with open(os.environ["JOURNEY_LOG"], "a") as log:
        log.write(json.dumps({"event": event, "pid": os.getpid(), "argv": sys.orig_argv[1:]}) + "\n")


class CountedCalls(importlib.abc.MetaPathFinder):
    """Has a backend that minidbg wraps tell when it is called."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "minidbg.wrapper.wrapper":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            compiled = module.GraphState.compile

            def counted(*arguments: Any) -> Any:
                tell("call")
                return compiled(*arguments)

            module.GraphState.compile = counted

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]  # of this one loader
        return spec


if "JOURNEY_LOG" in os.environ:
    tell("start")
    sys.meta_path.insert(0, CountedCalls())
