"""minidbg: what breaks a torch.compile backend, as the smallest script that still fails the same way."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minidbg.backend import report_of, wrap, wrap_compiler
    from minidbg.case import Case
    from minidbg.errors import AccuracyError, MinidbgError
    from minidbg.failure import Kind, Outcome, Signature, Verdict
    from minidbg.library import check, load, reduce, save_repro
    from minidbg.reduction import Minimized, minimize

__all__ = [
    "wrap",
    "wrap_compiler",
    "report_of",
    "minimize",
    "Minimized",
    "load",
    "check",
    "reduce",
    "save_repro",
    "Case",
    "Outcome",
    "Verdict",
    "Kind",
    "Signature",
    "MinidbgError",
    "AccuracyError",
]

HOMES = {
    "wrap": "minidbg.backend",
    "report_of": "minidbg.backend",
    "wrap_compiler": "minidbg.backend",
    "minimize": "minidbg.reduction",
    "Minimized": "minidbg.reduction",
    "load": "minidbg.library",
    "check": "minidbg.library",
    "reduce": "minidbg.library",
    "save_repro": "minidbg.library",
    "Case": "minidbg.case",
    "Outcome": "minidbg.failure",
    "Verdict": "minidbg.failure",
    "Kind": "minidbg.failure",
    "Signature": "minidbg.failure",
    "MinidbgError": "minidbg.errors",
    "AccuracyError": "minidbg.errors",
}


def __getattr__(name: str) -> Any:
    # Late, so that a command that needs no torch (watch, list, --help) starts without it.
    if name not in HOMES:
        raise AttributeError(f"module 'minidbg' has no attribute {name!r}")
    return getattr(importlib.import_module(HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
