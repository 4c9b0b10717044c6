"""Where a custom operator is defined, and how a fresh process gets it back."""

from __future__ import annotations

import mmap
import os
import re
import sys
import types
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import fx

from minidbg import torch_internals
from minidbg.backends.definitions import NotSelfContained
from minidbg.backends.locations import (
    MAIN_MODULES,
    finds_again,
    foreign_modules,
    is_foreign,
    is_installed,
    location_of,
    top_level,
)
from minidbg.backends.reference import NotReferable, RefBuilder, expression_for
from minidbg.backends.statements import Statement, source_of, statements_of
from minidbg.core.errors import BackendUnreachable
from minidbg.core.run_spec import BackendRef

NOT_LOADED_BY_TORCH = ("torch.ao.", "torch.testing.", "torch.onnx.", "torch.distributed.")
"""Parts of torch with operators of their own that ``import torch`` does not bring."""
DEFINERS = re.compile("_?register_|custom_op$|triton_op$|define$|impl$|impl_abstract$")
"""What a definition of an operator calls."""


def modules_of_operator(name: str) -> tuple[str, ...]:
    """Loaded modules that define ``ns::name.overload`` and its kernels, the definition's first.

    Empty for an operator of a C++ library.
    """
    by_file: dict[str | None, str] = {}
    for module, loaded in sys.modules.copy().items():
        file = getattr(loaded, "__file__", None) if isinstance(loaded, types.ModuleType) else None
        if by_file.get(file, "__main__") == "__main__":
            by_file[file] = module
    base = name.partition(".")[0]
    found = [function.__module__ for function in torch_internals.operator_functions(base)]
    found += [by_file[file] for file in torch_internals.operator_files(name) if file in by_file]
    words, foreign = base.split("::"), dict(foreign_modules())
    own = [module for module in foreign if all(map(_own_source(module).count, words))]
    found += [module for module in (*own, "__main__") if statements_of_operator(name, module)]
    plain = dict.fromkeys("__main__" if module in MAIN_MODULES else module for module in found)
    outside = ("__main__", *NOT_LOADED_BY_TORCH)
    return tuple(module for module in plain if is_foreign(module) or module.startswith(outside))


def _own_source(module: str) -> str:
    """The text of a module that is not installed: a package that is brings all of its parts."""
    file = getattr(sys.modules[module], "__file__", None) or ""
    folder = os.path.dirname(os.path.abspath(file))
    return "" if is_installed(folder) else source_of(module)


def statements_of_operator(name: str, module: str = "__main__") -> tuple[Statement, ...]:
    """The statements of ``module`` that define ``ns::name``, or register something for it.

    By saying it, on a Library of ``ns``, on what defines it, or on ``torch.ops.ns.name``.
    """
    name = name.partition(".")[0]
    namespace, _, last = name.partition("::")
    program, definition = vars(sys.modules[module]), torch_internals.operator_definition(name)
    libraries = {
        key
        for key, value in program.items()
        if isinstance(value, torch.library.Library) and value.ns == namespace
    }
    named = {key: torch_internals.operator_name(value) or "" for key, value in program.items()}
    definitions = {key for key, value in program.items() if value is definition is not None}
    definitions |= {key for key, operator in named.items() if operator.partition(".")[0] == name}

    def defines(found: Statement) -> bool:
        texts = [text for text in found.code.co_consts if isinstance(text, str)]
        defines = any(map(DEFINERS.match, found.code.co_names))
        return bool(
            found.binds & libraries
            or (found.needs & libraries and any(re.match(rf"{last}\b", text) for text in texts))
            or (defines and found.needs & definitions)
            or (defines and {"ops", namespace, last} <= {*found.code.co_names})
            or (defines and any(re.match(rf"{name}(?![\w:])", text) for text in texts))
        )

    return tuple(filter(defines, statements_of(module)))


BUILT_IN = frozenset(
    {
        *("aten", "prim", "prims", "inductor_prims", "debugprims", "rngprims", "higher_order"),
        *("quantized", "_quantized", "quantization", "sparse", "onednn", "mkl", "mkldnn"),
        *("mkldnn_prepacked", "xnnpack", "cuda", "inductor", "_dtensor", "symm_mem", "profiler"),
        *("c10d", "c10d_functional", "_c10d_functional", "_c10d_functional_autograd"),
        *("debug_mode_ops", "export", "onnx", "static_runtime", "_native", "_test"),
    }
)
"""Namespaces of operators that torch brings along. Seen in 2.13."""


