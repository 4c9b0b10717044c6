"""The smallest change of a program that avoids a failure, until the backend is mended; each is tried on the unreduced capture.

A change is tried by running the capture as the changed program would run it: with an option of the backend, with a cast or a
copy before the op, with other sizes symbolic, with the op outside the compiled graph. It counts when the backend then gives
what eager gives for the graph as it was.
"""

from __future__ import annotations

import json
import operator
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch.fx.passes.split_module import split_module

from minidbg import _torch, isolation, processes, references, repro
from minidbg.case import CallPath, Case, Level
from minidbg.errors import NotReproduced
from minidbg.failure import Outcome, Verdict
from minidbg.graphs import instantiate
from minidbg.graphs.comments import location
from minidbg.graphs.copying import clone_values, copy_graph_module
from minidbg.graphs.effects import is_call
from minidbg.oracle import harness
from minidbg.oracle.agreement import differ
from minidbg.oracle.embed import settings_of
from minidbg.oracle.execute import fresh, written
from minidbg.repro.files import replace_file
from minidbg.repro.folder import HIDDEN, hidden

CALL_SECONDS = 120.0
MOST_QUESTIONS = 10
ENOUGH = 3
"""Verified changes after which no further kind is tried."""
MOST_CULPRITS = 8
TIMED_S = 0.5

INDUCTOR_OPTIONS: Mapping[str, Any] = {
    "emulate_precision_casts": True,
    "pattern_matcher": False,
    "joint_graph_constant_folding": False,
    "layout_optimization": False,
    "comprehensive_padding": False,
    "split_reductions": False,
    "loop_ordering_after_fusion": False,
    "inplace_buffers": False,
    "allow_buffer_reuse": False,
    "epilogue_fusion": False,
    "max_fusion_size": 1,
    "cpp.simdlen": 1,
    "size_asserts": False,
}
"""Documented switches of inductor that turn something off, at about what they cost, the cheapest first."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change of the user's program, and the capture as it then runs."""

    what: str
    """In a few words: ``.contiguous() before cumsum``."""
    lines: tuple[str, ...]
    """To write into the program."""
    where: str
    """``train.py:41``, or a sentence."""
    case: Case
    changes_graph: bool = False
    """Whether the graph computes in another way, so that its eager results are compared with those before."""


@dataclass(frozen=True, slots=True)
class Workaround:
    """A change that was seen to work."""

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
class Search:
    """What was found, the cheapest first, and how many questions that took."""

    found: tuple[Workaround, ...]
    questions: int
    seconds: float
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        found = [{**asdict(one), "cost": one.cost} for one in self.found]
        return {
            "found": found,
            "questions": self.questions,
            "seconds": round(self.seconds, 1),
            "notes": list(self.notes),
        }


def find(capture: Path, reduced: Path | None, *, most_questions: int = MOST_QUESTIONS) -> Search:
    """Changes of the program that avoid the failure of the capture; ``reduced`` is its repro, which names the ops at fault.

    Runs the script's code. Raises UnreadableRepro, and NotReproduced when the capture does not fail here.
    """
    began = time.monotonic()
    case = repro.load(capture)
    if case.level is Level.ATEN:
        raise NotReproduced(
            f"{capture}: a compiler of aot_autograd's is called with this graph; no line of a program is known for it"
        )
    small = repro.load(reduced) if reduced is not None else case
    with processes.own_kernel_cache():
        asking = Asking(case, most_questions)
        if asking.outcome(case).verdict not in (Verdict.REPRODUCES, Verdict.FLAKY):
            raise NotReproduced(
                f"{capture} does not show its failure here, so nothing can be tried against it"
            )
        asking.questions = 0  # that it fails is no question about a change
        found = [change for change in asking.working(changes(case, small, asking)) if change is not None]
        timed = with_costs(case, found)
    notes = () if found else ("nothing helped of what was tried: " + "; ".join(asking.tried),)
    return Search(tuple(timed), asking.questions, time.monotonic() - began, notes)


