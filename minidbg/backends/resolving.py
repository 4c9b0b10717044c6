"""From a ``BackendRef`` back to the backend: in this process, or as the text of a script's ``backend()``, beside the script's own names."""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import importlib
import importlib.util
import itertools
import operator
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from minidbg import torch_internals
from minidbg.backends.copied_source import bound_by, single_imports
from minidbg.backends.locations import NEEDS
from minidbg.python_text.source_text import edited, indented, parts_of, read_statements, run_as_module
from minidbg.words.errors import UnknownBackend
from minidbg.words.run_spec import BackendRef, CompilerFn

if TYPE_CHECKING:
    from types import ModuleType


# Its source text is part of repro scripts, where ModuleType is no name.
def load_by_path(path: str, name: str = "", package: str = "") -> "ModuleType":  # noqa: UP037
    """The module of the script at ``path``, loaded once per process; its ``__main__`` block does not run.

    A relative ``path`` is one from a folder above this file, or of ``sys.path``. ``package`` is what its relative imports
    start from. Its folder joins the end of ``sys.path``. Raises ModuleNotFoundError when the file is not here.
    """
    import hashlib
    import importlib.util
    import os
    import pathlib
    import re
    import sys

    folders = [*pathlib.Path(__file__).absolute().parents, *map(pathlib.Path, sys.path)]
    path = next((str(folder / path) for folder in folders if (folder / path).is_file()), path)
    stem = re.sub(r"\W", "_", os.path.splitext(os.path.basename(path))[0])
    name = name or f"{stem}_{hashlib.sha256(path.encode()).hexdigest()[:8]}"
    main = sys.modules["__main__"]
    if os.path.abspath(getattr(main, "__file__", None) or "") == path:
        return main
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not os.path.isfile(path):
        raise ModuleNotFoundError(f"no {path}: add its folder to PYTHONPATH", name=stem, path=path)
    if os.path.dirname(path) not in sys.path:
        sys.path.append(os.path.dirname(path))
    module = importlib.util.module_from_spec(spec)
    if package:
        importlib.import_module(package)
        module.__package__, module.__spec__ = package, None
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def named(backend: str) -> str | CompilerFn:
    """What a command line means by ``backend``: a registered name, or what ``module:attribute`` leads to.

    A name that nobody has registered is looked for again after the import of the package of that name, which registers
    it in most cases; ``package:name`` is a name that another package registers.
    Raises ImportError or AttributeError where ``module:attribute`` leads nowhere; any other name comes back as it is.
    """
    module, colon, name = backend.partition(":")
    if not colon:
        package = NEEDS.get(backend, backend)
        if (
            backend not in torch_internals.known_backends()
            and package.isidentifier()
            and importlib.util.find_spec(package)
        ):
            importlib.import_module(package)
        return backend
    imported = importlib.import_module(module)
    try:
        found: CompilerFn = operator.attrgetter(name)(imported)
    except AttributeError:
        if name not in torch_internals.known_backends():
            raise
        return name
    return found


def compiler_fn(
    backend: str | CompilerFn, *, options: Mapping[str, Any] | None = None, mode: str | None = None
) -> CompilerFn:
    """``backend`` as ``torch.compile(backend=, options=, mode=)`` would build it: ``(gm, example_inputs)``.

    Inductor by name takes options and mode as config patches; every other backend as keyword arguments, and
    only when given. An object that torch.compile itself has built is taken apart first.
    Raises UnknownBackend, or RuntimeError for an option that inductor does not know.
    """
    inner, inner_options, inner_mode = torch_internals.as_given_to_compile(backend)
    if isinstance(inner, str) and inner not in (known := torch_internals.known_backends()):
        raise UnknownBackend(inner, known)
    return torch_internals.configured_backend(
        inner, options=options or inner_options, mode=mode or inner_mode
    )


def hook(compiler: CompilerFn, name: str) -> Any:
    """What torch.compile asks of a backend beside the call, of the one behind its keyword arguments; None where it has none.

    ``compiler`` is what ``compiler_fn`` returned, ``name`` one of ``torch_internals.BACKEND_HOOKS``.
    """
    inner: Any = compiler
    # functools.partial holds the keyword arguments
    while isinstance(inner, functools.partial) and not hasattr(inner, name):
        inner = inner.func
    return getattr(inner, name, None)


