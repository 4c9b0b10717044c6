"""The metrics of the field by name, and a judge as an expression of them: ``pcc>=0.99``."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from minidbg.core.errors import MinidbgError


@dataclass(frozen=True, slots=True)
class Metrics:
    """How near ``a`` is to ``e``."""

    pcc: float = 1.0
    """Pearson's correlation. Of one element, or of a constant but for rounding in ``a`` or ``e``:
    1 if ``allclose(rtol=1e-2, atol=1e-2)``, else 0."""
    cosine: float = 1.0
    """Of the angle between both as vectors: 1 if both are zero, 0 if one is."""
    max_abs: float = 0.0
    mean_abs: float = 0.0
    max_rel: float = 0.0
    """The largest ``|a - e| / |e|`` where ``e`` is not zero."""
    sqnr: float = math.inf
    """``20 * log10(norm(e) / norm(e - a))``, in dB."""
    ratio: float = 1.0
    """The distance of ``a`` from float64 in units of eager's own, as root mean squares: infinite
    where eager alone is exact, NaN where ``a`` differs and float64 is not known."""
    top1: float = 1.0
    """The part of the rows (last dimension) where ``a`` is largest where ``e`` is."""
    equal: bool = True
    """Of one dtype and shape, and equal in each element; NaN equals NaN."""


METRICS: tuple[str, ...] = tuple(Metrics.__dataclass_fields__)
LARGE_IS_BAD = ("max_abs", "mean_abs", "max_rel", "ratio")


def worst_of(metrics: Sequence[Metrics]) -> Metrics:
    """The worst of each over one or more results; NaN is worse than any number."""

    def of(name: str) -> Any:
        sign = 1 if name in LARGE_IS_BAD else -1
        return max((getattr(each, name) for each in metrics), key=lambda v: (v != v, sign * v))

    return Metrics(**{name: of(name) for name in METRICS})


class BadJudge(MinidbgError):
    how = "compare metrics with numbers, joined by and, or: 'pcc>=0.99', 'top1'"
    advice = f"{how}; metrics: {', '.join(METRICS)}"


NUMBER = r"-?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?"
CONDITION = rf"(top1|equal|({'|'.join(METRICS)}) (<|<=|==|>=|>) {NUMBER})"
JUDGE = re.compile(rf"{CONDITION}( (and|or) {CONDITION})*")


@dataclass(frozen=True, slots=True)
class Judge:
    """``pcc>=0.99``, ``max_abs<1e-3 and equal``; ``top1`` alone: at each row."""

    text: str
    expression: str
    """In Python, with the metrics as names: ``top1 == 1`` for ``top1``."""

    @classmethod
    def of(cls, text: str) -> Judge:
        """Takes a table's columns as names too (``sqnr_db``). Raises BadJudge."""
        named = re.sub("(?<=abs|rel)_diff|(?<=sqnr)_db", "", text)
        plain = " ".join(re.sub("([<=>]+)", r" \1 ", named).split())
        expression = re.sub("(top1|equal)(?! [<=>])", r"\1 == 1", plain)
        with contextlib.suppress(SyntaxError, MemoryError):
            if JUDGE.fullmatch(plain) and compile(expression, "<judge>", "eval"):
                return cls(plain, expression)
        raise BadJudge(f"{text!r} is no judge".replace("; ", ";"))  # there advice begins

    def accepts(self, metrics: Metrics) -> bool:
        return bool(eval(self.expression, {"__builtins__": {}}, asdict(metrics)))
