"""Paths as a person would type them."""

from __future__ import annotations

import os
from pathlib import Path


def shown(path: Path) -> str:
    """``path`` relative to the working directory where it lies in it, else whole."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative
