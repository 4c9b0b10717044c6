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
    from minidbg.core.errors import AccuracyError as AccuracyError
    from minidbg.core.errors import MinidbgError as MinidbgError
    from minidbg.core.kinds import Kind as Kind
    from minidbg.core.outcome import Outcome as Outcome
    from minidbg.core.outcome import Signature as Signature
    from minidbg.core.outcome import Verdict as Verdict
    from minidbg.fx.case import Case as Case
    from minidbg.library import check as check
    from minidbg.library import load as load
    from minidbg.library import reduce as reduce
    from minidbg.library import save_repro as save_repro
    from minidbg.reduction import Minimized as Minimized
    from minidbg.reduction import minimize as minimize
    from minidbg.wrapper import Report as Report
    from minidbg.wrapper import Stats as Stats
    from minidbg.wrapper import report_of as report_of
    from minidbg.wrapper import stats as stats
    from minidbg.wrapper import wrap as wrap
    from minidbg.wrapper import wrap_compiler as wrap_compiler

__version__ = "0.2.0.dev0"

HOMES = {
    name: f"minidbg.{home}"
    for home, names in {
        "wrapper": ("wrap", "wrap_compiler", "report_of", "Report", "stats", "Stats"),
        "reduction": ("minimize", "Minimized"),
        "library": ("load", "check", "reduce", "save_repro"),
        "fx.case": ("Case",),
        "core.outcome": ("Outcome", "Verdict", "Kind", "Signature"),
        "core.errors": ("MinidbgError", "AccuracyError"),
    }.items()
    for name in names
}
__all__ = [*HOMES]


if not TYPE_CHECKING:  # a type checker is to refuse a name that is not there

    def __getattr__(name: str) -> Any:
        # Late, so that a command that needs no torch (watch, list, --help) starts without it.
        if name not in HOMES:
            raise AttributeError(f"module 'minidbg' has no attribute {name!r}")
        return getattr(importlib.import_module(HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
