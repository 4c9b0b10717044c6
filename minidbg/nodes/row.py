"""A row of the table, in the words of the field."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import Any

from minidbg.core.records import plain


class TableMode(enum.StrEnum):
    ISOLATED = "isolated"
    """Each node compiled alone, fed with eager's values."""
    ACCUMULATED = "accumulated"
    """The values of the whole graph, which returns them all."""


class Status(enum.StrEnum):
    OK = "ok"
    NUMERICS_FAIL = "numerics_fail"
    SHAPE_MISMATCH = "shape_mismatch"
    DTYPE_MISMATCH = "dtype_mismatch"
    NO_GOLDEN = "no_golden"
    """Not judged: ``reason`` says why."""
    ERROR = "error"

    @property
    def is_bad(self) -> bool:
        return self not in (Status.OK, Status.NO_GOLDEN)


@dataclass(frozen=True, slots=True)
class Row:
    """A node, what it is, and how near the backend's value is to eager's; None: not measured."""

    node: str
    op: str
    line: str = ""
    """Of the user's program, where the node has a stack trace."""
    shape: str = ""
    dtype: str = ""
    mode: TableMode = TableMode.ISOLATED
    pcc: float | None = None
    cosine: float | None = None
    max_abs_diff: float | None = None
    mean_abs_diff: float | None = None
    max_rel_diff: float | None = None
    sqnr_db: float | None = None
    ratio: float | None = None
    ran_on: str = ""
    """The device of the results; behind it, in brackets, who else ran the node in its place."""
    status: Status = Status.NO_GOLDEN
    reason: str = ""

    @property
    def ran_elsewhere(self) -> bool:
        return self.ran_on.endswith(")")

    def to_json(self) -> dict[str, Any]:
        """Plain values; what is no finite number is a text: ``nan``, ``inf``."""
        return {
            name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in plain(self).items()
        }


COLUMNS: tuple[str, ...] = tuple(Row.__dataclass_fields__)
