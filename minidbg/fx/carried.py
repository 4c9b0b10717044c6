"""What goes together in a higher-order op: an operand, the inputs of the nested graphs that get it, and the result that it becomes.

A loop hands each carried value to both of its graphs and gets it back from its body; ``cond`` gives an operand to both branches;
an autograd function saves in one graph what the other one takes. None of the parts can go alone.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from torch import fx

from minidbg import torch_internals
from minidbg.fx.effects import attribute_of, is_call, is_graph, nested_graphs, op_name
from minidbg.fx.pieces import drop_unused_attributes, rewritten, with_graphs

Place: TypeAlias = tuple[int, ...]
"""Where a leaf of a nested tuple is."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One value that a higher-order op hands to its graphs, gets from them, or both. Graphs are named by their attribute paths."""

    operand: int | None = None
    """Its place among ``operand_leaves``."""
    inputs: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Which inputs of each graph get it."""
    outputs: Mapping[str, Place] = field(default_factory=dict)
    """Which leaf of each graph's output gives it."""
    result: int | None = None
    """Its place in the result of the op."""
    in_rows: bool = False
    """Whether the graphs get the operand's rows, one after the other."""
    lists: Mapping[str, int] = field(default_factory=dict)
    """Keyword arguments that list places, and the slot's place in their terms."""


def branches(node: fx.Node) -> list[tuple[str, fx.GraphModule]]:
    """Attribute path and graph of each graph that ``node`` runs, each once."""
    if node.op == "call_module":
        return [(str(node.target), attribute_of(node))]
    found = {str(one.target): attribute_of(one) for one in node.all_input_nodes if is_graph(one)}
    return list(found.items())


def holders(graph_module: fx.GraphModule) -> Iterator[fx.Node]:
    """The calls that run a nested graph, in order: higher-order ops, and submodules that are graph modules."""
    for node in graph_module.graph.nodes:
        is_submodule = node.op == "call_module" and isinstance(attribute_of(node), fx.GraphModule)
        if is_submodule or (node.op == "call_function" and any(nested_graphs(node))):
            yield node


def operand_leaves(node: fx.Node) -> list[Any]:
    """The leaves of ``node``'s arguments that are no graphs."""
    return [value for _, value in _leaves(node.args) if not is_graph(value)]


def _leaves(value: Any, place: Place = ()) -> Iterator[tuple[Place, Any]]:
    if isinstance(value, tuple | list):
        for number, part in enumerate(value):
            yield from _leaves(part, (*place, number))
    else:
        yield place, value


def _inputs(graph_module: fx.GraphModule) -> list[fx.Node]:
    return list(graph_module.graph.find_nodes(op="placeholder"))


def _returned(graph_module: fx.GraphModule) -> Any:
    return graph_module.graph.output_node().args[0]


# --- which value goes where ---


def slots(node: fx.Node) -> list[Slot]:
    """The slots of the higher-order op ``node``; none where its form is not known."""
    graphs = dict(branches(node))
    if node.op != "call_function" or not graphs:
        return []
    try:
        return list(FORMS.get(op_name(node), _of_any)(node, graphs))
    except (IndexError, KeyError, TypeError, AttributeError):  # another torch has another form
        return []


_Graphs: TypeAlias = Mapping[str, fx.GraphModule]


def _of_any(node: fx.Node, graphs: _Graphs) -> Iterator[Slot]:
    """The last operands go to all graphs; where each gives a tuple, the op gives it too: cond, map, checkpoints, regions."""
    counts = {len(_inputs(graph)) for graph in graphs.values()}
    given = len(operand_leaves(node))
    if len(counts) == 1 and (count := counts.pop()) <= given:
        rows = len(node.args[1]) if op_name(node).startswith("map") else 0  # type: ignore[arg-type]
        for index in range(count):
            yield Slot(given - count + index, {path: [index] for path in graphs}, in_rows=index < rows)
    yield from _results(graphs)


def _results(graphs: _Graphs, first: int = 0) -> Iterator[Slot]:
    """Results that are nothing else, where all ``graphs`` give a tuple of one length."""
    returned = [_returned(graph) for graph in graphs.values()]
    if not all(isinstance(one, tuple | list) for one in returned) or len({len(one) for one in returned}) > 1:
        return
    for index in range(first, len(returned[0])):
        yield Slot(outputs=dict.fromkeys(graphs, (index,)), result=index)


def _of_loop(node: fx.Node, graphs: _Graphs) -> Iterator[Slot]:
    """``while_loop(condition, body, carried, additional)``."""
    _, body = map(str, (one.target for one in node.args[:2]))  # type: ignore[union-attr]
    carried = len(node.args[2])  # type: ignore[arg-type]
    for index in range(len(operand_leaves(node))):
        inputs = {path: [index] for path in graphs}
        is_carried = index < carried
        yield Slot(index, inputs, {body: (index,)} if is_carried else {}, index if is_carried else None)


