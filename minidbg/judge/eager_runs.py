"""The legal runs of eager: what else torch may give for one program on one set of inputs.

A compiled result is wrong only where none of them explains it. What was seen is never unseen: a
member that fails itself explains nothing, and the difference is reported with that note.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from minidbg.core.foreign import first_line_of, is_of_a_signal_handler, is_out_of_memory
from minidbg.judge.differences import _chunks, _differ, _has_floats, _rms, _wide, distance_between
from minidbg.judge.leaves import CannotCompare, Leaves, _are_plain, _can_stand_for, collect_leaves
from minidbg.judge.precision import RoundingNoise, to_float64
from minidbg.judge.undefined import UndefinedResults, ZeroFilled
from minidbg.torch_internals.devices import generator_states
from minidbg.torch_internals.thread_state import preserving_thread_state

OTHER_SEED = 7_040_813  # none that a program is likely to have set, so that its numbers are others
MOST_ANSWERS = 8  # eager runs with other answers, and with other rounding
NO_MOVE = 1e-5  # sums in another order, relative
STEPS_THAT_DECIDE = 4.0  # of the coarsest precision: by more than their root only a choice moves

Eager = Callable[..., dict[str, Any]]
"""``eager(change, seed=, backward=)``: what one more run leaves behind, of a changed program with
changed inputs, or with another seed, with gradients or without."""


class Tag(StrEnum):
    """What is different about a member, in order of cost; the value names the run in a note."""

    AGAIN = "a second run of eager"
    """With another seed where it draws: a leaf in which eager differs from itself is not judged."""
    FLOAT64 = "eager in float64"
    """Tells whose rounding a difference is."""
    UNDEFINED = "eager with other answers"
    """Other results where torch defines none: elements that change are not judged."""
    NOISE = "eager with other rounding"
    """Tells how far eager's result may be off by rounding, and what rounding decides."""


@dataclass(slots=True)
class Sensitivity:
    """What the second run of eager tells of the program; before it, everything is possible."""

    is_open: bool = True
    """Whether torch leaves a result undefined."""
    draws: bool = False
    """Whether the program draws random numbers, which would be others in float64."""
    mixes: bool = True
    """Whether an element comes of several, whose sum may be split and each part rounded."""
    coarsest: float = 0.0
    """The largest rounding step, relative, of the dtypes that the program computes in."""
    undefined: dict[str, None] = field(default_factory=dict)
    """What torch does not define, in words."""

    def decided_from(self, dtype: torch.dtype) -> float:
        """By how much, in units of it, an element is moved only where rounding has decided it."""
        own = torch.finfo(dtype).eps if dtype.is_floating_point or dtype.is_complex else 0.0
        return math.sqrt(STEPS_THAT_DECIDE * max(own, self.coarsest))


class EagerRuns:
    """Members by their tags, each made when it is first asked for, and kept.

    A member is the snapshot of a run, asked for only at a difference, so a right result costs none.
    """

    def __init__(
        self, members: Mapping[Tag, Iterable[Leaves]] | None = None, sensitivity: Sensitivity | None = None
    ) -> None:
        self._to_make = {tag: iter(runs) for tag, runs in (members or {}).items()}
        self._made: dict[Tag, list[Leaves]] = {tag: [] for tag in Tag}
        self.sensitivity = sensitivity or Sensitivity()
        self.failed: dict[Tag, str] = {}
        """A sentence for each tag of which a member failed."""

    def members(self, tag: Tag) -> Iterator[Leaves]:
        """Members with this tag, until one fails. Raises CannotCompare if nothing can be judged."""
        yield from self._made[tag]
        try:
            for run in self._to_make.get(tag, ()):
                self._made[tag].append(run)
                yield run
        except CannotCompare:
            raise
        except Exception as error:  # whatever an op says
            if is_of_a_signal_handler(error):
                raise
            self.failed[tag] = f"{tag}, which might explain it, fails: {first_line_of(error)}"

    def leaf(self, tag: Tag, where: str, like: torch.Tensor | None = None) -> Any:
        run = next(self.members(tag), {})
        value = run[where].value if where in run else None
        return value if like is None or _can_stand_for(value, like) else None


def eager_runs_of(eager: Eager, tags: Container[Tag]) -> EagerRuns:
    """The iterators share no object with what they go into but ``sensitivity``: a cycle would hold
    on to the tensors of all runs.
    """
    sensitivity = Sensitivity()
    runs = {
        Tag.AGAIN: again(eager, sensitivity),
        Tag.FLOAT64: in_float64(eager, sensitivity),
        Tag.UNDEFINED: with_other_answers(eager, sensitivity),
        Tag.NOISE: with_other_rounding(eager),
    }
    return EagerRuns({tag: run for tag, run in runs.items() if tag in tags}, sensitivity)


