"""A graph's inputs as they were before a call, and runs of the graph on copies of them.

Nothing of these runs reaches the user: the tensors that may be written are copies, the others are seen through aliases
without autograd history, and gradients are asked for by ``torch.autograd.grad``, never accumulated.

The first node whose value differs is found by such runs of parts of the graph, fed with eager's values, with each of their values as an output:
of one call of each kind, then of halves, until one is small. It is a hint for people and for the reduction. What shows in none, or not with
more outputs, has no first node.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx

from minidbg import _torch
from minidbg.backend.capture import place_of_input
from minidbg.backend.chain import Link, compile_at_run_time
from minidbg.backend.collectives import Replay, as_seen_here
from minidbg.backend.kept import bytes_of_example, free_bytes, memory_of, sharing_memory, tensors_in
from minidbg.backend.standing import is_of_a_signal_handler
from minidbg.devices import generator_states, set_generator_state
from minidbg.graphs.copying import bytes_of, clone_values, copy_graph_module
from minidbg.graphs.edit import extract
from minidbg.graphs.effects import is_call, kind_of_call
from minidbg.graphs.mutation import mutated_placeholders, written_arguments, written_attributes
from minidbg.graphs.pieces import CannotExtract, Piece
from minidbg.graphs.record import Recording
from minidbg.graphs.specs import is_constructed
from minidbg.oracle import agreement, compare
from minidbg.oracle.agreement import differ, left_by
from minidbg.oracle.arithmetic import are_close
from minidbg.oracle.harness import gradient_sources, gradients_of, left_behind, needs_gradient
from minidbg.oracle.randomness import Fed, draws_alone
from minidbg.settings import Settings

SMALL_BYTES = 64 << 20
"""Inputs that take no more are all copied, so that a backend that writes where it must not is found out."""


@dataclass(frozen=True, slots=True)
class Before:
    """The state that a call starts from."""

    graph: fx.GraphModule
    """With tensors of its own, where it writes to any."""
    model: fx.GraphModule
    """The user's, whose tensors the compiled function writes to."""
    inputs: tuple[Any, ...]
    """Copies, or aliases of what no run may write to."""
    written: frozenset[int]
    """The inputs that the graph may write to, or that share memory with one."""
    copied: frozenset[int]
    generators: tuple[tuple[str, Tensor], ...]
    replay: Replay | None = None
    """Of a graph that talks to other ranks: gives each run of eager what the others have said."""

    def fresh(self, *, everything: bool = False) -> tuple[Any, ...]:
        """Inputs for one run; what it may write is its own. ``everything``: the run may write to what it should not."""
        chosen = self.copied if everything else self.written
        return with_copies(self.inputs, chosen)

    def set_generators(self) -> None:
        for device, state in self.generators:
            set_generator_state(device, state)

    def wants_backward(self) -> bool:
        """Whether a result may need gradients."""
        values = [*tensors_in(self.inputs), *self.graph.parameters()]
        return torch.is_grad_enabled() and any(map(needs_gradient, values))

    def left(self, outputs: Any, args: Sequence[Any], gradients: dict[str, Any] | None) -> dict[str, Any]:
        """What the user's own call left behind, as ``run`` gives it."""
        outputs = outputs if self.replay is None else self.replay.of_backend(outputs)
        return self.seen(left_behind(outputs, self.model, tuple(args), gradients or {}))

    def seen(self, left: dict[str, Any]) -> dict[str, Any]:
        """The part of what a run left behind that this rank can compare."""
        return left if self.replay is None else as_seen_here(left)

    def call(self, function: Callable[..., Any], inputs: Sequence[Any]) -> Any:
        """Outputs of eager for ``inputs``."""
        return function(*inputs) if self.replay is None else self.replay.run(function, inputs)

    def put_back(self, args: Sequence[Any]) -> None:
        """Undo what a backend has written to inputs that the graph does not write to."""
        for place in sorted(self.copied - self.written):
            value, copied = args[place], self.inputs[place]
            plain = isinstance(value, Tensor) and value.layout is torch.strided and not is_constructed(value)
            if plain and not are_close(value.detach(), copied.detach(), 0.0, 0.0):
                with torch.no_grad(), _torch.same_versions([value]):
                    memory_of(value).copy_(memory_of(copied))

    def eager_again(
        self, change: Callable[[Any], Any] = lambda made: made, seed: int | None = None, *, backward: bool
    ) -> dict[str, Any]:
        """What one more eager run leaves behind: of a changed graph with changed inputs, or with another seed."""
        self.set_generators()
        if seed is not None:
            torch.manual_seed(seed)
        own = own_attributes(copy_graph_module(self.graph))
        graph = change(fx.GraphModule(own, own.graph))  # one that is not lazy, since its forward is replaced
        inputs = tuple(change(self.fresh()))
        sources = gradient_sources(graph, inputs) if backward else {}
        outputs = self.call(graph.forward, inputs)
        found = gradients_of(outputs, sources)
        return self.seen(left_behind(outputs, graph, inputs, found))


