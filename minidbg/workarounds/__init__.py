"""Workarounds: until a backend is mended."""

from minidbg.workarounds.changes import eager_around
from minidbg.workarounds.search import Workaround, WorkaroundSearch, best_of, find, keep

__all__ = ["WorkaroundSearch", "Workaround", "best_of", "eager_around", "find", "keep"]
