"""The class of a script as dynamo sees it: the graph that its backend gets, put back into the words of the text."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx, nn

from minidbg.fx.copying import capture_by_dynamo, copy_graph_module
from minidbg.judge.harness import entered_modes
from minidbg.source.origins import comments_by_line, stack_trace
from minidbg.words.run_spec import RunSpec


@dataclass(frozen=True, slots=True)
class Traced:
    """The graph of a script, and the values of its placeholders."""

    graph_module: fx.GraphModule
    inputs: tuple[Any, ...]
    dynamic_dims: tuple[tuple[int, ...], ...] = ()
    """Of each input, where they are others than those of the header."""


def traced(
    module: nn.Module, values: tuple[Any, ...], spec: RunSpec, *, names: Sequence[str], text: str, file: str
) -> Traced:
    """The graph of ``module(*values)``.

    Dynamo makes the module's tensors inputs, orders inputs by their use and adds sizes; here the tensors are the module's again,
    the inputs are in the order of ``values``, and nodes have the names and comments of ``text``, which ran as ``file``.
    ``names`` are those of the parameters of its ``forward``; none where a person gave it another form.
    """
    with entered_modes(spec.context):
        graph_module, inputs = capture_by_dynamo(module, values, dynamic=spec.dynamic)
    owned = {id(value): name for name, value in [*module.named_parameters(), *module.named_buffers()]}
    left = list(enumerate(values))
    given: list[tuple[int, fx.Node, Any]] = []
    for node, value in zip(graph_module.graph.find_nodes(op="placeholder"), inputs, strict=True):
        if not node.users and (id(value) in owned or not isinstance(value, Tensor)):
            graph_module.graph.erase_node(node)  # a size that the graph does not ask for
        elif id(value) in owned:
            read_from_module(graph_module, node, owned[id(value)], value)
        else:
            index = next((index for index, one in left if is_the_value(one, value)), len(values))
            left = [one for one in left if one[0] != index]
            given.append((index, node, value))
    given.sort(key=lambda one: one[0])
    for _, node, _ in reversed(given):
        next(iter(graph_module.graph.nodes)).prepend(node)
    called = {node: names[index] for index, node, _ in given if index < len(names)}
    put_words(graph_module, called, text, file)
    dims = spec.dynamic_dims
    return Traced(
        copy_graph_module(graph_module),  # whose tables have the new names
        tuple(value for _, _, value in given),
        tuple(dims[index] if index < len(dims) else () for index, _, _ in given) if dims else (),
    )


def is_the_value(one: Any, other: Any) -> bool:
    """Whether dynamo's input ``other`` is what the script gives: the same tensor, or the same number."""
    return one is other or (not isinstance(one, Tensor) and type(one) is type(other) and bool(one == other))


def read_from_module(graph_module: fx.GraphModule, placeholder: fx.Node, name: str, value: Tensor) -> None:
    """Have a part of the module, which dynamo makes an input, be the module's again."""
    folder, _, last = name.rpartition(".")
    if folder not in dict(graph_module.named_modules()):
        graph_module.add_submodule(folder, nn.Module())
    setattr(graph_module.get_submodule(folder), last, value)
    with graph_module.graph.inserting_before(next(iter(placeholder.users))):
        read = graph_module.graph.get_attr(name)
    placeholder.replace_all_uses_with(read)
    graph_module.graph.erase_node(placeholder)


def forward_parameters(model: str) -> list[str] | None:
    """What ``forward`` takes; None where a person gave it another form."""
    (definition,) = ast.parse(model).body
    forward = [
        node
        for node in getattr(definition, "body", ())
        if isinstance(node, ast.FunctionDef) and node.name == "forward"
    ]
    if not forward or any((forward[0].args.vararg, forward[0].args.kwarg, forward[0].args.kwonlyargs)):
        return None
    return [argument.arg for argument in forward[0].args.args[1:]]


def put_words(graph_module: fx.GraphModule, called: Mapping[fx.Node, str], text: str, file: str) -> None:
    """Give nodes the names of the variables that the lines of ``text`` assign, and the user's lines in its comments.

    ``called`` are names that are known already.
    """
    comments = comments_by_line(text)
    assigned = {
        node.lineno: node.targets[0].id
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    line_in = re.compile(rf'File "{re.escape(file)}", line (\d+)')
    for nested in graph_module.modules():
        if not isinstance(nested, fx.GraphModule):
            continue
        named: dict[int, fx.Node] = {}
        for node in nested.graph.nodes:
            lines = line_in.findall(str(node.meta.get("stack_trace")))
            if not lines or node.op in ("placeholder", "output"):
                continue
            line = int(lines[-1])
            node.meta.pop("stack_trace")
            if trace := stack_trace(comments.get(line, "")):
                node.meta["stack_trace"] = trace
            # Dynamo puts arithmetic on sizes, and what takes a result apart, at the line of the call.
            is_first = line not in named and node.op != "get_attr"
            if line in assigned and (is_first or same_but_for_numbers(node.name, assigned[line])):
                named[line] = node
        wanted = {node: assigned[line] for line, node in named.items()}
        give_names(nested.graph.nodes, {**wanted, **called} if nested is graph_module else wanted)


def same_but_for_numbers(one: str, other: str) -> bool:
    return one.rstrip("_0123456789") == other.rstrip("_0123456789")


def give_names(nodes: Iterable[fx.Node], wanted: Mapping[fx.Node, str]) -> None:
    """Give the nodes of a graph the ``wanted`` names; all others keep theirs, or get a number where one of these has it."""
    taken: set[str] = set()
    for node in sorted(nodes, key=lambda node: node not in wanted):
        name = wanted.get(node, node.name)
        numbered = (f"{name}_{number}" for number in itertools.count(1))
        node.name = next(one for one in itertools.chain([name], numbered) if one not in taken)
        taken.add(node.name)
