"""Does a compiled graph give what eager gives? ``Comparison`` says it, for cases, scripts and calls of a program.

A float may differ from eager's by the tolerances of ``torch.testing.assert_close``. Where it differs by more,
both are held against the same program run in float64, as ``torch._dynamo.utils.same`` does: the compiled result
is wrong when it is clearly farther from float64 than eager's is. Integers and bools must be equal, NaN and inf
must be in the same places; only where eager itself disagrees with float64 is the compiled result free to do so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from minidbg.judge.arithmetic import are_close, far_apart, largest, wrong_elements
from minidbg.judge.ensemble import Eager, Ensemble, Tag, ensemble_of, left_by, same_but_for_rounding
from minidbg.judge.snapshot import (
    CannotCompare,
    Leaf,
    Snapshot,
    _are_plain,
    _can_stand_for,
    _in_place_of,
    _name,
)
from minidbg.words.run_spec import BackendRef, RunSpec

# Relative and absolute tolerance against eager, those of torch.testing.assert_close, and relative tolerance against
# float64: a float32 sum of ten million numbers in another order is off by 2e-5. The absolute one is for values of
# size 1: it shrinks with the largest value among all outputs (or all gradients), so that small ones are judged too.
TOLERANCES = {
    torch.float64: (1e-7, 1e-7, 1e-7),
    torch.float32: (1.3e-6, 1e-5, 3e-5),
    torch.bfloat16: (1.6e-2, 1e-5, 3.2e-2),
    torch.float16: (1e-3, 1e-5, 2e-3),
}
FEW_LEFT_OUT = 3  # leaves that are named one by one
MOST_BY_LUCK = 100.0  # times more than allowed that rounding errors of float32 may explain
UNSTEADY = "eager differs from itself, or may with other random numbers"
MOST_MARGIN = 10.0
NEVER_EXCUSED = ("dtype", "device")
USUAL = RunSpec(BackendRef("eager", "'eager'"))
"""The built-in tolerances, and no margin."""
Difference = dict[str, Any]


def margin_for(figures: Mapping[str, Any]) -> float:
    """How many times more than allowed a smaller graph must be off, for reduction not to drift into rounding noise.

    ``figures`` are those of the whole graph's wrong results; of other failures they are empty, and the margin is 1.
    """
    excess = float(figures.get("excess", 1.0))
    return min(MOST_MARGIN, max(1.0, math.sqrt(excess)))


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a run of a backend left behind (``actual``) beside one of eager from the same state (``expected``)."""

    actual: dict[str, Any]
    expected: dict[str, Any]
    eager: Eager
    """Runs the model again: changed, or with another seed."""
    spec: RunSpec

    def difference(self, notes: list[str]) -> Difference | None:
        """The first difference that no legal run of eager explains, or None. ``notes`` hears what is not judged."""
        actual, expected = left_by(self.actual), left_by(self.expected)
        ensemble = ensemble_of(self.eager, expected)
        return mismatch(actual, expected, ensemble, self.spec, notes)

    def difference_of_two_runs(self) -> Difference | None:
        return mismatch(left_by(self.actual), left_by(self.expected), spec=self.spec)

    def difference_of_form(self) -> Difference | None:
        return form_difference(left_by(self.actual), left_by(self.expected))


