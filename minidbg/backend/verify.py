"""The seam for verification against eager: which calls of a graph are compared, and when care may end.

Comparing is the accuracy issue's. What stands here already decides how long the state before a call is kept
(``kept.py``): until a graph has run well, whatever ``verify`` says, since a fallback needs it.
"""

from __future__ import annotations

from minidbg.settings import Verify


def calls_compared(verify: Verify | int) -> int | None:
    """How many first calls of a graph are compared with eager; None is all of them."""
    if isinstance(verify, Verify):
        return {Verify.FIRST: 1, Verify.ALWAYS: None, Verify.NEVER: 0}[verify]
    return verify


def is_settled(good_calls: int) -> bool:
    """Whether a graph that ran well ``good_calls`` times is called without any care from now on.

    When calls are compared, a graph settles after ``calls_compared`` of them.
    """
    return good_calls >= 1