def _of_scan(node: fx.Node, graphs: _Graphs) -> Iterator[Slot]:
    """``scan(combine, init, xs, additional)``: new carried values come back, then a row of each result."""
    (path,) = graphs
    carried, rows = len(node.args[1]), len(node.args[2])  # type: ignore[arg-type]
    for index in range(len(operand_leaves(node))):
        if index < carried:
            yield Slot(index, {path: [index]}, {path: (index,)}, index)
        else:
            yield Slot(index, {path: [index]}, in_rows=index < carried + rows)
    yield from _results(graphs, carried)


def _of_associative_scan(node: fx.Node, graphs: _Graphs) -> Iterator[Slot]:
    """``associative_scan(combine, xs, additional)``: two rows of each go in, one comes back."""
    (path,) = graphs
    rows = len(node.args[1])  # type: ignore[arg-type]
    for index in range(len(operand_leaves(node))):
        if index < rows:
            yield Slot(index, {path: [index, rows + index]}, {path: (index,)}, index, in_rows=True)
        else:
            yield Slot(index, {path: [rows + index]})


SCORE_INPUTS, MASK_INPUTS = 5, 4
"""What attention gives to a score or a mask itself: the score, and where it stands."""


def _of_attention(node: fx.Node, graphs: _Graphs) -> Iterator[Slot]:
    """``flex_attention(q, k, v, score, mask, scale, options, buffers of the score, buffers of the mask)``."""
    leaves = len(operand_leaves(node))
    of_score, of_mask = len(node.args[7]), len(node.args[8])  # type: ignore[arg-type]
    first = leaves - of_score - of_mask
    by_graph = {id(graph): path for path, graph in graphs.items()}
    score, mask = (by_graph[id(graph)] for graph in nested_graphs(node))
    for index in range(of_score):
        yield Slot(first + index, {score: [SCORE_INPUTS + index]})
    for index in range(of_mask):
        yield Slot(first + of_score + index, {mask: [MASK_INPUTS + index]})


def _of_autograd_function(node: fx.Node, graphs: _Graphs) -> Iterator[Slot]:
    """``autograd_function_apply(forward, backward, *args)``: results come with what is saved; gradients of results go in with that."""
    forward, backward = graphs
    results, saved = map(len, _returned(graphs[forward]))
    if len(_inputs(graphs[backward])) != results + saved:
        return
    for index in range(len(operand_leaves(node))):
        yield Slot(index, {forward: [index]}, {backward: (index,)})
    for index in range(results):
        inputs = {backward: [index]}
        yield Slot(None, inputs, {forward: (0, index)}, index, lists={"non_differentiable_idx": index})
    for index in range(saved):
        inputs = {backward: [results + index]}
        yield Slot(None, inputs, {forward: (1, index)}, lists={"saved_for_backward_idx": index})


FORMS = {
    "while_loop": _of_loop,
    "scan": _of_scan,
    "associative_scan": _of_associative_scan,
    "flex_attention": _of_attention,
    "autograd_function_apply": _of_autograd_function,
}


# --- without some of them ---


def spare_slots(graph_module: fx.GraphModule, node: fx.Node, *, is_whole: bool) -> list[frozenset[int]]:
    """For each slot of ``node`` that can go, the slots that go with it: what is computed from it.

    A result that another call takes cannot go; nor can what an unslotted output, such as a loop's condition, is computed from.
    ``is_whole``: ``graph_module`` is no nested graph, so that a result may go which only its output takes.
    """
    known = slots(node)
    needed = {
        index
        for index, slot in enumerate(known)
        if slot.result is not None
        and any(_is_needed(one, slot.result, is_whole) for one in _sharers(graph_module, node))
    }
    found = []
    for index in range(len(known)):
        together = _dependent(node, known, index)
        if together is not None and not together & needed:
            found.append(together)
    return found


def _is_needed(node: fx.Node, result: int, is_whole: bool) -> bool:
    for user in node.users:
        if user.op == "output" and is_whole:
            continue
        if not _takes_part(user):
            return True
        if user.args[1] == result and any(other.op != "output" or not is_whole for other in user.users):
            return True
    return False


def _takes_part(node: fx.Node) -> bool:
    return node.target is operator.getitem and isinstance(node.args[1], int)


def _sharers(graph_module: fx.GraphModule, node: fx.Node) -> list[fx.Node]:
    """The calls that run any of the graphs of ``node``, itself among them: a region is one graph with many calls."""
    paths = {path for path, _ in branches(node)}
    return [one for one in holders(graph_module) if paths & {path for path, _ in branches(one)}]


def _dependent(node: fx.Node, known: Sequence[Slot], index: int) -> frozenset[int] | None:
    """The slots computed from the one at ``index``, itself among them; None where something else is."""
    slot_of = {(path, at): number for number, slot in enumerate(known) for path, at in slot.outputs.items()}
    found, edge = {index}, [index]
    while edge:
        slot = known[edge.pop()]
        for path, graph in branches(node):
            inputs = _inputs(graph)
            reached = _reached_from([inputs[at] for at in slot.inputs.get(path, ())])
            for at, value in _leaves(_returned(graph)):
                number = slot_of.get((path, at))
                if not isinstance(value, fx.Node) or value not in reached or number in found:
                    continue
                if number is None:
                    return None
                found.add(number)
                edge.append(number)
    return frozenset(found)