def mismatch(
    actual: Snapshot,
    expected: Snapshot,
    ensemble: Ensemble | None = None,
    spec: RunSpec = USUAL,
    notes: list[str] | None = None,
) -> Difference | None:
    """The first difference that counts between a compiled run (``actual``) and eager's (``expected``), or None.

    Form and values of all leaves come first, in eager's order; then requires_grad and aliasing of outputs. Strides are not compared.
    ``ensemble`` has the other legal runs of eager, which are made only where a difference is to be explained. What they leave
    out (``Tag`` says why) is a sentence in ``notes``. Of ``spec`` count the tolerances, which replace those of TOLERANCES, and
    the margin: above 1 it demands a difference so many times larger.

    The answer holds ``where``, ``category`` (structure, dtype, device, shape, nan, inf, integer, bool, float,
    requires_grad, aliasing), ``signature`` (its stable part) and ``message``; for values also ``index``,
    ``actual``, ``expected``, ``wrong`` of ``elements``, ``excess`` (the largest margin at which it still counts),
    ``max_abs``, ``max_rel``, ``allowed``, ``rmse_compiled`` and ``rmse_eager``.
    Raises CannotCompare when a leaf cannot be judged and nothing else differs.
    """
    judge = _Judge(expected, ensemble or Ensemble(), spec)
    refusal = None
    try:
        for where in [*expected, *(label for label in actual if label not in expected)]:
            try:
                difference = judge.leaf(where, actual.get(where), expected.get(where))
            except CannotCompare as error:
                refusal = refusal or error
            else:
                if difference and (
                    is_never_excused(difference)
                    or (judge.is_steady(where) and ("elements" in difference or judge.is_defined(where)))
                ):
                    lines = [difference["message"], *judge.ensemble.failed.values()]
                    return difference | {"message": "\n".join(lines)}
        if difference := _first_relation(actual, expected):
            return difference
    finally:
        if notes is not None:
            left_out = (where for where, steady in judge.steady.items() if not steady)
            notes += [f"{where} is not judged: {UNSTEADY}" for where in left_out]
            notes += judge.undefined()
    if refusal:
        raise refusal
    return None


def form_difference(actual: Snapshot, expected: Snapshot) -> Difference | None:
    for where, leaf in expected.items():
        a, e = (one.value if one else None for one in (actual.get(where), leaf))
        if isinstance(a, torch.Tensor) and isinstance(e, torch.Tensor):
            difference = _form(where, leaf.kind, a, e)
            if difference and is_never_excused(difference):
                return difference
    return None


def is_never_excused(difference: Difference) -> bool:
    """Whether chance and rounding cannot explain it: they change values and sizes, but no dtype and no number of dimensions."""
    if difference["category"] == "shape":
        got, wanted = difference["actual"], difference["expected"]
        return (got.count(","), got == "[]") != (wanted.count(","), wanted == "[]")
    return difference["category"] in NEVER_EXCUSED


