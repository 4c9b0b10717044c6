"""For all tests: no process is left behind that looks for the stage of a failure while others are timed.

In CI hypothesis tries the same examples each time: what it finds anew belongs to the one who looks for it, not to the next commit.
"""

from __future__ import annotations

import os
import signal

import hypothesis
import pytest

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Started in the background, where a shell has Ctrl-C ignored, and the programs that tests interrupt would ignore it too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
hypothesis.settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    hypothesis.settings.load_profile("ci")


def pytest_addoption(parser: pytest.Parser) -> None:
    """``pytest -m device --device cuda`` runs the tests of tests/device on a GPU; by default they build a stand-in."""
    parser.addoption(
        "--device", default="acme", help="the accelerator of 'pytest -m device': acme, cuda, xpu ..."
    )