def _reached_from(nodes: Sequence[fx.Node]) -> set[fx.Node]:
    found, edge = set(nodes), list(nodes)
    while edge:
        fresh = set(edge.pop().users) - found
        found |= fresh
        edge += fresh
    return found


def without_slots(
    graph_module: fx.GraphModule, node: fx.Node, chosen: Set[int], *, is_whole: bool
) -> fx.GraphModule | None:
    """``graph_module`` without the slots ``chosen`` of ``node``, a union of ``spare_slots``; None where nothing would be left of its result.

    All calls that run the same graphs lose them. What was computed for their operands alone goes too.
    """
    known = slots(node)
    gone = [known[index] for index in sorted(chosen)]
    results = {slot.result for slot in gone if slot.result is not None}
    if not gone or (results and results == {slot.result for slot in known if slot.result is not None}):
        return None
    fewer = {path: _with_fewer(graph, path, gone) for path, graph in branches(node)}
    if None in fewer.values():
        return None
    made = with_graphs(graph_module, {path: graph for path, graph in fewer.items() if graph is not None})
    names = {one.name for one in _sharers(graph_module, node)}
    for one in [one for one in made.graph.nodes if one.name in names]:
        _take_out(made.graph, one, gone, results, is_whole)
    drop_unused_attributes(made.graph)
    return torch_internals.lazy_graph_module(made, made.graph)


def _with_fewer(graph_module: fx.GraphModule, path: str, gone: Sequence[Slot]) -> fx.GraphModule | None:
    """The nested graph at ``path`` without its inputs and outputs of these slots; None where something else takes them."""
    made = rewritten(graph_module)
    lost = {slot.outputs[path] for slot in gone if path in slot.outputs}
    output = made.graph.output_node()
    output.args = (_without_leaves(_returned(made), lost),)
    made.graph.eliminate_dead_code()
    inputs = _inputs(made)
    for number in sorted(number for slot in gone for number in slot.inputs.get(path, ())):
        if inputs[number].users:
            return None
        made.graph.erase_node(inputs[number])
    return torch_internals.lazy_graph_module(graph_module, made.graph)


def _take_out(
    graph: fx.Graph, node: fx.Node, gone: Sequence[Slot], results: Set[int], is_whole: bool
) -> None:
    """The operands and results of these slots out of one call, in place."""
    places = [place for place, value in _leaves(node.args) if not is_graph(value)]
    lost = [places[slot.operand] for slot in gone if slot.operand is not None]
    dropped = [operand_leaves(node)[slot.operand] for slot in gone if slot.operand is not None]
    node.args = _without_leaves(node.args, set(lost))
    for name in {name for slot in gone for name in slot.lists}:
        numbers = {slot.lists[name] for slot in gone if name in slot.lists}
        if name in node.kwargs:
            node.kwargs = {**node.kwargs, name: _renumbered(node.kwargs[name], numbers)}
    if isinstance(example := node.meta.get("example_value"), tuple | list):
        node.meta["example_value"] = _without_leaves(example, {(result,) for result in results})
    for part in [user for user in node.users if _takes_part(user)] if results else ():
        if part.args[1] in results:
            for output in list(part.users):
                output.args = (_without_value(output.args[0], part) or (node,),)
            graph.erase_node(part)
        else:
            part.args = (node, _renumbered([part.args[1]], results)[0])
    _erase_unused(graph, [value for value in dropped if isinstance(value, fx.Node)])


def _erase_unused(graph: fx.Graph, nodes: Sequence[fx.Node]) -> None:
    edge = list(nodes)
    while edge:
        node = edge.pop()
        if is_call(node) and not node.users and not node.is_impure() and node.graph is graph:
            edge += node.all_input_nodes
            graph.erase_node(node)


def _without_value(value: Any, gone: fx.Node) -> Any:
    """``value`` without that node, tuples and lists opened; None where it is all there is."""
    if isinstance(value, tuple | list):
        return type(value)(_without_value(part, gone) for part in value if part is not gone)
    return None if value is gone else value


def _renumbered(numbers: Any, gone: Set[int]) -> Any:
    """``numbers`` that count among others, after those in ``gone`` are no more."""
    return type(numbers)(one - sum(other < one for other in gone) for one in numbers if one not in gone)


def _without_leaves(value: Any, gone: Set[Place], place: Place = ()) -> Any:
    """``value`` without its leaves at these places."""
    if not isinstance(value, tuple | list):
        return value
    numbered = ((part, (*place, number)) for number, part in enumerate(value))
    kept = [_without_leaves(part, gone, at) for part, at in numbered if at not in gone]
    return tuple(kept) if isinstance(value, tuple) else kept
