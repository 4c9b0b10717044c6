"""In the program: each ``torch.compile`` gets a wrapped backend, as ``minidbg run`` orders.

Orders come in one variable, and each process answers by lines in one file. Nothing of minidbg but
this file is imported before the program compiles something."""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import json
import logging
import os
import re
import socket
import sys
import traceback
from collections.abc import Mapping
from dataclasses import asdict
from types import ModuleType
from typing import TYPE_CHECKING, Any

from minidbg.core import environment
from minidbg.core.foreign import first_line_of

READ_BY_TORCH = re.compile(r"(PYTORCH|TORCH(?!ELASTIC|_NCCL)|TRITON)(?!.*_CACHE_DIR)")
"""Names of variables that torch's compiler reads when it is imported; not a rank's own."""
TAIL_CHARACTERS = 20_000
"""Of a traceback: minidbg's line is the last of an exception's notes."""


ORDERS: Mapping[str, Any] = {}
"""Empty outside of ``minidbg run``. ``log``: the file to which each process appends what
happened; ``backend``: used instead of the one the program asks for, a registered name or
``module:attribute``, or None; ``door``: where a process asks the server that the launcher lends, if
it has the same ``imported``; ``level`` of our log."""
with contextlib.suppress(KeyError, ValueError, TypeError):
    ORDERS = dict(json.loads(os.environ[environment.RUN]))


def log_event(event: Mapping[str, Any]) -> None:
    """Append one line; of several processes each line stays whole."""
    data = (json.dumps({**event, "pid": os.getpid()}) + "\n").encode()
    # where that fails the program goes on without a summary
    with contextlib.suppress(OSError), open(ORDERS["log"], "ab", buffering=0) as log:
        log.write(data)


if TYPE_CHECKING:
    from minidbg.wrapper import Report
    from minidbg.wrapper.capture import Failure


def compiler_is_here(module: ModuleType) -> None:
    """``torch._dynamo.eval_frame`` is imported: from now on backends are wrapped when looked up."""
    if ORDERS:
        from minidbg import torch_internals
        from minidbg.workers.client import LENDERS

        torch_internals.replace_backends(module, wrapped)
        LENDERS.append(knock)
        with contextlib.suppress(OSError):
            knock().close()


def knock() -> socket.socket:
    """Connect to the server that the launcher lends, and starts once somebody knocks. Raises
    OSError where there is none, or none that has imported what this process has."""
    if what_is_imported() != ORDERS["imported"]:
        raise OSError("this process needs a server of its own")
    control = socket.socket(socket.AF_UNIX)
    control.setblocking(False)  # too many have knocked
    control.connect(ORDERS["door"])
    control.setblocking(True)
    return control


def what_is_imported() -> list[str]:
    """What a server has for good once it has torch: interpreter, torch, what torch then read."""
    torch = importlib.util.find_spec("torch")
    environ = sorted(environment.for_judge().items())
    read = [f"{name}={value}" for name, value in environ if READ_BY_TORCH.match(name)]
    return [sys.executable, str(torch and torch.origin), *read]


def wrapped(backend: Any) -> Any:
    """What torch.compile is to use where the program asked for ``backend``."""
    from minidbg import torch_internals
    from minidbg.backends import named
    from minidbg.wrapper.handle import is_handling
    from minidbg.wrapper.process import PROCESS
    from minidbg.wrapper.wrapper import OWN_NAME, WrappedBackend, wrap

    asked, options, mode = torch_internals.as_given_to_compile(backend)
    if is_handling() or not torch_internals.is_backend_of_a_program(backend):
        return backend
    if listener not in PROCESS.listeners:
        logging.getLogger("minidbg").setLevel(ORDERS["level"])
        PROCESS.listeners.append(listener)
        atexit.register(tell_end)
    name = asked if isinstance(asked, str) else str(getattr(asked, "__name__", asked))
    log_event({"event": "wrapped", "backend": ORDERS["backend"] or name})
    if isinstance(asked, WrappedBackend) or name == OWN_NAME:
        return backend
    if ORDERS["backend"] is not None:
        # options and mode were meant for the other one
        asked, options, mode = named(ORDERS["backend"]), None, None
    return torch_internals.as_torch_compile_has_it(wrap(asked, options=options, mode=mode))


def listener(failure: Failure, report: Report) -> None:
    """Pass on what became of a failure, for the summary."""
    log_event({
        "event": "failure", "backend": failure.link.name, "kind": str(failure.kind),
        "said": first_line_of(failure.error), "line": report.line,
        "path": str(report.path) if report.path else None,
        "capture": str(report.capture) if report.capture else None,
    })  # fmt: skip


def tell_end() -> None:
    """At a process's end: how many of its graphs were verified, what was compiled again, and the
    traceback it printed."""
    from minidbg import torch_internals
    from minidbg.wrapper import stats

    if (found := stats()).graphs:
        log_event({"event": "graphs", **asdict(found)})
    for code, times, guard in torch_internals.recompilations():
        where = code.co_name, code.co_filename, code.co_firstlineno
        log_event({"event": "recompiled", "where": where, "times": times, "guard": guard})
    error = getattr(sys, "last_value", None)  # what the interpreter ends with
    if isinstance(error, BaseException) and sys.excepthook is sys.__excepthook__:
        text = "".join(traceback.format_exception(error))
        log_event({"event": "traceback", "text": text[-TAIL_CHARACTERS:]})
