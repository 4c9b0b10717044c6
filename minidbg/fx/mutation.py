"""Which inputs and attributes a graph may write to: a safe guess from schemas, names, storages."""

from __future__ import annotations

import copy
import inspect
import operator
import types
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor, fx

from minidbg import torch_internals
from minidbg.fx.effects import (
    STATISTICS,
    is_graph,
    lookup,
    nested_graphs,
    nesting_levels,
    nodes_in,
    op_name,
    tensors_in,
)

_READ_ONLY_MODULES = ("torch", "_operator", "operator", "math", "builtins")
"""Functions from here write only where name, schema or an ``inplace`` argument says so."""

_STATISTICS_FLAG = 5
"""Position of the argument that says whether ``STATISTICS`` are written, in all of these functions,
which are not Python's."""

_RENORMALISED = frozenset({"embedding", "embedding_bag"})
"""Functions that write to their weight when ``max_norm`` is given."""

_IN_PLACE = frozenset(
    getattr(operator, f"__i{name}__")
    for name in (
        *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"),
        *("and", "or", "xor", "lshift", "rshift", "concat"),
    )
) | {operator.setitem, operator.delitem}

_GIVES_ITS_FIRST = _IN_PLACE | {getattr, operator.getitem}
"""Functions that return their first argument or a view of it."""

_TAKES_OVER = frozenset({"set_", "_set_data_attr", "swap_tensors"})
"""Functions after which their arguments may share memory."""


def mutated_placeholders(gm: fx.GraphModule) -> frozenset[int]:
    """Indices of placeholders whose memory ``gm`` may write to; never too few, sometimes too many.

    A view of an input counts as the input, inputs that share memory count together, and what an
    unknown function is given counts as written.
    """
    return written_sources(gm, [node for node in gm.graph.nodes if node.op == "placeholder"])


def written_attributes(gm: fx.GraphModule) -> list[Tensor]:
    """Tensors of ``gm`` that it may write to: all buffers, and parameters that its graph updates.

    Dynamo makes the parameters of an optimizer that is compiled attributes of the graph.
    """
    nodes = [node for node in gm.graph.nodes if node.op == "get_attr"]
    found = [lookup(gm, str(nodes[at].target)) for at in sorted(written_sources(gm, nodes))]
    own = [*gm.buffers(), *(value for value in found if isinstance(value, Tensor))]
    return list({id(value): value for value in own}.values())


def own_attributes(gm: fx.GraphModule) -> fx.GraphModule:
    """``gm``, or a copy whose tensors a run may write to without being seen."""
    return copy.deepcopy(gm) if written_attributes(gm) else gm


def written_sources(gm: fx.GraphModule, sources: list[fx.Node]) -> frozenset[int]:
    """Indices of the ``sources``, nodes that compute nothing, whose memory ``gm`` may write to."""
    if not sources:
        return frozenset()
    memory = _Memory(sources)
    written: set[int] = set()
    for node in gm.graph.nodes:
        if node.op in ("placeholder", "output", "get_attr"):
            continue
        for argument in written_arguments(node):
            written |= memory.of(argument)
        memory.add(node)
    return frozenset(written)


class _Memory:
    """The sources that each node may share memory with: placeholders, or attributes."""

    def __init__(self, sources: list[fx.Node]) -> None:
        self._of: dict[fx.Node, frozenset[int]] = {}
        self._by_storage: dict[int, frozenset[int]] = {}
        for index, node in enumerate(sources):
            for storage in storages_of(node):
                self._by_storage[storage] = self._by_storage.get(storage, frozenset()) | {index}
        for index, node in enumerate(sources):
            self._of[node] = self._shared(node) | {index}

    def of(self, node: fx.Node) -> frozenset[int]:
        """Indices of the sources whose memory ``node`` may hold."""
        return self._of.get(node, frozenset())

    def add(self, node: fx.Node) -> None:
        """Find out what a computed node holds, after its arguments."""
        known = bool(storages_of(node))
        sources = _returned_arguments(node)
        if sources is None:  # nothing is known about the function: its value's storage has to tell
            sources = [] if known else node.all_input_nodes
        self._of[node] = self._shared(node).union(*map(self.of, sources))
        if _op_name(node) in _TAKES_OVER:
            given = frozenset[int]().union(*map(self.of, node.all_input_nodes))
            for argument in node.all_input_nodes:
                self._of[argument] = given
            self._of[node] = given

    def _shared(self, node: fx.Node) -> frozenset[int]:
        return frozenset().union(
            *(self._by_storage.get(storage, frozenset()) for storage in storages_of(node))
        )