def before(graph: fx.GraphModule, args: Sequence[Any], mutated: frozenset[int]) -> Before:
    """The state now, before a call with ``args``. Raises RuntimeError for a tensor that cannot be copied."""
    written = frozenset(sharing_memory(args, mutated))
    copied = written
    if bytes_of(tensors_in(args)) <= SMALL_BYTES:
        copied = frozenset(range(len(args)))
    with torch.inference_mode(False):
        inputs = with_copies(args, copied)
    return Before(own_attributes(graph), graph, inputs, written, copied, generator_states(args))


def with_copies(values: Sequence[Any], chosen: frozenset[int]) -> tuple[Any, ...]:
    """``values``: copies of the chosen ones, which alias among themselves as before; aliases of the others."""
    places = sorted(chosen)
    with torch.inference_mode(False):
        clones = dict(zip(places, clone_values([values[place] for place in places]), strict=True))
        return tuple(clones[place] if place in clones else alias(value) for place, value in enumerate(values))


def alias(value: Any) -> Any:
    """The same memory outside the user's autograd graph; hooks stay behind."""
    if not isinstance(value, Tensor) or value.is_inference():
        return value
    if isinstance(value, torch.nn.Parameter):
        return torch.nn.Parameter(value.detach(), requires_grad=value.requires_grad)
    return value.detach().requires_grad_(value.requires_grad)


def own_attributes(graph: fx.GraphModule) -> fx.GraphModule:
    """``graph``, or a copy whose tensors a run may write to without being seen."""
    return copy.deepcopy(graph) if written_attributes(graph) else graph


def run_eager(inside: Before, *, backward: bool) -> dict[str, Any]:
    """Outputs, inputs afterwards and gradients of one eager run; gradients None where backward fails."""
    graph = own_attributes(inside.graph)
    inputs = inside.fresh()
    left = ran(inside, lambda *args: inside.call(graph.forward, args), graph, inputs, backward=backward)
    return inside.seen(left)


def run_compiled_anew(
    inside: Before, link: Link, *, backward: bool, is_enough: Callable[[dict[str, Any]], bool] | None = None
) -> dict[str, Any]:
    """The same of the graph compiled by ``link``, here and now. Raises what the backend raises.

    No gradients where ``is_enough`` is true of what the forward leaves behind: their code need not be compiled.
    """
    graph = own_attributes(inside.graph)
    compiled_fn = compile_at_run_time(link, graph, inside.fresh(everything=True))
    inside.set_generators()
    inputs = inside.fresh(everything=True)
    return ran(inside, compiled_fn, graph, inputs, backward=backward, is_enough=is_enough)


def draws_by(link: Link, inside: Before, fed: Fed) -> Fed | None:
    """``fed`` with the numbers that ``link`` draws when it compiles just the calls that draw; None where it does not.

    Raises what the backend raises.
    """
    found = draws_alone(fed)
    if found is None:
        return None
    graph, inputs = found
    with torch.no_grad():
        compiled_fn = compile_at_run_time(link, graph, inputs)
        inside.set_generators()
        results = compiled_fn(*inputs)
    return fed.with_results(clone_values(results))


