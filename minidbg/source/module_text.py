"""A graph module as readable, straight-line source of a class, and that source as a live module."""

from __future__ import annotations

import abc
import itertools
import linecache
import operator
import sys
import textwrap
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, fx, nn

from minidbg.backends import run_as_module
from minidbg.fx.effects import op_name, paired
from minidbg.source.attributes import Attributes, ConstantExpression, by_name, used_targets
from minidbg.source.expressions import Expressions
from minidbg.source.names import Names, class_name
from minidbg.source.origins import location
from minidbg.words.errors import CannotWrite

LINE_LENGTH = 100
"""Longest ``def forward`` line; with more inputs they stand on lines of their own."""

INDENT = "    "

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class ModuleSource:
    text: str
    """The class, nested classes included, without imports."""
    imports: tuple[str, ...] = ()
    """Import statements that ``text`` needs beside ``import torch``."""
    input_names: tuple[str, ...] = ()
    """Names of the parameters of ``forward``, in placeholder order."""
    constants: Mapping[str, Tensor] = field(default_factory=dict)
    """Dotted name -> tensor that ``__init__`` makes by the constant expression."""
    name: str = "Repro"
    """The class."""
    kernels: Mapping[str, str] = field(default_factory=dict)
    """Name -> statement that defines a Triton kernel, or what one looks up; they stand above ``text``, in this order."""


def write_module(
    gm: fx.GraphModule,
    name: str = "Repro",
    *,
    constant_expression: ConstantExpression = by_name,
) -> ModuleSource:
    """Source of a plain ``class name(torch.nn.Module)`` that computes what ``gm`` does, one statement a node.

    ``constant_expression`` gives the expression that makes a tensor the module owns. ``parse.read_module`` gives the
    graph back exactly. Raises CannotWrite naming the part that has no form.
    """
    writer = _ClassWriter(constant_expression)
    return writer.source(name, *writer.write(gm, name, ""))


class _Writer(abc.ABC):
    def __init__(self, constant_expression: ConstantExpression) -> None:
        self._constant_expression = constant_expression
        self._imports: set[str] = set()
        self._constants: dict[str, Tensor] = {}
        self._kernels: dict[str, str] = {}

    def source(self, name: str, text: str, input_names: tuple[str, ...]) -> ModuleSource:
        imports = tuple(sorted(self._imports))
        return ModuleSource(f"{text}\n", imports, input_names, self._constants, name, self._kernels)

    @abc.abstractmethod
    def write(self, gm: fx.GraphModule, name: str, path: str) -> tuple[str, tuple[str, ...]]:
        """The text that makes ``gm``, called ``name``, and the names of its inputs; ``path`` leads to it from the outermost module."""

    def _nested(self, attributes: Attributes, path: str, free: Callable[[str], str], owner: str) -> list[str]:
        texts = []
        for target, nested in attributes.nested.items():
            name = free(target)
            texts.append(self.write(nested, name, f"{path}.{target}" if path else target)[0])
            attributes.fill(target, f"{owner}{name}()")
        return texts

    def _take(self, names: Names, write: Expressions) -> None:
        self._imports |= write.imports
        for name, text in write.kernels.texts.items():
            if self._kernels.setdefault(name, text) != text:
                raise CannotWrite(f"the name {name}", "kernels of two graphs use it for different things")

    def _attributes(self, gm: fx.GraphModule, path: str, owner: str) -> Attributes:
        attributes = Attributes(gm, path, self._constant_expression, owner)
        attributes.write_all(used_targets(gm.graph))
        self._constants.update(attributes.constants)
        return attributes


class _ClassWriter(_Writer):
    def write(self, gm: fx.GraphModule, name: str, path: str) -> tuple[str, tuple[str, ...]]:
        attributes = self._attributes(gm, path, "self")
        used = {target.partition(".")[0] for target in used_targets(gm.graph)} | set(dir(nn.Module))

        def free(target: str) -> str:
            used.add(name := class_name(target, used))
            return name

        blocks = self._nested(attributes, path, free, "self.")
        if attributes.statements:
            lines = ["def __init__(self):", INDENT + "super().__init__()"]
            blocks.append("\n".join(lines + [INDENT + line for line in attributes.statements]))
        forward = _ForwardWriter(gm.graph)
        blocks.append(forward.text)
        self._take(forward.names, forward.expressions)
        body = textwrap.indent("\n\n".join(blocks), INDENT)
        return f"class {name}(torch.nn.Module):\n{body}", forward.input_names


