"""What can be had of somebody else's exception. Each of its methods may raise: that must not take
the place of the exception."""

from __future__ import annotations

import contextlib
import logging
import signal
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from minidbg.core.text import abridged


def message_of(error: BaseException) -> str:
    """Its text; empty where there is none to be had."""
    try:
        # a plain str, also where a class of texts was given
        return str.__str__(str(error))
    except Exception:  # noqa: BLE001 - a foreign method
        return ""


def first_line_of(error: BaseException) -> str:
    """``ValueError: no kernel``: its class, and the first line of its text, cut between words."""
    return abridged(f"{type(error).__name__}: {message_of(error).strip()}", 300).rstrip(": ")


def attribute_of(error: BaseException, name: str) -> Any:
    try:
        return getattr(error, name, None)
    except Exception:  # noqa: BLE001 - a foreign property
        return None


def inner_of(error: BaseException) -> BaseException | None:
    """What dynamo has wrapped in it, else what it was raised from."""
    found = (attribute_of(error, name) for name in ("inner_exception", "__cause__"))
    return next((inner for inner in found if isinstance(inner, BaseException)), None)


def chain_of(error: BaseException | None) -> Iterator[BaseException]:
    """``error`` and what it wraps or was raised from, outermost first."""
    for _ in range(12):
        if error is None:
            return
        yield error
        error = inner_of(error)


NO_MEMORY = ("can't allocate memory", "out of memory", "not enough memory")
"""Texts of torch's allocators that raise a plain RuntimeError (the CPU's does)."""


def is_out_of_memory(error: BaseException | None) -> bool:
    return any(
        isinstance(one, MemoryError)
        or type(one).__name__ == "OutOfMemoryError"  # torch's, which core does not import
        or (isinstance(one, RuntimeError) and any(text in message_of(one).lower() for text in NO_MEMORY))
        for one in chain_of(error)
    )


def is_of_a_signal_handler(error: BaseException) -> bool:
    """Whether a handler of a signal has raised it, such as that of a time limit: the program's own
    word, and nobody's failure."""
    handlers = map(signal.getsignal, signal.valid_signals())
    codes = {getattr(handler, "__code__", None) for handler in handlers}
    frames = (frame for one in chain_of(error) for frame, _ in traceback.walk_tb(one.__traceback__))
    return any(frame.f_code in codes for frame in frames)


@contextlib.contextmanager
def fence(what: str, hears: Callable[[Exception], object] = lambda trouble: None) -> Iterator[None]:
    """A block of ours that the program must not notice: what goes wrong ends it, is logged as
    ``what``, and told to ``hears``. What a handler of a signal raises passes."""
    try:
        yield
    except Exception as trouble:
        if is_of_a_signal_handler(trouble):
            raise
        hears(trouble)
        logging.getLogger("minidbg").debug(what, exc_info=True)
