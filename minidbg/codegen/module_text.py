"""A graph module as readable, straight-line source of a class, and that source as a live module."""

from __future__ import annotations

import itertools
import operator
import sys
import textwrap
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, fx, nn

from minidbg.backends import run_as_module
from minidbg.codegen.expressions import Expressions
from minidbg.codegen.names import Names
from minidbg.codegen.origins import location, users_frame
from minidbg.core.errors import CannotWrite
from minidbg.fx.copying import clone_values
from minidbg.fx.effects import lookup, nested_graphs, op_name, paired

LINE_LENGTH = 100
"""Longest ``def forward`` line; with more inputs they stand on lines of their own."""

INDENT = "    "

ConstantExpression = Callable[[str, Tensor], str]
"""Dotted name and tensor -> the expression that ``__init__`` evaluates to make it."""
by_name: ConstantExpression = "constants[{!r}]".format

_text_numbers = itertools.count(1)


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
    """The class or function."""
    kernels: Mapping[str, str] = field(default_factory=dict)
    """Name -> statement binding it, a Triton kernel or what one uses; above ``text`` in order."""


def write_module(gm: fx.GraphModule, *, constant_expression: ConstantExpression = by_name) -> ModuleSource:
    """Source of a plain ``class Repro(torch.nn.Module)`` computing ``gm``, one statement a node.

    ``constant_expression`` gives the expression for a tensor that the module owns.
    ``parse.read_module`` gives the graph back exactly. Raises CannotWrite naming what has no form.
    """
    writer = _Writer(constant_expression)
    return writer.source(gm, "Repro", writer.write_class(gm, "Repro", ""))


