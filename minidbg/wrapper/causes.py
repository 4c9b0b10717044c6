"""What an exception says of its cause: a compiler that is not here."""

from __future__ import annotations

from minidbg.words.foreign import chain_of


def is_missing_compiler(error: BaseException | None) -> bool:
    return any(type(one).__name__ == "InvalidCxxCompiler" for one in chain_of(error))
