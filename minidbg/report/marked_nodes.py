"""The nodes of a captured graph, each with what became of it: told by the names and comments in the script that is left."""

from __future__ import annotations

import ast
import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from minidbg.source.node_list import ListedNode
from minidbg.source.origins import comments_by_line


class Mark(enum.StrEnum):
    """What a reduction did with a node."""

    KEPT = "kept"
    AS_INPUT = "became an input"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class Left:
    """What the model of a script has."""

    inputs: tuple[str, ...]
    made: frozenset[tuple[str, str]]
    """Of each statement the name that it assigns and its call (see ``call_of``), else the last word of what it calls; and its
    comment, ``train.py:41``."""

    def mark(self, node: ListedNode) -> Mark:
        """What became of ``node``: in a reduction nodes keep their lines of the program, and their names or what they read."""
        if node.op == "input":  # another value may have its name by now
            return Mark.KEPT if node.name in self.inputs else Mark.REMOVED
        if node.name in self.inputs:
            return Mark.AS_INPUT
        call = call_of(node.op, node.reads.split(", "))
        if {(node.name, node.place), (node.name, ""), (call, node.place)} & self.made:
            return Mark.KEPT
        # a value that nobody uses has no name in a script, and neither has a block: ``with torch.autocast(...)``
        is_nameless = not node.name or node.op.startswith("_enter_")
        words = (word for word, place in self.made if place == node.place) if is_nameless else ()
        return Mark.KEPT if any(map(node.op.endswith, words)) else Mark.REMOVED


def left_in(model: str) -> Left:
    """What ``class Repro`` or ``def graph`` has, as it stands in a script."""
    (definition,) = ast.parse(model).body
    functions = [one for one in ast.walk(definition) if isinstance(one, ast.FunctionDef)]
    outermost = next((one for one in functions if one.name in ("forward", "graph")), None)
    inputs = [one.arg for one in outermost.args.args[1:]] if outermost else []
    for statement in outermost.body if outermost else ():
        match statement:
            case ast.Assign([ast.Name(name)], ast.Call(_, [ast.Constant("placeholder"), *_])):
                inputs.append(name)
    return Left(tuple(inputs), frozenset(made_in(definition, comments_by_line(model))))


def call_of(op: str, reads: Iterable[str]) -> str:
    """``relu(x)``: a call by its last word and by what it reads, however its value is named."""
    return f"{op.rpartition('.')[2]}({', '.join(sorted({*reads} - {'torch', ''}))})"


def made_in(definition: ast.stmt, comments: dict[int, str]) -> Iterator[tuple[str, str]]:
    for node in ast.walk(definition):
        match node:
            case ast.Assign([ast.Name(name)], value):
                place = comments.get(node.end_lineno or 0, "")
                yield name, place
                if isinstance(value, ast.Call):
                    reads = (one.id for one in ast.walk(value) if isinstance(one, ast.Name))
                    yield call_of(ast.unparse(value.func), reads), place
            case ast.Assign([ast.Subscript()]):
                yield "setitem", comments.get(node.end_lineno or 0, "")
            case ast.Expr(ast.Call(ast.Attribute(attr="create_node"), [*_, ast.Constant(str(name))])):
                yield name, comments.get(node.end_lineno or 0, "")
            case ast.Expr(ast.Call(called)) | ast.withitem(ast.Call(called)):
                yield ast.unparse(called).rpartition(".")[2], comments.get(called.end_lineno or 0, "")
