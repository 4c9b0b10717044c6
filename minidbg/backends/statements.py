"""Python source read statement by statement, and laid out again."""

from __future__ import annotations

import ast
import dis
import linecache
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from types import CodeType

ANNOTATIONS = "from __future__ import annotations"

LOOKS_UP = frozenset(
    {"LOAD_NAME", "LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS"}
)
OF_PYTHON = {"__name__", "__annotations__", "__annotate__", "__conditional_annotations__"}
"""What every module has of its own, or Python makes for the bodies of classes."""


@dataclass(frozen=True)
class Statement:
    """One statement at the top level, or in the ``__main__`` block."""

    node: ast.stmt
    text: str
    file: str

    @property
    def line(self) -> int:
        return first_line_number(self.node)

    @cached_property
    def code(self) -> CodeType:
        """What runs with it; the bodies of its functions are other code."""
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        made: CodeType = compile(self.text, self.file, "exec", flags, dont_inherit=True)
        return made

    @cached_property
    def binds(self) -> frozenset[str]:
        return frozenset(_stored(self.code)) - OF_PYTHON

    @cached_property
    def needs(self) -> frozenset[str]:
        """Global names that it looks up, or its functions do when called, or that these bind."""
        return frozenset(_looked_up(self.code)) - OF_PYTHON

    @cached_property
    def imported(self) -> frozenset[str]:
        """Modules named by its import statements, at any depth; relative ones start with a dot."""
        parts = list(ast.walk(self.node))
        imports = (part for part in parts if isinstance(part, ast.Import))
        plain = {alias.name for part in imports for alias in part.names}
        froms = (part for part in parts if isinstance(part, ast.ImportFrom))
        return frozenset(plain | {"." * part.level + (part.module or "") for part in froms})


def _stored(code: CodeType) -> set[str]:
    return {one.argval for one in dis.get_instructions(code) if one.opname == "STORE_NAME"}


def _looked_up(code: CodeType) -> Iterator[str]:
    # of the names of a class's body those that it does not bind itself
    own = _stored(code) if code.co_name != "<module>" else ()
    for one in dis.get_instructions(code):
        if one.opname in LOOKS_UP and one.argval not in own:
            yield one.argval
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _looked_up(inner)


def read_statements(text: str, file: str) -> tuple[Statement, ...]:
    """Statements of a text; the ``__main__`` block's stand in its place. Raises SyntaxError."""
    return tuple(_statements(ast.parse(text).body, text.splitlines(), file))


def _statements(body: list[ast.stmt], lines: list[str], file: str) -> Iterator[Statement]:
    for node in body:
        if isinstance(node, ast.If) and ast.unparse(node.test) in MAIN_BLOCK:
            yield from _statements([*node.body, *node.orelse], lines, file)
        else:
            yield Statement(node, _text_of(node, lines), file)


MAIN_BLOCK = ("__name__ == '__main__'", "'__main__' == __name__")


def first_line_number(node: ast.stmt) -> int:
    """The line of its first decorator, or its own."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def _text_of(node: ast.stmt, lines: list[str]) -> str:
    """The statement as written, comments included; put together anew where it shares a line."""
    text = textwrap.dedent("\n".join(lines[first_line_number(node) - 1 : node.end_lineno]))
    try:
        again = ast.parse(text).body
    except SyntaxError:
        again = []
    # dedent may have changed the inside of a string
    return text if len(again) == 1 and ast.dump(again[0]) == ast.dump(node) else ast.unparse(node)


def source_of(module: str) -> str:
    """The source text of a loaded module, also out of a zip file; empty when there is none."""
    loaded = sys.modules.get(module)
    file = getattr(loaded, "__file__", None)
    return "".join(linecache.getlines(file, vars(loaded))) if isinstance(file, str) else ""


def statements_of(module: str, file: str | None = None) -> tuple[Statement, ...]:
    """The statements that made ``module``: its file, or the cells that an interactive session kept.

    ``file`` is the ``co_filename`` of a function of it, for source known under that name only.
    """
    if text := source_of(module):
        return _parsed(text, sys.modules[module].__file__ or "")
    is_main = module == "__main__"
    cells = [name for name in linecache.cache if name == file or (is_main and _is_cell(name))]
    return tuple(one for cell in cells for one in _parsed("".join(linecache.getlines(cell)), cell))


@lru_cache(maxsize=64)
def _parsed(text: str, file: str) -> tuple[Statement, ...]:
    try:
        return read_statements(text, file)
    except SyntaxError:  # a cell with a magic command
        return ()


def _is_cell(file: str) -> bool:
    """Whether a name in linecache is IPython's, Jupyter's, doctest's or of Python's own prompt."""
    prompts = ("<ipython-input-", "<python-input-", "<stdin>", "<doctest ")
    return file.startswith(prompts) or "/ipykernel_" in file


def indented(text: str) -> str:
    """``text`` one level deeper; the inner lines of strings stay as they are, since they are
    values. Docstrings are indented like code."""
    tree = ast.parse(text)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    inside = {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr | ast.Constant) and id(node) not in docstrings
        for line in range(node.lineno + 1, (node.end_lineno or 0) + 1)
    }
    lines = text.split("\n")
    moved = {at for at, line in enumerate(lines, 1) if line.strip()} - inside
    return "\n".join(f"    {line}" if at in moved else line for at, line in enumerate(lines, 1))


def joined(statements: Sequence[str], gap: int = 2) -> str:
    """The statements as one text: ``gap`` empty lines around definitions, one below the imports."""
    parts, imports = list[str](), ("import ", "from ")
    for before, text in zip(["", *statements], statements, strict=False):
        wide = any("\n" in one or one.startswith(("def ", "class ")) for one in (before, text))
        below_imports = before.startswith(imports) and not text.startswith(imports)
        parts.append("\n" * (gap if before and wide else below_imports) + text)
    return "\n".join(parts)
