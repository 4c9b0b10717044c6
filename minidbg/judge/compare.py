"""Does a compiled graph give what eager gives? ``Comparison`` says, for cases, scripts and calls.

The rule, for each element: it is wrong when it lies farther from float64 than eager's own error
allows; and eager's own error is what eager, float64 and a few eager runs with other rounding show
at elements like it: of the same leaf, with errors of the same order. In steps, each taken only
where the one before has not explained the difference:

1. What differs by no more than ``torch.testing.assert_close`` allows (float64: 1e-9) is right. The
   absolute tolerance there is for values of size 1: it shrinks with the largest value of the leaf.
   Small steps count (``STEPS``) of what is written where nothing adds up.
2. ``Tag.FLOAT64``: the program in float64. Eager's distance from it is eager's own error, and the
   compiled result may be ten times as far at one element, and three times in the root mean
   square (ten times, of a few elements). An element whose own error is a thousand times smaller
   excuses nothing and is excused by nothing: a mask of -1e9 has rounding errors of 64. Where eager
   is off by a few roundings of each element, a small one is not allowed those of a large one.
3. ``Tag.NOISE``: eager with other rounding, since one run may be exact by luck, and a float64
   program has no wider one. How far these runs are from eager is its own error as well.
4. Where the own error is as large as no rounding error alone is, rounding has decided (which of two
   near values is the largest). It allows so much there, and at a few that no run has moved.

A judge of the user's (``RunSpec.judge``) stands for all of these steps, but for what is not judged.

Integers and bools are exact, but at the elements where these runs of eager disagree. NaN and inf
are in the places of eager's, or of one of these runs; where now there is a number and now none,
rounding decides. What torch leaves undefined (``Tag.UNDEFINED``) and what eager gives differently
each time is not judged.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from functools import partial
from itertools import islice
from typing import Any

import torch

from minidbg.core.metrics import Judge
from minidbg.core.run_spec import BackendRef, RunSpec
from minidbg.fx.copying import clone_values, share_memory
from minidbg.judge.differences import STEPS, TOLERANCES, Elements, are_close, largest, wrong_elements
from minidbg.judge.eager_runs import (
    Eager,
    EagerRuns,
    Tag,
    eager_runs_of,
    leaves_of,
    moved,
    same_but_for_rounding,
)
from minidbg.judge.leaves import (
    CannotCompare,
    Leaf,
    Leaves,
    _are_plain,
    _can_stand_for,
    _in_place_of,
    _short_name,
)
from minidbg.judge.metrics import metrics_of

FEW_ELEMENTS = 1000  # in more of them two seeds do not agree by chance
MOST_IN_WORDS = 1 << 24  # elements of which float64 copies are made for a message
FEW_LEFT_OUT = 3  # leaves that are named one by one
UNSTEADY = "eager differs from itself, or may with other random numbers"
MOST_MARGIN = 10.0
DECIDED = "what rounding decides"
DEFAULT_SPEC = RunSpec(BackendRef("eager", "'eager'"))
"""The built-in tolerances, and no margin."""
Difference = dict[str, Any]


def margin_for(figures: Mapping[str, Any]) -> float:
    """How many times more than allowed a smaller graph must be off, lest it drift into noise."""
    return min(MOST_MARGIN, max(1.0, math.sqrt(float(figures.get("excess", 1.0)))))


def is_never_excused(difference: Difference) -> bool:
    """Whether chance and rounding cannot explain it: they change no dtype, rank or device."""
    if difference["category"] == "shape":
        got, wanted = difference["actual"], difference["expected"]
        return (got.count(","), got == "[]") != (wanted.count(","), wanted == "[]")
    return difference["category"] in ("dtype", "device")


class Comparison:
    """What a backend's run left (``actual``) beside eager's from the same state (``expected``).

    ``eager_runs`` has the other legal runs of eager, which are made only where a difference is to
    be explained. Of ``spec`` count the judge, the tolerances, which replace those of TOLERANCES, and
    the margin: above 1 it demands a difference so many times larger.
    """

    def __init__(
        self,
        actual: Leaves,
        expected: Leaves,
        eager_runs: EagerRuns | None = None,
        spec: RunSpec = DEFAULT_SPEC,
    ) -> None:
        self.actual, self.expected = actual, expected
        self.eager_runs = eager_runs or EagerRuns()
        self.tolerances, self.margin = spec.tolerances, spec.margin
        self.judge = Judge.of(spec.judge) if spec.judge else None
        self.steady: dict[str, bool] = {}
        self.left_out: dict[str, str] = {}
        self.decided: dict[str, str] = {}

    def difference(self) -> Difference | None:
        """The first difference that counts, or None.

        Form and values of all leaves come first, in eager's order; then requires_grad and aliasing
        of outputs. Strides are not compared. What the legal runs leave out is in ``notes``.

        The answer holds ``where``, ``category`` (structure, dtype, device, shape, nan, inf,
        integer, bool, float, requires_grad, aliasing), ``signature`` (its stable part) and
        ``message``; for values also ``index``, ``actual``, ``expected``, ``wrong`` of ``elements``,
        ``excess`` (the largest margin at which it still counts), ``error`` and ``allowed`` in units
        of ``unit``, ``rmse_compiled`` and ``rmse_eager``. Raises CannotCompare when a leaf cannot
        be judged and nothing else differs.
        """
        actual, expected, refusal = self.actual, self.expected, None
        for where in [*expected, *(label for label in actual if label not in expected)]:
            try:
                difference = self.leaf(where, actual.get(where), expected.get(where))
            except CannotCompare as error:
                refusal = refusal or error
            else:
                if difference and (
                    is_never_excused(difference)
                    or (self.is_steady(where) and ("elements" in difference or self.is_defined(where)))
                ):
                    lines = [difference["message"], *self.eager_runs.failed.values()]
                    return difference | {"message": "\n".join(lines)}
        if difference := _first_relation(actual, expected):
            return difference
        if refusal:
            raise refusal
        return None

    @property
    def unjudged(self) -> set[str]:
        """The labels of the leaves of which nothing was judged."""
        whole = (where for where, part in self.left_out.items() if part == where)
        return {*whole, *self.unsteady}

    @property
    def unsteady(self) -> list[str]:
        return [where for where, is_steady in self.steady.items() if not is_steady]

    def is_steady(self, where: str) -> bool:
        if where not in self.steady:
            again = self.eager_runs.leaf(Tag.AGAIN, where)
            first = self.expected[where].value if where in self.expected else None
            is_few = not isinstance(first, torch.Tensor) or first.numel() <= FEW_ELEMENTS
            sensitivity = self.eager_runs.sensitivity  # the run has found it out
            is_drawn = sensitivity.draws and where.startswith("output") and is_few
            is_same = again is None or same_but_for_rounding(first, again, sensitivity.coarsest)
            self.steady[where] = is_same and not is_drawn
        return self.steady[where]

    def is_defined(self, where: str) -> bool:
        answers, noise = map(self.eager_runs.members, (Tag.UNDEFINED, Tag.NOISE))
        for usual, runs in ((next(answers, {}), answers), (self.expected, noise)):
            first = usual.get(where)
            for again in (run.get(where) for run in runs):
                is_same = first is again
                if first and again:
                    is_same = same_but_for_rounding(first.value, again.value)
                if not is_same:
                    self.left_out[where] = where
        return where not in self.left_out

    def notes(self) -> list[str]:
        """A sentence for each leaf that is left out, or a part of it; one for many."""
        undefined = ", ".join(self.eager_runs.sensitivity.undefined) or DECIDED
        lines: list[str] = []
        for parts, why in (
            (self.unsteady, UNSTEADY),
            ([*self.left_out.values()], f"torch does not define {undefined}"),
            ([*self.decided.values()], f"torch does not define {DECIDED}"),
        ):
            if len(parts) > FEW_LEFT_OUT:
                lines.append(f"{parts[0]} and {len(parts) - 1} other results are not judged: {why}")
            else:
                lines += [f"{part} is not judged: {why}" for part in parts]
        return lines

    def tolerance(self, leaf: Leaf) -> tuple[float, float, float]:
        """Relative, absolute, relative to float64; zeros for integers and bools."""
        dtype = leaf.value.dtype if isinstance(leaf.value, torch.Tensor) else torch.float32
        if not (dtype.is_floating_point or dtype.is_complex):
            return 0.0, 0.0, 0.0
        info = torch.finfo(dtype)
        eps = min(info.eps, 0.25)  # of powers of two alone (float8_e8m0fnu) no step is a rounding
        one_step = (0.0, eps * info.tiny, eps)  # of float8, but not at each element
        relative, absolute, rounding = TOLERANCES.get(getattr(torch, info.dtype), one_step)
        if own := self.tolerances.get(_short_name(dtype), self.tolerances.get("any")):
            return *own, own[0]
        if leaf.role == "input" and not (self.steady and self.eager_runs.sensitivity.mixes):
            relative, absolute = min(relative, STEPS * eps), min(absolute, eps)  # a small update
        size = largest(leaf.value) if isinstance(leaf.value, torch.Tensor) else 0.0
        return relative, absolute * (min(size, 1.0) or 1.0), rounding

    def leaf(self, where: str, actual: Leaf | None, expected: Leaf | None) -> Difference | None:
        if actual is None or expected is None:
            who, given = ("eager", actual) if expected is None else ("the compiled graph", expected)
            role = given.role if given else ""
            return _difference(where, role, "structure", f"{where} is not given by {who}")
        role, a, e = expected.role, actual.value, expected.value
        if role == "gradient" and e is None and _are_plain(a, a) and a.any():
            return _difference(where, role, "float", f"{where} is not zero, eager has none")
        if role == "gradient" and (a is None) != (e is None):  # no gradient means a zero one
            a = torch.zeros_like(e) if a is None else a
            e = torch.zeros_like(a) if e is None else e
        if not (isinstance(a, torch.Tensor) and isinstance(e, torch.Tensor)):
            return self.scalars(where, role, a, e)
        nested = a.is_nested or e.is_nested  # of which torch tells no shape
        if not nested and (difference := _form(where, role, a, e)):
            return difference
        if nested or not _are_plain(a, e):
            layout = "nested" if nested else _short_name(e.layout)
            what = f"a {type(e).__name__} of {_short_name(e.dtype)}, {layout}"
            raise CannotCompare(f"{where} is {what}, which cannot be compared with eager's")
        mark, wanted = ((x.data_ptr(), x.stride(), x.is_conj(), x.is_neg()) for x in (a, e))
        if a.numel() == 0 or a.device.type == "meta" or mark == wanted or are_close(a, e, 0.0, 0.0):
            return None
        return self.tensors(where, expected._replace(value=e), a, e)

    def scalars(self, where: str, role: str, a: Any, e: Any) -> Difference | None:
        """Python values of one type, equal; floats by float32's tolerance: most are ``.item()``."""
        if type(a) is not type(e):
            text = f"{where} is a {type(a).__name__}, eager gives a {type(e).__name__}"
            return _difference(where, role, "structure", text)
        if isinstance(e, float):
            a64, e64 = (torch.tensor(value, dtype=torch.float64) for value in (a, e))
            return self.tensors(where, Leaf(role, e), a64, e64)
        category = {bool: "bool", int: "integer"}.get(type(e), "structure")
        if a == e:
            return None
        return _difference(where, role, category, f"{where} is {a!r}, eager gives {e!r}")

    def tensors(self, where: str, leaf: Leaf, a: torch.Tensor, e: torch.Tensor) -> Difference | None:
        """How the values of two dense tensors of one form differ; asks other runs only if so."""

        def is_near() -> bool:
            if self.judge is not None:
                return self.judge.accepts(metrics_of(a, e))
            return are_close(a, e, *(self.margin * allowed for allowed in self.tolerance(leaf)[:2]))

        # eager's second run may have told that elements mix, which allows more
        if is_near() or not self.is_steady(where) or is_near():
            return None
        tolerance = self.tolerance(leaf)
        rtol, atol = (self.margin * allowed for allowed in tolerance[:2])
        reference, again = (self.eager_runs.leaf(tag, where, e) for tag in (Tag.FLOAT64, Tag.AGAIN))
        runs = [] if again is None else [again]
        undefined = torch.zeros_like(e, dtype=torch.bool)

        def difference() -> Elements:
            values = [a, reference, *runs]
            if undefined.any():
                values = [v if v is None else torch.where(undefined, e.to(v.dtype), v) for v in values]
            judged, exact, *others = values
            if self.judge is not None:
                return refused_by(self.judge, judged, e, exact)
            sensitivity = self.eager_runs.sensitivity
            spread = sensitivity.decided_from(e.dtype), sensitivity.mixes
            return wrong_elements(judged, e, tolerance, exact, others, self.margin, *spread)

        elements = difference()
        answers = self.eager_runs.members(Tag.UNDEFINED)
        usual = _in_place_of(e, next(answers, {}), where)
        for count, other in enumerate(answers):
            undefined |= moved(_in_place_of(e, other, where), usual, e, rtol, atol)
            if undefined.any():
                number = int(undefined.sum())
                part = "" if undefined.all() else f" ({number} of {e.numel()} elements)"
                self.left_out[where] = where + part
                elements = difference()
            if elements.wrong is None and count:
                break
        noise, taken = self.eager_runs.members(Tag.NOISE), 0
        while elements.wrong and not self.judge and (more := [*islice(noise, max(1, taken))]):
            taken += len(more)
            values = (_in_place_of(e, other, where) for other in more)
            runs += (value for value in values if _can_stand_for(value, e))
            elements = difference()
        if elements.decided:
            self.decided[where] = f"{where} ({elements.decided} of {e.numel()} elements)"
        if not (wrong := elements.wrong):
            return None
        text = f"{where} {wrong.pop('text')}"
        if e.numel() <= MOST_IN_WORDS:
            metrics = metrics_of(a, e, reference)
            text += f", PCC {metrics.pcc:.6g}, ratio {metrics.ratio:.2g}"
        return _difference(where, leaf.role, message=text, **wrong)


