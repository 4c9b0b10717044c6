"""Workers in interpreters of their own, for what no forked child can do: CUDA, and other systems than Linux.

A worker is kept from one question to the next, since importing torch takes seconds, and replaced when it dies or is
ended. What it is asked is a function by its name and an argument of plain values.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

import psutil

from minidbg.workers.result import JSON, ChildResult

START_LIMIT_S = 300.0
POLL_S = 0.05
LAST_WORDS_S = 2.0
TAIL_BYTES = 64 * 1024
KEPT: dict[int, SpawnedWorker] = {}
"""The worker of this process, by the process's number: a forked child has none."""


def call_in_spawned(
    function: str, argument: JSON, *, seconds: float, memory_bytes: int | None = None
) -> ChildResult:
    """``function`` (``module:name``, called with ``argument`` and a ``note``) in a worker that is kept for the next question.

    The time limit begins when the worker is ready. Raises OSError when no process can be made.
    """
    worker = KEPT.get(os.getpid())
    if worker is None or not worker.is_alive():
        end_worker()
        worker = KEPT[os.getpid()] = SpawnedWorker()
    result = worker.ask(function, argument, seconds, memory_bytes)
    if not result.answered and not result.error:
        end_worker()
        KEPT[os.getpid()] = SpawnedWorker()  # imports torch while the caller thinks about the next question
    return result


@atexit.register
def end_worker() -> None:
    """End this process's worker, if it has one."""
    worker = KEPT.pop(os.getpid(), None)
    if worker is not None:
        worker.end()
        worker.stderr.close()


class SpawnedWorker:
    """The parent's side of one worker."""

    def __init__(self) -> None:
        self.answers, theirs = os.pipe()
        self.stderr = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the worker
        self.unread = b""
        self.is_ready = False
        self.family: set[psutil.Process] = set()
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-X", "faulthandler", "-m", "minidbg.workers.spawned_child", str(theirs)],
                stdin=subprocess.PIPE,
                stdout=self.stderr,
                stderr=self.stderr,
                pass_fds=(theirs,),
                start_new_session=True,
            )
        except OSError:
            os.close(self.answers)
            self.stderr.close()
            raise
        finally:
            os.close(theirs)

    def is_alive(self) -> bool:
        """Whether it can be asked."""
        return self.process.poll() is None

    def ask(self, function: str, argument: JSON, seconds: float, memory_bytes: int | None) -> ChildResult:
        """The answer, or how the worker ended; then it is of no more use."""
        began, seen, notes = time.monotonic(), self.stderr.seek(0, os.SEEK_END), [""]
        limit, answer = "", None
        with contextlib.suppress(BrokenPipeError):
            if not self.is_ready:
                _, limit = self.wait(began + START_LIMIT_S, None, notes)
                self.is_ready, began = not limit, time.monotonic()
            if not limit:
                assert self.process.stdin is not None
                question = json.dumps({"call": function, "argument": argument}) + "\n"
                self.process.stdin.write(question.encode())
                self.process.stdin.flush()
                answer, limit = self.wait(began + seconds, memory_bytes, notes)
        if answer is None:
            self.end(ask_first=limit == "timeout")
        code = self.process.returncode
        return ChildResult(
            value=answer.get("answer") if answer else None,
            answered=answer is not None and "answer" in answer,
            error=str(answer.get("error", "")) if answer else "",
            signal=-code if answer is None and code < 0 else None,
            exit_status=code if answer is None and code >= 0 else None,
            timed_out=limit == "timeout",
            out_of_memory=limit == "memory",
            note=notes[-1],
            stderr_tail=self.tail_since(seen),
            seconds=time.monotonic() - began,
        )

    def wait(
        self, deadline: float, memory_bytes: int | None, notes: list[str]
    ) -> tuple[dict[str, Any] | None, str]:
        """The next message that is no note, and the limit that was reached; neither when the worker has died."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.answers, selectors.EVENT_READ)
            while True:
                for message in self.messages():
                    if "note" not in message:
                        return message, ""
                    notes.append(message["note"])
                if time.monotonic() >= deadline:
                    return None, "timeout"
                if memory_bytes is not None and self.memory_in_use() > memory_bytes:
                    return None, "memory"
                if selector.select(POLL_S) and not self.read():
                    self.process.wait()
                    return None, ""

    def read(self) -> bool:
        """Take what the worker has said; False at its end."""
        piece = os.read(self.answers, 1 << 20)
        self.unread += piece
        return bool(piece)

    def messages(self) -> list[dict[str, Any]]:
        """The whole lines said so far, each once."""
        *lines, self.unread = self.unread.split(b"\n")
        return [json.loads(line) for line in lines]

    def memory_in_use(self) -> int:
        """Resident bytes of the worker and all that it started; remembers who they are."""
        total = 0
        with contextlib.suppress(psutil.Error):
            own = psutil.Process(self.process.pid)
            self.family |= set(own.children(recursive=True))
            for process in (own, *self.family):
                with contextlib.suppress(psutil.Error):
                    total += process.memory_info().rss
        return total

    def end(self, *, ask_first: bool = False) -> None:
        """Kill the worker and all that it started; asked first, faulthandler writes its stack."""
        self.memory_in_use()
        if ask_first:
            self.process.send_signal(signal.SIGABRT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(LAST_WORDS_S)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for process in self.family:
            with contextlib.suppress(psutil.Error):
                process.kill()
        self.process.wait()
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()
        if self.answers >= 0:
            os.close(self.answers)
            self.answers = -1

    def tail_since(self, seen: int) -> str:
        """The end of what was written to stderr since position ``seen``."""
        end = self.stderr.seek(0, os.SEEK_END)
        self.stderr.seek(max(seen, end - TAIL_BYTES))
        return self.stderr.read().decode(errors="replace")