class _Writer:
    """Writes a graph and those inside; ``path`` leads to it from the outermost, ending in a dot."""

    def __init__(self, constant_expression: ConstantExpression, own_names: bool = False) -> None:
        self._constant_expression = constant_expression
        self._own_names = own_names
        self._write = Expressions()
        self._constants: dict[str, Tensor] = {}

    def source(self, gm: fx.GraphModule, name: str, text: str) -> ModuleSource:
        imports = tuple(sorted(self._write.imports))
        input_names = tuple(map(self._write.value, gm.graph.find_nodes(op="placeholder")))
        kernels = list(self._write.kernels.texts.items())
        kernels.sort(key=lambda kernel: not kernel[1].startswith(("import ", "from ")))
        return ModuleSource(f"{text}\n", imports, input_names, self._constants, name, dict(kernels))

    def write_class(self, gm: fx.GraphModule, name: str, path: str) -> str:
        attributes = _attribute_names(gm)
        classes = Names((*dir(nn.Module), *attributes.values()))
        blocks: list[str] = []
        builders: list[str] = []
        scans = (node for node in gm.graph.nodes if op_name(node) == "scan")
        scanned = (node.args[0] for node in scans if any(nested_graphs(node)))
        bodies = {attributes[str(body.target)] for body in scanned}

        def nested(attribute: str, inner: fx.GraphModule) -> str:
            if attribute in bodies:  # dynamo takes only a graph as the body of a scan
                builder = self.write_builder(inner, f"build_{attribute}", f"{path}{attribute}.")
                builders.append(f"\n{builder}\n")
                return f"build_{attribute}()"
            words = attribute.split("_")
            name = classes.free("".join(word[:1].upper() + word[1:] for word in words))
            blocks.append(self.write_class(inner, name, f"{path}{attribute}."))
            return f"self.{name}()"

        if statements := self._attributes(gm, attributes, path, "self", nested):
            lines = ["super().__init__()", *builders, *statements]
            blocks.append("def __init__(self):\n" + textwrap.indent("\n".join(lines), INDENT))
        for target in (str(node.target) for node in gm.graph.find_nodes(op="placeholder")):
            if target.startswith("*"):
                raise CannotWrite(f"the input {target!r}", "it takes a varying number of values")
        # a value that nobody uses is written without a name
        named = [node for node in gm.graph.nodes if node.op == "placeholder" or node.users]
        lines = self._with_names(named, set(), lambda: list(_forward(gm.graph, self._write)))
        body = textwrap.indent("\n\n".join([*blocks, "\n".join(lines)]), INDENT)
        return f"class {name}(torch.nn.Module):\n{body}"

    def write_builder(self, gm: fx.GraphModule, name: str, path: str) -> str:
        attributes, functions = _attribute_names(gm), Names((*_OWN_NAMES, "torch"))
        parts: list[str] = []

        def nested(attribute: str, inner: fx.GraphModule) -> str:
            name = functions.free(f"build_{attribute}")
            parts.append(self.write_builder(inner, name, f"{path}{attribute}.") + "\n")
            return f"{name}()"

        statements = self._attributes(gm, attributes, path, "root", nested)
        nodes, taken = list(gm.graph.nodes), set(_OWN_NAMES)
        lines = self._with_names(nodes, taken, lambda: list(map(self._builder_line, nodes)))
        made = "graph_module" if self._own_names else "torch.fx.GraphModule"
        parts += ["root, g = torch.nn.Module(), torch.fx.Graph()", *statements, *lines]
        body = textwrap.indent("\n".join([*parts, f"return {made}(root, g)"]), INDENT)
        return f"def {name}():\n{body}"

    def _with_names(
        self, nodes: Sequence[fx.Node], taken: set[str], lines: Callable[[], list[str]]
    ) -> list[str]:
        """What ``lines`` gives with names not in ``taken``; again when an import needs one."""
        write = self._write
        while True:
            names = Names(taken | write.roots)
            # inputs first: theirs are the names from the user's code
            in_order = sorted(nodes, key=lambda node: node.op != "placeholder")
            by_node = {node: names.of(node) for node in in_order}
            write.name_of = by_node.__getitem__
            written = lines()
            if write.roots.isdisjoint(by_node.values()):
                return written

    def _builder_line(self, node: fx.Node) -> str:
        write = self._write
        if node.op == "output":
            return f"g.output({write.value(node.args[0])})"
        variable, target = write.value(node), node.target
        name = node.name if self._own_names else variable
        if node.op == "placeholder" and not self._own_names:
            target = variable
        elif node.op in ("get_attr", "call_module"):
            target = write.attributes[str(target)]
        written = write.value(target) if isinstance(target, str) else write.reference(target)
        arguments = f"{written}, {write.value(node.args)}, {write.keywords(node)}, {name!r}"
        line = f"g.create_node({node.op!r}, {arguments})"
        if self._own_names:
            trace = users_frame(node)
            line += f"; {variable}.meta['stack_trace'] = {trace!r}" if trace else ""
            return f"{variable} = {line}"
        return _commented(f"{variable} = {line}" if node.users else line, node)

    def _attributes(
        self, gm: fx.GraphModule, names: Mapping[str, str], path: str, owner: str, nested: Callable[..., str]
    ) -> list[str]:
        """Statements that make what ``gm`` uses, as ``names`` of ``owner``; ``nested`` gives the
        expression that makes a graph. Raises CannotWrite naming the attribute."""
        statements, written = [], dict[int, str]()
        for target, name in names.items():
            value = lookup(gm, target)
            is_shared = isinstance(value, Tensor | nn.Module)
            same = written.setdefault(id(value), name) if is_shared else name
            if same != name:
                text = f"{owner}.{same}"
            elif isinstance(value, fx.GraphModule):
                text = nested(name, value)
            elif isinstance(value, nn.Module):
                kind = type(value).__name__
                why = "dynamo inlines modules, so only a graph made by hand calls one; give the model instead"
                raise CannotWrite(f"the submodule {target!r} of type {kind}", why)
            elif isinstance(value, Tensor):
                self._constants[path + name] = value
                text = self._constant_expression(path + name, value)
                if not isinstance(value, nn.Parameter):
                    # also for a plain tensor attribute: a GraphModule makes a buffer of it
                    statements.append(f"{owner}.register_buffer({name!r}, {text})")
                    continue
                flag = "" if value.requires_grad else ", requires_grad=False"
                text = f"torch.nn.Parameter({text}{flag})"
            else:
                text = self._write.value(value)
            statements.append(f"{owner}.{name} = {text}")
        self._write.attributes = names  # the graphs inside have been written
        return statements


