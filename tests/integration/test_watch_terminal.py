"""The live view on a real pseudo-terminal: what is drawn, what the keys do, and that the terminal is left as it was."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import termios
import time
from pathlib import Path

import pytest
from support.toy_repros import BROKEN, WORKS, Checkout, script
from support.watch_driver import COMMAND

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


class Screen:
    """What has been written to a terminal, without colours and cursor movements."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor, self.raw = descriptor, b""

    def text(self) -> str:
        plain = re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()][A-Z0-9]", b"", self.raw)
        return plain.decode(errors="replace")

    def wait_for(self, wanted: str, seconds: float = 40.0) -> None:
        """Read on until ``wanted`` has been drawn; what was drawn before is forgotten then."""
        until = time.monotonic() + seconds
        while wanted not in self.text():
            ready, _, _ = select.select([self.descriptor], [], [], max(0.0, until - time.monotonic()))
            assert ready, f"{wanted!r} was not drawn; the last of the screen:\n{self.text()[-3000:]}"
            self.raw += os.read(self.descriptor, 65536)
        self.raw = b""

    def press(self, keys: str) -> None:
        os.write(self.descriptor, keys.encode())


def test_the_matrix_is_drawn_keys_work_and_the_terminal_is_given_back(tmp_path: Path) -> None:
    scripts = {"relu": script("relu"), "sin": script("sin", expect="gone")}
    desk = Checkout(tmp_path, {"relu": BROKEN, "sin": WORKS}, scripts)
    package = desk.package
    leader, follower = pty.openpty()
    termios.tcsetwinsize(follower, (30, 140))
    before = termios.tcgetattr(follower)
    env = {
        **os.environ,
        **desk.env,
        "TERM": "xterm-256color",
        "COLUMNS": "140",  # a test runner may say otherwise
    }
    process = subprocess.Popen(
        COMMAND, cwd=tmp_path, env=env, stdin=follower, stdout=follower, stderr=follower, start_new_session=True,
    )  # fmt: skip
    screen = Screen(leader)
    try:
        screen.wait_for("waiting; sweep 1")
        screen.wait_for("reproduces")
        (package / "relu.py").write_text(WORKS.format(op="relu"))
        screen.wait_for("FIXED ")
        screen.press("\r")
        screen.wait_for("waiting; sweep 3")
        (package / "sin.py").write_text(BROKEN.format(op="sin"))
        screen.wait_for("REGRESSED ")
        screen.press("\r")
        screen.wait_for("waiting; sweep 5")
        screen.press("q")
        assert process.wait(20) == 0
        while select.select([leader], [], [], 0.2)[0]:
            screen.raw += os.read(leader, 65536)
        assert "FIXED " in screen.text(), "the flips stay on the terminal"
        assert termios.tcgetattr(follower) == before
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(leader)
        os.close(follower)
