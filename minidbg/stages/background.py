"""The stage report made by a process of its own, so that nobody waits for it: not the exception, not the program's end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

LAUNCH = '"$@" >/dev/null 2>&1 </dev/null &'
"""A shell puts the process into the background and ends: no child of ours is left to wait for."""


def start_in_background(path: Path) -> bool:
    """Have ``minidbg stages`` run for the repro at ``path``, detached and with low priority; whether it was started."""
    if os.name != "posix":
        return False
    command = [sys.executable, "-m", "minidbg", "stages", "--background", str(path.absolute())]
    try:
        done = subprocess.run(
            ["/bin/sh", "-c", LAUNCH, "minidbg", *command], start_new_session=True, check=False, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0