def broken_contracts(gm: fx.GraphModule) -> frozenset[tuple[str, str]]:
    """What compilers forbid of higher-order ops, unlike eager: the op's name, and how it breaks it.

    Its operands share memory; a graph of it writes to an input, returns one, or returns a value
    twice. A view counts as what it is a view of. And of levels of vmap, grad and jvp: that one is
    entered and not left, or the other way round.
    """
    nodes = list(torch_internals.all_nodes(gm))
    calls = {user: None for node in nodes if is_graph(node) for user in node.users}
    graphs = {node.graph for node in nodes}
    unpaired = {name for graph in graphs for name in nesting_levels(graph)[1]}
    broken = frozenset((_op_name(node), what) for node in calls for what in _broken_by(node))
    return broken | {(name, "unpaired") for name in unpaired}


def _broken_by(node: fx.Node) -> Iterator[str]:
    if _overlap(node, nodes_in(node.args)):
        yield "operands share memory"
    for inner in nested_graphs(node):
        output, inputs = inner.graph.output_node(), inner.graph.find_nodes(op="placeholder")
        if mutated_placeholders(inner):
            yield "an input is written"
        if _overlap(output, [*inputs, *nodes_in(output.args)]):
            yield "an input, or a value twice, is returned"


def _overlap(user: fx.Node, values: list[fx.Node]) -> bool:
    """Whether two of ``values``, which are there at ``user``, are one tensor or views of one."""
    memory: dict[fx.Node, frozenset[fx.Node]] = {}
    for node in user.graph.nodes:
        sources = _returned_arguments(node) if node.op.startswith("call") else None
        if node.target is operator.getitem and isinstance(_known_value(node.args[0]), tuple | list):
            whole = memory[node.args[0]]  # parts of what is no view lie apart
            sources = None if whole == {node.args[0]} else sources
        roots = [memory[source] for source in sources or ()] or [frozenset({node})]
        memory[node] = frozenset().union(*roots)
    held = [root for value in values if value.op != "get_attr" for root in memory[value]]
    return len(held) != len(set(held))


def written_arguments(node: fx.Node) -> Iterator[fx.Node]:
    """The nodes among ``node``'s arguments whose values it may write to."""
    if node.kwargs.get("out") is not None:
        yield from nodes_in(node.kwargs["out"])
    if nested := list(nested_graphs(node)):
        # operands of a higher-order operator reach its graphs in ways of its own: all or none
        if any(map(mutated_placeholders, nested)):
            yield from node.all_input_nodes
    elif not _is_known(node):
        yield from node.all_input_nodes
    else:
        yield from _written_by_name(node)
        yield from _written_by_schema(node)


def _is_known(node: fx.Node) -> bool:
    """Whether names and schemas tell what ``node`` writes; of a module they do not."""
    if node.op != "call_function":
        return node.op == "call_method"
    path = torch_internals.operator_path(node.target)
    if path is not None:
        return not path.startswith("torch.ops.higher_order.")
    module = getattr(node.target, "__module__", None)
    if module is None:  # methods of torch's C classes
        return isinstance(node.target, types.BuiltinFunctionType | types.MethodDescriptorType)
    return str(module).partition(".")[0] in _READ_ONLY_MODULES


def _written_by_name(node: fx.Node) -> Iterator[fx.Node]:
    """Written by convention: ``add_``, ``__iadd__``, ``x[i] = y``, ``inplace=True``, statistics."""
    name = _op_name(node)
    if node.target in _IN_PLACE or _is_in_place_name(name):
        yield from nodes_in(node.args[:1])
    if argument_of(node, "inplace", False) is not False:
        yield from nodes_in(node.args[:1])
    if name in STATISTICS:
        flag = "use_input_stats" if "use_input_stats" in node.kwargs else "training"
        if argument_of(node, flag, True, position=_STATISTICS_FLAG) is not False:
            yield from nodes_in((*node.args[1:], *node.kwargs.values()))
    if name in _RENORMALISED and argument_of(node, "max_norm") is not None:
        yield from node.all_input_nodes