class _Judge:
    def __init__(self, expected: Snapshot, ensemble: Ensemble, spec: RunSpec) -> None:
        self.expected, self.ensemble = expected, ensemble
        self.tolerances, self.margin = spec.tolerances, spec.margin
        self.steady: dict[str, bool] = {}
        self.left_out: dict[str, str] = {}
        self.scales: dict[str, float] = {}

    def others(self, *, roundings: bool = True) -> Iterator[Snapshot]:
        yield from self.ensemble.members(Tag.UNDEFINED)
        if roundings:
            yield from self.ensemble.members(Tag.ROUNDING)

    def is_steady(self, where: str) -> bool:
        if where not in self.steady:
            again = self.ensemble.leaf(Tag.AGAIN, where)
            first = self.expected[where].value if where in self.expected else None
            reference = self.ensemble.leaf(Tag.FLOAT64, where) if again is not None else None
            self.steady[where] = again is None or same_but_for_rounding(first, again, reference)
        return self.steady[where]

    def is_defined(self, where: str) -> bool:
        first = self.expected.get(where)
        for other in self.others():
            again = other.get(where)
            is_same = first is again
            if first and again:
                is_same = same_but_for_rounding(first.value, again.value)
            if not is_same:
                self.left_out[where] = where
        return where not in self.left_out

    def undefined(self) -> list[str]:
        """A sentence for each leaf of which something is left out since torch does not define it; one for many leaves."""
        what = ", ".join(self.ensemble.sensitivity.undefined) or "what rounding decides"
        parts = list(self.left_out.values())
        if len(parts) > FEW_LEFT_OUT:
            rest = f"{len(parts) - 1} other results"
            return [f"{parts[0]} and {rest} are not judged: torch does not define {what}"]
        return [f"{part} is not judged: torch does not define {what}" for part in parts]

    def tolerance(self, kind: str, dtype: torch.dtype) -> tuple[float, float, float]:
        relative, absolute, rounding = default_tolerance(dtype)
        given = self.tolerances.get(_name(dtype), self.tolerances.get("any"))
        if given is None or not rounding:
            return relative, absolute * self.scale(kind), rounding
        return *given, given[0]

    def scale(self, kind: str) -> float:
        """The largest finite value among eager's leaves of this kind, at most 1; and 1 where all are zero."""
        if kind not in self.scales:
            values = (leaf.value for leaf in self.expected.values() if leaf.kind == kind)
            sizes = (largest(value) for value in values if _are_plain(value, value))
            self.scales[kind] = min(max(sizes, default=0.0), 1.0) or 1.0
        return self.scales[kind]

    def leaf(self, where: str, actual: Leaf | None, expected: Leaf | None) -> Difference | None:
        if actual is None or expected is None:
            who, given = ("eager", actual) if expected is None else ("the compiled graph", expected)
            kind = given.kind if given else ""
            return _difference(where, kind, "structure", f"{where} is not given by {who}")
        kind, a, e = expected.kind, actual.value, expected.value
        if kind == "gradient" and (a is None) != (e is None):  # no gradient means what a zero one means
            a, e = (torch.zeros_like(e) if a is None else a), (torch.zeros_like(a) if e is None else e)
        if not (isinstance(a, torch.Tensor) and isinstance(e, torch.Tensor)):
            return self.scalars(where, kind, a, e)
        if difference := _form(where, kind, a, e):
            return difference
        if not _are_plain(a, e):
            what = f"a {type(e).__name__} of {_name(e.dtype)}, {_name(e.layout)}"
            raise CannotCompare(f"{where} is {what}, which cannot be compared with eager's")
        if a.numel() == 0 or a.device.type == "meta" or _is_same_memory(a, e) or are_close(a, e, 0.0, 0.0):
            return None
        return self.tensors(where, kind, a, e, self.tolerance(kind, e.dtype))

    def scalars(self, where: str, kind: str, a: Any, e: Any) -> Difference | None:
        """Python values: of one type and equal; floats have float32's tolerance, since most came from ``.item()``."""
        if type(a) is not type(e):
            text = f"{where} is a {type(a).__name__}, eager gives a {type(e).__name__}"
            return _difference(where, kind, "structure", text)
        if isinstance(e, float):
            a64, e64 = (torch.tensor(value, dtype=torch.float64) for value in (a, e))
            return self.tensors(where, kind, a64, e64, self.tolerance(kind, torch.float32))
        category = {bool: "bool", int: "integer"}.get(type(e), "structure")
        return None if a == e else _difference(where, kind, category, f"{where} is {a!r}, eager gives {e!r}")

    def tensors(
        self, where: str, kind: str, a: torch.Tensor, e: torch.Tensor, tolerance: tuple[float, float, float]
    ) -> Difference | None:
        """How the values of two dense tensors of one form differ; the other runs are asked only if they do."""
        relative, absolute = (self.margin * allowed for allowed in tolerance[:2])
        if are_close(a, e, relative, absolute) or not self.is_steady(where):
            return None
        reference, again = (self.ensemble.leaf(tag, where, e) for tag in (Tag.FLOAT64, Tag.AGAIN))
        found = wrong_elements(a, e, tolerance, reference, again, self.margin)
        undefined = torch.zeros_like(e, dtype=torch.bool)
        for count, other in enumerate(self.others(roundings=found is not None)):
            value = _in_place_of(e, other, where)
            undefined |= far_apart(value, e, relative, absolute) if _can_stand_for(value, e) else True
            if undefined.any():  # errors of what is undefined say nothing about the rest
                part = "" if undefined.all() else f" ({int(undefined.sum())} of {e.numel()} elements)"
                self.left_out[where] = where + part
                a = torch.where(undefined, e, a)
                reference, again = (
                    one if one is None else torch.where(undefined, e, one) for one in (reference, again)
                )
                found = wrong_elements(a, e, tolerance, reference, again, self.margin)
            if found is None and count:
                break
        for run in self.ensemble.members(Tag.LOWER) if found and self.may_be_rounding(found) else ():
            value = _in_place_of(e, run, where)
            if not _can_stand_for(value, e):
                continue
            value = torch.where(undefined, e, value)
            overflown = ~(value.isfinite() | far_apart(a, value, 0.0, 0.0))  # by eager in this precision too
            found = wrong_elements(torch.where(overflown, e, a), e, tolerance, reference, value, self.margin)
            if found is None:
                break
        return found and _difference(where, kind, message=f"{where} {found.pop('text')}", **found)

    def may_be_rounding(self, found: Mapping[str, Any]) -> bool:
        few = isinstance(found["excess"], (int, float)) and found["excess"] < MOST_BY_LUCK
        return few or self.ensemble.sensitivity.narrow


