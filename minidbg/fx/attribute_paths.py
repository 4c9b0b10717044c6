"""Objects at dotted paths."""

from __future__ import annotations

import operator
from typing import Any

from torch import nn

from minidbg.words.errors import CannotWrite


def walk(start: Any, path: str) -> Any:
    """``start.path``, or None when a part is missing."""
    for part in path.split("."):
        try:
            start = getattr(start, part)
        except (AttributeError, RuntimeError):
            return None
    return start


def lookup(module: nn.Module, target: str) -> Any:
    """The object at a dotted path. Raises CannotWrite naming the path when there is none."""
    try:
        return operator.attrgetter(target)(module)
    except AttributeError:
        raise CannotWrite(f"the attribute {target!r}", "the graph module has no such attribute") from None
