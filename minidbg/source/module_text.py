"""A graph module as readable, straight-line source of a class, and that source as a live module."""

from __future__ import annotations

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
from minidbg.fx.effects import lookup, op_name, paired
from minidbg.source.expressions import Expressions, attribute_path, literal
from minidbg.source.names import Names, class_name, is_plain_identifier
from minidbg.source.origins import location
from minidbg.words.errors import CannotWrite

LINE_LENGTH = 100
"""Longest ``def forward`` line; with more inputs they stand on lines of their own."""

INDENT = "    "

ConstantExpression = Callable[[str, Tensor], str]
"""Dotted name and tensor -> the expression that ``__init__`` evaluates to make it."""

_numbers = itertools.count(1)


def by_name(name: str, value: Tensor) -> str:
    return f"constants[{name!r}]"


def used_targets(graph: fx.Graph) -> list[str]:
    targets = (str(node.target) for node in graph.nodes if node.op in ("get_attr", "call_module"))
    return list(dict.fromkeys(targets))


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
    writer = _Writer(constant_expression)
    return writer.source(name, *writer.write_class(gm, name, ""))


class _Writer:
    """Writes a graph and those inside it; ``path``, with a dot at its end, leads to one from the outermost.

    Each graph is given as its text and the names of its inputs.
    """

    def __init__(self, constant_expression: ConstantExpression, own_names: bool = False) -> None:
        self._constant_expression = constant_expression
        self._own_names = own_names
        self._imports: set[str] = set()
        self._constants: dict[str, Tensor] = {}
        self._kernels: dict[str, str] = {}

    def source(self, name: str, text: str, input_names: tuple[str, ...]) -> ModuleSource:
        imports = tuple(sorted(self._imports))
        return ModuleSource(f"{text}\n", imports, input_names, self._constants, name, self._kernels)

    def write_class(self, gm: fx.GraphModule, name: str, path: str) -> tuple[str, tuple[str, ...]]:
        used = {target.partition(".")[0] for target in used_targets(gm.graph)} | set(dir(nn.Module))
        blocks: list[str] = []

        def nested(target: str, inner: fx.GraphModule) -> str:
            used.add(name := class_name(target, used))
            blocks.append(self.write_class(inner, name, f"{path}{target}.")[0])
            return f"self.{name}()"

        if statements := self._attributes(gm, path, "self", nested):
            lines = ["def __init__(self):", INDENT + "super().__init__()"]
            blocks.append("\n".join(lines + [INDENT + line for line in statements]))
        _check_form(gm.graph)
        # a value that nobody uses is written without a name
        named = [node for node in gm.graph.nodes if node.op == "placeholder" or node.users]
        for names, write in self._namings(named, set()):
            forward = "\n".join(_forward(gm.graph, names, write))
        body = textwrap.indent("\n\n".join([*blocks, forward]), INDENT)
        return f"class {name}(torch.nn.Module):\n{body}", input_names(gm.graph, names)

    def write_builder(self, gm: fx.GraphModule, name: str, path: str) -> tuple[str, tuple[str, ...]]:
        functions = Names((*_OWN_NAMES, "torch"))
        parts: list[str] = []

        def nested(target: str, inner: fx.GraphModule) -> str:
            name = functions.free(f"build_{target}")
            parts.append(self.write_builder(inner, name, f"{path}{target}.")[0] + "\n")
            return f"{name}()"

        statements = self._attributes(gm, path, "root", nested)
        for names, write in self._namings(list(gm.graph.nodes), set(_OWN_NAMES)):
            lines = [self._builder_line(node, names, write) for node in gm.graph.nodes]
        made = "graph_module" if self._own_names else "torch.fx.GraphModule"
        parts += ["root, g = torch.nn.Module(), torch.fx.Graph()", *statements, *lines]
        body = textwrap.indent("\n".join([*parts, f"return {made}(root, g)"]), INDENT)
        return f"def {name}():\n{body}", input_names(gm.graph, names)

    def _namings(self, nodes: Sequence[fx.Node], taken: set[str]) -> Iterator[tuple[Names, Expressions]]:
        """Names for ``nodes`` that are not ``taken``, and what writes by them; again when the text needs one of them for an import."""
        while True:
            names = Names(taken)
            # inputs first: theirs are the names from the user's code
            for node in sorted(nodes, key=lambda node: node.op != "placeholder"):
                names.add(node)
            write = Expressions(names.__getitem__)
            yield names, write
            if write.roots.isdisjoint(names.by_node.values()):
                break
            taken |= write.roots
        self._imports |= write.imports
        for name, text in write.kernels.texts.items():
            if self._kernels.setdefault(name, text) != text:
                raise CannotWrite(f"the name {name}", "kernels of two graphs use it for different things")

    def _builder_line(self, node: fx.Node, names: Names, write: Expressions) -> str:
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

    def _attributes(
        self, gm: fx.GraphModule, path: str, owner: str, nested: Callable[[str, fx.GraphModule], str]
    ) -> list[str]:
        """Statements that make what ``gm`` uses, as attributes of ``owner``; ``nested`` gives the expression that makes a graph.

        Raises CannotWrite naming the attribute that has no form.
        """
        targets = used_targets(gm.graph)
        containers: set[str] = set()
        written: dict[int, str] = {}
        statements: list[str] = []
        for target in targets:
            around = list(itertools.accumulate(target.split(".")[:-1], "{}.{}".format))
            if not set(targets).isdisjoint(around):
                continue
            if hasattr(nn.Module, target.partition(".")[0]):
                why = "torch.nn.Module has an attribute of this name"
                raise CannotWrite(f"the attribute {target!r}", why)
            value = lookup(gm, target)
            new = [container for container in around if container not in containers]
            containers.update(new)
            statements += [_assignment(owner, container, "torch.nn.Module()") for container in new]
            is_shared = isinstance(value, Tensor | nn.Module)
            same = written.setdefault(id(value), target) if is_shared else target
            if same != target:
                text = attribute_path(owner, same)
            elif isinstance(value, fx.GraphModule):
                text = nested(target, value)
            elif isinstance(value, nn.Module):
                kind = type(value).__name__
                why = "dynamo inlines modules, so only a graph made by hand calls one; give the model instead"
                raise CannotWrite(f"the submodule {target!r} of type {kind}", why)
            elif isinstance(value, Tensor):
                self._constants[path + target] = value
                text = self._constant_expression(path + target, value)
                if not isinstance(value, nn.Parameter):
                    # also for a plain tensor attribute: a GraphModule makes a buffer of it
                    holder, name = _holder(owner, target)
                    statements.append(f"{holder}.register_buffer({name!r}, {text})")
                    continue
                text = f"torch.nn.Parameter({text}{'' if value.requires_grad else ', requires_grad=False'})"
            else:
                text = literal(value)
            statements.append(_assignment(owner, target, text))
        return statements