def again(eager: Eager, sensitivity: Sensitivity) -> Iterator[Leaves]:
    """Eager with a new seed; none where it draws nothing and something is open, judged by element.

    Where nothing is open, which this run finds out, no other run is needed.
    """
    mode = UndefinedResults()
    torch.manual_seed(OTHER_SEED)
    states = dict(generator_states(()))
    run = changed_run(eager, mode.applied_to, seed=OTHER_SEED)
    if run is None:
        torch.manual_seed(OTHER_SEED)
        try:
            yield run_of(eager, seed=OTHER_SEED)
        except CannotCompare:
            raise
        except Exception as error:
            if all(torch.equal(states.get(name, now), now) for name, now in generator_states(())):
                raise
            raise CannotCompare("it draws random numbers, and eager fails with others") from error
        return
    sensitivity.coarsest, sensitivity.is_open = mode.coarsest, bool(mode.met)
    sensitivity.mixes = mode.mixes
    # another thread may have moved the generator
    sensitivity.draws = mode.may_draw and not all(
        torch.equal(states.get(name, now), now) for name, now in generator_states(())
    )
    if sensitivity.draws and sensitivity.is_open:
        run = leaves_of(eager(seed=OTHER_SEED))
    if sensitivity.draws or not sensitivity.is_open:
        yield run


def in_float64(eager: Eager, sensitivity: Sensitivity) -> Iterator[Leaves]:
    if not sensitivity.draws:
        yield run_of(eager, to_float64)


def with_other_answers(eager: Eager, sensitivity: Sensitivity) -> Iterator[Leaves]:
    """Eager itself, with zeros for memory that nobody wrote, then eager runs with other answers
    where torch leaves them open.

    Those are held against the first: kernels that such runs take for others round otherwise.
    """
    zeros = ZeroFilled()  # type: ignore[no-untyped-call]
    usual = changed_run(eager, zeros.applied_to) if sensitivity.is_open else None
    if usual is not None:
        yield usual
    for number in range(MOST_ANSWERS if usual is not None else 0):
        mode = UndefinedResults(number)
        if (run := changed_run(eager, mode.applied_to)) is not None:
            sensitivity.undefined |= mode.met
            yield run


def with_other_rounding(eager: Eager) -> Iterator[Leaves]:
    """Eager runs with other rounding errors, in backward too: one run may be exact by luck."""
    for number in range(MOST_ANSWERS):
        # attention by its parts: a fused kernel would round at its end only
        with sdpa_kernel(SDPBackend.MATH), RoundingNoise(number) as noise:
            run = changed_run(eager, noise.begun_with_inputs)
        if run is not None:
            yield run


def changed_run(eager: Eager, *change: Any, **seed: int) -> Leaves | None:
    """What eager leaves; None where the program cannot bear the change: an index out of bounds."""
    try:
        return run_of(eager, *change, **seed)
    except CannotCompare:
        raise
    except Exception as error:  # whatever an op says
        if is_of_a_signal_handler(error):
            raise
        return None


def run_of(eager: Eager, *change: Any, **seed: int) -> Leaves:
    """What eager leaves behind. Raises CannotCompare where memory does not suffice for it."""
    with preserving_thread_state():  # also what a frame of the failed run had held open
        try:
            return leaves_of(eager(*change, **seed))
        except Exception as error:
            if is_out_of_memory(error):
                what = "memory does not suffice for a run of eager that might explain a difference"
                raise CannotCompare(f"{what}: {first_line_of(error)}") from error
            raise


def moved(run: Any, usual: Any, expected: torch.Tensor, relative: float, absolute: float) -> Any:
    """Where a run with other answers is off the usual by more than these, or than other sums."""
    if not (_can_stand_for(run, expected) and _can_stand_for(usual, expected)):
        return True
    if same_but_for_rounding(run, usual):
        return False
    absolute = max(absolute, NO_MOVE * _rms(usual))
    if not _has_floats(usual):
        return run != usual
    near = torch.isclose(_wide(run), _wide(usual), max(relative, NO_MOVE), absolute, equal_nan=True)
    return ~near.to(usual.device)


def same_but_for_rounding(one: Any, two: Any, coarsest: float = 0.0) -> bool:
    """Whether two runs of eager differ by no more than rounding: floats by the root of the dtype's
    precision, or of the ``coarsest`` step on the way: autocast rounds more than the dtype tells.

    Not by what float64 says of rounding: what differs each time differs there too.
    """
    if not (_are_plain(one, two) and one.dtype is two.dtype):
        if isinstance(one, torch.Tensor) or isinstance(two, torch.Tensor):
            return not (_are_plain(one, one) or _are_plain(two, two))  # not comparable, so no noise
        return bool(one == two or (one != one and two != two))
    if not _has_floats(one):
        return torch.equal(one, two)
    if any(_differ(x, y).any() for _, (x, y) in _chunks(one, two)):
        return False
    return distance_between(two, one) <= math.sqrt(max(torch.finfo(one.dtype).eps, coarsest))


def leaves_of(run: dict[str, Any]) -> Leaves:
    return collect_leaves(run["outputs"], run["inputs_after"], run["gradients"])
