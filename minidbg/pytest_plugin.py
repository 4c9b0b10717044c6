"""Repro scripts as tests: ``pytest --minidbg minidbg_repros/``, or ``--minidbg-devices cpu,cuda``.

Without either option a repro is a test module of its own, which fails while its failure is there,
where the command line names it or its repro folder (``pytest minidbg_repros/``); all else is as
without this plugin.

A repro whose header says ``expect = "reproduces"`` is a strict expected failure: it fails once it
is fixed, so that somebody writes ``expect = "gone"`` and it is a regression test from then on. Each
runs in a process of its own, forked where possible from one that has imported torch, and what the
header does not expect is run again in a fresh one: a crash is a result, also under pytest-xdist.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from minidbg.core.errors import MinidbgError
from minidbg.core.files import read_regular
from minidbg.core.outcome import Outcome, Verdict, is_expected
from minidbg.core.script_header import BLOCK, HIDDEN, SCRIPT_LIMIT_BYTES, text_of
from minidbg.judge.command import judge_command
from minidbg.watch.repros import Repro, is_script, read_repro
from minidbg.watch.runner import fork_for, outcome_of_job
from minidbg.watch.settings import Devices, Workers, chosen_devices, parse_devices
from minidbg.workers import Request, Scripts, preload_for

UNJUDGED = (Verdict.SKIPPED, Verdict.INVALID)
POOL = pytest.StashKey[Scripts]()


class KnownFailure(Exception):
    """The repro shows the failure that its header expects."""


class UnexpectedVerdict(Exception):
    """The repro does something that its header does not expect."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("minidbg", "repro scripts of minidbg")
    group.addoption(
        "--minidbg",
        action="store_true",
        help="collect repro scripts, each against what its header expects",
    )
    group.addoption(
        "--minidbg-devices",
        metavar="DEVICES",
        help="as --minidbg, on these: cpu,cuda:1 (default: each on its own)",
    )
    group.addoption(
        "--minidbg-seconds",
        type=float,
        default=300.0,
        metavar="S",
        help="time limit of a repro (default: %(default)s)",
    )


def pytest_configure(config: pytest.Config) -> None:
    try:
        if "all" in (parse_devices(config.getoption("minidbg_devices")) or ()):
            raise pytest.UsageError("--minidbg-devices: name each, such as cpu,cuda:1")
    except MinidbgError as error:
        raise pytest.UsageError(str(error)) from error


def session_pool(config: pytest.Config, backends: set[str]) -> Scripts:
    """The interpreters of this test session, started when the first repro runs."""
    if POOL not in config.stash:
        config.stash[POOL] = Scripts(preload_for(backends, forks=sys.platform == "linux"))
        config.add_cleanup(config.stash[POOL].close)
    return config.stash[POOL]


@pytest.hookimpl(tryfirst=True)
def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect repros that pytest would pass by: those of a folder that is named, too."""
    config, folder, is_named = parent.config, file_path.parent, parent.session.isinitpath
    by_words = config.args_source is pytest.Config.ArgsSource.ARGS
    is_in_named_folder = by_words and is_named(folder) and (folder / HIDDEN).is_dir()
    if not (wanted(config) or is_in_named_folder) or not is_repro(file_path):
        return None
    patterns = [*config.getini("python_files"), "__init__.py"]
    if is_named(file_path) or any(map(file_path.match, patterns)):
        return None  # it comes by pytest_pycollect_makemodule: never twice
    made = ReproFile if wanted(config) else pytest.Module
    return made.from_parent(parent, path=file_path)


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> Any:
    """Take the place of a repro's module: one that is named, or ``test_*.py``."""
    if not wanted(parent.config) or not is_repro(module_path):
        return None
    return ReproFile.from_parent(parent, path=module_path)


def wanted(config: pytest.Config) -> bool:
    return bool(config.getoption("minidbg")) or config.getoption("minidbg_devices") is not None


def is_repro(path: Path) -> bool:
    """Whether the file is a repro script, outside ``.minidbg``, damaged or not."""
    if not is_script(path.name) or HIDDEN in path.parts:
        return False
    try:
        block = BLOCK.search(text_of(read_regular(path, SCRIPT_LIMIT_BYTES)))
    except (OSError, UnicodeDecodeError):
        return False
    return block is not None and "[tool.minidbg]" in block["content"]


class ReproFile(pytest.File):
    """A repro script: one test for each device."""

    def collect(self) -> Iterator[pytest.Item]:
        """Raises CollectError for a damaged script."""
        repro = read_repro(self.path, self.name)
        if repro is None or repro.damage:
            raise self.CollectError(f"{self.path}: {repro.damage if repro else 'has gone'}")
        wanted = parse_devices(self.config.getoption("minidbg_devices"))
        for device in chosen_devices(repro.spec.device, wanted, Devices({})):
            name = f"test_repro[{device}]"
            yield ReproItem.from_parent(self, name=name, repro=repro, device=device)


class ReproItem(pytest.Item):
    def __init__(self, *, repro: Repro, device: str, **more: Any) -> None:
        super().__init__(**more)
        self.repro, self.device = repro, device
        if repro.expect is Verdict.REPRODUCES:
            reason = f"known failure in {repro.spec.backend.name}"
            self.add_marker(pytest.mark.xfail(reason=reason, raises=KnownFailure, strict=True))

    def runtest(self) -> None:
        outcome = self.judged(fresh=False)
        if outcome.verdict not in UNJUDGED and not is_expected(outcome.verdict, self.repro.expect):
            outcome = self.judged(fresh=True)
        if outcome.verdict in UNJUDGED:
            pytest.skip(f"{outcome.verdict}: {outcome.reason}")
        expected = is_expected(outcome.verdict, self.repro.expect)
        if outcome.verdict is Verdict.GONE and self.repro.expect is Verdict.REPRODUCES:
            self.add_report_section(
                "call", "minidbg", f'fixed: write expect = "gone" into the header of {self.path}'
            )
        elif outcome.verdict is not Verdict.GONE and expected:
            raise KnownFailure(outcome_sentence(outcome))
        elif not expected:
            sentence = outcome_sentence(outcome)
            raise UnexpectedVerdict(f"{sentence}; the header expects {self.repro.expect}")

    def judged(self, *, fresh: bool) -> Outcome:
        repros = [item.repro for item in self.session.items if isinstance(item, ReproItem)]
        pool = session_pool(self.config, {repro.spec.backend.name for repro in repros})
        fork = fork_for(Workers.AUTO, self.device, fresh=fresh)
        limit = self.config.getoption("minidbg_seconds")
        if self.repro.may_hang:
            limit = min(limit, self.repro.spec.time_limit_s)
        request = Request(judge_command(self.repro.path, device=self.device), seconds=limit, fork=fork)
        return outcome_of_job(self.repro, self.device, pool.run(request))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """A verdict needs no traceback of ours."""
        if isinstance(excinfo.value, KnownFailure | UnexpectedVerdict):
            return f"{self.path}: {excinfo.value}"
        return super().repr_failure(excinfo)

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, 0, f"{self.path.name}[{self.device}]"


def outcome_sentence(outcome: Outcome) -> str:
    said = "\n".join(outcome.message.splitlines()[:5])
    return ": ".join(part for part in (str(outcome.verdict), outcome.reason, said) if part)
