"""The workarounds that were found for a repro, as they lie beside it."""

from __future__ import annotations

import json
from pathlib import Path

from minidbg.repro.folder import HIDDEN, folder_of
from minidbg.words.files import NOTE_LIMIT_BYTES, read_regular


def kept_file(path: Path) -> Path:
    """Where what was found for the repro or capture at ``path`` lies."""
    return folder_of(path) / HIDDEN / "workarounds" / f"{path.stem}.json"


def best_of(path: Path) -> str:
    """The best workaround that is kept for the repro at ``path``, as a sentence; an empty text when there is none."""
    try:
        first = json.loads(read_regular(kept_file(path), NOTE_LIMIT_BYTES))["found"][0]
        return f"{first['what']} ({first['where']}); {first['cost']}"
    except (OSError, ValueError, KeyError, IndexError, TypeError, RecursionError):
        return ""
