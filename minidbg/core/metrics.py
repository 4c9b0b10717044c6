"""The metrics of the field by name, and a judge as an expression of them: ``pcc>=0.99``."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from minidbg.core.errors import MinidbgError

NAN = math.nan


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
FAR = Metrics(NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, equal=False)
LARGE_IS_BAD = ("max_abs", "mean_abs", "max_rel", "ratio")


def worst_of(metrics: Iterable[Metrics]) -> Metrics:
    """The worst of each over several results; NaN is worse than any number."""
    columns = [asdict(each) for each in metrics] or [asdict(Metrics())]

    def of(name: str) -> Any:
        values = [column[name] for column in columns]
        if any(value != value for value in values):
            return NAN
        return max(values) if name in LARGE_IS_BAD else min(values)

    return Metrics(**{name: of(name) for name in METRICS})


class BadJudge(MinidbgError):
    how = "compare metrics with numbers, joined by and, or: 'pcc>=0.99', 'top1'"
    advice = f"{how}; metrics: {', '.join(METRICS)}"


IN_COMPARISONS = (
    *(ast.Compare, ast.Name, ast.Load, ast.Constant, ast.UnaryOp, ast.USub),
    *(ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq),
)


@dataclass(frozen=True, slots=True)
class Judge:
    """``pcc>=0.99``, ``max_abs<1e-3 and equal``; ``top1`` alone: at each row."""

    text: str
    expression: str
    """In Python, with the metrics as names: ``top1 == 1`` for ``top1``."""

    @classmethod
    def of(cls, text: str) -> Judge:
        """Raises BadJudge."""
        try:
            tree = ast.parse(text.strip(), mode="eval").body
            plain = ast.unparse(tree)  # a comment could end the docstring that this is written into
            expression = ast.unparse(_condition(tree))
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            why = error.msg if isinstance(error, SyntaxError) else error
            shown = repr(text).replace("; ", ";")  # what comes after one is advice
            raise BadJudge(f"{shown} is no judge: {why}") from None
        return cls(plain, expression)

    def accepts(self, metrics: Iterable[Metrics]) -> bool:
        """Whether it is true of each result."""
        code = compile(self.expression, "<judge>", "eval")
        return all(eval(code, {"__builtins__": {}}, asdict(each)) for each in metrics)


def _condition(tree: ast.expr) -> ast.expr:
    """``tree`` in Python; nothing but metrics, numbers, comparisons and their ``and`` and ``or`` is
    in it. Raises ValueError."""
    match tree:
        case ast.BoolOp():
            tree.values = [_condition(part) for part in tree.values]
            return tree
        case ast.Name(id="top1" | "equal"):
            return ast.Compare(tree, [ast.Eq()], [ast.Constant(1)])
        case ast.Compare():
            parts = [*ast.walk(tree)]
            names = {part.id for part in parts if isinstance(part, ast.Name)}
            numbers = [part.value for part in parts if isinstance(part, ast.Constant)]
            are_numbers = all(isinstance(number, int | float) for number in numbers)
            is_plain = all(isinstance(part, IN_COMPARISONS) for part in parts)
            if is_plain and are_numbers and names and names <= {*METRICS}:
                return tree
    raise ValueError(f"{ast.unparse(tree)!r} compares no metric with a number")