def _holder(owner: str, target: str) -> tuple[str, str]:
    path, _, name = target.rpartition(".")
    return attribute_path(owner, path) if path else owner, name


def _assignment(owner: str, target: str, expression: str) -> str:
    holder, name = _holder(owner, target)
    if is_plain_identifier(name):
        return f"{holder}.{name} = {expression}"
    return f"setattr({holder}, {name!r}, {expression})"


def input_names(graph: fx.Graph, names: Names) -> tuple[str, ...]:
    return tuple(names[node] for node in graph.find_nodes(op="placeholder"))


def _forward(graph: fx.Graph, names: Names, write: Expressions) -> Iterator[str]:
    given = {
        node: f"={write.value(node.args[0])}" for node in graph.find_nodes(op="placeholder") if node.args
    }
    parameters = ["self"] + [names[node] + given.get(node, "") for node in graph.find_nodes(op="placeholder")]
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
        if mark := level_mark(node):
            yield f"{margin}# {mark}"
        block_is_empty = node in pairs
        if block_is_empty:
            manager = write.reference(pairs[node].manager)
            line = f"with {manager}({', '.join(map(write.value, node.args))}):"
        else:
            line = _statement(node, names, write)
        yield margin + _commented(line, node)
        margin += INDENT * block_is_empty


def _statement(node: fx.Node, names: Names, write: Expressions) -> str:
    if node.op == "output":
        return f"return {write.value(node.args[0])}"
    if is_item_assignment(node):
        owner, index, value = node.args
        return f"{write.value(owner)}[{write.index(index)}] = {write.value(value)}"
    return f"{names[node]} = {write.node(node)}" if node.users else write.node(node)


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
    writer = _Writer(constant_expression, own_names)
    return writer.source("graph", *writer.write_builder(gm, "graph", ""))
