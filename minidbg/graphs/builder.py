"""Source that builds a graph node by node, for backends that are called directly."""

from __future__ import annotations

import textwrap
from typing import Any

from torch import fx

from minidbg.graphs.attributes import Attributes, ConstantExpression, exact_literal, used_targets
from minidbg.graphs.comments import location
from minidbg.graphs.expressions import Expressions
from minidbg.graphs.names import Names
from minidbg.graphs.source import INDENT, ModuleSource

_OWN_NAMES = ("root", "g")


def write_graph_builder(
    gm: fx.GraphModule,
    name: str = "graph",
    *,
    exact_names: bool = False,
    constant_expression: ConstantExpression = exact_literal,
) -> ModuleSource:
    """Source of ``def name()``, which gives a GraphModule with exactly the nodes of ``gm``.

    Nodes are called as in ``write_module``, or with ``exact_names`` as they are called in ``gm``: dynamo's
    long names are ugly, and once in a while they are what a backend stumbles over.
    Raises CannotWrite naming the part that has no form.
    """
    constants: dict[str, Any] = {}
    imports: set[str] = set()
    writer = _BuilderWriter(exact_names, constant_expression, constants, imports)
    text, input_names = writer.write(gm, name, "")
    return ModuleSource(text + "\n", tuple(sorted(imports)), input_names, constants, name)


class _BuilderWriter:
    """Writes a function and, inside it, the functions for nested graphs."""

    def __init__(
        self,
        exact_names: bool,
        constant_expression: ConstantExpression,
        constants: dict[str, Any],
        imports: set[str],
    ) -> None:
        self._exact_names = exact_names
        self._constant_expression = constant_expression
        self._constants = constants
        self._imports = imports

    def write(self, gm: fx.GraphModule, name: str, path: str) -> tuple[str, tuple[str, ...]]:
        """The function that builds ``gm``, and its input names; ``path`` leads to it from the outermost."""
        attributes = Attributes(gm, path, self._constant_expression, owner="root")
        attributes.write_all(used_targets(gm.graph))
        functions = self._nested_functions(attributes, path)
        self._constants.update(attributes.constants)
        lines = ["root = torch.nn.Module()", *attributes.statements, "g = torch.fx.Graph()"]
        node_lines, input_names = self._nodes(gm.graph)
        lines += [*node_lines, "return torch.fx.GraphModule(root, g)"]
        body = "\n".join([*functions, *lines])
        return f"def {name}():\n{textwrap.indent(body, INDENT)}", input_names

    def _nested_functions(self, attributes: Attributes, path: str) -> list[str]:
        functions = []
        names = Names((*_OWN_NAMES, "torch"))
        for target, nested in attributes.nested.items():
            name = names.free(f"build_{target}")
            inner_path = f"{path}.{target}" if path else target
            text, _ = self.write(nested, name, inner_path)
            functions.append(text + "\n")
            attributes.fill(target, f"{name}()")
        return functions

    def _nodes(self, graph: fx.Graph) -> tuple[list[str], tuple[str, ...]]:
        """One line a node, and the variables of the placeholders."""
        roots = set(_OWN_NAMES)
        while True:
            names = Names(roots)
            for node in sorted(graph.nodes, key=lambda node: node.op != "placeholder"):
                names.add(node)
            write = Expressions(names.__getitem__)
            lines = [self._line(node, names, write) for node in graph.nodes]
            if write.roots <= roots | {"torch"}:
                break
            roots |= write.roots
        self._imports |= write.imports
        inputs = tuple(names[node] for node in graph.nodes if node.op == "placeholder")
        return lines, inputs

    def _line(self, node: fx.Node, names: Names, write: Expressions) -> str:
        if node.op == "output":
            return f"g.output({write.value(node.args[0])})"
        variable = names[node]
        own_name = node.name if self._exact_names else variable
        target = node.target
        if node.op == "placeholder" and not self._exact_names:
            target = variable
        written = write.value(target) if isinstance(target, str) else write.reference(target)
        arguments = f"{written}, {write.value(node.args)}, {write.value(dict(node.kwargs))}, {own_name!r}"
        line = f"g.create_node({node.op!r}, {arguments})"
        comment = location(node)
        line = f"{variable} = {line}" if node.users else line
        return f"{line}  # {comment}" if comment else line
