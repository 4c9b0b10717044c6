"""Interpreters that run scripts in forks, for callers that wait for the end of each."""

from __future__ import annotations

import tempfile
from pathlib import Path

from minidbg.workers.pool import NUMBERS, Ended, Order, Preload, RunMode, ServerPool


class OneByOne:
    """A pool for callers that wait for each run, such as pytest."""

    def __init__(self, preload: Preload) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="minidbg-pool-")
        self.pool = ServerPool(lambda message: None, preload, state=Path(self.folder.name))

    def run(self, argv: tuple[str, ...], mode: RunMode, seconds: float) -> Ended:
        """Run a script, and wait for its end; one whose server died under it runs once more, in an interpreter of its own."""
        ended = self.pool.submit(Order(next(NUMBERS), argv, mode, seconds)).result()
        if ended.lost:
            ended = self.pool.submit(Order(next(NUMBERS), argv, RunMode.FRESH, seconds)).result()
        return ended

    def close(self) -> None:
        self.pool.close()
        self.folder.cleanup()
