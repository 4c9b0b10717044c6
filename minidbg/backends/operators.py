"""Where a custom operator is defined, and how a fresh process gets it back."""

from __future__ import annotations

import ast
import mmap
import os
import re
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import fx

from minidbg import torch_internals
from minidbg.backends.copied_source import NotSelfContained
from minidbg.backends.finding import as_statements
from minidbg.backends.locations import location_of
from minidbg.backends.ref_builder import NotReferable, RefBuilder, check_loadable, expression_for
from minidbg.python_text.modules import (
    file_of,
    finds_again,
    foreign_modules,
    is_foreign,
    source_of,
    top_level,
)
from minidbg.python_text.source_text import Statement, last_name, parts_of, statements_of
from minidbg.words.errors import BackendUnreachable
from minidbg.words.run_spec import BackendRef

NOT_LOADED_BY_TORCH = ("torch.ao.", "torch.testing.", "torch.onnx.", "torch.distributed.")
"""Parts of torch with operators of their own that ``import torch`` does not bring."""


def modules_of_operator(name: str) -> tuple[str, ...]:
    """Loaded modules that define ``ns::name.overload`` and its kernels, the definition's first.

    Empty for an operator of a C++ library.
    """
    plain = name.partition(".")[0]
    found = [_main_once(function.__module__) for function in torch_internals.operator_functions(plain)]
    by_file = _modules_by_file()
    found += [by_file[file] for file in torch_internals.operator_files(name) if file in by_file]
    wanted = [
        module
        for module in dict.fromkeys(found)
        if is_foreign(module) or module == "__main__" or module.startswith(NOT_LOADED_BY_TORCH)
    ]
    if not wanted:
        wanted = [module for module, _ in foreign_modules() if mentions(source_of(module) or "", plain)]
    if "__main__" not in wanted and statements_of_operator(name):
        wanted.append("__main__")
    return tuple(wanted)


def _main_once(module: str) -> str:
    return "__main__" if module == "__mp_main__" else module


def _modules_by_file() -> dict[str, str]:
    files: dict[str, str] = {}
    for name, module in sys.modules.copy().items():
        file = getattr(module, "__file__", None) if type(module) is type(sys) else None
        if isinstance(file, str) and (file not in files or files[file] == "__main__"):
            files[file] = _main_once(name)
    return files


def mentions(text: str, name: str) -> bool:
    """Whether a source text says ``"ns::name"``, or makes a Library of ``ns`` and says ``"name"``."""
    name = name.partition(".")[0]
    namespace, _, last = name.partition("::")
    if f"{namespace}::{last}" in text:
        return re.search(rf"[\"']{re.escape(name)}\b", text) is not None
    in_library = re.search(rf"Library\(\s*[\"']{re.escape(namespace)}[\"']", text)
    return in_library is not None and re.search(rf"[\"']{re.escape(last)}\b", text) is not None


# --- statements of a script ---


def statements_of_operator(name: str) -> tuple[Statement, ...]:
    plain = name.partition(".")[0]
    statements = statements_of("__main__")
    direct = [found for found in statements if _says(found.node, plain)]
    libraries = _library_names(statements, plain.partition("::")[0])
    of_library = [found for found in statements if _uses_library(found, libraries, plain.partition("::")[2])]
    names = {bound for found in direct for bound in found.binds if _is_definition(bound, plain)}
    further = [found for found in statements if _registers_on(found.node, names)]
    chosen = {id(found) for found in (*direct, *of_library, *further)}
    return tuple(found for found in statements if id(found) in chosen)


def _says(node: ast.stmt, name: str) -> bool:
    """Whether a statement, besides the bodies of its functions, says ``"ns::name"`` to ``torch.library``."""
    calls = (part for part in _outside_functions(node) if isinstance(part, ast.Call))
    given = (value for call in calls if _is_definer(call.func) for value in call.args)
    texts = (value.value for value in given if isinstance(value, ast.Constant))
    return any(isinstance(text, str) and re.match(rf"{re.escape(name)}(?![\w:])", text) for text in texts)


