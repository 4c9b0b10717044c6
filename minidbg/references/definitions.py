"""Where a custom operator is defined: modules, statements of a script, shared libraries."""

from __future__ import annotations

import ast
import mmap
import os
import re
import sys
from collections.abc import Iterator

import torch

from minidbg import _torch
from minidbg.references.homes import foreign_modules, is_foreign, source_of, top_level
from minidbg.references.statements import Statement, statements_of

NOT_LOADED_BY_TORCH = ("torch.ao.", "torch.testing.", "torch.onnx.", "torch.distributed.")
"""Parts of torch with operators of their own that ``import torch`` does not bring."""


def modules_of_operator(name: str) -> tuple[str, ...]:
    """Loaded modules that define ``ns::name.overload`` and its kernels, the definition's first.

    Empty for an operator of a C++ library.
    """
    plain = name.partition(".")[0]
    found = [_main_once(function.__module__) for function in _torch.operator_functions(plain)]
    by_file = _modules_by_file()
    found += [by_file[file] for file in _torch.operator_files(name) if file in by_file]
    wanted = [module for module in dict.fromkeys(found) if _counts(module)]
    if not wanted:
        wanted = [module for module in _all_foreign() if mentions(source_of(module) or "", plain)]
    if "__main__" not in wanted and statements_of_operator(name, "__main__"):
        wanted.append("__main__")
    return tuple(wanted)


def _main_once(module: str) -> str:
    return "__main__" if module == "__mp_main__" else module


def _counts(module: str) -> bool:
    return is_foreign(module) or module == "__main__" or module.startswith(NOT_LOADED_BY_TORCH)


def _modules_by_file() -> dict[str, str]:
    """Source file to module name; of a script that is also imported, the importable name."""
    files: dict[str, str] = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) if type(module) is type(sys) else None
        if isinstance(file, str) and (file not in files or files[file] == "__main__"):
            files[file] = _main_once(name)
    return files


def _all_foreign() -> Iterator[str]:
    yield from (name for name, _ in foreign_modules())


def mentions(text: str, name: str) -> bool:
    """Whether a source text says ``"ns::name"``, or makes a Library of ``ns`` and says ``"name"``."""
    name = name.partition(".")[0]
    namespace, _, last = name.partition("::")
    if f"{namespace}::{last}" in text:
        return re.search(rf"[\"']{re.escape(name)}\b", text) is not None
    in_library = re.search(rf"Library\(\s*[\"']{re.escape(namespace)}[\"']", text)
    return in_library is not None and re.search(rf"[\"']{re.escape(last)}\b", text) is not None


# --- statements of a script ---


def statements_of_operator(name: str, module: str) -> tuple[Statement, ...]:
    """The top-level statements of a script that define ``ns::name`` or add to it, in order."""
    plain = name.partition(".")[0]
    statements = statements_of(module)
    direct = [found for found in statements if _says(found.node, plain)]
    libraries = _library_names(statements, plain.partition("::")[0])
    of_library = [found for found in statements if _uses_library(found, libraries, plain.partition("::")[2])]
    names = {bound for found in direct for bound in found.binds if _is_definition(module, bound, plain)}
    further = [found for found in statements if _registers_on(found.node, names)]
    chosen = {id(found) for found in (*direct, *of_library, *further)}
    return tuple(found for found in statements if id(found) in chosen)


def _says(node: ast.stmt, name: str) -> bool:
    """Whether a statement, besides the bodies of its functions, says ``"ns::name"`` to ``torch.library``."""
    calls = (
        part for part in _outside_functions(node) if isinstance(part, ast.Call) and _is_definer(part.func)
    )
    texts = (value.value for call in calls for value in call.args if isinstance(value, ast.Constant))
    return any(isinstance(text, str) and re.match(rf"{re.escape(name)}(?![\w:])", text) for text in texts)


def _is_definer(function: ast.expr) -> bool:
    last = _last(function)
    return last.startswith("register_") or last in (
        "custom_op",
        "triton_op",
        "define",
        "impl",
        "impl_abstract",
    )


def _outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for field, value in ast.iter_fields(node):
        if field == "body" and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _outside_functions(child)


def _library_names(statements: tuple[Statement, ...], namespace: str) -> set[str]:
    """Names bound by ``lib = torch.library.Library("ns", ...)``."""
    names: set[str] = set()
    for found in statements:
        value = getattr(found.node, "value", None)
        if isinstance(value, ast.Call) and _last(value.func) == "Library" and value.args:
            first = value.args[0]
            if isinstance(first, ast.Constant) and first.value == namespace:
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
        elif isinstance(part, ast.Call) and _last(part.func).startswith("register_"):
            values = part.args
        if any(isinstance(value, ast.Name) and value.id in names for value in values):
            return True
    return False


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _is_definition(module: str, name: str, operator: str) -> bool:
    found = getattr(sys.modules.get(module), name, None)
    return found is not None and found is _torch.operator_definition(operator)


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
    by_name = [module for module, _ in foreign_modules() if module == namespace]
    return None, by_name[0] if by_name else None


def _holds(file: str, words: tuple[bytes, ...]) -> bool:
    try:
        with open(file, "rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return all(content.find(word) >= 0 for word in words)
    except (OSError, ValueError):
        return False


def _package_around(library: str) -> str | None:
    """The top-level package in whose folder a library lies."""
    for name, module in foreign_modules():
        folders = getattr(module, "__path__", None) if "." not in name else None
        if any(
            os.path.realpath(library).startswith(os.path.realpath(folder) + os.sep)
            for folder in folders or ()
        ):
            return name
    return None
