"""What watch has seen, in SQLite."""

from minidbg.history.store import HISTORY_FILE as HISTORY_FILE
from minidbg.history.store import DamagedHistory as DamagedHistory
from minidbg.history.store import Flip as Flip
from minidbg.history.store import History as History
from minidbg.history.store import Observation as Observation
from minidbg.history.store import Revision as Revision
from minidbg.history.store import State as State
from minidbg.history.store import SweepRecord as SweepRecord
from minidbg.history.store import open_or_begin_anew as open_or_begin_anew
