"""The parts of a repro script by its syntax, without running any of it."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, replace

from minidbg.case import BackendRef
from minidbg.errors import UnreadableRepro
from minidbg.failure import Kind
from minidbg.graphs.literals import quoted
from minidbg.graphs.recipes import dedented
from minidbg.metadata import DIVIDER, backend_in
from minidbg.oracle.embed import harness_names
from minidbg.repro.header import Header, literal_options
from minidbg.repro.render import EMBEDDED_MARK, OWN_NAMES, SCRIPT_IMPORTS


@dataclass(frozen=True, slots=True)
class Parts:
    """Source texts out of a script, as they are written there."""

    model: str
    """``class Repro``, or ``def graph``."""
    inputs: str
    backend: str
    stored: str = ""
    imports: tuple[str, ...] = ()
    """Import statements at the top level, above the judge, without those that every script has."""
    copied: str = ""
    """What was embedded when the script was written."""
    added: str = ""
    """All other definitions above the judge: a person's."""


def read_parts(text: str, header: Header) -> Parts:
    """The parts of the script ``text``. Raises UnreadableRepro for a script that Python or minidbg does not understand."""
    try:
        nodes = ast.parse(text).body
    except (SyntaxError, ValueError) as error:
        raise UnreadableRepro(f"{header.path}: not a Python script any more: {error}") from error
    named = {node.name: node for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    model = named.get("graph" if header.call == "direct" else "Repro")
    given = named.get("inputs")
    if model is None or given is None:
        missing = "inputs" if model else "graph" if header.call == "direct" else "Repro"
        raise UnreadableRepro(f"{header.path}: no definition of {missing!r} is left in it")
    own = named.get("backend")
    upper = _above_judge(text, nodes, header.kind)
    lines = text.split("\n")
    start = lines.index(EMBEDDED_MARK) + 1 if EMBEDDED_MARK in lines else 0
    end = _first_line(own or model)
    others = [node for node in upper if not start < node.lineno < end] if start else upper
    return Parts(
        model=source_of(text, model),
        inputs=source_of(text, given),
        backend=source_of(text, own) if own else named_backend(text, header),
        stored=source_of(text, named["stored"]) if "stored" in named else "",
        imports=tuple(
            line for line in map(ast.unparse, filter(_is_import, others)) if line not in SCRIPT_IMPORTS
        ),
        copied=_between(text, start, end, named.get("load_by_path")) if start else "",
        added="\n\n\n".join(source_of(text, node) for node in others if not _is_import(node)),
    )


def named_backend(text: str, header: Header) -> str:
    """``def backend()`` for a script that has none, since its backend is a name or one of its functions."""
    return f"def backend():\n    return {backend_in(text) or quoted(header.backend)}"


def _is_import(node: ast.stmt) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom)


def _between(text: str, start: int, end: int, loader: ast.stmt | None) -> str:
    """The lines after ``start`` and before ``end``, without our own ``load_by_path`` at their beginning."""
    if loader is not None and start < loader.lineno < end:
        start = loader.end_lineno or start
    return "\n".join(text.split("\n")[start : end - 1]).strip("\n")


def source_of(text: str, node: ast.stmt) -> str:
    """The text of a top-level statement with its decorators."""
    lines = text.split("\n")
    return "\n".join(lines[_first_line(node) - 1 : node.end_lineno])


def _first_line(node: ast.stmt) -> int:
    decorators = node.decorator_list if isinstance(node, ast.FunctionDef | ast.ClassDef) else []
    return min(node.lineno, *(decorator.lineno for decorator in decorators), node.lineno)


def _above_judge(text: str, nodes: list[ast.stmt], kind: Kind) -> list[ast.stmt]:
    """Top-level statements that are neither our own parts nor the judge's."""
    lines = text.split("\n")
    end = lines.index(DIVIDER) + 1 if DIVIDER in lines else len(lines)
    judge: frozenset[str] = harness_names(kind)
    found = []
    for node in nodes:
        name = getattr(node, "name", None)
        is_docstring = node is nodes[0] and isinstance(node, ast.Expr)
        is_main = isinstance(node, ast.If) and "__main__" in ast.unparse(node.test)
        if (
            node.lineno <= end
            and name not in OWN_NAMES
            and name not in judge
            and not is_docstring
            and not is_main
            and not (isinstance(node, ast.AugAssign) and ast.unparse(node.target) == "sys.path")
        ):
            found.append(node)
    return found


def backend_of(parts: Parts, header: Header) -> BackendRef:
    """The reference that the script's ``def backend()`` stands for, as it is written now."""
    table = header.table
    reference = table.get("reference", {})
    plain = BackendRef(
        name=header.backend,
        expression="",
        embedded=_embedded(parts, parts.added),
        files=tuple(reference.get("files", ())),
        paths=tuple(table.get("paths", ())),
        options=literal_options(table.get("options", {})),
        mode=table.get("mode"),
        requirements=tuple(reference.get("requirements", ())),
        remarks=tuple(reference.get("remarks", ())),
        modules=header.modules,
    )
    function = ast.parse(parts.backend).body[0]
    assert isinstance(function, ast.FunctionDef)
    comments = [
        node for node in function.body if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    ]
    *setup, last = [node for node in function.body if node not in comments] or [ast.Pass()]
    returns = any(isinstance(part, ast.Return) for node in setup for part in ast.walk(node))
    if isinstance(last, ast.Return) and last.value is not None and not returns:
        lines = tuple(dedented(parts.backend, node) for node in setup)
        return replace(plain, setup=lines, expression=dedented(parts.backend, last.value))
    # A person made more of it than imports and a value: it is kept whole, under another name.
    whole = re.sub(r"\bdef backend\b", "def make_backend", parts.backend, count=1)
    added = f"{parts.added}\n\n\n{whole}".strip("\n")
    return replace(plain, embedded=_embedded(parts, added), expression="make_backend()")


def _embedded(parts: Parts, added: str) -> str:
    """What was embedded, and what a person added, with the imports at the top of the script that they count on."""
    future, torch = SCRIPT_IMPORTS[0], SCRIPT_IMPORTS[-1]
    imports = (future, torch) if added else (future,) if parts.copied else ()
    more = parts.imports if added else ()
    head = "\n".join(line for line in (*imports, *more) if line not in parts.copied.split("\n"))
    return "\n\n\n".join(part for part in (head, parts.copied, added) if part)
