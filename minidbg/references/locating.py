"""From an object to the expression that gives it back: by import, by rebuilding, or by its source."""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Mapping, Sequence
from typing import Any

from minidbg import _torch
from minidbg.references.homes import finds_again
from minidbg.references.literals import NotALiteral, write_literal
from minidbg.references.places import Place, place_of
from minidbg.references.scripts import NotDefined, NotLoadable, from_function, from_script
from minidbg.references.trail import Trail


class NoWay(Exception):
    """No fresh process gets ``value`` back; ``why`` is a clause: ``it is a closure over level``."""

    def __init__(self, value: object, why: str) -> None:
        self.value = value
        self.why = why
        super().__init__(why)


def expression_for(value: Any, trail: Trail) -> str:
    """The expression for ``value``; what it needs first goes on the ``trail``.

    In this order: a place that an import reaches, its parts put together anew, its source.
    Raises NoWay, and the trail is as it was before.
    """
    place = place_of(value)
    with trail.attempt():
        if place is not None and finds_again(place.module):
            name = trail.import_from(place.module, place.first)
            return name + place.path.removeprefix(place.first)
        try:
            with trail.attempt():
                return _rebuilt(value, trail)
        except NoWay as error:
            return _from_source(value, place, error, trail)


def _rebuilt(value: Any, trail: Trail) -> str:
    """A bound method, a partial or an ``aot_autograd(...)`` out of its parts."""
    if isinstance(value, types.MethodType):
        return f"{expression_for(value.__self__, trail)}.{value.__func__.__name__}"
    if isinstance(value, functools.partial):
        return _partial(value, trail)
    arguments = _torch.aot_autograd_arguments(value)
    if arguments is None:
        raise NoWay(value, _why_not(value))
    trail.setup["from torch._dynamo.backends.common import aot_autograd"] = None
    return _call("aot_autograd", (), arguments, trail)


def _from_source(value: Any, place: Place | None, error: NoWay, trail: Trail) -> str:
    """By copied source or by the path of a script; ``error`` is why nothing else worked."""
    try:
        if place is not None:
            with contextlib.suppress(NotDefined):
                return from_script(place, value, trail)
        if (
            isinstance(value, types.FunctionType)
            and not value.__code__.co_freevars
            and value.__name__ != "<lambda>"
        ):
            return from_function(value, trail)
    except NotLoadable as refused:
        raise NoWay(value, str(refused)) from refused
    raise error


def _partial(value: functools.partial[Any], trail: Trail) -> str:
    trail.setup["import functools"] = None
    function = expression_for(value.func, trail)
    return _call("functools.partial", value.args, value.keywords, trail, first=function)


def _call(
    function: str,
    arguments: Sequence[Any],
    keywords: Mapping[str, Any],
    trail: Trail,
    first: str | None = None,
) -> str:
    """``function(first, *arguments, **keywords)`` with each argument a literal or an object with a place."""
    parts = [first] if first is not None else []
    parts += [_argument(value, f"argument {index}", trail) for index, value in enumerate(arguments)]
    named = [(name, _argument(value, f"argument {name!r}", trail)) for name, value in keywords.items()]
    if all(name.isidentifier() for name, _ in named):
        parts += [f"{name}={text}" for name, text in named]
    else:
        parts.append("**{" + ", ".join(f"{name!r}: {text}" for name, text in named) + "}")
    return f"{function}({', '.join(parts)})"


def _argument(value: object, part: str, trail: Trail) -> str:
    table = _torch.decompositions_expression(value)
    if table is not None:
        trail.setup[table[0]] = None
        return table[1]
    try:
        return write_literal(value)
    except NotALiteral as error:
        if not callable(value):
            raise NoWay(value, f"{part} is no literal: {error}") from None
    try:
        return expression_for(value, trail)
    except NoWay as error:
        raise NoWay(value, f"{part} cannot be found again: {error.why}") from None


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