def default_tolerance(dtype: torch.dtype) -> tuple[float, float, float]:
    """The triple of TOLERANCES for any dtype: of a complex one that of its parts, zeros for integers and bools."""
    if not (dtype.is_floating_point or dtype.is_complex):
        return 0.0, 0.0, 0.0
    info = torch.finfo(dtype)
    one_step = (info.eps, info.eps * info.tiny, info.eps)  # float8 has no entry
    return TOLERANCES.get(getattr(torch, info.dtype), one_step)


def _form(where: str, kind: str, a: torch.Tensor, e: torch.Tensor) -> Difference | None:
    for category, got, wanted in (
        ("dtype", _name(a.dtype), _name(e.dtype)),
        ("device", str(a.device), str(e.device)),
        ("structure", f"{type(a).__name__}, {_name(a.layout)}", f"{type(e).__name__}, {_name(e.layout)}"),
        ("shape", str(list(a.shape)), str(list(e.shape))),
    ):
        if got != wanted:
            detail = f"dtype {got} for {wanted}" if category == "dtype" else category
            text = f"{where} has {category} {got}, eager gives {wanted}"
            return _difference(where, kind, category, text, detail, actual=got, expected=wanted)
    return None


def _first_relation(actual: Snapshot, expected: Snapshot) -> Difference | None:
    common = (where for where in expected if where in actual)
    both = [where for where in common if _are_plain(actual[where].value, expected[where].value)]
    outputs = [where for where in both if expected[where].kind == "output"]
    for where in outputs:
        got, wanted = (str(run[where].requires_grad) for run in (actual, expected))
        if got != wanted:
            text = f"{where} has requires_grad {got}, eager gives {wanted}"
            return _difference(where, "output", "requires_grad", text, actual=got, expected=wanted)
    inputs = [where for where in both if expected[where].kind == "input"]
    pairs = {pair for run in (actual, expected) for pair in _in_one_storage(run, outputs, inputs)}
    for one, two in sorted(pairs, key=lambda pair: [both.index(where) for where in pair]):
        got_shared, shared = (_overlap(run[one].value, run[two].value) for run in (actual, expected))
        if got_shared is not None and shared is not None and got_shared != shared:
            does, other = ("share", "do not") if got_shared else ("do not share", "do")
            text = f"{one} and {two} {does} memory; in eager they {other}"
            return _difference(one, "output", "aliasing", text)
    return None


def _in_one_storage(run: Snapshot, outputs: list[str], inputs: list[str]) -> Iterator[tuple[str, str]]:
    seen: dict[int, list[str]] = {}
    for where in inputs + outputs:
        others = seen.setdefault(run[where].value.untyped_storage().data_ptr(), [])
        yield from ((where, other) for other in others if run[where].kind == "output")
        others.append(where)


def _overlap(one: torch.Tensor, two: torch.Tensor) -> bool | None:
    """Whether two tensors have memory in common; None where first and last address do not tell."""
    if not (one.numel() and two.numel()):
        return None
    first, last = [], []
    for tensor in (one, two):
        steps = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        first.append(tensor.data_ptr())
        last.append(tensor.data_ptr() + steps * tensor.element_size())
    if last[0] < first[1] or last[1] < first[0]:
        return False
    around = one if first[0] <= first[1] else two
    return True if around.is_contiguous() or first[0] == first[1] else None


def _difference(
    where: str, kind: str, category: str, message: str, detail: str = "", **figures: Any
) -> Difference:
    direction = "backward" if kind == "gradient" else "forward"
    signature = {"direction": direction, "message": f"{kind}: {detail or category}"}
    return {"where": where, "category": category, "signature": signature, "message": message, **figures}


def _is_same_memory(a: torch.Tensor, e: torch.Tensor) -> bool:
    marks = [(x.data_ptr(), x.stride(), x.is_conj(), x.is_neg()) for x in (a, e)]
    return marks[0] == marks[1]