def namings(nodes: Sequence[fx.Node], taken: set[str]) -> Iterator[tuple[Names, Expressions]]:
    """Names for ``nodes`` that are not ``taken``, and what writes by them; again when the text needs one of them for an import."""
    while True:
        names = Names(taken)
        # inputs first: theirs are the names from the user's code
        for node in sorted(nodes, key=lambda node: node.op != "placeholder"):
            names.add(node)
        write = Expressions(names.__getitem__)
        yield names, write
        if write.roots.isdisjoint(names.by_node.values()):
            return
        taken |= write.roots


class _ForwardWriter:
    def __init__(self, graph: fx.Graph) -> None:
        _check_form(graph)
        self._graph = graph
        self._pairs = paired(graph)
        # a value that nobody uses is written without a name
        named = [node for node in graph.nodes if node.op == "placeholder" or node.users]
        for self.names, self.expressions in namings(named, set()):
            self.text = self._write()

    @property
    def input_names(self) -> tuple[str, ...]:
        return tuple(self.names[node] for node in self._graph.find_nodes(op="placeholder"))

    def _write(self) -> str:
        head = self._head()
        lines: list[str] = []
        depth = 1
        block_is_empty = False
        for node in self._graph.nodes:
            if node.op == "placeholder":
                continue
            if node in self._pairs and node.target is self._pairs[node].exit:
                lines += [INDENT * depth + "pass"] if block_is_empty else []
                depth -= 1
                block_is_empty = False
                continue
            if mark := level_mark(node):
                lines.append(f"{INDENT * depth}# {mark}")
            lines.append(INDENT * depth + _commented(self._code(node), node))
            block_is_empty = node in self._pairs
            depth += block_is_empty
        return "\n".join(head + lines)

    def _head(self) -> list[str]:
        parameters = ["self", *map(self._parameter, self._graph.find_nodes(op="placeholder"))]
        line = f"def forward({', '.join(parameters)}):"
        return [line] if len(line) <= LINE_LENGTH else ["def forward(", f"{listed(parameters)},", "):"]

    def _parameter(self, node: fx.Node) -> str:
        default = f"={self.expressions.value(node.args[0])}" if node.args else ""
        return self.names[node] + default

    def _code(self, node: fx.Node) -> str:
        write = self.expressions
        if node.op == "output":
            return f"return {write.value(node.args[0])}"
        if node in self._pairs:
            manager = write.reference(self._pairs[node].manager)
            return f"with {manager}({', '.join(map(write.value, node.args))}):"
        if is_item_assignment(node):
            owner, index, value = node.args
            return f"{write.value(owner)}[{write.index(index)}] = {write.value(value)}"
        return f"{self.names[node]} = {write.node(node)}" if node.users else write.node(node)


def level_mark(node: fx.Node) -> str:
    level, _, does = op_name(node).strip("_").partition("_") if node.op == "call_function" else ("",) * 3
    words = {"increment_nesting": "enters", "decrement_nesting": "leaves"}
    return f"{words[does]} a level of {level}" if does in words else ""


def _commented(text: str, node: fx.Node) -> str:
    comment = location(node) if node.op != "output" else ""
    return f"{text}  # {comment}" if comment else text


