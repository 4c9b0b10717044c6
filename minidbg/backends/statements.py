"""Python source read statement by statement, and laid out again."""

from __future__ import annotations

import ast
import linecache
import symtable
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from minidbg.backends.modules import file_of, source_of

ANNOTATIONS = "from __future__ import annotations"


@dataclass(frozen=True)
class Statement:
    """One statement at the top level, or in the ``__main__`` block.

    Not slotted: the names are worked out once, when somebody asks.
    """

    node: ast.stmt
    text: str
    file: str

    @property
    def line(self) -> int:
        return first_line(self.node)

    @cached_property
    def binds(self) -> frozenset[str]:
        symbols = self._table.get_symbols()
        return frozenset(found.get_name() for found in symbols if found.is_assigned() or found.is_imported())

    @cached_property
    def needs(self) -> frozenset[str]:
        """Global names that it looks up, or its functions when they are called, or that these bind."""
        declared = (node.names for node in ast.walk(self.node) if isinstance(node, ast.Global))
        return frozenset(_referenced(self._table)).union(*declared)

    @cached_property
    def imported(self) -> frozenset[str]:
        """Modules named by its import statements, at any depth; relative ones start with a dot."""
        parts = list(ast.walk(self.node))
        plain = {alias.name for part in parts if isinstance(part, ast.Import) for alias in part.names}
        froms = (part for part in parts if isinstance(part, ast.ImportFrom))
        return frozenset(plain | {"." * part.level + (part.module or "") for part in froms})

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


def _referenced(table: symtable.SymbolTable) -> Iterator[str]:
    is_outermost = table.get_type() == "module"
    for symbol in table.get_symbols():
        if symbol.is_referenced() and (is_outermost or symbol.is_global()):
            yield symbol.get_name()
    for child in table.get_children():
        yield from _referenced(child)


def read_statements(text: str, file: str) -> tuple[Statement, ...]:
    """The statements of one source text; those of the ``__main__`` block stand in its location. Raises SyntaxError."""
    return tuple(_statements(ast.parse(text).body, text.splitlines(), file))


def _statements(body: list[ast.stmt], lines: list[str], file: str) -> Iterator[Statement]:
    for node in body:
        if isinstance(node, ast.If) and is_main_block(node):
            yield from _statements([*node.body, *node.orelse], lines, file)
        else:
            yield Statement(node, _text_of(node, lines), file)


def is_main_block(node: ast.If) -> bool:
    test = ast.unparse(node.test)
    return test in ("__name__ == '__main__'", "'__main__' == __name__")


def parts_of(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    for field, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield field, child


def last_name(node: ast.expr) -> str:
    """``c`` of ``a.b.c`` and of ``c``; empty for any other expression."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def is_registration(node: ast.expr) -> bool:
    """Whether an expression is, or calls, what registers a backend."""
    last = last_name(node.func if isinstance(node, ast.Call) else node)
    return last.startswith("register_") and last.endswith("backend")


def first_line(node: ast.stmt) -> int:
    """The line of its first decorator, or its own."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def _text_of(node: ast.stmt, lines: list[str]) -> str:
    """The statement as it was written, comments included; put together anew where it shares a line."""
    text = textwrap.dedent("\n".join(lines[first_line(node) - 1 : node.end_lineno]))
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


def indented(text: str) -> str:
    """``text`` one level deeper; the inner lines of strings stay as they are, since they are values. Docstrings are indented like code."""
    tree = ast.parse(text)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    inside = {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr | ast.Constant) and id(node) not in docstrings
        for line in range(node.lineno + 1, (node.end_lineno or 0) + 1)
    }
    lines = enumerate(text.split("\n"), 1)
    return "\n".join(f"    {line}" if line.strip() and at not in inside else line for at, line in lines)


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
