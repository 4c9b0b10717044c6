"""For all tests: bytecode is written, here and by children, and tests of one group share a worker and so their module's fixture.

In CI hypothesis tries the same examples each time: what it finds anew belongs to the one who looks for it, not to the next commit.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import hypothesis
import pytest

# An environment that switches it off costs each worker the rewriting of all tests, and each child the compiling of torch.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Started in the background, where a shell has Ctrl-C ignored, and the programs that tests interrupt would ignore it too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
hypothesis.settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    hypothesis.settings.load_profile("ci")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """``-n 2`` alone spreads the tests of a module over both workers, and each would make its fixtures."""
    if getattr(config.option, "numprocesses", None) and config.option.dist == "no":
        config.option.dist = "loadgroup"


TESTS = Path(__file__).parent
DOOMED = """
unit/backends:   embedding installed locations pickled renaming source_text
unit/reduction:  candidate core deadline foresight hints levels publishing reducing replay result session whole_cases
unit/source:     parse tensors
unit/watch:      columns hostile_folders watch_parts
unit/workers:    ahead packing run_python server
unit:            history
"""
"""Tests of rooms that are written anew: each takes a room apart by its inner names, and what it claims is asked again from outside, by
integration, property, peers, journeys or the corpus. They are run by hand (``-m doomed``), never mended, and go with their room."""


def doomed() -> set[Path]:
    rows = (line.partition(":") for line in DOOMED.strip().splitlines())
    return {TESTS / folder / f"test_{name}.py" for folder, _, names in rows for name in names.split()}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    files = doomed()
    for item in items:
        if item.path in files:
            item.add_marker("doomed")


def pytest_addoption(parser: pytest.Parser) -> None:
    """``pytest -m device --device cuda`` runs the tests of tests/device on a GPU; by default they build a stand-in."""
    parser.addoption(
        "--device", default="acme", help="the accelerator of 'pytest -m device': acme, cuda, xpu ..."
    )
