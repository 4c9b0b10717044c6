"""Whether a smaller candidate is still a program whose result eager defines, and one that does what it did.

A backend may fail on ``x.unfold(0, 0, 1)``, on ``x.mul_(0.0)`` and on a write to one place twice; nobody who reads that as a repro
can tell what would be right.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, fx

from minidbg import torch_internals
from minidbg.fx.copying import clone_values
from minidbg.fx.effects import Fact, FactKind, is_call, is_graph, op_name, tensors_in
from minidbg.fx.record import LOOP_SECONDS, ModeContext, Recording
from minidbg.fx.runs import EagerFailure, with_limited_loops
from minidbg.judge.ensemble import same_but_for_rounding
from minidbg.judge.undefined import RULES, UndefinedResults

# --- what torch leaves open ---


class OpenPoints(UndefinedResults):  # type: ignore[no-untyped-call]
    """``UndefinedResults`` that also tells writes to one place twice where the values written are equal, as simplified ones are."""

    written_twice = False

    def called(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        if RULES.get(name) is UndefinedResults.write and not self.written_twice:
            names = [argument.name for argument in func._schema.arguments]
            self.written_twice = writes_twice(name, dict(zip(names, args, strict=False)) | kwargs)
        return super().called(func, name, args, kwargs)


def writes_twice(name: str, given: dict[str, Any]) -> bool:
    """Whether a write that replaces what was there goes to one place more than once; the documentation leaves open what stays."""
    if given.get("accumulate"):
        return False
    counts = torch.zeros_like(given["self"], dtype=torch.int64)
    if name.endswith(("index_put", "index_put_impl")):
        counts.index_put_(tuple(given["indices"]), counts.new_ones(()), accumulate=True)
    elif name == "put":
        counts.put_(given["index"], torch.ones_like(given["index"]), accumulate=True)
    elif name == "index_copy":
        counts.index_add_(given["dim"], given["index"], torch.ones_like(given["source"], dtype=torch.int64))
    elif name == "scatter" and "src" in given and given.get("reduce") is None:
        counts.scatter_add_(given["dim"], given["index"], torch.ones_like(given["index"]))
    return bool((counts > 1).any())


def open_points(
    graph_module: fx.GraphModule, inputs: Sequence[Any], around: ModeContext = nullcontext
) -> frozenset[str]:
    """What torch leaves open in eager's results for these inputs, by the rules by which ``wrap`` leaves undefined results out.

    Empty where eager cannot be asked: what it does not run is no answer. ``inputs`` are only read.
    """
    mode, found = OpenPoints(), set[str]()
    limited = with_limited_loops(graph_module, LOOP_SECONDS)
    random_state = torch.get_rng_state()
    with around(), torch_internals.thread_state_kept(), torch.no_grad():
        try:
            with mode:
                others = _left_by(limited, inputs, random_state)
            if mode.met and not _agree(_left_by(limited, inputs, random_state), others):
                found |= mode.met.keys()
        except Exception:  # noqa: BLE001 - whatever foreign code says in an odd mode
            found.clear()
        finally:
            torch.set_rng_state(random_state)
    return frozenset(
        found | ({"which of several writes to one place stays"} if mode.written_twice else set())
    )


def _agree(usual: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    return len(usual) == len(others) and all(map(same_but_for_rounding, usual, others))


def _left_by(graph_module: fx.GraphModule, inputs: Sequence[Any], random_state: Tensor) -> list[Tensor]:
    """The outputs, and the inputs afterwards."""
    values = clone_values(list(inputs))
    torch.set_rng_state(random_state)
    outputs = graph_module(*values)
    return list(tensors_in([outputs, values]))


# --- what a plainer constant may change ---

PAIRS_OF_DIMS = frozenset({"transpose", "swapaxes", "swapdims", "movedim", "moveaxis"})
"""Ops that do nothing where their two dimensions are one."""


def keeps_its_results(before: Recording, after: Recording, changed: str = "") -> bool:
    """Whether each call still gives what can be told right from wrong: of its dtype and rank, not empty, zero or infinite where it was not.

    The call named ``changed`` also still does something, where it did.
    """
    again = {node.name: node for node in after.nodes}
    pairs = [(node, again[node.name]) for node in before.nodes if is_call(node) and node.name in again]
    if not all(_is_alike(before.facts.get(one), after.facts.get(two)) for one, two in pairs):
        return False
    try:
        values = zip(
            *(
                _values(run, nodes)
                for run, nodes in zip((before, after), zip(*pairs, strict=True), strict=True)
            ),
            strict=True,
        )
        if not all(_says_as_much(one, two) for one, two in values):
            return False
        node = next((node for node in after.nodes if node.name == changed), None)
        if node is None:
            return True
        earlier = next(one for one, two in pairs if two is node)
        if _is_of_one_dim(node) and not _is_of_one_dim(earlier):
            return False
        if _does_nothing(after, node) and not _does_nothing(before, earlier):
            return False
        return not _says_less(before, earlier, after, node)
    except EagerFailure:
        return False


def is_as_full(before: Recording, after: Recording) -> bool:
    """Whether no call of ``after`` gives nothing, or an infinity or NaN, where it gave finite numbers before."""
    again = {node.name: node for node in after.nodes}
    pairs = [(node, again[node.name]) for node in before.nodes if is_call(node) and node.name in again]
    try:
        sides = [_by_index(run, [pair[side] for pair in pairs]) for side, run in enumerate((before, after))]
    except EagerFailure:
        return False
    return all(
        _is_as_full(one, two)
        for index in sides[0].keys() & sides[1].keys()
        for one, two in zip(sides[0][index], sides[1][index], strict=False)
    )


def _by_index(recording: Recording, nodes: Sequence[fx.Node]) -> dict[int, list[Tensor]]:
    known = [
        (index, node)
        for index, node in enumerate(nodes)
        if node in recording.facts and recording.facts[node].kind is not FactKind.OPAQUE
    ]
    values = recording.values([(recording.index[node] + 1, node) for _, node in known])
    return {index: list(tensors_in([value])) for (index, _), value in zip(known, values, strict=True)}


def _is_as_full(before: Tensor, after: Tensor) -> bool:
    try:
        if before.numel() and not after.numel():
            return False
        return not bool(before.isfinite().all()) or bool(after.isfinite().all())
    except (RuntimeError, NotImplementedError):  # a dtype or layout without these ops
        return True


def _values(recording: Recording, nodes: Sequence[fx.Node]) -> list[Any]:
    known = [node for node in nodes if recording.facts[node].kind is not FactKind.OPAQUE]
    return recording.values([(recording.index[node] + 1, node) for node in known])


def _is_alike(one: Fact | None, two: Fact | None) -> bool:
    if one is None or two is None:
        return one is two
    if one.kind is not two.kind or len(one.parts) != len(two.parts):
        return False
    if one.kind is FactKind.TENSOR:
        like, other = cast("tuple[Any, ...]", one.like), cast("tuple[Any, ...]", two.like)
        same_rank = len(like[0]) == len(other[0])
        return like[1:] == other[1:] and same_rank and (0 in like[0] or 0 not in other[0])
    return all(map(_is_alike, one.parts, two.parts))


def _says_as_much(before: Any, after: Any) -> bool:
    one, two = (list(_tensors_and_numbers(value)) for value in (before, after))
    return len(one) == len(two) and all(map(_tells_as_much, one, two))


def _tensors_and_numbers(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, bool | int | float):
        yield torch.tensor(value)
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _tensors_and_numbers(part)


def _tells_as_much(before: Tensor, after: Tensor) -> bool:
    try:
        is_zero = bool((before != 0).any()) and not bool((after != 0).any())
        is_infinite = bool(before.isfinite().all()) and not bool(after.isfinite().all())
    except (RuntimeError, NotImplementedError):  # a dtype or layout without these ops
        return True
    return not (is_zero or is_infinite)


def _is_of_one_dim(node: fx.Node) -> bool:
    """Whether the call exchanges a dimension with itself."""
    dims = [value for value in node.args[1:] if isinstance(value, int)]
    return op_name(node).strip("_") in PAIRS_OF_DIMS and len(dims) == 2 and dims[0] == dims[1]


def _does_nothing(recording: Recording, node: fx.Node) -> bool:
    """Whether the call gives one of its arguments back."""
    sources = [one for one in node.all_input_nodes if recording.facts[one].like == recording.facts[node].like]
    at = recording.index[node]
    given = recording.values([(at, one) for one in sources])
    (value,) = recording.values([(at + 1, node)])
    return isinstance(value, Tensor) and any(_are_equal(one, value) for one in given)


def _are_equal(one: Any, two: Tensor) -> bool:
    try:
        return isinstance(one, Tensor) and torch.equal(one, two)
    except (RuntimeError, NotImplementedError):
        return False


# --- with other operands than the recorded ones, which may be too plain to tell ---

LARGER = 7
"""What a size of 1 becomes in made-up operands."""
MOST_ELEMENTS = 1 << 16


def _says_less(before: Recording, earlier: fx.Node, after: Recording, node: fx.Node) -> bool:
    """Whether the call gives one of its operands back, or the same for any operands, and did not before."""
    if node.op == "call_module" or any(map(is_graph, node.all_input_nodes)):
        return False
    with torch.random.fork_rng(devices=[]), torch_internals.thread_state_kept(), torch.no_grad():
        for is_larger, changes_integers in ((True, True), (False, True), (True, False), (False, False)):
            how = (is_larger, changes_integers)
            try:
                earlier_calls = [_called(before, earlier, seed, *how) for seed in (0, 1)]
                calls = [_called(after, node, seed, *how) for seed in (0, 1)]
            except Exception:  # noqa: BLE001 - the op wants other operands
                continue
            if any(map(_gives_back, calls)) and not all(map(_gives_back, earlier_calls)):
                return True
            return _are_alike(calls) and not _are_alike(earlier_calls)
    return False


_Called: TypeAlias = tuple[list[Tensor], list[Tensor]]
"""Made-up operands and the results."""


def _called(
    recording: Recording, node: fx.Node, seed: int, is_larger: bool, changes_integers: bool
) -> _Called:
    generator = torch.Generator().manual_seed(seed)
    at, given = recording.index[node], list[Tensor]()

    def made(one: fx.Node) -> Any:
        (value,) = recording.values([(at, one)])
        if not isinstance(value, Tensor) or value.layout is not torch.strided:
            return value
        given.append(_made_up(value, generator, is_larger, changes_integers))
        return given[-1].clone()

    args, kwargs = fx.map_arg(node.args, made), fx.map_arg(node.kwargs, made)
    torch.manual_seed(0)
    call = getattr(args[0], node.target) if isinstance(node.target, str) else node.target
    found = call(*(args[1:] if isinstance(node.target, str) else args), **kwargs)
    return given, list(tensors_in([found]))


def _made_up(value: Tensor, generator: torch.Generator, is_larger: bool, changes_integers: bool) -> Tensor:
    is_float = value.dtype.is_floating_point or value.dtype.is_complex
    if not is_float and not changes_integers:
        return value.detach()
    size = [LARGER if is_larger and one == 1 else one for one in value.shape]
    if math.prod(size) > MOST_ELEMENTS:
        raise ValueError("too large to try")
    if is_float:
        return torch.randn(size, generator=generator).to(value.dtype)
    most = 2 if value.dtype is torch.bool else 8
    return torch.randint(0, most, size, generator=generator).to(value.dtype)


def _gives_back(call: _Called) -> bool:
    given, found = call
    return len(found) == 1 and any(_are_equal(one, found[0]) for one in given)


def _are_alike(calls: Sequence[_Called]) -> bool:
    (given, one), (others, other) = calls
    if all(map(_are_equal, given, others)):
        return False  # nothing was changed
    return len(one) == len(other) and all(map(_are_equal, one, other))


# --- values of an input ---


def are_distinct(value: Tensor) -> bool:
    """Whether an input holds whole numbers, none of them twice: they may be places to write to."""
    is_whole = not (value.dtype.is_floating_point or value.dtype.is_complex or value.dtype is torch.bool)
    if not is_whole or value.layout is not torch.strided or value.numel() < 2 or value.is_meta:
        return False
    try:
        return int(torch.unique(value.to(torch.int64)).numel()) == value.numel()
    except RuntimeError:  # a dtype without numbers
        return False


def indices_within(indices: Tensor, most: int) -> Tensor:
    """Indices, of int64, of at most ``most``; different ones stay so where there is room."""
    inside = indices.clamp(max=most)
    if are_distinct(indices) and not are_distinct(inside) and indices.numel() <= most + 1:
        return indices.flatten().argsort().argsort().reshape(indices.shape)
    return inside
