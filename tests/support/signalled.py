"""A command in a process group of its own, as a terminal has it, that a test ends by signals."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil


class Signalled:
    """``minidbg WORDS`` under way, with a folder for temporary files of its own. At its end nothing of it may be left."""

    def __init__(self, *words: object, cwd: Path, env: dict[str, str] | None = None) -> None:
        self.temporary = cwd / "temporary"
        self.temporary.mkdir(exist_ok=True)
        self.out, self.err = cwd / "stdout.txt", cwd / "stderr.txt"
        self.family: set[psutil.Process] = set()
        with self.out.open("w") as out, self.err.open("w") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "minidbg", *map(str, words)],
                cwd=cwd, env={**os.environ, "TMPDIR": str(self.temporary), **(env or {})}, stdout=out, stderr=err,
                start_new_session=True,
            )  # fmt: skip

    def wait_until(self, holds: Callable[[], bool], seconds: float = 200) -> None:
        until = time.monotonic() + seconds
        while not holds():
            assert self.process.poll() is None, self.err.read_text()
            assert time.monotonic() < until, self.err.read_text()
            time.sleep(0.02)

    def says(self, text: str) -> Callable[[], bool]:
        return lambda: text in self.err.read_text()

    def send(self, number: int = signal.SIGINT) -> None:
        """Ctrl-C goes to the whole group of the command, and to none of the sessions that it has begun."""
        self.family |= set(psutil.Process(self.process.pid).children(recursive=True))
        os.killpg(self.process.pid, number)

    def end(self, seconds: float = 60) -> tuple[int, str, str]:
        """Its exit status, stdout and stderr, once it and all that it has started have ended."""
        status = self.process.wait(seconds)
        _, alive = psutil.wait_procs(self.family, timeout=10)
        assert [one for one in alive if is_at_work(one)] == []
        said = self.err.read_text()
        assert "Traceback" not in said, said
        left = [path.name for path in self.temporary.iterdir()]
        assert [name for name in left if not name.startswith("torchinductor_")] == []  # torch's own stays
        return status, self.out.read_text(), said


def is_at_work(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False
