"""Custom operators and foreign functions of a graph: what must be imported before the graph can run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import fx

from minidbg.case import BackendRef


def with_operators(ref: BackendRef, gm: fx.GraphModule, inputs: Sequence[Any] = ()) -> BackendRef:
    """``ref`` with the modules that define the custom operators and foreign functions of ``gm``."""
    return ref