def resolve(ref: BackendRef) -> str | CompilerFn:
    """What ``torch.compile(backend=)`` takes, after the reference's setup has run in this process.

    The folders of ``ref.paths`` join ``sys.path`` only when an import finds no module without them.
    Raises what the setup raises, ImportError above all.
    """
    try:
        namespace = _set_up(ref)
    except ImportError:
        missing = [folder for folder in ref.paths if folder not in sys.path]
        if not missing:
            raise
        sys.path.extend(missing)
        namespace = _set_up(ref)
    backend: str | CompilerFn = eval(compile(ref.expression, "<backend>", "eval"), namespace)
    return backend


def _set_up(ref: BackendRef) -> dict[str, Any]:
    """The globals of a module in which copied source and setup have run, once per process: operators are defined only once.

    The module's name is one that signatures take for a script's.
    """
    _, statements = _statements(ref)
    text = "\n\n".join(part for part in (ref.embedded, *statements) if part)
    name = f"minidbg_backend_{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return vars(sys.modules[name])
    # what a script has above its backend()
    return run_as_module(name, text, load_by_path=load_by_path, torch=torch)


def backend_function(ref: BackendRef) -> str:
    """Source text of ``def backend()`` for the script: the setup, then what torch.compile takes.

    ``ref.embedded`` stands above it at the top level of the script, with ``load_by_path`` where ``ref.files``
    is not empty.
    """
    names, statements = _statements(ref)
    blank = [""] if statements else []
    what = f"  # fill in: {ref.fill_in}" if ref.fill_in and ref.is_to_be_filled_in else ""
    body = [*names, *statements, *blank, f"return {_as_written(ref.expression)}{what}"]
    return "def backend():\n" + "\n".join(indented(part) for part in body) + "\n"


def _statements(ref: BackendRef) -> tuple[list[str], list[str]]:
    """One ``global`` statement, if any is needed, and the setup without those of its blocks.

    Python wants it before any other use of the names in a function.
    """
    names: dict[str, None] = {}
    statements = []
    for text in ref.setup:
        first, _, rest = text.partition("\n")
        if rest and first.startswith("global "):
            names |= dict.fromkeys(first.removeprefix("global ").split(", "))
        statements.append(rest if rest and first.startswith("global ") else text)
    return ([f"global {', '.join(names)}"] if names else []), statements


def _as_written(expression: str) -> str:
    if expression.startswith("'") and expression.endswith("'") and not set(expression[1:-1]) & set("'\"\\"):
        return f'"{expression[1:-1]}"'
    return expression


def avoid_names(ref: BackendRef, taken: Collection[str], imports: Iterable[str] = ()) -> BackendRef:
    """``ref`` whose copied source leaves the names of ``taken`` to the script.

    A definition keeps its own name, which is part of the failure's signature, and is used by another one:
    ``def run(gm): ...`` and ``run_ = run``. ``imports`` are import statements of the script: a name that both
    import from one location may stay.
    """
    blocks = [ref.embedded, *(text for text in ref.setup if _is_block(text))]
    bound = {name for text in blocks for found in read_statements(text, "<copy>") for name in found.binds}
    shared = _shared(blocks, imports)
    used = bound | set(taken)
    names = {}
    for name in sorted((bound & set(taken)) - shared):
        free = (name + "_" * count for count in itertools.count(1))
        names[name] = next(one for one in free if one not in used)
        used.add(names[name])
    if not names:
        return ref
    return replace(
        ref,
        embedded=renamed(ref.embedded, names),
        setup=tuple(renamed(text, names) if _is_block(text) else text for text in ref.setup),
        expression=renamed(ref.expression, names),
    )


def _is_block(text: str) -> bool:
    return "\n" in text


def _shared(blocks: Iterable[str], imports: Iterable[str]) -> set[str]:
    theirs = set(single_imports("\n".join(imports)))
    ours: dict[str, set[str]] = {}
    for found in (found for text in blocks for found in read_statements(text, "<copy>")):
        lines = dict(single_imports(found.text))
        for name in found.binds:
            ours.setdefault(name, set()).add(lines.get(name, ""))
    return {name for name, lines in ours.items() if all((name, line) in theirs for line in lines)}


