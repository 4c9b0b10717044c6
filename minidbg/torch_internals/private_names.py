"""Marks what needs private names of torch, and says which of them this torch lacks."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import logging
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar, cast

import torch

from minidbg.words.errors import TorchNameMissing

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Needs:
    """What one function of this room needs of torch, beside what torch documents."""

    function: str
    purpose: str
    """The first line of its docstring."""
    names: tuple[str, ...]
    first: str
    """The oldest version of torch in which all names were there, and the newest."""
    last: str


NEEDS: dict[str, Callable[[], Needs]] = {}
"""By function."""


TAKEN_AWAY: set[str] = set()
"""Names that are to count as missing: tests of what happens without them."""


def seen(
    first: str, last: str, *, otherwise: Callable[..., Any] | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Mark a function that needs private names of torch, which were there in versions ``first`` to ``last``.

    The names are looked up when it is called. Where torch does not have one, ``otherwise`` is called in its place, after a warning;
    without it the function raises TorchNameMissing.
    """

    def marked(function: Callable[P, R]) -> Callable[P, R]:
        name = function.__name__
        needs = NEEDS[name] = functools.cache(lambda: needs_of(function, first, last))

        def stand_in(error: ImportError | AttributeError | None = None) -> Callable[..., Any] | None:
            """What is called in place of ``function`` where torch lacks a name; None where it lacks none."""
            taken = iter(TAKEN_AWAY.intersection(needs().names)) if TAKEN_AWAY else iter(())
            name = missing_name(error, function) if error is not None else next(taken, None)
            if name is None:
                return None
            refusal = TorchNameMissing(name, needs().purpose, torch.__version__)
            if otherwise is None:
                raise refusal
            warn_once(str(refusal))
            return otherwise

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if (other := stand_in() if TAKEN_AWAY else None) is None:
                try:
                    return function(*args, **kwargs)
                except (ImportError, AttributeError) as error:
                    if (other := stand_in(error)) is None:
                        raise
            return cast(R, other(*args, **kwargs))

        @functools.wraps(function)
        def generate(*args: P.args, **kwargs: P.kwargs) -> Any:
            if (other := stand_in() if TAKEN_AWAY else None) is None:
                try:
                    yield from cast(Any, function(*args, **kwargs))
                    return
                except (ImportError, AttributeError) as error:
                    if (other := stand_in(error)) is None:
                        raise
            yield from other(*args, **kwargs)

        return cast(Callable[P, R], generate) if inspect.isgeneratorfunction(function) else call

    return marked


@functools.cache
def warn_once(text: str) -> None:
    logging.getLogger("minidbg").warning("minidbg: %s", text)


def nothing_around(*_: object) -> Iterator[None]:
    yield


def missing_name(error: ImportError | AttributeError, function: Callable[..., Any]) -> str | None:
    """The private name of torch that ``function`` itself looked up in vain; None for any other error."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_frame.f_code is not function.__code__:
        traceback = traceback.tb_next
    if traceback is None:
        return None
    deeper = traceback.tb_next.tb_frame.f_code.co_name if traceback.tb_next is not None else ""
    if deeper not in ("", "__getattr__", "_find_and_load"):
        return None
    if isinstance(error, ImportError):
        said = re.match(r"cannot import name '(\w+)'", str(error))  # Python 3.12 has it as ``name_from``
        name = f"{error.name}.{said[1]}" if said else str(error.name)
        return name if name.startswith("torch") else None
    owner = (
        getattr(error.obj, "__name__", "") or f"{type(error.obj).__module__}.{type(error.obj).__qualname__}"
    )
    return f"{owner}.{error.name}" if owner.startswith("torch") else None


def needs_of(function: Callable[..., Any], first: str, last: str) -> Needs:
    """What ``function`` needs, read off its source."""
    names: dict[str, None] = {}
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function)))):
        if isinstance(node, ast.ImportFrom):
            names |= dict.fromkeys(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            names |= dict.fromkeys(alias.name for alias in node.names)
        elif isinstance(node, ast.Attribute):
            names[ast.unparse(node)] = None
    private = [name for name in names if name.startswith("torch.") and ("._" in name)]
    whole = [name for name in private if not any(other.startswith(f"{name}.") for other in private)]
    doc = (inspect.getdoc(function) or "").partition("\n")[0]
    return Needs(function.__name__, doc, tuple(whole), first, last)


def internals() -> list[Needs]:
    """What each function here needs of torch. Imports nothing."""
    return [needs() for needs in NEEDS.values()]


def is_here(name: str) -> bool:
    """Whether this torch has what ``name`` says; imports the modules on the way."""
    found: Any = torch
    path = "torch"
    for part in name.split(".")[1:]:
        path = f"{path}.{part}"
        if not hasattr(found, part):
            try:
                importlib.import_module(path)
            except ImportError as error:
                # torch's operator samples need expecttest: a package that is not installed is no lack of torch
                return error.name is not None and error.name.partition(".")[0] != "torch"
        found = getattr(found, part)
    return name not in TAKEN_AWAY


def version_at_least(*parts: int) -> bool:
    """Whether this is torch of the version ``parts`` or a later one; nightlies count as the release that they lead to."""
    here = re.match(r"(\d+)\.(\d+)", torch.__version__)
    return here is None or tuple(map(int, here.groups())) >= parts
