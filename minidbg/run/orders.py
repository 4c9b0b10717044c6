"""What ``minidbg run`` tells the processes of the program, and what they tell it: one variable, and lines in one file."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

VARIABLE = "MINIDBG__RUN"
HOOK = Path(__file__).parent / "hook"


@dataclass(frozen=True, slots=True)
class Orders:
    """How the program's use of torch.compile is changed."""

    log: str
    """The file to which each process appends what happened."""
    backend: str | None = None
    """Used instead of the one that the program asks for: a registered name, or ``module:attribute``."""
    compile_all: tuple[str, ...] = ()
    """Classes of modules, ``module:Class``, whose instances are compiled."""

    def in_environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """``environ`` for the program."""
        before = environ.get("PYTHONPATH")
        path = os.pathsep.join([str(HOOK), *([before] if before else [])])
        return {**environ, "PYTHONPATH": path, VARIABLE: json.dumps(asdict(self))}


def read_orders(environ: Mapping[str, str]) -> Orders | None:
    """The orders for this process; None when it is in no program under ``minidbg run``."""
    with contextlib.suppress(KeyError, ValueError, TypeError):
        table = json.loads(environ[VARIABLE])
        return Orders(table["log"], table["backend"], tuple(table["compile_all"]))
    return None


def tell(log: str, event: Mapping[str, Any]) -> None:
    """Append one line; of several processes each line stays whole."""
    data = (json.dumps({**event, "pid": os.getpid()}) + "\n").encode()
    with contextlib.suppress(OSError):  # the program goes on without a summary
        descriptor = os.open(log, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(descriptor, data)
        finally:
            os.close(descriptor)


def told(log: Path) -> Iterator[dict[str, Any]]:
    """The lines of the log, as far as they are whole."""
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        with contextlib.suppress(ValueError):
            event = json.loads(line)
            if isinstance(event, dict):
                yield event
