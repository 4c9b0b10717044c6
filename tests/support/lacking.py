"""A torch that lacks the private names which one function of ``torch_internals`` looks up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from minidbg import torch_internals
from minidbg.torch_internals import private_names


def marked(function: Any) -> Any:
    """What ``private`` has marked in ``function``; None where it has marked nothing."""
    while hasattr(function, "__wrapped__"):
        mark, function = function, function.__wrapped__
        if getattr(getattr(mark, "__code__", None), "co_filename", "") == private_names.__file__:
            return function
    return None


MARKED = sorted(name for name, one in vars(torch_internals).items() if marked(one) is not None)


@contextmanager
def lacking(name: str) -> Iterator[None]:
    """A block in which the function called ``name`` finds that a name of torch is not there."""

    def finds_none(*_: Any, **__: Any) -> Any:
        raise ImportError(name="torch.taken_away")

    function = marked(vars(torch_internals)[name])
    code, function.__code__ = function.__code__, finds_none.__code__
    try:
        yield
    finally:
        function.__code__ = code
