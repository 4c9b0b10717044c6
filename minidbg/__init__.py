"""minidbg: what breaks a torch.compile backend, as the smallest script that fails the same way.

In a program: ``wrap`` and ``wrap_compiler`` give the backend to compile with, ``report_of`` what
was written about an exception, ``stats`` how many graphs were verified, and why others were not.
With scripts: ``check``, ``reduce``, ``load``, ``save_repro``; a repro script is the only stored
form of a ``Case``. With a predicate of one's own: ``minimize``.

What they answer are values: ``Outcome`` (a ``Verdict``, a ``Signature`` with its ``Kind``,
figures), ``Minimized``, ``Case``. What cannot be done is a ``MinidbgError``; what the wrapped
backend raises is never one, except that wrong results, which raise nothing by themselves, become
``AccuracyError``. Seconds are seconds, sizes are bytes, errors are relative unless said otherwise.
Everything is imported late: ``import minidbg`` loads no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minidbg.core.errors import AccuracyError, MinidbgError
    from minidbg.core.kinds import Kind
    from minidbg.core.outcome import Outcome, Signature, Verdict
    from minidbg.fx.case import Case
    from minidbg.library import check, load, reduce, save_repro
    from minidbg.reduction import Minimized, minimize
    from minidbg.wrapper import Report, Stats, report_of, stats, wrap, wrap_compiler

__version__ = "0.2.0.dev0"

__all__ = [
    "wrap",
    "wrap_compiler",
    "report_of",
    "Report",
    "stats",
    "Stats",
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
    name: home
    for home, names in {
        "minidbg.wrapper": ("wrap", "report_of", "Report", "wrap_compiler", "stats", "Stats"),
        "minidbg.reduction": ("minimize", "Minimized"),
        "minidbg.library": ("load", "check", "reduce", "save_repro"),
        "minidbg.fx.case": ("Case",),
        "minidbg.core.outcome": ("Outcome", "Verdict", "Kind", "Signature"),
        "minidbg.core.errors": ("MinidbgError", "AccuracyError"),
    }.items()
    for name in names
}


if not TYPE_CHECKING:  # a type checker is to refuse a name that is not there

    def __getattr__(name: str) -> Any:
        # Late, so that a command that needs no torch (watch, list, --help) starts without it.
        if name not in HOMES:
            raise AttributeError(f"module 'minidbg' has no attribute {name!r}")
        return getattr(importlib.import_module(HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
