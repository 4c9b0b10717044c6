"""One situation as its user lives it: an empty folder, one command, and what is there afterwards."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from situations import Situation, program

DEATHS = ("crash", "hang")
"""Kinds that end or stop the user's process: ``minidbg run`` looks after it."""


@dataclass(frozen=True)
class Ended:
    """A process that has ended or was interrupted."""

    status: int
    output: str
    seconds: float


@dataclass(frozen=True)
class Result:
    """What the user has."""

    seconds: float
    repro: Path | None
    nodes: int | None
    kind: str
    status: int | None
    """Exit status of ``python repro.py``; None where there is none."""
    said: str
    """Its first line, or the last line of the program where there is no repro."""

    def is_right_for(self, situation: Situation) -> bool:
        """Whether it is the right bug's repro, or silence where all is well."""
        if situation.kind is None:
            return self.repro is None and "minidbg" not in self.said
        if self.repro is None:
            return situation.may_refuse and "not captured: " in self.said
        small = self.nodes is not None and self.nodes <= situation.most_nodes
        right = self.kind == situation.kind and situation.says in self.repro.read_text()
        return self.status == 1 and self.said.startswith("reproduces") and small and right


def run(command: list[str], cwd: Path, *, seconds: float, env: dict[str, str] | None = None) -> Ended:
    """``command`` to its end; interrupted as by Ctrl-C when it takes longer, and then left to end."""
    began = time.monotonic()
    child = subprocess.Popen(
        command,
        cwd=cwd,
        env={**os.environ, **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        child.send_signal(signal.SIGTERM)
        try:
            output, _ = child.communicate(timeout=seconds + 400)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            output, _ = child.communicate()
    return Ended(child.returncode, output, time.monotonic() - began)


def with_minidbg(situation: Situation, folder: Path, *, seconds: float = 600.0) -> Result:
    """The program run once; then what ``python repro.py`` says."""
    dies = situation.kind in DEATHS
    (folder / "train.py").write_text(program(situation, with_minidbg=not dies))
    command = [sys.executable, *(["-m", "minidbg", "run"] if dies else []), "train.py"]
    ended = run(command, folder, seconds=40.0 if situation.kind == "hang" else seconds)
    repros = sorted((folder / "minidbg_repros").glob("*.py"))
    last = ended.output.strip().rpartition("\n")[2]
    if not repros:
        return Result(ended.seconds, None, None, "", None, last)
    text = repros[0].read_text()
    again = run([sys.executable, str(repros[0])], folder, seconds=seconds)
    verdict = re.search(
        r"(?m)^(reproduces|gone|changed|crashed|timeout|skipped|invalid|flaky)\b.*", again.output
    )
    nodes, kind = (
        re.search(r"(?m)^# .*\bdevice = \S+, nodes = (\d+)", text),
        re.search(r'(?m)^# .*\bkind = "(\w+)"', text),
    )
    return Result(
        ended.seconds,
        repros[0],
        int(nodes[1]) if nodes else None,
        kind[1] if kind else "",
        again.status,
        verdict[0] if verdict else again.output[-300:],
    )
