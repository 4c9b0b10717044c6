"""Finds the smallest change of a program that avoids a failure, until the backend is mended; each is tried on the unreduced capture.

A change is tried by running the capture as the changed program would run it. It counts when the backend then gives what eager
gives for the graph as it was.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from minidbg import asking, backends, repro, workers
from minidbg.asking.execute import ANOTHER_GRAPH, fresh, written
from minidbg.extras.workarounds import changes
from minidbg.extras.workarounds.changes import Change
from minidbg.fx.case import Case
from minidbg.fx.copying import clone_values
from minidbg.fx.effects import is_call
from minidbg.judge import harness
from minidbg.judge.agreement import Comparison
from minidbg.repro.folder import hidden
from minidbg.repro.known_workaround import kept_file
from minidbg.source.module_text import instantiate
from minidbg.torch_internals.devices import synchronize
from minidbg.words.errors import CannotWrite, NotReproduced
from minidbg.words.files import replace_file
from minidbg.words.outcome import Outcome, Verdict
from minidbg.words.run_spec import Level

CALL_SECONDS = 120.0
MOST_QUESTIONS = 10
ENOUGH = 3
"""Verified changes after which no further kind is tried."""
TIMED_S = 0.5


@dataclass(frozen=True, slots=True)
class Workaround:
    what: str
    lines: tuple[str, ...]
    where: str
    nodes: int
    """Call nodes of the graph on which it was tried."""
    seconds_a_call: float | None = None
    eager_seconds: float | None = None
    """Of a call of the failing graph in eager; neither is known where the process cannot be forked."""

    @property
    def cost(self) -> str:
        if self.seconds_a_call is None or self.eager_seconds is None:
            return "its cost was not measured"
        ratio = self.seconds_a_call / self.eager_seconds
        return f"a call takes {1e3 * self.seconds_a_call:.2f} ms, eager {1e3 * self.eager_seconds:.2f} ms ({ratio:.1f} times)"

    @property
    def sentence(self) -> str:
        return f"{self.what} ({self.where})"


@dataclass(frozen=True, slots=True)
class WorkaroundSearch:
    """What was found, the cheapest first, and how many questions that took."""

    found: tuple[Workaround, ...]
    questions: int
    seconds: float
    notes: tuple[str, ...] = ()
    interrupted: bool = False
    """Whether Ctrl-C ended it before all was tried."""

    def to_json(self) -> dict[str, Any]:
        found = [{**asdict(one), "cost": one.cost} for one in self.found]
        return {
            "found": found,
            "questions": self.questions,
            "seconds": round(self.seconds, 1),
            "notes": list(self.notes),
            **({"interrupted": True} if self.interrupted else {}),
        }


def find(capture: Path, reduced: Path | None, *, most_questions: int = MOST_QUESTIONS) -> WorkaroundSearch:
    """Changes of the program that avoid the failure of the capture; ``reduced`` is its repro, which names the ops at fault.

    Ctrl-C ends the search with what was found so far, whose cost is then not measured. Runs the script's code. Raises UnreadableRepro, and NotReproduced when the capture does not fail here.
    """
    began = time.monotonic()
    case = repro.load(capture)
    if case.spec.level is Level.ATEN:
        raise NotReproduced(
            f"{capture}: a compiler of aot_autograd's is called with this graph; no line of a program is known for it"
        )
    small = repro.load(reduced) if reduced is not None else case
    trials = Asking(case, most_questions)
    found: list[Change] = []
    interrupted = False
    try:
        with workers.own_kernel_cache():
            if trials.outcome(case).verdict not in (Verdict.REPRODUCES, Verdict.FLAKY):
                raise NotReproduced(
                    f"{capture} does not show its failure here, so nothing can be tried against it"
                )
            trials.questions = 0  # that it fails is no question about a change
            for change in trials.working(candidates(case, small, trials)):
                found.append(change)  # one by one: Ctrl-C may come between two
            timed = with_costs(case, found)
    except KeyboardInterrupt:
        interrupted, timed = True, [workaround_of(case, one) for one in found]
    failed = [what for what, works in trials.tried.items() if not works]
    notes = ("nothing helped of what was tried: " + "; ".join(failed),) if failed and not found else ()
    return WorkaroundSearch(tuple(timed), trials.questions, time.monotonic() - began, notes, interrupted)


class Asking:
    """Asks whether changes work; counts the questions."""

    def __init__(self, case: Case, most: int) -> None:
        self.case, self.most = case, most
        self.questions = 0
        self.tried: dict[str, bool] = {}
        """Whether each change works."""

    def outcome(self, case: Case) -> Outcome:
        """What became of a run of ``case``, whose failure counts whatever it is."""
        self.questions += 1
        return asking.submit(case, seconds=CALL_SECONDS)

    def works(self, change: Change) -> bool:
        """Whether the changed program gives what the program gave in eager. Nothing is asked twice."""
        if change.what not in self.tried:
            self.tried[change.what] = self.agrees(change)
        return self.tried[change.what]

    def agrees(self, change: Change) -> bool:
        case = change.case.with_spec(signature=None)
        if change.changes_graph and not agrees_in_eager(self.case, case):
            return False
        said = self.outcome(case)
        # what it does in parts reaches the backend as several graphs
        in_parts = said.verdict is Verdict.INVALID and said.reason.startswith(ANOTHER_GRAPH)
        same_backend = change.case.backend.name == self.case.backend.name
        handed_back = same_backend and harness.HANDED_BACK in said.reason
        return (said.verdict is Verdict.GONE and not handed_back) or in_parts

    def left(self) -> int:
        return self.most - self.questions

    def working(self, some: Iterator[Change]) -> Iterator[Change]:
        """The changes that work, until there are enough or the questions run out."""
        found = 0
        for change in some:
            if self.works(change):
                found += 1
                yield change
            if found == ENOUGH or self.left() <= 0:
                return


def candidates(case: Case, small: Case, trials: Asking) -> Iterator[Change]:
    """Changes to try, those first that help often and cost little."""
    yield from changes.with_one_thread(case)
    yield from option_that_helps(case, trials)
    yield from changes.without_own_options(case)
    culprits = changes.culprits_of(case, small)
    with contextlib.suppress(CannotWrite):  # an op that no line of the user's can name
        if culprits:
            yield changes.outside_the_graph(case, culprits)
    yield changes.with_other_sizes(case)
    yield from changes.with_other_backends(case)
    with contextlib.suppress(CannotWrite):
        if culprits:
            yield from changes.with_changed_inputs(case, small, culprits)


def option_that_helps(case: Case, trials: Asking) -> Iterator[Change]:
    """The one switch of inductor without which it fails: all are tried at once, then halves of those."""
    options = changes.inductor_options(case)
    if not options or not trials.works(changes.with_options(case, options)):
        return
    while len(options) > 1 and trials.left() > 1:
        names = list(options)
        first, second = names[: len(names) // 2], names[len(names) // 2 :]
        helps = trials.works(changes.with_options(case, {name: options[name] for name in first}))
        options = {name: options[name] for name in (first if helps else second)}
    yield changes.with_options(case, options)


def made(case: Case) -> tuple[Any, tuple[Any, ...]]:
    """The case's model and inputs, as its script makes them."""
    source = written(case)
    return instantiate(source, fresh(source)), tuple(clone_values(case.inputs))