def ran(
    inside: Before,
    function: Callable[..., Any],
    graph: fx.GraphModule,
    inputs: tuple[Any, ...],
    *,
    backward: bool,
    is_enough: Callable[[dict[str, Any]], bool] | None = None,
) -> dict[str, Any]:
    """What ``function`` leaves behind, which is ``graph`` in some form."""
    sources = gradient_sources(graph, inputs) if backward else {}
    outputs = function(*inputs)
    if sources and is_enough is not None and is_enough(left := left_behind(outputs, graph, inputs, {})):
        return left
    found: dict[str, Any] | None
    try:
        found = gradients_of(outputs, sources)
    except (RuntimeError, NotImplementedError):
        found = None
    return {**left_behind(outputs, graph, inputs, {}), "gradients": found}


log = logging.getLogger("minidbg")
TAPPED = 16
"""Calls of a graph that is compiled with each of its values as an output."""
MOST_TAPPED = 128
"""Nodes of one that is tried when that of ``TAPPED`` calls was the wrong one."""
MOST_OF_MEMORY = 0.2


def first_differing_node(inside: Before, link: Link, settings: Settings) -> fx.Node | None:
    """The first node, in the graph's order, whose value the backend gets wrong; None when it cannot be told."""
    for parts in (one_of_each_kind(inside), earliest_parts(inside, link, settings)):
        with left_out_where_it_fails():
            for part in parts:
                if node := differing_node_of(part, link, settings):
                    return node
    return None


@contextlib.contextmanager
def left_out_where_it_fails() -> Iterator[None]:
    """A block that looks for a hint. What it raises is often the backend's, for another graph."""
    try:
        yield
    except Exception as error:
        if is_of_a_signal_handler(error):
            raise
        log.debug("no_hint", exc_info=True)


def where_gradients_go_wrong(
    graph: fx.GraphModule, actual: Mapping[str, Any], expected: Mapping[str, Any], settings: Settings
) -> list[fx.Node]:
    """The calls from the last that takes an input with a wrong gradient first to the next that takes one with a right gradient.

    Gradients come from the end of the graph: between the two they are spoilt. Nothing where none after it is right.
    """
    calls = calls_of(graph)
    position = {node: place for place, node in enumerate(calls)}
    placeholders = graph.graph.find_nodes(op="placeholder")
    by_use: dict[int, float] = {}
    with left_out_where_it_fails():
        for name, gradient in expected.items():
            place = place_of_input(name)
            users = () if place is None else placeholders[place].users
            uses = [position[user] for user in users if user in position]
            if uses and gradient is not None:
                one, other = (
                    left_by({**NOTHING_LEFT, "gradients": {name: run.get(name)}})
                    for run in (actual, expected)
                )
                found = compare.mismatch(one, other, tolerances=settings.allowed or None)
                excess = found.get("excess", math.inf) if found else 1.0
                by_use[min(uses)] = max(excess, by_use.get(min(uses), 1.0))
        # a wrong value in forward spoils all of them a little
        least = math.sqrt(max(by_use.values(), default=1.0))
        wrong = max((use for use, excess in by_use.items() if excess >= least > 1), default=len(calls))
        right = min((use for use in by_use if use > wrong), default=-1)
        return calls[wrong : right + 1]
    return []


NOTHING_LEFT: Mapping[str, Any] = {"outputs": (), "inputs_after": {}}


def differing_node_of(part: Before, link: Link, settings: Settings) -> fx.Node | None:
    """The first node of ``part`` whose value differs when each of them is an output; None where memory may not suffice."""
    tapped, nodes = with_taps(part.graph)
    sizes = sum(bytes_of_example(node.meta.get("example_value")) for node in part.graph.graph.nodes)
    if not nodes or 3 * sizes > MOST_OF_MEMORY * free_bytes(tensors_in(part.inputs)):
        return None
    inside = replace(part, graph=tapped)
    runs = both_runs(inside, link)
    found = difference(inside, *runs, settings)
    return first_as_far_off(nodes, found["where"], *runs) if found else None


AS_FAR = 0.1


def first_as_far_off(
    nodes: Mapping[str, fx.Node], where: str, actual: Mapping[str, Any], expected: Mapping[str, Any]
) -> fx.Node | None:
    """The node of the output ``where``, or the first on the way to it whose error is about as large.

    That may have passed for rounding: a run in float64 has other constants (0.1 is another number there), and rounds to other integers.
    """
    node = nodes.get(where)
    if node is None:
        return None
    before, open_nodes = {node}, [node]
    while open_nodes:
        fresh = set(open_nodes.pop().all_input_nodes) - before
        before |= fresh
        open_nodes += fresh
    values = {
        nodes[label]: pair
        for label, pair in zip(nodes, zip(actual["outputs"], expected["outputs"], strict=True), strict=True)
    }
    least = AS_FAR * error_of(*values[node])
    return next(
        one for one in values if one is node or (one in before and error_of(*values[one]) >= least > 0)
    )