class Asking:
    """Asks whether changes work; counts the questions."""

    def __init__(self, case: Case, most: int) -> None:
        self.case, self.most = case, most
        self.questions = 0
        self.tried: list[str] = []

    def outcome(self, case: Case) -> Outcome:
        """What became of a run of ``case``, whose failure counts whatever it is."""
        self.questions += 1
        return isolation.submit(case, seconds=CALL_SECONDS)

    def works(self, change: Change) -> bool:
        """Whether the changed program gives what the program gave in eager."""
        self.tried.append(change.what)
        case = replace(change.case, signature=None)
        if change.changes_graph and not agrees_in_eager(self.case, case):
            return False
        said = self.outcome(case)
        # what it does in parts reaches the backend as several graphs
        in_parts = said.verdict is Verdict.INVALID and "dynamo handed another graph" in said.reason
        return (said.verdict is Verdict.GONE and "fallback: " not in said.reason) or in_parts

    def left(self) -> int:
        return self.most - self.questions

    def working(self, candidates: Iterator[Change | None]) -> Iterator[Change | None]:
        """The changes that work, until there are enough or the questions run out."""
        found = 0
        for change in candidates:
            if change is not None and self.works(change):
                found += 1
                yield change
            if found == ENOUGH or self.left() <= 0:
                return


# ---- what can be changed


def changes(case: Case, small: Case, asking: Asking) -> Iterator[Change | None]:
    """Changes to try, about the cheapest first."""
    culprits = culprits_of(case, small)
    if option := option_that_helps(case, asking):
        yield option
    yield from without_own_settings(case)
    if culprits:
        yield from with_changed_inputs(case, small, culprits)
    yield from with_other_sizes(case)
    if culprits:
        yield outside_the_graph(case, culprits)
    yield with_another_backend(case)


