"""Python source read statement by statement, laid out again, and run as a module of its own."""

from __future__ import annotations

import ast
import io
import linecache
import symtable
import sys
import textwrap
import tokenize
import types
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from minidbg.python_text.modules import file_of, source_of

_RUN_AT_ONCE = frozenset({"listcomp", "setcomp", "dictcomp", "genexpr"})
"""Function-like scopes whose body runs where it stands."""


@dataclass(frozen=True)
class Statement:
    """One statement at the top level; ``guarded`` when it stands in the ``__main__`` block.

    Not slotted: the names are worked out once, when somebody asks.
    """

    node: ast.stmt
    text: str
    file: str
    guarded: bool = False

    @property
    def line(self) -> int:
        return _first_line(self.node)

    @cached_property
    def binds(self) -> frozenset[str]:
        symbols = self._table.get_symbols()
        return frozenset(found.get_name() for found in symbols if found.is_assigned() or found.is_imported())

    @cached_property
    def needs_now(self) -> frozenset[str]:
        """Global names that it looks up while it runs: decorators, defaults, base classes, annotations."""
        return frozenset(_referenced(self._table, now=True))

    @cached_property
    def needs_later(self) -> frozenset[str]:
        """Global names that the bodies of its functions look up."""
        return frozenset(_referenced(self._table, now=False)) - self.needs_now

    @cached_property
    def rebinds(self) -> frozenset[str]:
        return frozenset(
            name for node in ast.walk(self.node) if isinstance(node, ast.Global) for name in node.names
        )

    @cached_property
    def imported(self) -> frozenset[str]:
        """Modules named by its import statements, at any depth; relative ones start with a dot."""
        return frozenset(_imported(self.node))

    @cached_property
    def _table(self) -> symtable.SymbolTable:
        text = self.text
        if sys.version_info >= (3, 12):  # only generators are still scopes of their own (PEP 709)
            text = ast.unparse(_AsGenerators().visit(ast.parse(text)))
        return symtable.symtable(text, self.file, "exec")


class _AsGenerators(ast.NodeTransformer):
    def generic_visit(self, node: ast.AST) -> ast.AST:
        node = super().generic_visit(node)
        match node:
            case ast.ListComp(elt, generators) | ast.SetComp(elt, generators):
                return ast.GeneratorExp(elt, generators)
            case ast.DictComp(key, value, generators):
                return ast.GeneratorExp(ast.Tuple([key, value], ast.Load()), generators)
        return node


def _referenced(table: symtable.SymbolTable, *, now: bool) -> Iterator[str]:
    module_scope = table.get_type() == "module"
    for symbol in table.get_symbols():
        if symbol.is_referenced() and (module_scope or symbol.is_global()):
            yield symbol.get_name()
    for child in table.get_children():
        at_once = child.get_type() != "function" or child.get_name() in _RUN_AT_ONCE
        if at_once or not now:
            yield from _referenced(child, now=now)


def _imported(node: ast.AST) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Import):
            yield from (alias.name for alias in part.names)
        elif isinstance(part, ast.ImportFrom):
            yield "." * part.level + (part.module or "")


def read_statements(text: str, file: str) -> tuple[Statement, ...]:
    """The statements of one source text; those of the ``__main__`` block stand in its location. Raises SyntaxError."""
    return tuple(_statements(ast.parse(text).body, text.splitlines(), file, guarded=False))


def _statements(body: list[ast.stmt], lines: list[str], file: str, *, guarded: bool) -> Iterator[Statement]:
    for node in body:
        if isinstance(node, ast.If) and not guarded and is_main_block(node):
            yield from _statements(node.body, lines, file, guarded=True)
            yield from _statements(node.orelse, lines, file, guarded=False)
        else:
            yield Statement(node, _text_of(node, lines), file, guarded)


