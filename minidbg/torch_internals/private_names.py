"""Marks what needs private names of torch, and says which one this torch lacks."""

from __future__ import annotations

import functools
import inspect
import logging
import re
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar, cast

import torch

from minidbg.core.errors import TorchNameMissing

P = ParamSpec("P")
R = TypeVar("R")


def private_or(
    otherwise: Callable[..., Any] | None, *, since: str = "2.11"
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Mark a function that looks up private names of torch when it is called.

    Where torch does not have one, ``otherwise`` is called in its place, after a warning where torch
    is ``since`` or later; without it the function raises TorchNameMissing, which nobody takes for a
    failure of a backend.
    """

    def marked(function: Callable[P, R]) -> Callable[P, R]:
        def instead(error: ImportError | AttributeError) -> Callable[..., Any]:
            if (name := missing_name(error, function)) is None:
                raise error
            refusal = TorchNameMissing(name, function.__name__, torch.__version__)
            if otherwise is None:
                raise refusal
            if torch.__version__ >= since:  # it compares as versions do
                warn_once(str(refusal))
            return otherwise

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return function(*args, **kwargs)
            except (ImportError, AttributeError) as error:
                other = instead(error)
            return cast(R, other(*args, **kwargs))

        @functools.wraps(function)
        def generate(*args: P.args, **kwargs: P.kwargs) -> Any:
            try:
                yield from cast(Any, function(*args, **kwargs))
                return
            except (ImportError, AttributeError) as error:
                other = instead(error)
            yield from other(*args, **kwargs)

        return cast(Callable[P, R], generate) if inspect.isgeneratorfunction(function) else call

    return marked


def private(function: Callable[P, R]) -> Callable[P, R]:
    return private_or(None)(function)


@functools.cache
def warn_once(text: str) -> None:
    logging.getLogger("minidbg").warning("minidbg: %s", text)


def nothing_around(*_: object) -> Iterator[None]:
    yield


def missing_name(error: ImportError | AttributeError, function: Callable[..., Any]) -> str | None:
    """The private torch name that ``function`` itself looked up in vain; None for other errors."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_frame.f_code is not function.__code__:
        traceback = traceback.tb_next
    if traceback is None:
        return None
    deeper = traceback.tb_next.tb_frame.f_code.co_name if traceback.tb_next is not None else ""
    if deeper not in ("", "__getattr__", "_find_and_load"):
        return None
    if isinstance(error, ImportError):
        match = re.match(r"cannot import name '(\w+)'", str(error))  # 3.12 has it as ``name_from``
        name = f"{error.name}.{match[1]}" if match else str(error.name)
        return name if name.startswith("torch") else None
    kind = type(error.obj)
    owner = getattr(error.obj, "__name__", "") or f"{kind.__module__}.{kind.__qualname__}"
    return f"{owner}.{error.name}" if owner.startswith("torch") else None