def renamed(text: str, names: Mapping[str, str]) -> str:
    """``text`` in which global names are called by their new ones; layout and comments stay where they can."""
    tree = ast.parse(text)
    edits = _Edits(names)
    edits.module(tree)
    written = edited(text, edits.found)
    # before Python 3.12 a name inside an f-string has no right location
    with contextlib.suppress(SyntaxError):
        if ast.dump(ast.parse(written)) == ast.dump(tree):
            return written
    return ast.unparse(ast.fix_missing_locations(tree))


class _Edits:
    def __init__(self, names: Mapping[str, str]) -> None:
        self.names = names
        self.found: list[tuple[int, int, int, str]] = []

    def module(self, tree: ast.Module) -> None:
        """Rename everywhere, and bind each definition to its new name after it."""
        body = []
        for node in tree.body:
            self.visit(node, frozenset(), frozenset())
            body.append(node)
            name = getattr(node, "name", "")
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and name in self.names:
                line = f"{self.names[name]} = {name}"
                self.found.append(
                    (node.end_lineno or 0, _END, _END, f"\n\n\n{line}  # the script has its own {name}")
                )
                body += ast.parse(line).body
        tree.body = body

    def visit(self, node: ast.AST, hidden: frozenset[str], in_class: frozenset[str]) -> None:
        """``hidden`` are names of the functions around; ``in_class`` those of the class body this stands in."""
        if isinstance(node, ast.Name):
            if node.id in self.names and node.id not in hidden | in_class:
                self._note(node, self.names[node.id])
                node.id = self.names[node.id]
        elif isinstance(node, ast.Global) and set(node.names) & set(self.names):
            node.names = [self.names.get(name, name) for name in node.names]
            self._note(node, f"global {', '.join(node.names)}")
        elif isinstance(node, ast.Import | ast.ImportFrom):
            self._imports(node, hidden | in_class)
        else:
            self._children(node, hidden, in_class)

    def _children(self, node: ast.AST, hidden: frozenset[str], in_class: frozenset[str]) -> None:
        """Decorators, defaults and annotations belong to the scope around a function, its body to itself."""
        is_function = isinstance(node, _FUNCTIONS)
        own = _locals(node) if is_function or isinstance(node, ast.ClassDef) else frozenset()
        for field, child in parts_of(node):
            if is_function and field in ("body", "generators", "elt", "key", "value"):
                self.visit(child, hidden | own, frozenset())
            elif isinstance(node, ast.ClassDef) and field == "body":
                self.visit(child, hidden, own)
            else:
                self.visit(child, hidden, in_class)

    def _imports(self, node: ast.Import | ast.ImportFrom, local: frozenset[str]) -> None:
        for alias in node.names:
            name = bound_by(alias)
            if name in self.names and name not in local and ("." not in alias.name or alias.asname):
                alias.asname = self.names[name]
                self._note(alias, f"{alias.name} as {alias.asname}")

    def _note(self, node: ast.expr | ast.stmt | ast.alias, new: str) -> None:
        self.found.append((node.lineno, node.col_offset, node.end_col_offset or 0, new))


_END = 1_000_000
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, *_COMPREHENSIONS)


def _locals(function: ast.AST) -> frozenset[str]:
    bound: set[str] = set()
    outside: set[str] = set()
    arguments = getattr(function, "args", None)
    if isinstance(arguments, ast.arguments):
        bound |= {found.arg for found in ast.walk(arguments) if isinstance(found, ast.arg)}
    waiting = [child for field, child in parts_of(function) if field in ("body", "generators")]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Global | ast.Nonlocal):
            outside |= set(node.names) if isinstance(node, ast.Global) else set()
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
            bound.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            bound |= {bound_by(alias) for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            bound.add(node.name)
            continue
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            bound.add(node.name)
        if not isinstance(node, (ast.Lambda, *_COMPREHENSIONS)):
            waiting += list(ast.iter_child_nodes(node))
    return frozenset(bound - outside)
