"""Every single removal of a small graph, built naively: a second opinion on what the reducer calls minimal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import torch
from torch import fx

Removal: TypeAlias = tuple[str, fx.GraphModule, list[Any]]
"""What was removed, the graph without it, its inputs."""


def single_removals(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> Iterator[Removal]:
    values = recorded(graph_module, inputs)
    for node in graph_module.graph.nodes:
        if node.op.startswith("call") and isinstance(values[node], torch.Tensor):
            yield from lifted(graph_module, inputs, node.name, values[node])
            for source in node.all_input_nodes:
                yield from bypassed(graph_module, inputs, node, source, values)
    outputs = graph_module.graph.output_node().args[0]
    for place in range(len(outputs)):
        yield from without_output(graph_module, inputs, place)


def recorded(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> dict[fx.Node, Any]:
    """The value of each node as it was when it was made."""
    keeper = Keeper(graph_module)
    keeper.run(*[value.clone() for value in inputs])
    return keeper.kept


class Keeper(fx.Interpreter):
    def __init__(self, graph_module: fx.GraphModule) -> None:
        super().__init__(graph_module)
        self.kept: dict[fx.Node, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        self.kept[n] = result.clone() if isinstance(result, torch.Tensor) else result
        return result


def copied(graph_module: fx.GraphModule) -> tuple[fx.Graph, dict[str, fx.Node]]:
    graph = fx.Graph()
    new: dict[fx.Node, fx.Node] = {}
    graph.output(graph.graph_copy(graph_module.graph, new))
    return graph, {old.name: node for old, node in new.items()}


def lifted(graph_module: fx.GraphModule, inputs: Sequence[Any], name: str, value: Any) -> Iterator[Removal]:
    """The node's value as an input; where it was an output, it is none any more."""
    graph, nodes = copied(graph_module)
    node = nodes[name]
    with graph.inserting_before(next(iter(graph.nodes))):
        stand_in = graph.placeholder(f"{name}_value")
    drop_output(graph, node)
    node.replace_all_uses_with(stand_in)
    graph.erase_node(node)
    yield from settled(
        f"node {name}", graph_module, graph, [value, *inputs]
    )  # drops it where nothing uses it


def bypassed(
    graph_module: fx.GraphModule,
    inputs: Sequence[Any],
    node: fx.Node,
    source: fx.Node,
    values: dict[fx.Node, Any],
) -> Iterator[Removal]:
    one, other = values[node], values[source]
    is_alike = isinstance(other, torch.Tensor) and (one.shape, one.dtype) == (other.shape, other.dtype)
    if not is_alike or all(user.op == "output" for user in node.users):
        return
    graph, nodes = copied(graph_module)
    drop_output(graph, nodes[node.name])
    nodes[node.name].replace_all_uses_with(nodes[source.name])
    graph.erase_node(nodes[node.name])
    yield from settled(f"bypass {node.name}", graph_module, graph, list(inputs))


def without_output(graph_module: fx.GraphModule, inputs: Sequence[Any], place: int) -> Iterator[Removal]:
    graph, _ = copied(graph_module)
    output = graph.output_node()
    left = [value for number, value in enumerate(output.args[0]) if number != place]
    output.args = (tuple(left),)
    if left:
        yield from settled(f"output {place}", graph_module, graph, list(inputs))


def drop_output(graph: fx.Graph, node: fx.Node) -> None:
    output = graph.output_node()
    output.args = (tuple(value for value in output.args[0] if value is not node),)


def settled(what: str, root: fx.GraphModule, graph: fx.Graph, values: list[Any]) -> Iterator[Removal]:
    """The graph where it is one that the reducer may give: calls, outputs for what nothing uses, inputs that are used."""
    output = graph.output_node()
    for node in list(graph.nodes):
        if node.op.startswith("call") and not node.users:
            output.args = ((*output.args[0], node),)
    placeholders = graph.find_nodes(op="placeholder")
    kept = [value for node, value in zip(placeholders, values, strict=True) if node.users]
    for node in placeholders:
        if not node.users:
            graph.erase_node(node)
    has_calls = any(node.op.startswith("call") for node in graph.nodes)
    if has_calls and output.args[0]:
        graph.lint()
        yield what, fx.GraphModule(root, graph), kept
