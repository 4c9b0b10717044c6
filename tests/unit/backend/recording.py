"""What the tests of the wrapper share: a stand-in for the answer to a failure, which remembers what it was asked."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from minidbg.case import Case
from minidbg.settings import Settings


@dataclass(frozen=True)
class StubReport:
    line: str
    path: Path | None = None
    capture: Path | None = None


@dataclass
class Answers:
    """Stands in for ``minidbg.backend.respond.on_failure``."""

    cases: list[Case] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)
    settings: list[Settings] = field(default_factory=list)

    def __call__(self, case: Case, error: BaseException, settings: Settings) -> StubReport:
        self.cases.append(case)
        self.errors.append(error)
        self.settings.append(settings)
        return StubReport(f"report {len(self.cases)}", path=Path(f"repro_{len(self.cases)}.py"))
