"""What an exception says of its cause: a signal handler of the program, want of memory, a compiler that is not here."""

from __future__ import annotations

import signal
import traceback
from collections.abc import Iterator

import torch

from minidbg.words.foreign import inner_of, message_of


def chain_of(error: BaseException | None) -> Iterator[BaseException]:
    """``error`` and what it wraps or was raised from, outermost first."""
    for _ in range(12):
        if error is None:
            return
        yield error
        error = inner_of(error)


def is_of_a_signal_handler(error: BaseException) -> bool:
    """Whether a handler of a signal has raised it, such as that of a time limit: the program's own word, and nobody's failure."""
    handlers = {getattr(signal.getsignal(number), "__code__", None) for number in signal.valid_signals()}
    frames = (frame for one in chain_of(error) for frame, _ in traceback.walk_tb(one.__traceback__))
    return any(frame.f_code in handlers for frame in frames)


NO_MEMORY = ("can't allocate memory", "out of memory", "not enough memory")
"""Texts of torch's allocators that raise a plain RuntimeError (the CPU's does)."""


def is_out_of_memory(error: BaseException | None) -> bool:
    return any(
        isinstance(one, MemoryError | torch.OutOfMemoryError)
        or (isinstance(one, RuntimeError) and any(text in message_of(one).lower() for text in NO_MEMORY))
        for one in chain_of(error)
    )


def is_missing_compiler(error: BaseException | None) -> bool:
    return any(type(one).__name__ == "InvalidCxxCompiler" for one in chain_of(error))
