"""The daemon on the device: its matrix, a save, a device that a repro leaves in error, and a second daemon."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from acceptance import OVER

from parts.context import Context, Failed, Figures, Row, Skipped, ended_with
from parts.flow import reduced_in_the_program

FAULTY = Path(__file__).resolve().parents[1] / "faulty.py"
Event = dict[str, Any]


def rows(context: Context) -> Iterator[tuple[str, Row]]:
    yield "cpu and the device", partial(matrix, context)
    yield "a save", partial(save, context)
    yield "a device in error", partial(in_error, context)
    yield "two daemons", partial(two_daemons, context)


def matrix(context: Context) -> tuple[Figures, str]:
    """One sweep: the failure is there on the device and not on the CPU."""
    folder = context.place("matrix")
    name = repro(context, "compile_failure", folder)
    began = time.monotonic()
    found = verdicts(context, folder, f"cpu,{context.device}:0")
    wanted = {(name, "cpu"): "gone", (name, f"{context.device}:0"): "reproduces"}
    if found != wanted:
        raise Failed(f"found {found}, wanted {wanted}")
    return {"s for a sweep of two runs": time.monotonic() - began}, ""


def save(context: Context) -> tuple[Figures, str]:
    """The backend is mended while the daemon looks: the flip is told for the device."""
    folder = context.place("save")
    own = folder / "backend"
    own.mkdir()
    text = Path(shutil.copy(FAULTY, own)).read_text()
    path = os.pathsep.join([str(own), context.environ["PYTHONPATH"]])
    name = repro(context, "compile_failure", folder, PYTHONPATH=path)
    daemon = Daemon(context, folder, "--devices", f"{context.device}:0", PYTHONPATH=path)
    with daemon:
        daemon.wait_for(lambda event: event["event"] == "sweep_finished", 100)
        began = time.monotonic()
        (own / "faulty.py").write_text(
            text.replace('raise NotImplementedError("no kernel for gelu")', "pass")
        )
        flip = daemon.wait_for(lambda event: event["event"] == "flip", 100)
    if (flip["repro"], flip["device"]) != (name, f"{context.device}:0"):
        raise Failed(f"another flip was told: {flip}")
    return {"s from the save to the confirmed flip": time.monotonic() - began}, ""


def in_error(context: Context) -> tuple[Figures, str]:
    """A repro after which its process can use the device no more, and one beside it: each has its own verdict."""
    folder = context.place("in_error")
    names = [repro(context, fault, folder) for fault in ("device_side_assert", "compile_failure")]
    found = verdicts(context, folder, f"{context.device}:0")
    wanted = {(name, f"{context.device}:0"): "reproduces" for name in names}
    if found != wanted:
        raise Failed(f"found {found}, wanted {wanted}")
    return {}, ""


def two_daemons(context: Context) -> tuple[Figures, str]:
    """The second one says who watches, and ends; the first goes on."""
    folder = context.place("two_daemons")
    repro(context, "compile_failure", folder)
    with Daemon(context, folder) as daemon:
        daemon.wait_for(lambda event: event["event"] == "sweep_finished", 100)
        place = context.place("second")
        second = context.minidbg("watch", "--json", folder / "minidbg_repros", cwd=place, limit=60)
        if second.status in (0, None) or "already watched" not in second.err + second.out:
            raise Failed(f"the second ended with {second.status}: {second.tail}")
        if daemon.process.poll() is not None:
            raise Failed("the first daemon has ended")
    return {}, (second.err + second.out).partition("minidbg: ")[2].partition(" on ")[0].rpartition("/")[2]


def repro(context: Context, fault: str, folder: Path, **variables: str) -> str:
    """The file name of a new repro in ``folder``; one that the first part has made is taken as it is."""
    for made in sorted(context.out.glob(f"flow/{fault}*/minidbg_repros/*.py")) if not variables else ():
        own = folder / "minidbg_repros"
        own.mkdir(exist_ok=True)
        for one in made.parent.glob(f"{made.stem}.*"):
            shutil.copy(one, own)
        return made.name
    return Path(reduced_in_the_program(context, fault, folder, **variables)["repro"]).name


def verdicts(context: Context, folder: Path, devices: str) -> dict[tuple[str, str], str]:
    """By repro and column, of one sweep."""
    done = context.minidbg(
        "watch", folder / "minidbg_repros", "--once", "--json", "--devices", devices, cwd=folder, limit=200
    )
    events = [json.loads(line) for line in done.out.splitlines() if line.startswith("{")]
    found = {(one["repro"], one["device"]): one["verdict"] for one in events if one["event"] == "result"}
    if not found:
        raise Failed(f"no verdict: {done.tail}")
    return found


class Daemon:
    """``minidbg watch --json`` on a folder's repros, ended with the block."""

    def __init__(self, context: Context, folder: Path, *words: str, **variables: str) -> None:
        self.seen, self.over = 0, context.until
        place = context.place(f"daemon-of-{folder.name}")
        self.output = place / "stdout.txt"
        self.process: subprocess.Popen[bytes] = context.started(
            "-m", "minidbg", "watch", "--json", folder / "minidbg_repros", *words, cwd=place, **variables
        )

    def __enter__(self) -> Daemon:
        return self

    def __exit__(self, *_: object) -> None:
        with ended_with(self.process):
            self.process.send_signal(signal.SIGINT)
            for _ in range(50):
                if self.process.poll() is not None:
                    break
                time.sleep(0.1)

    def wait_for(self, wanted: Callable[[Event], bool], seconds: float) -> Event:
        """The next event that is wanted. Raises Failed."""
        until = min(time.monotonic() + seconds, self.over)
        while time.monotonic() < until and self.process.poll() is None:
            text = self.output.read_text()
            events = [
                json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines() if line.startswith("{")
            ]
            while self.seen < len(events):
                self.seen += 1
                if wanted(events[self.seen - 1]):
                    return events[self.seen - 1]
            time.sleep(0.1)
        if time.monotonic() >= self.over:
            raise Skipped(OVER)
        last = self.output.read_text().splitlines()[-1:]
        raise Failed(
            f"it did not happen within {seconds:.0f} s (the daemon's status: {self.process.poll()}); last: {last}"
        )
