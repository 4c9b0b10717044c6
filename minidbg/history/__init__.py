"""What watch has seen, in SQLite."""

from minidbg.history.carrying import import_history
from minidbg.history.records import Environment, Flip, ReproState, Result, Revision, SweepRecord
from minidbg.history.store import NAME, DamagedHistory, History, open_or_begin_anew

__all__ = [
    "NAME",
    "DamagedHistory",
    "Environment",
    "Flip",
    "History",
    "Result",
    "Revision",
    "ReproState",
    "SweepRecord",
    "import_history",
    "open_or_begin_anew",
]
