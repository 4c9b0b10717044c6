"""Where an object lives, and which import registers a backend's name."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Any

from minidbg.python_text.modules import foreign_modules, is_foreign, is_main, source_of, top_level
from minidbg.python_text.source_text import last_name, statements_of


@dataclass(frozen=True, slots=True)
class Location:
    """``path`` inside ``module``: ``my_backend``, ``Compiler.build``, ``BACKENDS['fast']``."""

    module: str
    path: str

    @property
    def first(self) -> str:
        return self.path.partition(".")[0].partition("[")[0]


def location_of(value: object) -> Location | None:
    """A location that leads to ``value`` itself, in a module other than ours; None when there is none.

    A function or class says where it was defined; any other object is looked for by identity: a global name,
    an attribute of a class, an entry of a global dict.
    """
    return _by_own_name(value) or _by_identity(value)


def _by_own_name(value: Any) -> Location | None:
    module, path = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(path, str) or "<" in path:
        return None
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        # not getattr: a class would bind its functions, and a lazy module may import
        found = vars(found).get(part) if hasattr(found, "__dict__") else None
        found = found.__func__ if isinstance(found, staticmethod) else found
    return Location("__main__" if is_main(module) else module, path) if found is value else None


def _by_identity(value: object) -> Location | None:
    locations = [location for location in _locations(value) if _is_made_by_import(location)]
    return min(locations, key=_awkwardness) if locations else None


def _awkwardness(location: Location) -> tuple[bool, bool, int, int]:
    """What a reader would rather not see: scripts, borrowed names, table entries, long module names."""
    return (is_main(location.module), _is_borrowed(location), location.path.count("["), len(location.module))


def _locations(value: object) -> Iterator[Location]:
    for name, module in sys.modules.copy().items():
        if isinstance(module, ModuleType) and top_level(name) != "minidbg" and name != "__mp_main__":
            for path in _paths_in(name, module, value):
                yield Location(name, path)


def _paths_in(name: str, module: ModuleType, value: object) -> Iterator[str]:
    # No function of ours is called for each of some 100,000 names: at an unlucky depth of the stack, a call allocates a
    # chunk for its frame (Python 3.11), and this took a second of each compile with a local backend.
    for key, found in vars(module).copy().items():
        if type(key) is not str or key.startswith("__"):
            continue
        # type(found) and not isinstance: lazy objects answer __class__ with an import or a warning
        if found is value:
            inner = [""]
        elif issubclass(type(found), type) and found.__module__ == name:
            parts = [part for part, one in list(vars(found).items()) if one is value]
            inner = [f".{part}" for part in parts if _is_usable(part)]
        elif type(found) is dict:
            # copied in one step: a collection at this moment may take entries out
            parts = [part for part, one in found.copy().items() if one is value]
            inner = [f"[{part!r}]" for part in parts if type(part) is str]
        else:
            continue
        if inner and _is_usable(key):
            yield from (key + one for one in inner)


def _is_usable(name: object) -> bool:
    """Whether a script may say it; ``_`` and ``_1`` hold the last answers of an interactive session."""
    return (
        isinstance(name, str)
        and name.isidentifier()
        and not name.startswith("__")
        and not name.strip("_").isdigit()
        and name != "_"
    )


def _is_made_by_import(location: Location) -> bool:
    """Whether the module's own source gives the location its value, and not the program while it runs."""
    statements = statements_of(location.module)
    if not statements:
        return True  # compiled, or nobody kept the source: trust it
    binders = [found.node for found in statements if location.first in found.binds]
    if "[" not in location.path:
        return bool(binders) or any("import *" in found.text for found in statements)
    _, _, key = location.path.partition("[")
    tables = [node.value for node in binders if isinstance(node, ast.Assign | ast.AnnAssign)]
    keys = [part for table in tables if isinstance(table, ast.Dict) for part in table.keys]
    return any(isinstance(part, ast.Constant) and f"{part.value!r}]" == key for part in keys)


def _is_borrowed(location: Location) -> bool:
    """Whether the module only imported the name, so that its home is another one."""
    binders = (found.node for found in statements_of(location.module) if location.first in found.binds)
    return any(isinstance(node, ast.Import | ast.ImportFrom) for node in binders)


GROUP = "torch_dynamo_backends"
"""The entry point group in which torch looks for backends."""

NEEDS = {
    "openxla": "torch_xla",
    "openxla_eval": "torch_xla",
    "tvm": "tvm",
    "onnxrt": "onnxruntime",
    "tensorrt": "torch_tensorrt",
}
"""Backends of torch that import another package when they are first called."""


def entry_point(name: str) -> EntryPoint | None:
    """The entry point that declares backend ``name``, or None."""
    return next(iter(entry_points(group=GROUP, name=name)), None)


