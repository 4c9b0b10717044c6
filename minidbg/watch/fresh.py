"""One script in a fresh interpreter, waited for: how ``minidbg bisect`` and the pytest plugin run repros."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from minidbg.judge_script import JUDGE_SCRIPT
from minidbg.watch.pool import Ended
from minidbg.watch.repros import Repro


def run_repro(repro: Repro, device: str, seconds: float, env: Mapping[str, str]) -> Ended:
    """Judge the script in a fresh interpreter, from an empty folder."""
    return run_python([JUDGE_SCRIPT, str(repro.path.absolute()), "--device", device, "--json"], seconds, env)


def run_python(arguments: Sequence[str], seconds: float, env: Mapping[str, str]) -> Ended:
    """Run a fresh interpreter with these arguments, from an empty folder."""
    with tempfile.TemporaryDirectory(prefix="minidbg-run-") as folder:
        ended, _ = run_limited([sys.executable, "-X", "faulthandler", *arguments], Path(folder), seconds, env)
    return ended


def run_limited(
    command: Sequence[str], folder: Path, seconds: float, env: Mapping[str, str]
) -> tuple[Ended, str]:
    """Run a command as its own process group for at most ``seconds``; how it ended, and all it wrote."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        timed_out, began = False, time.monotonic()
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            status = process.wait()
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    died = -status if status < 0 and not timed_out else None
    took = time.monotonic() - began
    ended = Ended(
        0, None if status < 0 else status, died, timed_out, stdout=texts[0], stderr=texts[1], seconds=took
    )
    return ended, texts[0] + texts[1]
