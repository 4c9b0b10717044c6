"""From a failing graph to the few nodes that fail: passes, driver, the way to a verified script."""

from minidbg.reduction.driver import Minimized, minimize

__all__ = ["Minimized", "minimize"]