def parts_of(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    for field, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield field, child


def last_name(node: ast.expr) -> str:
    """``c`` of ``a.b.c`` and of ``c``; empty for any other expression."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def edited(text: str, changes: Iterable[tuple[int, int, int, str]]) -> str:
    """``text`` after the changes: each a line, first and last column as ``ast`` counts them, and what stands there instead."""
    lines = text.encode().split(b"\n")
    for line, start, end, new in sorted(changes, reverse=True):  # backwards: columns before a change stay
        lines[line - 1] = lines[line - 1][:start] + new.encode() + lines[line - 1][end:]
    return b"\n".join(lines).decode()


def is_main_block(node: ast.stmt) -> bool:
    if not isinstance(node, ast.If) or not isinstance(node.test, ast.Compare):
        return False
    sides = [node.test.left, *node.test.comparators]
    names = any(isinstance(side, ast.Name) and side.id == "__name__" for side in sides)
    return names and any(isinstance(side, ast.Constant) and side.value == "__main__" for side in sides)


def _first_line(node: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def _text_of(node: ast.stmt, lines: list[str]) -> str:
    """The statement as it was written, comments included; put together anew where it shares a line."""
    text = textwrap.dedent("\n".join(lines[_first_line(node) - 1 : node.end_lineno]))
    try:
        again = ast.parse(text).body
    except SyntaxError:
        again = []
    # dedent may have changed the inside of a string
    return text if len(again) == 1 and ast.dump(again[0]) == ast.dump(node) else ast.unparse(node)


def statements_of(module: str, file: str | None = None) -> tuple[Statement, ...]:
    """The statements that made ``module``: its file, or the cells that an interactive session kept.

    ``file`` is the ``co_filename`` of a function of it, for source that is known under that name only.
    """
    path = file_of(module)
    text = source_of(module) if module != "__main__" else None
    if text is None and path is not None:
        text = "".join(linecache.getlines(str(path)))
    if text:
        return _read_or_nothing(text, str(path or file or module))
    cells = [name for name in linecache.cache if name == file or (module == "__main__" and _is_cell(name))]
    return tuple(
        found for cell in cells for found in _read_or_nothing("".join(linecache.getlines(cell)), cell)
    )


@lru_cache(maxsize=64)
def _read_or_nothing(text: str, file: str) -> tuple[Statement, ...]:
    try:
        return read_statements(text, file)
    except SyntaxError:  # a cell with a magic command
        return ()


def _is_cell(file: str) -> bool:
    """Whether a name in linecache is one of IPython's, Jupyter's, doctest's or Python's own prompt."""
    prompts = ("<ipython-input-", "<python-input-", "<stdin>", "<doctest ")
    return file.startswith(prompts) or "/ipykernel_" in file


def has_main_block(module: str = "__main__") -> bool:
    """Whether the script keeps what it runs apart from what it defines."""
    return any(found.guarded for found in statements_of(module))


def indented(text: str) -> str:
    """``text`` one level deeper; the inner lines of strings stay as they are, since they are values.

    Docstrings are indented like code.
    """
    inside: set[int] = set()
    before, depth = tokenize.NEWLINE, 0
    for token in tokenize.generate_tokens(io.StringIO(text + "\n").readline):
        is_docstring = depth == 0 and before in _BETWEEN_STATEMENTS
        if token.type in _STRING_TOKENS and not is_docstring:
            inside.update(range(token.start[0] + 1, token.end[0] + 1))
        depth += (token.string in "([{") - (token.string in ")]}") if token.type == tokenize.OP else 0
        before = token.type
    lines = text.splitlines()
    return "\n".join(
        f"    {line}" if line.strip() and number not in inside else line
        for number, line in enumerate(lines, 1)
    )


_BETWEEN_STATEMENTS = {tokenize.NEWLINE, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.COMMENT}
_STRING_TOKENS = {
    tokenize.STRING,
    *(getattr(tokenize, name, -1) for name in ("FSTRING_MIDDLE", "TSTRING_MIDDLE")),
}


def joined(statements: Sequence[str], gap: int = 2) -> str:
    """The statements as one text: ``gap`` empty lines around definitions, one below the imports."""
    parts: list[str] = []
    for before, text in zip(["", *statements], statements, strict=False):
        wide = before and (_is_wide(text) or _is_wide(before))
        below_imports = _is_import(before) and not _is_import(text)
        parts.append("\n" * (gap if wide else 1 if below_imports else 0) + text)
    return "\n".join(parts)


def _is_wide(text: str) -> bool:
    return "\n" in text or text.startswith(("def ", "class ", "@", "async def "))


def _is_import(text: str) -> bool:
    return text.startswith(("import ", "from "))


def run_as_module(name: str, text: str, **known: Any) -> dict[str, Any]:
    """The globals of a new module in which ``text`` has run; dynamo looks for it by its name, tracebacks for its lines."""
    module = sys.modules[name] = types.ModuleType(name)
    namespace = vars(module)
    namespace.update(known, __name__=name)
    file = f"<{name}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    try:
        exec(compile(text, file, "exec", dont_inherit=True), namespace)  # not our annotations as text
    except BaseException:
        del sys.modules[name]
        raise
    return namespace
