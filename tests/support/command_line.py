"""Interpreters of their own, as a person starts them: what they say, and how they end."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any


def python(
    *words: object,
    before: Sequence[str] = (),
    env: dict[str, str] | None = None,
    timeout: float = 200,
    **more: Any,
) -> subprocess.CompletedProcess[str]:
    """``BEFORE python WORDS``, with ``env`` beside the variables of this process; ``more`` goes to subprocess.run.

    A pytest that is started so takes none of the options of the one that runs the tests.
    """
    command = [*before, sys.executable, *map(str, words)]
    env = {**os.environ, "PYTEST_ADDOPTS": "", **(env or {})}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=timeout, **more)


def cli(*words: object, **how: Any) -> subprocess.CompletedProcess[str]:
    """``minidbg WORDS``."""
    return python("-m", "minidbg", *words, **how)


def torchrun(ranks: int, *words: object) -> tuple[object, ...]:
    """The words after ``python`` that start a program in so many ranks, on a port of this process's own."""
    port = 29500 + os.getpid() % 1000
    return ("-m", "torch.distributed.run", "--nproc-per-node", ranks, "--master-port", port, *words)