def option_that_helps(case: Case, asking: Asking) -> Change | None:
    """The one switch of inductor without which it fails: all are tried at once, then halves of those."""
    if case.backend.name != "inductor":
        return None
    known = set(_torch.inductor_option_names())
    options = {
        name: value
        for name, value in INDUCTOR_OPTIONS.items()
        if name in known and name not in case.backend.options
    }
    if not options or not asking.works(with_options(case, options)):
        return None
    while len(options) > 1 and asking.left() > 1:
        names = list(options)
        half = {name: options[name] for name in names[: len(names) // 2]}
        options = (
            half
            if asking.works(with_options(case, half))
            else {name: options[name] for name in names[len(names) // 2 :]}
        )
    return with_options(case, options)


def with_options(case: Case, options: Mapping[str, Any]) -> Change:
    given = {**case.backend.options, **options}
    what = f"options={dict(options)!r}"
    line = f"torch.compile(..., backend={case.backend.expression}, options={given!r})"
    return Change(
        what, (line,), "where torch.compile is called", with_backend(case, options=given, mode=None)
    )


def with_backend(case: Case, **more: Any) -> Case:
    """The case with other options of its backend."""
    return replace(case, backend=replace(case.backend, **more), call=CallPath.TORCH_COMPILE)


def without_own_settings(case: Case) -> Iterator[Change]:
    """The program's own mode and options, one left out at a time."""
    expression = case.backend.expression
    place = "where torch.compile is called"
    if case.backend.mode:
        line = f"torch.compile(..., backend={expression})"
        yield Change(f"without mode={case.backend.mode!r}", (line,), place, with_backend(case, mode=None))
    for name in case.backend.options:
        rest = {key: value for key, value in case.backend.options.items() if key != name}
        line = f"torch.compile(..., backend={expression}" + (f", options={rest!r})" if rest else ")")
        yield Change(f"without the option {name!r}", (line,), place, with_backend(case, options=rest))


def with_other_sizes(case: Case) -> Iterator[Change]:
    """All sizes symbolic, or all of them numbers."""
    symbolic = any(case.dynamic_dims) or case.dynamic
    other = replace(case, dynamic=not symbolic, dynamic_dims=(), call=CallPath.TORCH_COMPILE)
    cost = "a compilation for each size" if symbolic else "one compilation for many sizes"
    line = f"torch.compile(..., dynamic={not symbolic})  # {cost}"
    yield Change(f"dynamic={not symbolic}", (line,), "where torch.compile is called", other)


def culprits_of(case: Case, small: Case) -> list[fx.Node]:
    """The capture's nodes that the repro is made of: of its targets, and of its lines where those are known."""
    wanted = {(str(node.op), repr_of(node)) for node in small.graph_module.graph.nodes if is_call(node)}
    places = {place for node in small.graph_module.graph.nodes if (place := location(node))}
    nodes = [
        node
        for node in case.graph_module.graph.nodes
        if is_call(node) and node.target is not operator.getitem and (str(node.op), repr_of(node)) in wanted
    ]
    there = [node for node in nodes if location(node) in places]
    return (there or nodes)[:MOST_CULPRITS]


def repr_of(node: fx.Node) -> str:
    return node.target if isinstance(node.target, str) else _torch.GivenCall.of(node).text


def with_changed_inputs(case: Case, small: Case, culprits: Sequence[fx.Node]) -> Iterator[Change]:
    """A copy or a cast of the tensors that the ops at fault take."""
    dtypes = {value.dtype for value in small.inputs if isinstance(value, torch.Tensor)}
    kinds: list[tuple[str, str, tuple[Any, ...]]] = [
        ("contiguous", ".contiguous()", ()),
        ("clone", ".clone()", ()),
    ]
    if dtypes & {torch.float16, torch.bfloat16}:
        kinds.insert(0, ("to", ".float()", (torch.float32,)))
    if torch.bool in dtypes or torch.uint8 in dtypes:
        kinds.insert(0, ("to", ".to(torch.int64)", (torch.int64,)))
    for method, text, arguments in kinds:
        changed = changed_before(case, culprits, method, arguments)
        if changed is not None:
            names = ", ".join(dict.fromkeys(short_name(node) for node in culprits))
            lines = tuple(
                f"{short_name(node)}: {text} on each tensor that it takes"
                + (", and .to(dtype) on its result" if method == "to" else "")
                for node in culprits[:3]
            )
            yield Change(f"{text} before {names}", lines, places_of(culprits), changed, changes_graph=True)


def changed_before(
    case: Case, culprits: Sequence[fx.Node], method: str, arguments: tuple[Any, ...]
) -> Case | None:
    """The case in which the culprits take changed tensors; None where they write to them."""
    graph_module = copy_graph_module(case.graph_module)
    names = {node.name for node in culprits}
    for node in list(graph_module.graph.nodes):
        if node.name not in names:
            continue
        if node.op == "call_method" and str(node.target).endswith("_"):
            return None
        taken = [one for one in node.all_input_nodes if is_tensor(one, case)]
        with graph_module.graph.inserting_before(node):
            for one in taken:
                node.replace_input_with(one, graph_module.graph.call_method(method, (one, *arguments)))
        dtype = dtype_of(node)
        if method == "to" and dtype is not None:
            with graph_module.graph.inserting_after(node):
                back = graph_module.graph.call_method("to", (node, dtype))
            node.replace_all_uses_with(back, delete_user_cb=lambda user, back=back: user is not back)
    graph_module.recompile()
    return replace(case.with_graph(graph_module, case.inputs), call=CallPath.TORCH_COMPILE)


def is_tensor(node: fx.Node, case: Case) -> bool:
    if node.op == "placeholder":
        places = [one for one in case.graph_module.graph.nodes if one.op == "placeholder"]
        place = next((number for number, one in enumerate(places) if one.name == node.name), None)
        return place is not None and isinstance(case.inputs[place], torch.Tensor)
    return node.op != "get_attr" or not isinstance(node.target, str) or "body" not in node.target


def dtype_of(node: fx.Node) -> torch.dtype | None:
    example = node.meta.get("example_value")
    return example.dtype if isinstance(example, torch.Tensor) else None


def outside_the_graph(case: Case, culprits: Sequence[fx.Node]) -> Change:
    """The ops at fault run in eager between two compiled parts: what a graph break around their lines does."""
    names = tuple(node.name for node in culprits)
    ops = ", ".join(dict.fromkeys(short_name(node) for node in culprits))
    ref = case.backend
    expression = (
        f"minidbg.workarounds.eager_around({ref.expression}, {names!r}, {dict(ref.options)!r}, {ref.mode!r})"
    )
    around = replace(
        ref, expression=expression, setup=(*ref.setup, "import minidbg.workarounds"), options={}, mode=None
    )
    backend = eager_around(case.compiler or references.resolve(ref), names, ref.options, ref.mode)
    lines = (
        "@torch.compiler.disable",
        f"def outside(*args): ...  # the call of {ops} goes in here",
    )
    changed = replace(case, backend=around, compiler=backend, call=CallPath.TORCH_COMPILE)
    return Change(f"a graph break around {ops}", lines, places_of(culprits), changed)


def with_another_backend(case: Case) -> Change:
    """This graph through aot_eager: nothing is compiled for it, and the program's other graphs are."""
    line = f'torch.compile(..., backend=minidbg.wrap([{case.backend.expression}, "aot_eager"]))'
    changed = replace(
        case, backend=references.find("aot_eager"), compiler="aot_eager", call=CallPath.TORCH_COMPILE
    )
    return Change("another backend for this graph", (line,), "where torch.compile is called", changed)


def short_name(node: fx.Node) -> str:
    return (
        str(node.target)
        if isinstance(node.target, str)
        else getattr(node.target, "__name__", str(node.target))
    )


def places_of(nodes: Sequence[fx.Node]) -> str:
    """``train.py:41, train.py:50``."""
    places = dict.fromkeys(place for node in nodes if (place := location(node)))
    return ", ".join(places) or "the lines are not known"


# ---- asking


def eager_around(
    backend: Any, names: Sequence[str], options: Mapping[str, Any] | None = None, mode: str | None = None
) -> Callable[..., Any]:
    """A backend that compiles what stands before and after the nodes of those names with ``backend``, and runs them in eager."""

    def compile_around(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        number, parts, inside = 0, {}, False
        for node in graph_module.graph.nodes:
            if (node.name in names) is not inside:
                number, inside = number + 1, not inside
            parts[node] = number
        split: Any = split_module(graph_module, None, parts.__getitem__, keep_original_order=True)  # type: ignore[arg-type]
        given: dict[str, Any] = {"mode": mode, "options": dict(options or {})}
        given = {name: value for name, value in given.items() if value}
        for name, part in list(split.named_children()):
            if name.startswith("submod_") and not any(node.name in names for node in part.graph.nodes):
                split.add_module(name, torch.compile(part, backend=backend, **given))
        return split.forward  # type: ignore[no-any-return]

    return compile_around


def agrees_in_eager(case: Case, changed: Case) -> bool:
    """Whether two graphs give the same results in eager, in a child: what the change costs is not its meaning."""

    def answer() -> bool:
        table = settings_of(case)

        def run(
            which: Case, change: Callable[[Any], Any] = lambda made: made, seed: int = harness.SEED
        ) -> dict[str, Any]:
            source = written(which)
            model, inputs = (
                change(instantiate(source, fresh(source))),
                change(tuple(clone_values(which.inputs))),
            )
            with harness.entered_modes(table.get("context", {})):
                return harness.run_once(model, model, inputs, table, seed)

        return (
            differ(run(changed), run(case), lambda *args, **kwargs: run(case, *args, **kwargs), table, [])
            is None
        )

    return processes.call_in_fork(answer, seconds=CALL_SECONDS).value is True


def with_costs(case: Case, found: Sequence[Change]) -> list[Workaround]:
    """The workarounds with what a call of each takes, the cheapest first."""
    nodes = sum(is_call(node) for node in case.graph_module.graph.nodes)
    eager = seconds_a_call(case, None) if found else None
    made = [
        Workaround(one.what, one.lines, one.where, nodes, seconds_a_call(one.case, one.case), eager)
        for one in found
    ]
    return sorted(made, key=lambda one: one.seconds_a_call or float("inf"))


def seconds_a_call(case: Case, compiled: Case | None) -> float | None:
    """The median time of a call of the case's graph, compiled or in eager, in a child; None where it cannot be measured."""

    def answer() -> float:
        source, table = written(case), settings_of(case)
        model, inputs = instantiate(source, fresh(source)), tuple(clone_values(case.inputs))
        function: Any = model
        if compiled is not None:
            backend = case.compiler if case.compiler is not None else references.resolve(case.backend)
            function = harness.compile_by_torch(backend, model, inputs, table)
        with (
            harness.patched_config(table.get("context", {}).get("config", {})),
            harness.entered_modes(table.get("context", {})),
        ):
            function(*inputs)
            times: list[float] = []
            ends = time.perf_counter() + TIMED_S
            while time.perf_counter() < ends or len(times) < 3:
                began = time.perf_counter()
                function(*inputs)
                times.append(time.perf_counter() - began)
        return statistics.median(times)

    try:
        value = processes.call_in_fork(answer, seconds=CALL_SECONDS).value
    except OSError:
        return None
    return value if isinstance(value, float) else None


# ---- what is kept


def kept_file(path: Path) -> Path:
    """Where what was found for the repro or capture at ``path`` lies."""
    return repro.folder_of(path) / HIDDEN / "workarounds" / f"{path.stem}.json"


def keep(path: Path, search: Search) -> None:
    """Keep what was found, for ``show`` and the reports. Raises OSError."""
    hidden(repro.folder_of(path), "workarounds")
    replace_file(kept_file(path), json.dumps(search.to_json()).encode())


def best_of(path: Path) -> str:
    """The best workaround that is kept for the repro at ``path``, as a sentence; an empty text when there is none."""
    try:
        first = json.loads(kept_file(path).read_text(encoding="utf-8"))["found"][0]
        return f"{first['what']} ({first['where']}); {first['cost']}"
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return ""
