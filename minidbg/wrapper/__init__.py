"""Wraps a backend: transparent until it fails, then a case, a report, the user's own exception."""

from minidbg.wrapper.process import Report, Stats, report_of, stats
from minidbg.wrapper.wrapper import EntryPoint, WrappedBackend, entry_point, wrap, wrap_compiler

__all__ = [
    "EntryPoint",
    "Report",
    "Stats",
    "WrappedBackend",
    "entry_point",
    "report_of",
    "stats",
    "wrap",
    "wrap_compiler",
]