def _is_definer(function: ast.expr) -> bool:
    known = ("custom_op", "triton_op", "define", "impl", "impl_abstract")
    return last_name(function).startswith("register_") or last_name(function) in known


def _outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    for field, child in parts_of(node):
        if field != "body" or not is_function:
            yield from _outside_functions(child)


def _library_names(statements: tuple[Statement, ...], namespace: str) -> set[str]:
    """Names bound by ``lib = torch.library.Library("ns", ...)``."""
    names: set[str] = set()
    for found in statements:
        match getattr(found.node, "value", None):
            case ast.Call(func=function, args=[ast.Constant(value=str() as first), *_]):
                if last_name(function) == "Library" and first == namespace:
                    names |= found.binds
    return names


def _uses_library(statement: Statement, libraries: set[str], name: str) -> bool:
    """Whether a statement makes one of the libraries, or says ``name`` with it."""
    if statement.binds & libraries:
        return True
    parts = list(_outside_functions(statement.node))
    used = {part.id for part in parts if isinstance(part, ast.Name)}
    texts = [part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)]
    return bool(used & libraries) and any(re.match(rf"{re.escape(name)}\b", text) for text in texts)


def _registers_on(node: ast.stmt, names: set[str]) -> bool:
    """Whether a statement calls a method of an operator's definition, or hands it to ``torch.library``."""
    for part in _outside_functions(node):
        values: list[ast.expr] = []
        if isinstance(part, ast.Attribute) and part.attr.startswith("register_"):
            values = [part.value]
        elif isinstance(part, ast.Call) and last_name(part.func).startswith("register_"):
            values = part.args
        if any(isinstance(value, ast.Name) and value.id in names for value in values):
            return True
    return False


def _is_definition(name: str, operator: str) -> bool:
    found = getattr(sys.modules["__main__"], name, None)
    return found is not None and found is torch_internals.operator_definition(operator)


# --- shared libraries ---


def native_libraries(name: str) -> tuple[str | None, str | None]:
    """The shared library that defines ``ns::name``, and the importable module that loads it; None for unknown."""
    namespace, _, last = name.partition(".")[0].partition("::")
    words = (namespace.encode(), last.encode())
    for module, loaded in foreign_modules():
        file = getattr(loaded, "__file__", None)
        if isinstance(file, str) and not file.endswith(".py") and _holds(file, words):
            return file, top_level(module)
    for library in sorted(torch.ops.loaded_libraries):
        if _holds(library, words):
            return library, _package_around(library)
    return None, next((module for module, _ in foreign_modules() if module == namespace), None)


