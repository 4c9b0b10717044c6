"""Custom operators and foreign functions of a graph: what must be imported before the graph can run."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import fx

from minidbg import _torch
from minidbg.case import BackendRef
from minidbg.errors import BackendUnreachable
from minidbg.references.definitions import (
    mentions,
    modules_of_operator,
    native_libraries,
    statements_of_operator,
)
from minidbg.references.given import as_statements
from minidbg.references.homes import file_of, finds_again, is_foreign
from minidbg.references.locating import NoWay, expression_for
from minidbg.references.pieces import NotSelfContained
from minidbg.references.places import place_of
from minidbg.references.plugins import device_types, plugins_of_devices
from minidbg.references.scripts import NotLoadable, check_loadable
from minidbg.references.trail import Trail

BUILT_IN = frozenset(
    {
        *("aten", "prim", "prims", "inductor_prims", "debugprims", "rngprims", "higher_order", "inductor"),
        *("quantized", "_quantized", "quantization", "sparse", "onednn", "mkl", "mkldnn", "mkldnn_prepacked"),
        *("xnnpack", "cuda", "c10d", "c10d_functional", "_c10d_functional", "_c10d_functional_autograd"),
        *(
            "_dtensor",
            "symm_mem",
            "profiler",
            "debug_mode_ops",
            "export",
            "onnx",
            "static_runtime",
            "_native",
            "_test",
        ),
    }
)
"""Namespaces of operators that torch brings along. Seen in 2.13."""


def with_operators(
    ref: BackendRef,
    gm: fx.GraphModule,
    inputs: Sequence[Any] = (),
    *,
    setup: str | Sequence[str] | None = None,
) -> BackendRef:
    """``ref`` with what the graph needs besides the backend, found and treated in the same way.

    Modules that define its custom operators, foreign functions that it calls, plugins of the devices of its
    values and of ``inputs``. Raises BackendUnreachable where nothing leads to a definition; when the user gave a
    ``setup``, that is trusted to bring it.
    """
    trail = Trail(ref)
    trail.plugins |= dict.fromkeys(plugins_of_devices(device_types(gm, inputs)))
    given = bool(as_statements(setup))
    names = [
        name
        for name in operators_of(gm)
        if not any(mentions(text, name) for text in (ref.embedded, *ref.setup))
    ]
    for name in names:
        _with_part(f"the operator {name}", _operator, name, trail, given)
    of_script = [name for name in names if statements_of_operator(name, "__main__")]
    if of_script:
        _with_part(f"the operator {of_script[0]}", _operators_of_script, of_script, trail, given)
    for function in functions_of(gm):
        _with_part(f"the function {function.__qualname__}", _function, function, trail, given)
    return trail.reference(ref.name, ref.expression, ref.options, ref.mode)


def operators_of(gm: fx.GraphModule) -> tuple[str, ...]:
    """``ns::name.overload`` of the custom operators in a graph and the graphs inside it, in order."""
    names = (_torch.operator_name(node.target) for node in _nodes(gm))
    return tuple(dict.fromkeys(name for name in names if name and name.partition("::")[0] not in BUILT_IN))


def functions_of(gm: fx.GraphModule) -> tuple[types.FunctionType, ...]:
    """Python functions that neither torch nor Python has: those of ``torch.fx.wrap`` and ``allow_in_graph``."""
    found = (node.target for node in _nodes(gm) if isinstance(node.target, types.FunctionType))
    foreign = (function for function in found if is_foreign(function.__module__) or _is_main(function))
    return tuple(dict.fromkeys(foreign))


def _nodes(gm: fx.GraphModule) -> Iterator[fx.Node]:
    for module in gm.modules():
        if isinstance(module, fx.GraphModule):
            yield from (node for node in module.graph.nodes if node.op == "call_function")


def _is_main(function: types.FunctionType) -> bool:
    return function.__module__ in ("__main__", "__mp_main__")


def _with_part(what: str, add: Callable[[Any, Trail], None], part: Any, trail: Trail, given: bool) -> None:
    try:
        with trail.attempt():
            add(part, trail)
    except (NoWay, NotLoadable, NotSelfContained) as error:
        if not given:
            raise BackendUnreachable(
                f"{what} in the failing graph cannot be found again by a fresh process: {error}. Define it in a "
                f'module that can be imported, or say which: minidbg.wrap(backend, setup="import my_ops")'
            ) from error


def _operator(name: str, trail: Trail) -> None:
    """Import what defines an operator; one of a script is left to ``_operators_of_script``."""
    modules = modules_of_operator(name)
    for module in modules:
        if finds_again(module):
            trail.import_module(module, f"defines {name}" if module == modules[0] else f"adds to {name}")
        elif module != "__main__":
            if file_of(module) is None:
                raise NotSelfContained(f"no import leads to its module {module}")
            trail.load_file(str(file_of(module)), "no import finds it", name=module)
    if not modules:
        _native(name, trail)


def _operators_of_script(names: Sequence[str], trail: Trail) -> None:
    """Copy the statements that define operators in ``__main__``, those of all at once: they may share a Library."""
    statements = {found.line: found for name in names for found in statements_of_operator(name, "__main__")}
    try:
        with trail.attempt():
            trail.copy_of("__main__").add_operators(names, [statements[line] for line in sorted(statements)])
    except NotSelfContained as error:
        check_loadable("__main__", "", f"its source cannot be copied ({error})")
        trail.uses("__main__")
        trail.load_file(str(file_of("__main__")), str(error))


def _native(name: str, trail: Trail) -> None:
    """An operator in C++: the package that loads its library, else the library itself."""
    library, module = native_libraries(name)
    if module is not None:
        trail.import_module(module, f"loads {name}")
    elif library is not None:
        trail.setup[f"torch.ops.load_library({library!r})"] = None
        trail.remarks[f"{name} is defined in {library}, which is loaded by its path"] = None
    else:
        raise NotSelfContained("no loaded module mentions it")


def _function(function: types.FunctionType, trail: Trail) -> None:
    """Make ``function`` a global of the script under its own name, or importable."""
    place = place_of(function)
    expression = expression_for(function, trail)
    if place is not None and finds_again(place.module):
        return  # the model's own import names it; the one in backend() is what notices its absence
    first = function.__name__
    if expression != first:
        trail.setup[f"global {first}\n{first} = {expression}"] = None