def with_operators(
    ref: BackendRef, gm: fx.GraphModule, *, setup: str | Sequence[str] | None = None
) -> BackendRef:
    """``ref`` with what the graph needs besides the backend, found and treated in the same way.

    Modules that define its custom operators, and foreign functions that it calls. Raises
    BackendUnreachable if nothing leads to a definition; a user's ``setup`` is trusted to bring it.
    """
    builder = RefBuilder(ref)
    called = [node.target for node in torch_internals.all_nodes(gm) if node.op == "call_function"]
    operators = filter(None, map(torch_internals.operator_name, called))
    names = [*dict.fromkeys(x for x in operators if x.partition("::")[0] not in BUILT_IN)]
    functions = dict.fromkeys(target for target in called if isinstance(target, types.FunctionType))
    stated = [name for name in names if statements_of_operator(name)]
    defined = [name for name in stated if modules_of_operator(name)[0] == "__main__"]
    extended = [name for name in stated if name not in defined]
    of_script = [(own, x) for own, x in ((defined, False), (extended, True)) if own]
    parts: list[tuple[str, Callable[[RefBuilder], None]]] = [
        *((f"the operator {name}", partial(_operator, name)) for name in names),
        *((f"the operator {own[0]}", partial(_script_operators, own, x)) for own, x in of_script),
        *(
            (f"the function {function.__qualname__}", partial(_function, function))
            for function in functions  # those of ``torch.fx.wrap`` and ``allow_in_graph``
            if is_foreign(function.__module__) or function.__module__ in MAIN_MODULES
        ),
    ]
    for what, add in parts:
        try:
            add(builder)
        except (NotReferable, NotSelfContained) as error:
            if not setup:
                raise BackendUnreachable(
                    f"{what} in the failing graph cannot be found again by a fresh process: "
                    f"{error}. Define it in a module that can be imported, or say which: "
                    f'minidbg.wrap(backend, setup="import my_ops")'
                ) from error
    return builder.reference(ref.name, ref.expression, ref.options, ref.mode)


def _operator(name: str, builder: RefBuilder) -> None:
    modules = modules_of_operator(name)
    for module in modules:
        if finds_again(module):
            does = "defines" if module == modules[0] else "adds to"
            builder.import_module(module, f"{does} {name}")
        elif module == modules[0] != "__main__":
            raise NotSelfContained(f"no import leads to its module {module}")
        elif module != "__main__":
            builder.remarks[f"{module} adds to {name}, and no import leads to it"] = None
    if not modules:
        _native(name, builder)


def _script_operators(names: Sequence[str], extends: bool, builder: RefBuilder) -> None:
    """Copy the statements of ``__main__`` for operators, all at once: they may share a Library."""
    statements = {found.line: found for name in names for found in statements_of_operator(name)}
    ordered = [statements[line] for line in sorted(statements)]
    builder.copy_of_main().add_operators(names[0], ordered, extends=extends)


def _native(name: str, builder: RefBuilder) -> None:
    """An operator in C++: the package that loads its library, else the library itself; where none
    names the operator, the module that is called like its namespace."""
    namespace, _, last = name.partition(".")[0].partition("::")
    words = (namespace.encode(), last.encode())
    files = {module: str(getattr(loaded, "__file__", "")) for module, loaded in foreign_modules()}
    extensions = (module for module, file in files.items() if not file.endswith(".py"))
    module = next((module for module in extensions if _holds(files[module], words)), "")
    library = next((path for path in sorted(torch.ops.loaded_libraries) if _holds(path, words)), "")
    if not module:
        module = _package_around(library) if library else namespace if namespace in files else ""
    if module:
        builder.import_module(top_level(module), f"loads {name}")
    elif library:
        builder.setup[f"torch.ops.load_library({library!r})"] = None
        builder.remarks[f"{name} is defined in {library}, which is loaded by its path"] = None
    else:
        raise NotSelfContained("no loaded module mentions it")


def _holds(path: str, words: tuple[bytes, ...]) -> bool:
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return all(data.find(word) >= 0 for word in words)
    except (OSError, ValueError):
        return False


def _package_around(library: str) -> str:
    """The top-level package in whose folder a library lies; empty where there is none."""
    real = os.path.realpath(library)
    for name, module in foreign_modules():
        folders = getattr(module, "__path__", ()) if "." not in name else ()
        if any(real.startswith(os.path.realpath(folder) + os.sep) for folder in folders):
            return name
    return ""


def _function(function: types.FunctionType, builder: RefBuilder) -> None:
    location = location_of(function)
    expression = expression_for(function, builder)
    if location is not None and finds_again(location.module):
        return  # the model's own import names it
    if expression != function.__name__:
        builder.copy_of_main().add_statement(f"{function.__name__} = {expression}")
