"""What watch has seen, in SQLite."""

from minidbg.history.carrying import export_history, import_history
from minidbg.history.records import Environment, Flip, Result, Revision, State, Sweep
from minidbg.history.store import NAME, DamagedHistory, History, open_or_begin_anew

__all__ = [
    "NAME",
    "DamagedHistory",
    "Environment",
    "Flip",
    "History",
    "Result",
    "Revision",
    "State",
    "Sweep",
    "export_history",
    "import_history",
    "open_or_begin_anew",
]