def _is_in_place_name(name: str) -> bool:
    if name.startswith("__"):
        is_operator = name.startswith("__i") and hasattr(operator, name)
        return is_operator or name in ("__setitem__", "__delitem__")
    return name.endswith("_")


def argument_of(node: fx.Node, key: str, default: Any = None, position: int | None = None) -> Any:
    if key in node.kwargs:
        return node.kwargs[key]
    parameters = _parameters(node.target) if node.op == "call_function" else []
    position = parameters.index(key) if key in parameters else position
    return node.args[position] if position is not None and len(node.args) > position else default


@cache
def _parameters(function: Callable[..., Any]) -> list[str]:
    try:
        return list(inspect.signature(function).parameters)
    except (ValueError, TypeError):  # a builtin, which has none to be read
        return []


def _written_by_schema(node: fx.Node) -> Iterator[fx.Node]:
    for schema in _schemas(node):
        for argument, given in _given(schema, node, _is_written):
            # a list function of TorchScript shares its name with one of tensors: sort
            of_lists = str(argument.type) == "List[Tensor]" and isinstance(given, fx.Node)
            if "Tensor" in str(argument.type) and not of_lists:
                yield from nodes_in(given)


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and bool(argument.alias_info.is_write)


def _given(schema: Any, node: fx.Node, wanted: Callable[[Any], bool]) -> Iterator[tuple[Any, Any]]:
    """Each wanted argument of ``schema`` with what ``node`` gives for it."""
    for position, argument in enumerate(schema.arguments):
        if not wanted(argument):
            continue
        if argument.name in node.kwargs:
            yield argument, node.kwargs[argument.name]
        elif not argument.kwarg_only and position < len(node.args):
            yield argument, node.args[position]


def _returned_arguments(node: fx.Node) -> list[fx.Node] | None:
    """Arguments that ``node`` may return, or views of them; None if neither name nor schema tells.

    A schema tells what the layout decides too (``reshape`` is a view or a copy), which meta
    recorded for another layout would not.
    """
    if node.target in _GIVES_ITS_FIRST or _is_in_place_name(_op_name(node)):
        return nodes_in(node.args[:1])
    found: list[fx.Node] = []
    if "dropout" in _op_name(node):
        # eager returns the input itself when nothing is dropped; FakeTensors say it is new
        found += nodes_in(node.args[:1])
    for schema in _schemas(node):
        if any(value.alias_info for value in schema.returns):
            for _, given in _given(schema, node, lambda argument: argument.alias_info is not None):
                found += nodes_in(given)
    return found or None


def _known_value(node: fx.Node) -> Any:
    """The value that dynamo or AOTAutograd recorded for ``node``; None where none did."""
    return node.meta.get("example_value", node.meta.get("val"))


def _op_name(node: fx.Node) -> str:
    return "" if node.op == "call_module" else op_name(node)


def _schemas(node: fx.Node) -> tuple[Any, ...]:
    """Operator schemas possible for ``node``; of a torch function those of that name in aten."""
    name = _op_name(node)
    aten = f"torch.ops.aten.{name}" if name.isidentifier() else ""
    path = torch_internals.operator_path(node.target) or aten
    # an overload that writes to out= stands for no call without out=
    return tuple(
        schema
        for schema in torch_internals.operator_schemas(path)
        if all(one.name in node.kwargs for one in schema.arguments if one.kwarg_only and _is_written(one))
    )


def storages_of(node: fx.Node) -> frozenset[int]:
    """Identities of the memory behind a node's known value; empty when nothing is known."""
    return frozenset(
        torch_internals.storage_identity(tensor)
        for tensor in tensors_in(_known_value(node))
        if tensor.layout is torch.strided and not torch_internals.is_wrapped(tensor)
    )
