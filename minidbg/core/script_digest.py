"""The digest of a repro script and its tensors: another one when it is another repro."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from pathlib import Path

from minidbg.core.files import open_regular
from minidbg.core.settings import VALUE_LIMIT_BYTES

FOR_PEOPLE = re.compile(rb"(?m)^# expect = .*\n")
"""What somebody may write into a header without its being another repro."""


def digest_of_files(path: Path, script: bytes) -> str:
    """Of a script and of the tensors beside it, without what the header says to people. Raises OSError."""
    total = hashlib.sha1(FOR_PEOPLE.sub(b"", script), usedforsecurity=False)
    with contextlib.suppress(FileNotFoundError), open_regular(path.with_suffix(".safetensors")) as tensors:
        status = os.fstat(tensors.fileno())
        if status.st_size > VALUE_LIMIT_BYTES:  # not read: a sparse one of a petabyte is soon made
            total.update(f"{status.st_size} {status.st_mtime_ns}".encode())
        else:
            hashlib.file_digest(tensors, lambda: total)
    return total.hexdigest()