def registering_module(name: str, first: str) -> str | None:
    """The module whose import registers backend ``name``, as its source says; None when no source says so.

    ``first`` is looked at before all others: the module of the registered function.
    """
    for module in dict.fromkeys((first, *_candidates())):
        text = source_of(module)
        # parsing takes far longer than looking for the words
        if text and "register" in text and name in text and registers(text, name):
            return module
    return None


def _candidates() -> Iterator[str]:
    yield from sorted(module for module in sys.modules if module.startswith("torch._dynamo.backends."))
    yield "__main__"
    for module, _ in foreign_modules():
        yield module


def registers(text: str, name: str) -> bool:
    """Whether running a module of source ``text`` registers ``name``: by a call or a decorator at its top level."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return False
    called = set(_called_functions(tree))
    return any(_registers(node, name) for node in _run_at_import(tree, called))


def _called_functions(tree: ast.Module) -> Iterator[str]:
    """Names of functions that the module itself calls: ``_register_backends()`` in its last line."""
    for statement in tree.body:
        call = statement.value if isinstance(statement, ast.Expr) else None
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
            yield call.func.id


def _run_at_import(
    node: ast.AST, called: set[str], names: Mapping[str, Any] | None = None
) -> Iterator[ast.AST]:
    """The parts of a module that an import runs; of functions the decorators only, unless called.

    What stands under an ``if`` counts as run; with the ``names`` of the loaded module only where they say that it was.
    """
    children = ast.iter_child_nodes(node)
    if isinstance(node, ast.If) and names is not None:
        children = iter(_branch_taken(node, names))
    for child in children:
        yield child
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) and child.name not in called:
            for decorator in child.decorator_list:
                yield from ast.walk(decorator)
        elif not isinstance(child, ast.Lambda):
            yield from _run_at_import(child, called, names)


def _branch_taken(node: ast.If, names: Mapping[str, Any]) -> list[ast.stmt]:
    """The statements under a condition on ``names`` that were run; none where calling a function would tell it."""
    if any(isinstance(part, ast.Call | ast.NamedExpr | ast.Await) for part in ast.walk(node.test)):
        return []
    with contextlib.suppress(Exception):  # a name that is gone, an object that is no condition
        holds = eval(compile(ast.Expression(node.test), "<condition>", "eval"), dict(names))
        return node.body if holds else node.orelse
    return []


def _registers(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        unnamed = (part for part in node.decorator_list if is_registration(part) and not _texts(part))
        return node.name == name and any(True for _ in unnamed)
    if not isinstance(node, ast.Call) or not is_registration(node):
        return False
    texts = _texts(node)
    if texts:
        return name in texts
    values = [*node.args, *(keyword.value for keyword in node.keywords)]
    return any(isinstance(value, ast.Name) and value.id == name for value in values)


def _texts(node: ast.expr) -> list[str]:
    values = [*node.args, *(part.value for part in node.keywords)] if isinstance(node, ast.Call) else []
    return [
        value.value for value in values if isinstance(value, ast.Constant) and isinstance(value.value, str)
    ]


def is_registration(node: ast.expr) -> bool:
    last = last_name(node.func if isinstance(node, ast.Call) else node)
    return last.startswith("register_") and last.endswith("backend")


def import_for(module: str) -> str:
    """The shortest parent package whose own import reaches ``module``: it outlives moves inside the package."""
    top = top_level(module)
    return top if top != module and is_foreign(top) and _reaches(top, module) else module


MOST_IMPORTED = 200
"""Modules of a package whose imports are followed."""


def _reaches(top: str, module: str) -> bool:
    """Whether importing ``top`` imports ``module``, as far as import statements at top level tell."""
    seen, waiting = {top}, [top]
    while waiting and len(seen) <= MOST_IMPORTED:
        current = waiting.pop(0)
        for imported in _imports_of(current):
            # importing a.b.c imports a and a.b too
            parts = imported.split(".")
            for parent in (".".join(parts[:count]) for count in range(1, len(parts) + 1)):
                if parent == module:
                    return True
                if parent not in seen and top_level(parent) == top:
                    seen.add(parent)
                    waiting.append(parent)
    return False


def _imports_of(module: str) -> Iterator[str]:
    loaded = sys.modules.get(module)
    package = getattr(loaded, "__package__", None) or module
    try:
        tree = ast.parse(source_of(module) or "")
    except SyntaxError:
        return
    for node in _run_at_import(tree, set(), getattr(loaded, "__dict__", {})):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            with contextlib.suppress(ImportError):  # more dots than the package has parents
                base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
                yield from (base, *(f"{base}.{alias.name}" for alias in node.names))