def comparison_of(
    actual: dict[str, Any],
    expected: dict[str, Any],
    eager: Eager,
    spec: RunSpec,
    explained_by: Container[Tag] = (*Tag,),
) -> Comparison:
    """Of what two runs left: their gradients count where both have them. ``eager`` runs the model
    again, changed or with another seed: only runs with these tags explain a difference."""
    actual = clone_values([actual], torch.Tensor.cpu)[0] if spec.golden else actual
    both = actual["gradients"] is not None and expected["gradients"] is not None
    if not both:
        actual, expected = ({**run, "gradients": {}} for run in (actual, expected))
    times = expected.get("most_times", 1) if both else 0
    eager_runs = eager_runs_of(partial(eager, backward=times), explained_by)
    return Comparison(leaves_of(actual), leaves_of(expected), eager_runs, spec)


def refused_by(judge: Judge, a: torch.Tensor, e: torch.Tensor, exact: Any) -> Elements:
    """As ``wrong_elements``, by a judge of the user's."""
    metrics = metrics_of(a, e, exact)
    if judge.accepts(metrics):
        return Elements(None, 0)
    has_floats = e.is_floating_point() or e.is_complex()
    category = "float" if has_floats else "bool" if e.dtype is torch.bool else "integer"
    text = f"differs: {judge.text} is false of it"
    return Elements({"category": category, "elements": e.numel(), "text": text}, 0)


