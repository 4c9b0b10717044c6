"""The graph of a script as it is drawn: read off the model's source, and folded into few blocks where it is large."""

from __future__ import annotations

import ast
import itertools
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from minidbg.source.origins import comments_by_line
from minidbg.source.parse import FUNCTION_OF_SYMBOL

WITH_NUMBER = re.compile(r"(.*?_\d+)(?:_|$)")
LAST_PART = re.compile(r"_(?:weight|bias|running_mean|running_var|num_batches_tracked)$")


@dataclass(frozen=True, slots=True)
class DrawnNode:
    """One value of the graph."""

    name: str
    label: str
    """What is called: ``softmax``, ``add``; ``input`` for an input."""
    inputs: tuple[str, ...]
    """Names of the values that it reads, inputs of the graph included."""
    text: str
    """Its line, without comment."""
    comment: str = ""
    """Where it came from (``train.py:41``), or what an input is (``torch.randn(2, 3, device=device)``)."""
    is_input: bool = False
    module: str = ""
    """The part of the model that it most likely belongs to: told by the names of the parameters it reads."""


def read_graph(model: str, inputs: str = "") -> tuple[DrawnNode, ...]:
    """The nodes of ``class Repro`` or ``def graph``, in order; empty for a source of another form.

    ``inputs`` is the source of ``def inputs``, which says what the inputs are.
    """
    try:
        tree, made = ast.parse(model), ast.parse(inputs)
    except SyntaxError:
        return ()
    comments = comments_by_line(model)
    described = {name: ast.unparse(value) for name, value in assignments_in(made)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == "Repro":
            functions = [
                one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "forward"
            ]
            return with_modules(forward_nodes(functions[0], comments, described)) if functions else ()
    functions = [one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name == "graph"]
    return with_modules(built_nodes(functions[0], comments)) if functions else ()


# --- class Repro: straight-line code ---


def assignments_in(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Name and value of each assignment to one name, at any depth."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, node.value


def forward_nodes(
    function: ast.FunctionDef, comments: Mapping[int, str], described: Mapping[str, str]
) -> list[DrawnNode]:
    """The nodes of a ``forward``; ``described`` says what its inputs are, where no comment of an older script does."""
    pairs = (line.partition(": ") for line in comments.values())
    described = {**described, **{name.strip(): what.strip() for name, found, what in pairs if found}}
    nodes = [
        DrawnNode(one.arg, "input", (), one.arg, comments.get(one.lineno) or described.get(one.arg, ""), True)
        for one in [*function.args.posonlyargs, *function.args.args][1:]
    ]
    known = {node.name for node in nodes}
    for statement in statements_in(function.body):
        for name, value in assignments(statement):
            comment = comments.get(statement.end_lineno or statement.lineno, "")
            label = label_of(value)
            nodes.append(
                DrawnNode(name or f"({label})", label, reads(value, known), ast.unparse(statement), comment)
            )
            known.add(nodes[-1].name)
    return nodes


def reads(part: ast.AST, known: Collection[str]) -> tuple[str, ...]:
    """Those of the ``known`` names that the source reads, each once."""
    names = (one.id for one in ast.walk(part) if isinstance(one, ast.Name) and one.id in known)
    return tuple(dict.fromkeys(names))


def statements_in(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that compute something, those inside ``with`` blocks included."""
    for statement in body:
        if isinstance(statement, ast.With):
            yield from statements_in(statement.body)
        elif isinstance(statement, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Expr):
            yield statement


def assignments(statement: ast.stmt) -> Iterator[tuple[str, ast.expr]]:
    """Name and value of what the statement computes; the name is empty when nothing keeps it."""
    if isinstance(statement, ast.Expr):
        if isinstance(statement.value, ast.Call):
            yield "", statement.value
    elif isinstance(statement, ast.Assign):
        for target in statement.targets:
            yield ast.unparse(target), statement.value
    elif isinstance(statement, ast.AugAssign):
        yield ast.unparse(statement.target), ast.BinOp(statement.target, statement.op, statement.value)
    elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
        yield ast.unparse(statement.target), statement.value


def label_of(value: ast.expr) -> str:
    """What an expression calls, in one word."""
    if isinstance(value, ast.Call):
        return last_word(value.func) or "call"
    operator = getattr(value, "op", None) or (value.ops[0] if isinstance(value, ast.Compare) else None)
    symbol = type(operator), 1 if isinstance(value, ast.UnaryOp) else 2
    if symbol in FUNCTION_OF_SYMBOL:
        return str(FUNCTION_OF_SYMBOL[symbol].__name__).strip("_")
    if isinstance(value, ast.Subscript):
        return "getitem"
    return value.attr if isinstance(value, ast.Attribute) else "value"


def last_word(target: ast.expr) -> str:
    """``relu`` for ``torch.relu_`` and ``torch.ops.aten.relu.default``."""
    return ast.unparse(target).strip("'\"").replace(".default", "").rpartition(".")[2].strip("_")


# --- def graph(): node by node ---


def built_nodes(function: ast.FunctionDef, comments: Mapping[int, str]) -> list[DrawnNode]:
    """The nodes of a function that builds a graph by ``g.create_node(op, target, args, kwargs, name)``."""
    nodes: list[DrawnNode] = []
    known: set[str] = set()
    for statement in function.body:
        call = getattr(statement, "value", None)
        if not (
            isinstance(call, ast.Call) and ast.unparse(call.func) == "g.create_node" and len(call.args) >= 4
        ):
            continue
        kind, target, arguments, *_ = call.args
        is_input = isinstance(kind, ast.Constant) and kind.value == "placeholder"
        name = ast.unparse(statement.targets[0]) if isinstance(statement, ast.Assign) else "(unused)"
        comment = comments.get(statement.end_lineno or statement.lineno, "")
        label = "input" if is_input else last_word(target)
        inputs = reads(ast.Tuple(call.args[2:]), known)
        nodes.append(DrawnNode(name, label, inputs, ast.unparse(arguments), comment, is_input))
        known.add(name)
    return nodes


# --- which module a node belongs to ---


def with_modules(nodes: Sequence[DrawnNode]) -> tuple[DrawnNode, ...]:
    """The nodes, each with the module that the parameters it reads tell; without any, with that of the node before."""
    modules = {node.name: module_of(node.name) for node in nodes if node.is_input}
    found, current = [], ""
    for node in nodes:
        told = next((modules[name] for name in reversed(node.inputs) if modules.get(name)), "")
        if node.is_input:
            found.append(node)
            continue
        current = told or current
        found.append(replace(node, module=current))
    return tuple(found)


def module_of(parameter: str) -> str:
    """``layers_3`` of ``layers_3_attention_weight``, ``ln_f`` of ``ln_f_weight``; empty for what is no parameter's name."""
    if not LAST_PART.search(parameter):
        return ""
    match = WITH_NUMBER.match(parameter)
    return match[1] if match else LAST_PART.sub("", parameter)


MOST_BLOCKS = 48
MOST_ALONE = 32
"""Kept nodes up to which each stands alone."""
SMALL = 40
"""Computing nodes of a graph in which nothing is folded."""
LONGEST = 400
"""Nodes of one block when no names of modules tell where to cut."""


@dataclass(frozen=True, slots=True)
class FoldedNodes:
    """Consecutive nodes that are drawn as one box."""

    nodes: tuple[DrawnNode, ...]
    label: str
    kept: int = 0
    """How many of them were kept by the reduction."""
    as_input: bool = False
    """Whether this one value is an input of the reduced graph."""

    @property
    def is_single(self) -> bool:
        return len(self.nodes) == 1

    @property
    def summary(self) -> str:
        """``26 nodes: linear 6, add 5, view 4``."""
        common = Counter(node.label for node in self.nodes).most_common(3)
        return f"{len(self.nodes)} nodes: {', '.join(f'{name} {count}' for name, count in common)}"


def fold(
    nodes: Sequence[DrawnNode], kept: Collection[str], as_inputs: Collection[str] = ()
) -> list[FoldedNodes]:
    """At most about MOST_BLOCKS blocks that hold each computing node once, in order.

    ``kept`` and ``as_inputs`` are names: of nodes that the reduced graph has, and of values that are its inputs.
    Inputs of the graph get a block only when they are among ``as_inputs``.
    """
    calls = [node for node in nodes if not node.is_input]
    marked = [node for node in calls if node.name in kept or node.name in as_inputs]
    alone = {node.name for node in marked} if len(marked) <= MOST_ALONE else set()
    if len(calls) <= SMALL:
        alone = {node.name for node in calls}
    inputs = [single(node, (), as_inputs) for node in nodes if node.is_input and node.name in as_inputs]
    blocks = [
        block
        for is_alone, run in itertools.groupby(calls, key=lambda node: node.name in alone)
        for block in ([single(node, kept, as_inputs) for node in run] if is_alone else by_module(run, kept))
    ]
    room = max(MOST_BLOCKS - len(alone), SMALL)
    return with_inputs(merged(blocks, room), inputs[:MOST_ALONE])


def with_inputs(blocks: list[FoldedNodes], inputs: Sequence[FoldedNodes]) -> list[FoldedNodes]:
    """``blocks``, each of ``inputs`` right before the first one that reads it."""
    placed: list[FoldedNodes] = []
    waiting = list(inputs)
    for block in blocks:
        reads = {name for node in block.nodes for name in node.inputs}
        due = [one for one in waiting if one.nodes[0].name in reads]
        placed += [*due, block]
        waiting = [one for one in waiting if one not in due]
    return [*waiting, *placed]


def single(node: DrawnNode, kept: Collection[str], as_inputs: Collection[str] = ()) -> FoldedNodes:
    return FoldedNodes((node,), node.name, kept=int(node.name in kept), as_input=node.name in as_inputs)


def by_module(run: Iterator[DrawnNode], kept: Collection[str]) -> Iterator[FoldedNodes]:
    """Folded blocks, cut where the module changes and where one grows too long."""
    for module, group in itertools.groupby(run, key=lambda node: node.module):
        whole = tuple(group)
        for start in range(0, len(whole), LONGEST):
            part = whole[start : start + LONGEST]
            if len(part) == 1:
                yield single(part[0], kept)
            else:
                label = module or f"{part[0].name} ... {part[-1].name}"
                yield FoldedNodes(part, label, kept=sum(node.name in kept for node in part))


def merged(blocks: list[FoldedNodes], room: int) -> list[FoldedNodes]:
    """Neighbouring folded blocks taken together, the smallest pairs first, until they fit."""
    while sum(is_folded(block) for block in blocks) > room:
        pairs = [
            (len(first.nodes) + len(second.nodes), place)
            for place, (first, second) in enumerate(itertools.pairwise(blocks))
            if is_folded(first) and is_folded(second)
        ]
        if not pairs:
            break
        _, place = min(pairs)
        first, second = blocks[place], blocks[place + 1]
        start, end = first.label.partition(" ... ")[0], second.label.rpartition(" ... ")[2]
        label = start if start == end else f"{start} ... {end}"
        blocks[place : place + 2] = [
            FoldedNodes((*first.nodes, *second.nodes), label, first.kept + second.kept)
        ]
    return blocks


def is_folded(block: FoldedNodes) -> bool:
    """Whether it may be taken together with another: what was kept stands alone."""
    return not block.as_input and not (block.is_single and block.kept)


def kept_names(
    original: Sequence[DrawnNode], reduced: Sequence[DrawnNode]
) -> tuple[frozenset[str], frozenset[str]]:
    """Names in ``original`` of the nodes that ``reduced`` has, and of the values that became its inputs.

    A node is found by its name and what it calls; one that the reduction renamed by what it calls and the line it came
    from.
    """
    by_name = {node.name: node for node in original}
    kept: set[str] = set()
    calls = [node for node in original if not node.is_input]
    for node in reduced:
        same = by_name.get(node.name)
        if node.is_input:
            continue
        if same is not None and same.label == node.label:
            kept.add(node.name)
        else:
            alike = [one.name for one in calls if (one.label, one.comment) == (node.label, node.comment)]
            kept.update([name for name in alike if name not in kept][:1])
    inputs = {node.name for node in reduced if node.is_input and node.name in by_name}
    return frozenset(kept), frozenset(inputs - kept)
