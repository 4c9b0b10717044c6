"""One home for what the tests of a failing program begin with: nothing compiled, no failure answered, the same random numbers."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from minidbg.core.settings import Settings
from minidbg.fx.case import Case
from minidbg.wrapper import Report
from minidbg.wrapper.process import PROCESS


@pytest.fixture(autouse=True)
def as_in_a_new_process() -> Iterator[None]:
    PROCESS.__init__()
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    PROCESS.__init__()
    torch._dynamo.reset()


@dataclass
class Answers:
    """Stands in for writing and reducing, and remembers what was to be reduced."""

    cases: list[Case] = field(default_factory=list)
    settings: list[Settings] = field(default_factory=list)
    inputs: list[list[Any]] = field(default_factory=list)

    def __call__(self, case: Case, settings: Settings, same_as: Path | None = None) -> Report:
        self.cases.append(case)
        self.settings.append(settings)
        self.inputs.append([v.clone() if isinstance(v, torch.Tensor) else v for v in case.inputs])
        torch.rand(3), random.random()  # our work may use the RNGs; the program must not notice
        return Report(f"report {len(self.cases)}", Path("r.py"))


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What minidbg has logged for people; torch's own loggers are not of interest."""
    records = [one for one in caplog.records if one.name == "minidbg" and one.levelno >= logging.WARNING]
    return [one.getMessage() for one in records]
