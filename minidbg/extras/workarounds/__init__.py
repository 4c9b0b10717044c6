"""Workarounds: until a backend is mended."""

from minidbg.extras.workarounds.changes import eager_around
from minidbg.extras.workarounds.search import Workaround, WorkaroundSearch, find, keep

__all__ = ["WorkaroundSearch", "Workaround", "eager_around", "find", "keep"]