def agrees_in_eager(case: Case, changed: Case) -> bool:
    """Whether two graphs give the same results in eager, in a child: what the change costs is not its meaning."""
    return asking.ask(f"{__name__}:two_agree_in_eager", case, changed, seconds=CALL_SECONDS) is True


def two_agree_in_eager(argument: Mapping[str, Any], note: object) -> bool:
    """In the child: the answer to ``agrees_in_eager``."""
    case, changed = map(asking.unpacked, argument["cases"])

    def run(
        which: Case, change: Callable[[Any], Any] = lambda made: made, seed: int = harness.SEED
    ) -> dict[str, Any]:
        model, inputs = map(change, made(which))
        with harness.entered_modes(case.spec.context):
            return harness.run_once(model, model, inputs, case.spec, seed)

    return Comparison(run(changed), run(case), partial(run, case), case.spec).difference([]) is None


def with_costs(case: Case, found: Sequence[Change]) -> list[Workaround]:
    """The workarounds with what a call of each takes, the cheapest first."""
    eager = seconds_a_call(case, None) if found else None
    made = [workaround_of(case, one, seconds_a_call(one.case, one.case), eager) for one in found]
    return sorted(made, key=lambda one: one.seconds_a_call or float("inf"))


def workaround_of(
    case: Case, change: Change, seconds: float | None = None, eager_seconds: float | None = None
) -> Workaround:
    nodes = sum(is_call(node) for node in case.graph_module.graph.nodes)
    return Workaround(change.what, change.lines, change.where, nodes, seconds, eager_seconds)


def seconds_a_call(case: Case, compiled: Case | None) -> float | None:
    """The median time of a call of the case's graph, compiled or in eager, in a child; None where it cannot be measured."""
    function = f"{__name__}:seconds_in_eager" if compiled is None else f"{__name__}:seconds_compiled"
    try:
        value = asking.ask(function, case if compiled is None else compiled, seconds=CALL_SECONDS)
    except OSError:
        return None
    return value if isinstance(value, float) else None


def seconds_in_eager(argument: Mapping[str, Any], note: object) -> float:
    """In the child: the median time of a call of the case's graph."""
    case = asking.unpacked(argument["cases"][0])
    model, inputs = made(case)
    return median_of_calls(case, model, inputs)


def seconds_compiled(argument: Mapping[str, Any], note: object) -> float:
    """In the child: the median time of a call of what the case's backend makes of the graph."""
    case = asking.unpacked(argument["cases"][0])
    model, inputs = made(case)
    backend = case.compiler if case.compiler is not None else backends.resolve(case.backend)
    return median_of_calls(case, harness.compile_by_torch(backend, model, inputs, case.spec), inputs)


def median_of_calls(case: Case, function: Callable[..., Any], inputs: tuple[Any, ...]) -> float:
    with (
        harness.patched_config(case.spec.context.config),
        harness.entered_modes(case.spec.context),
    ):
        times: list[float] = []
        function(*inputs)
        ends = time.perf_counter() + TIMED_S
        while time.perf_counter() < ends or len(times) < 3:
            synchronize(inputs)
            began = time.perf_counter()
            function(*inputs)
            synchronize(inputs)
            times.append(time.perf_counter() - began)
    return statistics.median(times)


# ---- what is kept


def keep(path: Path, search: WorkaroundSearch) -> None:
    """Keep what was found, for ``show`` and the reports. Raises OSError."""
    hidden(repro.folder_of(path), "workarounds")
    replace_file(kept_file(path), json.dumps(search.to_json()).encode())