def _holds(file: str, words: tuple[bytes, ...]) -> bool:
    try:
        with open(file, "rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return all(content.find(word) >= 0 for word in words)
    except (OSError, ValueError):
        return False


def _package_around(library: str) -> str | None:
    """The top-level package in whose folder a library lies."""
    real = os.path.realpath(library)
    for name, module in foreign_modules():
        folders = getattr(module, "__path__", ()) if "." not in name else ()
        if any(real.startswith(os.path.realpath(folder) + os.sep) for folder in folders):
            return name
    return None


BUILT_IN = frozenset(
    {
        *("aten", "prim", "prims", "inductor_prims", "debugprims", "rngprims", "higher_order", "inductor"),
        *("quantized", "_quantized", "quantization", "sparse", "onednn", "mkl", "mkldnn", "mkldnn_prepacked"),
        *("xnnpack", "cuda", "c10d", "c10d_functional", "_c10d_functional", "_c10d_functional_autograd"),
        *("_dtensor", "symm_mem", "profiler", "debug_mode_ops", "export", "onnx", "static_runtime"),
        *("_native", "_test"),
    }
)
"""Namespaces of operators that torch brings along. Seen in 2.13."""


def with_operators(
    ref: BackendRef, gm: fx.GraphModule, *, setup: str | Sequence[str] | None = None
) -> BackendRef:
    """``ref`` with what the graph needs besides the backend, found and treated in the same way.

    Modules that define its custom operators, and foreign functions that it calls. Raises BackendUnreachable where nothing
    leads to a definition; when the user gave a ``setup``, that is trusted to bring it.
    """
    builder = RefBuilder(ref)
    given = bool(as_statements(setup))
    texts = (ref.embedded, *ref.setup)
    names = [name for name in operators_of(gm) if not any(mentions(text, name) for text in texts)]
    for name in names:
        _with_part(f"the operator {name}", _operator, name, builder, given)
    of_script = [name for name in names if statements_of_operator(name)]
    if of_script:
        _with_part(f"the operator {of_script[0]}", _operators_of_script, of_script, builder, given)
    for function in functions_of(gm):
        _with_part(f"the function {function.__qualname__}", _function, function, builder, given)
    return builder.reference(ref.name, ref.expression, ref.options, ref.mode)


def operators_of(gm: fx.GraphModule) -> tuple[str, ...]:
    """``ns::name.overload`` of the custom operators in a graph and the graphs inside it, in order."""
    names = (torch_internals.operator_name(target) for target in _called(gm))
    return tuple(dict.fromkeys(name for name in names if name and name.partition("::")[0] not in BUILT_IN))


def functions_of(gm: fx.GraphModule) -> tuple[types.FunctionType, ...]:
    """Python functions that neither torch nor Python has: those of ``torch.fx.wrap`` and ``allow_in_graph``."""
    found = (target for target in _called(gm) if isinstance(target, types.FunctionType))
    foreign = (one for one in found if is_foreign(one.__module__) or _main_once(one.__module__) == "__main__")
    return tuple(dict.fromkeys(foreign))


def _called(gm: fx.GraphModule) -> Iterator[object]:
    return (node.target for node in torch_internals.all_nodes(gm) if node.op == "call_function")


def _with_part(
    what: str, add: Callable[[Any, RefBuilder], None], part: Any, builder: RefBuilder, given: bool
) -> None:
    try:
        with builder.attempt():
            add(part, builder)
    except (NotReferable, NotSelfContained) as error:
        if not given:
            raise BackendUnreachable(
                f"{what} in the failing graph cannot be found again by a fresh process: {error}. Define it in a "
                f'module that can be imported, or say which: minidbg.wrap(backend, setup="import my_ops")'
            ) from error


def _operator(name: str, builder: RefBuilder) -> None:
    modules = modules_of_operator(name)
    for module in modules:
        if finds_again(module):
            builder.import_module(module, f"defines {name}" if module == modules[0] else f"adds to {name}")
        elif module != "__main__":
            if file_of(module) is None:
                raise NotSelfContained(f"no import leads to its module {module}")
            builder.load_file(str(file_of(module)), "no import finds it", name=module)
    if not modules:
        _native(name, builder)


def _operators_of_script(names: Sequence[str], builder: RefBuilder) -> None:
    """Copy the statements that define operators in ``__main__``, those of all at once: they may share a Library."""
    statements = {found.line: found for name in names for found in statements_of_operator(name)}
    try:
        with builder.attempt():
            ordered = [statements[line] for line in sorted(statements)]
            builder.copy_of("__main__").add_operators(names, ordered)
    except NotSelfContained as error:
        check_loadable("__main__", "", f"its source cannot be copied ({error})")
        builder.uses("__main__")
        builder.load_file(str(file_of("__main__")), str(error))


def _native(name: str, builder: RefBuilder) -> None:
    """An operator in C++: the package that loads its library, else the library itself."""
    library, module = native_libraries(name)
    if module is not None:
        builder.import_module(module, f"loads {name}")
    elif library is not None:
        builder.setup[f"torch.ops.load_library({library!r})"] = None
        builder.remarks[f"{name} is defined in {library}, which is loaded by its path"] = None
    else:
        raise NotSelfContained("no loaded module mentions it")


def _function(function: types.FunctionType, builder: RefBuilder) -> None:
    location = location_of(function)
    expression = expression_for(function, builder)
    if location is not None and finds_again(location.module):
        return  # the model's own import names it; the one in backend() is what notices its absence
    first = function.__name__
    if expression != first:
        builder.setup[f"global {first}\n{first} = {expression}"] = None