def _attribute_names(gm: fx.GraphModule) -> dict[str, str]:
    """For the dotted name of each attribute that nodes of ``gm`` use, the plain one to write."""
    names = Names(dir(fx.GraphModule))
    used = (str(node.target) for node in gm.graph.nodes if node.op in ("get_attr", "call_module"))
    return {target: names.free(target) for target in dict.fromkeys(used)}


def _forward(graph: fx.Graph, write: Expressions) -> Iterator[str]:
    parameters = ["self", *map(write.value, graph.find_nodes(op="placeholder"))]
    head = f"def forward({', '.join(parameters)}):"
    yield head if len(head) <= LINE_LENGTH else f"def forward(\n{listed(parameters)},\n):"
    pairs, margin, block_is_empty = paired(graph), INDENT, False
    for node in graph.nodes:
        if node.op == "placeholder":
            continue
        if node in pairs and node.target is pairs[node].exit:
            if block_is_empty:
                yield f"{margin}pass"
            margin, block_is_empty = margin.removesuffix(INDENT), False
            continue
        block_is_empty = node in pairs
        if block_is_empty:
            manager = write.reference(pairs[node].manager)
            line = f"with {manager}({', '.join(map(write.value, node.args))}):"
        else:
            line = _statement(node, write)
        yield margin + _commented(line, node)
        margin += INDENT * block_is_empty


def _statement(node: fx.Node, write: Expressions) -> str:
    if node.op == "output":
        return f"return {write.value(node.args[0])}"
    if node.target is operator.setitem and not node.kwargs and not node.users:
        match node.args:
            case (fx.Node() as owner, index, value):  # dynamo takes no other form of it
                return f"{write.value(owner)}[{write.index(index)}] = {write.value(value)}"
    return f"{write.value(node)} = {write.node(node)}" if node.users else write.node(node)


def _commented(text: str, node: fx.Node) -> str:
    comment = location(node) if node.op != "output" else ""
    return f"{text}  # {comment}" if comment else text


def listed(names: Sequence[str]) -> str:
    lines = textwrap.wrap(", ".join(names), LINE_LENGTH - 8, break_long_words=False)
    return textwrap.indent("\n".join(lines), INDENT)


def instantiate(source: ModuleSource) -> nn.Module:
    """A live module of ``source``, with copies of its constants: one that ``torch.compile`` takes
    as one graph. Its class is importable as long as it lives."""
    name = f"minidbg_source_{next(_text_numbers)}"
    lines = ["import torch", *source.imports, "", *source.kernels.values(), "", source.text]
    copies = clone_values(list(source.constants.values()))
    constants = dict(zip(source.constants, copies, strict=True))
    made = run_as_module(name, "\n".join(lines), constants=constants)
    with torch.random.fork_rng(devices=[]):
        module: nn.Module = made[source.name]()
    weakref.finalize(module, sys.modules.pop, name, None).atexit = False
    return module


# --- a function that builds the graph node by node, for backends that are called directly ---


_OWN_NAMES = ("root", "g", "graph_module")


def write_graph_builder(
    gm: fx.GraphModule, *, constant_expression: ConstantExpression = by_name, own_names: bool = False
) -> ModuleSource:
    """Source of ``def graph()``, which gives a GraphModule with exactly the nodes of ``gm``, called
    as in ``write_module``.

    ``own_names``: for a process and no reader, so that nodes keep their names, no line has a
    comment, and the text makes its modules by a function ``graph_module(root, g)``. Raises
    CannotWrite naming the part that has no form.
    """
    writer = _Writer(constant_expression, own_names)
    return writer.source(gm, "graph", writer.write_builder(gm, "graph", ""))
