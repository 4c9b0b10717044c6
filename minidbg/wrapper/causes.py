"""What an exception says of its cause: want of memory, a compiler that is not here."""

from __future__ import annotations

import torch

from minidbg.words.foreign import chain_of, message_of

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