def _form(where: str, role: str, a: torch.Tensor, e: torch.Tensor) -> Difference | None:
    kind, kind_wanted = (f"{type(x).__name__}, {_short_name(x.layout)}" for x in (a, e))
    for category, got, wanted in (
        ("dtype", _short_name(a.dtype), _short_name(e.dtype)),
        ("device", str(a.device), str(e.device)),
        ("structure", kind, kind_wanted),
        ("shape", str(list(a.shape)), str(list(e.shape))),
    ):
        if got != wanted:
            detail = f"dtype {got} for {wanted}" if category == "dtype" else category
            text = f"{where} has {category} {got}, eager gives {wanted}"
            return _difference(where, role, category, text, detail, actual=got, expected=wanted)
    return None


def _first_relation(actual: Leaves, expected: Leaves) -> Difference | None:
    runs = (actual, expected)
    common = (where for where in expected if where in actual)
    both = [where for where in common if _are_plain(actual[where].value, expected[where].value)]
    outputs = [where for where in both if expected[where].role == "output"]
    inputs = [where for where in both if expected[where].role == "input"]
    for where in outputs + inputs:
        got, wanted = (str(run[where].requires_grad) for run in runs)
        if got != wanted:
            text = f"{where} has requires_grad {got}, eager gives {wanted}"
            role = expected[where].role
            return _difference(where, role, "requires_grad", text, actual=got, expected=wanted)
    pairs: set[tuple[str, str]] = set()
    for run in runs:
        in_storage: dict[int, list[str]] = {}
        for where in inputs + outputs:
            others = in_storage.setdefault(run[where].value.untyped_storage().data_ptr(), [])
            pairs |= {(where, other) for other in others if run[where].role == "output"}
            others.append(where)
    for one, two in sorted(pairs, key=lambda pair: [both.index(where) for where in pair]):
        got_shared, shared = (share_memory(run[one].value, run[two].value) for run in runs)
        if got_shared is not None and shared is not None and got_shared != shared:
            does, other = ("share", "do not") if got_shared else ("do not share", "do")
            text = f"{one} and {two} {does} memory; in eager they {other}"
            return _difference(one, "output", "aliasing", text)
    return None


def _difference(
    where: str, role: str, category: str, message: str, detail: str = "", **figures: Any
) -> Difference:
    direction = "backward" if role == "gradient" else "forward"
    signature = {"direction": direction, "message": f"{role}: {detail or category}"}
    return {"where": where, "category": category, "signature": signature, "message": message, **figures}


def changed_unseen(where: str, by: str = "") -> Difference:
    """The difference of what is no longer what it was, where nobody knows by how much."""
    return _difference(where, where.split()[0], "float", f"{where} is changed{by}")
