"""What watch has seen, in SQLite."""

from minidbg.history.records import Flip, Observation, Revision, State, SweepRecord
from minidbg.history.store import HISTORY_FILE, DamagedHistory, History, open_or_begin_anew

__all__ = [
    "HISTORY_FILE",
    "DamagedHistory",
    "Flip",
    "History",
    "Observation",
    "Revision",
    "State",
    "SweepRecord",
    "open_or_begin_anew",
]
