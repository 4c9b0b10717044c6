"""An expression that gives an object back: by an import, by copied source, or by the path of its script."""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Mapping, Sequence
from typing import Any

from minidbg import _torch
from minidbg.references.copied_source import NotSelfContained
from minidbg.references.locations import Location, location_of
from minidbg.references.modules import file_of, finds_again, loaded_module
from minidbg.references.ref_builder import RefBuilder, block_of
from minidbg.references.source_text import NotALiteral, has_main_block, statements_of, write_literal


class NoWay(Exception):
    """No fresh process gets an object back; the text is a clause: ``it is a closure over level``."""


class NotDefined(NoWay):
    """The name that holds the object is no definition of it: a loop variable, or source that nobody kept."""


def from_script(location: Location, value: object, builder: RefBuilder) -> str:
    """The expression for a global of a module that no import finds. Raises NoWay."""
    file = getattr(getattr(value, "__code__", None), "co_filename", None)
    if location.module != "__main__" and file_of(location.module) is not None:
        # it was loaded by path before, under a name that its frames have in signatures
        return _by_file(location, "no import finds its module", builder, name=location.module)
    try:
        with builder.attempt():
            copy = builder.copy_of(location.module, file)
            if not copy.defines(location.first):
                raise NotDefined(f"nobody kept the definition of {location.first}")
            copy.add_name(location.first)
            block_of(copy)  # complete, and it compiles
    except NotSelfContained as error:
        check_loadable(location.module, location.first, f"its source cannot be copied ({error})")
        return _by_file(location, str(error), builder)
    return location.path


def from_function(function: types.FunctionType, builder: RefBuilder) -> str:
    """The expression for a local function that uses nothing local: its source is copied. Raises NoWay."""
    path = [part for part in function.__qualname__.split(".") if part != "<locals>"]
    if function.__module__ != "__main__":
        raise NoWay(f"it is a local function of {function.__module__}.{path[0]}")
    try:
        with builder.attempt():
            copy = builder.copy_of("__main__", function.__code__.co_filename)
            copy.add_function(function)
            block_of(copy)
    except NotSelfContained as error:
        raise NoWay(f"it is a local function, and its source cannot be copied: {error}") from error
    return path[0] + "()" * (len(path) - 1)


def check_loadable(module: str, name: str, copied: str) -> None:
    """Raise NoWay where running a script again would do more than define ``name``, or not define it.

    ``copied`` is a clause that says why its source is not copied.
    """
    if file_of(module) is None:
        raise NoWay(f"{copied}, and {module} has no file")
    if not has_main_block(module):
        raise NoWay(
            f"{copied}, and loading its script would run the whole of it: there is no "
            f'`if __name__ == "__main__":` block'
        )
    if name in guarded_names(module):
        raise NoWay(f"{copied}, and it is defined in the `__main__` block, which is not run again")


def _by_file(location: Location, why: str, builder: RefBuilder, name: str = "") -> str:
    module = loaded_module(location.module)
    package = (getattr(module, "__package__", None) or "") if location.module == "__main__" else ""
    if package:
        builder.requires(package)
    builder.uses(location.module)
    known = builder.load_file(str(file_of(location.module)), why, name=name, package=package)
    return f"{known}.{location.path}"


def guarded_names(module: str) -> frozenset[str]:
    """Names that only the ``__main__`` block of a module binds."""
    statements = statements_of(module)
    free = {name for found in statements if not found.guarded for name in found.binds}
    return frozenset(name for found in statements if found.guarded for name in found.binds) - free


def expression_for(value: Any, builder: RefBuilder) -> str:
    """The expression for ``value``; what it needs first goes on the ``builder``.

    In this order: a location that an import reaches, its parts put together anew, its source.
    Raises NoWay, and the builder is as it was before.
    """
    location = location_of(value)
    with builder.attempt():
        if location is not None and finds_again(location.module):
            name = builder.import_from(location.module, location.first)
            return name + location.path.removeprefix(location.first)
        try:
            with builder.attempt():
                return _rebuilt(value, builder)
        except NoWay as error:
            return _from_source(value, location, error, builder)


def _rebuilt(value: Any, builder: RefBuilder) -> str:
    """A bound method, a partial or an ``aot_autograd(...)`` out of its parts."""
    if isinstance(value, types.MethodType):
        return f"{expression_for(value.__self__, builder)}.{value.__func__.__name__}"
    if isinstance(value, functools.partial):
        builder.setup["import functools"] = None
        function = expression_for(value.func, builder)
        return _call("functools.partial", value.args, value.keywords, builder, first=function)
    arguments = _torch.aot_autograd_arguments(value)
    if arguments is None:
        raise NoWay(_why_not(value))
    builder.setup["from torch._dynamo.backends.common import aot_autograd"] = None
    return _call("aot_autograd", (), arguments, builder)


def _from_source(value: Any, location: Location | None, error: NoWay, builder: RefBuilder) -> str:
    """By copied source or by the path of a script; ``error`` is why nothing else worked."""
    if location is not None:
        with contextlib.suppress(NotDefined):
            return from_script(location, value, builder)
    is_named = isinstance(value, types.FunctionType) and value.__name__ != "<lambda>"
    if is_named and not value.__code__.co_freevars:
        return from_function(value, builder)
    raise error


def _call(
    function: str,
    arguments: Sequence[Any],
    keywords: Mapping[str, Any],
    builder: RefBuilder,
    first: str | None = None,
) -> str:
    """``function(first, *arguments, **keywords)`` with each argument a literal or an object with a location."""
    parts = [first] if first is not None else []
    parts += [_argument(value, f"argument {index}", builder) for index, value in enumerate(arguments)]
    named = [(name, _argument(value, f"argument {name!r}", builder)) for name, value in keywords.items()]
    if all(name.isidentifier() for name, _ in named):
        parts += [f"{name}={text}" for name, text in named]
    else:
        parts.append("**{" + ", ".join(f"{name!r}: {text}" for name, text in named) + "}")
    return f"{function}({', '.join(parts)})"


def _argument(value: object, part: str, builder: RefBuilder) -> str:
    table = _torch.decompositions_expression(value)
    if table is not None:
        builder.setup[table[0]] = None
        return table[1]
    try:
        return write_literal(value)
    except NotALiteral as error:
        if not callable(value):
            raise NoWay(f"{part} is no literal: {error}") from None
    try:
        return expression_for(value, builder)
    except NoWay as error:
        raise NoWay(f"{part} cannot be found again: {error}") from None


def _why_not(value: Any) -> str:
    """The reason in a clause, with what a person recognises it by."""
    code = getattr(value, "__code__", None)
    if isinstance(value, types.FunctionType) and code is not None:
        where = f"of {value.__module__}, line {code.co_firstlineno}"
        if code.co_freevars:
            return f"it is a closure {where}, over {', '.join(code.co_freevars)}"
        if value.__name__ == "<lambda>":
            return f"it is a lambda {where}, without a global name"
        return f"it is a function {where}, which no import leads to"
    kind = type(value)
    return f"it is an object of {kind.__module__}.{kind.__qualname__} that no global name holds"
