"""For all tests: bytecode is written, here and by children, and tests share a worker where they share a costly fixture.

In CI hypothesis tries the same examples each time: what it finds anew belongs to the one who looks for it, not to the next commit.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
from support.rotating import leave_for_another_day

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
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    leave_for_another_day(items)


SHARED = ("journeys/test_journeys", "integration/test_package", "integration/test_readme")
"""Files whose fixture takes ten seconds and more: their tests go to one worker, so that it is made once. By marks of pytest-xdist's own
(``xdist_group``) this is in vain: release 3.8 does not reach the names of tests of pytest 9.2."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    if config.getvalue("dist") != "load":
        return None
    from xdist.scheduler import LoadScopeScheduling

    files = {f"tests/{name}.py" for name in SHARED}

    class OneWorkerForAFixture(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return file if file in files else nodeid

    return OneWorkerForAFixture(config, log)


@pytest.fixture(autouse=True)
def _logger_as_it_was() -> Iterator[None]:
    """A command that runs in this process takes the logger for its own stderr; the next test looks at its messages."""
    yield
    logger = logging.getLogger("minidbg")
    logger.propagate = True
    logger.setLevel(logging.NOTSET)
    logger.handlers = [one for one in logger.handlers if one.name != "minidbg's command line"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """``pytest -m device --device cuda`` runs the tests of tests/device on a GPU; by default they build a stand-in."""
    parser.addoption(
        "--device", default="acme", help="the accelerator of 'pytest -m device': acme, cuda, xpu ..."
    )