def error_of(value: Tensor, exact: Tensor) -> float:
    """How far off a result is, in units of eager's; nothing is said of one of another form, or with nothing to round."""
    is_alike = (value.shape, value.dtype) == (exact.shape, exact.dtype)
    return agreement.error_of(value, exact) if is_alike and exact.is_floating_point() else 0.0


def both_runs(inside: Before, link: Link) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the graph compiled anew gives, and eager."""
    actual = outputs_of(run_compiled_anew(inside, link, backward=False))
    inside.set_generators()
    return actual, outputs_of(run_eager(inside, backward=False))


def difference(
    inside: Before, actual: dict[str, Any], expected: dict[str, Any], settings: Settings
) -> compare.Difference | None:
    """How the outputs of the graph, compiled anew, differ from eager's."""

    def eager(*args: Any, **kwargs: Any) -> dict[str, Any]:
        return outputs_of(inside.eager_again(*args, **kwargs, backward=False))

    case = {"tolerances": settings.allowed or None}
    return differ(actual, expected, eager, case, [])


def one_of_each_kind(inside: Before) -> Iterator[Before]:
    """A part with the first call of each kind, where that is a small one: most ops that are wrong are wrong by themselves."""
    calls = calls_of(inside.graph)
    if len(calls) > TAPPED:
        recording = Recording(inside.graph, inside.inputs)
        kinds: dict[Hashable, fx.Node] = {}
        for node in calls:
            kinds.setdefault(kind_of_call(node, recording.facts), node)
        if len(kinds) <= len(calls) // 2:
            yield part_of(extract(recording, set(kinds.values())))


def earliest_parts(inside: Before, link: Link, settings: Settings) -> Iterator[Before]:
    """At most ``TAPPED`` calls in which the first difference lies, with the inputs that eager gives them; then where it was last seen.

    The first half is asked; where it agrees with eager, the second is taken to differ. That is wrong where both halves are
    compiled otherwise than the whole: then the smallest part that was seen to differ is next, if it is not large. Larger where the
    graph cannot be cut.
    """
    seen: Before | None = None
    while len(calls := calls_of(inside.graph)) > TAPPED:
        recording = Recording(inside.graph, inside.inputs)
        middle = len(calls) // 2
        try:
            first, second = (extract(recording, set(half)) for half in (calls[:middle], calls[middle:]))
        except CannotExtract:
            break
        inside = part_of(first)
        if difference(inside, *both_runs(inside, link), settings):
            seen = inside
        else:
            inside = part_of(second)
    yield inside
    if seen is not None and seen is not inside and len(seen.graph.graph.nodes) <= MOST_TAPPED:
        yield seen


def calls_of(graph: fx.GraphModule) -> list[fx.Node]:
    return list(filter(is_call, graph.graph.nodes))


def part_of(piece: Piece) -> Before:
    return before(piece.graph_module, piece.inputs, mutated_placeholders(piece.graph_module))


def with_taps(graph: fx.GraphModule) -> tuple[fx.GraphModule, dict[str, fx.Node]]:
    """A copy of ``graph`` that returns every tensor it computes and never writes to; and which output is which node's."""
    tapped = copy_graph_module(graph)
    calls = [node for node in tapped.graph.nodes if node.op.startswith("call")]
    touched = {argument for node in calls for argument in written_arguments(tapped, node)}
    nodes = [
        node for node in calls if node not in touched and isinstance(node.meta.get("example_value"), Tensor)
    ]
    output = next(node for node in reversed(tapped.graph.nodes) if node.op == "output")
    output.args = (tuple(nodes),)
    tapped.recompile()
    return tapped, {f"output {place}": node for place, node in enumerate(nodes)}


def outputs_of(left: Mapping[str, Any]) -> dict[str, Any]:
    return {**left, "inputs_after": {}, "gradients": {}}