def listed(items: Sequence[str]) -> str:
    filled = textwrap.fill(
        ", ".join(item.replace(" ", "\0") for item in items),  # no line ends inside an item
        LINE_LENGTH - 4,
        initial_indent=INDENT,
        subsequent_indent=INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return filled.replace("\0", " ")


def is_item_assignment(node: fx.Node) -> bool:
    """Whether ``node`` is written ``x[i] = y``; dynamo takes no other form of setitem."""
    return (
        node.target is operator.setitem
        and len(node.args) == 3
        and not node.kwargs
        and not node.users
        and isinstance(node.args[0], fx.Node)
    )


def _check_form(graph: fx.Graph) -> None:
    if not any(node.op == "output" for node in graph.nodes):
        raise CannotWrite("the graph", "it has no output node")
    for node in graph.nodes:
        if node.op == "placeholder" and str(node.target).startswith("*"):
            raise CannotWrite(f"the input {node.target!r}", "it takes a varying number of values")


def instantiate(source: ModuleSource, constants: Mapping[str, Tensor] | None = None) -> nn.Module:
    """A live module of ``source``, such that ``torch.compile(fullgraph=True)`` takes it.

    ``constants`` is what the source calls ``constants`` (see ``by_name``), by default the source's own
    tensors. The module that holds the class is importable as long as the instance lives.
    """
    name = f"minidbg_source_{next(_numbers)}"
    text = "\n".join(["import torch", *source.imports, "", *source.kernels.values(), "", source.text])
    try:
        made = run_as_module(name, text, constants=source.constants if constants is None else constants)
        with torch.random.fork_rng(devices=[]):
            module: nn.Module = made[source.name]()
    except BaseException:
        _forget(name)
        raise
    weakref.finalize(module, _forget, name).atexit = False
    return module


def _forget(name: str) -> None:
    sys.modules.pop(name, None)
    linecache.cache.pop(f"<{name}>", None)


# --- a function that builds the graph node by node, for backends that are called directly ---


_OWN_NAMES = ("root", "g", "graph_module")


def write_graph_builder(
    gm: fx.GraphModule, *, constant_expression: ConstantExpression = by_name, own_names: bool = False
) -> ModuleSource:
    """Source of ``def graph()``, which gives a GraphModule with exactly the nodes of ``gm``, called as in ``write_module``.

    ``own_names``: for a process and no reader, so that nodes keep their names, no line has a comment, and the text makes
    its modules by a function ``graph_module(root, g)``. Raises CannotWrite naming the part that has no form.
    """
    writer = _BuilderWriter(constant_expression, own_names)
    return writer.source("graph", *writer.write(gm, "graph", ""))


class _BuilderWriter(_Writer):
    def __init__(self, constant_expression: ConstantExpression, own_names: bool) -> None:
        super().__init__(constant_expression)
        self._own_names = own_names

    def write(self, gm: fx.GraphModule, name: str, path: str) -> tuple[str, tuple[str, ...]]:
        attributes = self._attributes(gm, path, "root")
        names = Names((*_OWN_NAMES, "torch"))
        functions = self._nested(attributes, path, lambda target: names.free(f"build_{target}"), "")
        lines = ["root, g = torch.nn.Module(), torch.fx.Graph()", *attributes.statements]
        node_lines, input_names = self._nodes(gm.graph)
        lines += [
            *node_lines,
            f"return {'graph_module' if self._own_names else 'torch.fx.GraphModule'}(root, g)",
        ]
        body = "\n".join([*(f"{text}\n" for text in functions), *lines])
        return f"def {name}():\n{textwrap.indent(body, INDENT)}", input_names

    def _nodes(self, graph: fx.Graph) -> tuple[list[str], tuple[str, ...]]:
        for names, write in namings(list(graph.nodes), set(_OWN_NAMES)):
            lines = [self._line(node, names, write) for node in graph.nodes]
        self._take(names, write)
        return lines, tuple(names[node] for node in graph.find_nodes(op="placeholder"))

    def _line(self, node: fx.Node, names: Names, write: Expressions) -> str:
        if node.op == "output":
            return f"g.output({write.value(node.args[0])})"
        variable = names[node]
        name = node.name if self._own_names else variable
        target = variable if node.op == "placeholder" and not self._own_names else node.target
        written = write.value(target) if isinstance(target, str) else write.reference(target)
        arguments = f"{written}, {write.value(node.args)}, {write.keywords(node)}, {name!r}"
        line = f"g.create_node({node.op!r}, {arguments})"
        line = f"{variable} = {line}" if node.users else line
        return line if self._own_names else _commented(line, node)
