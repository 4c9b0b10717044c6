"""What a run of a case showed: ``Verdict``, ``Signature``, ``Outcome``."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from minidbg.core.kinds import Kind
from minidbg.core.records import plain, record_of


class Direction(enum.StrEnum):
    FORWARD = "forward"
    BACKWARD = "backward"


class Verdict(enum.StrEnum):
    """What one run of a case says about its failure.

    ``gone``: runs and agrees with eager. ``reproduces``: the same signature. ``flaky``: in some of
    several runs. ``changed``: fails, but otherwise; ``crashed`` and ``timeout``: died, or never
    came back, where another kind was expected. ``skipped``: a device, backend or module is missing
    here. ``invalid``: eager itself fails, so nothing is proven.
    """

    GONE = "gone"
    REPRODUCES = "reproduces"
    CHANGED = "changed"
    CRASHED = "crashed"
    TIMEOUT = "timeout"
    FLAKY = "flaky"
    SKIPPED = "skipped"
    INVALID = "invalid"

    @property
    def exit_status(self) -> int:
        return EXIT_STATUS[self]


EXIT_STATUS: Mapping[Verdict, int] = {
    Verdict.GONE: 0,
    Verdict.REPRODUCES: 1,
    Verdict.FLAKY: 1,
    Verdict.CHANGED: 3,
    Verdict.CRASHED: 3,
    Verdict.TIMEOUT: 3,
    Verdict.SKIPPED: 125,
    Verdict.INVALID: 125,
}


def is_expected(verdict: Verdict, expect: Verdict) -> bool:
    """Whether a header expecting ``expect`` accepts ``verdict``; a flaky failure is a known one."""
    return verdict is expect or (expect is Verdict.REPRODUCES and verdict is Verdict.FLAKY)


# Sizes in a message whose numbers are #, each a whole word: a row of them is read in one way
SYMBOL = r"(?:[suz]|zf|zuf)#"
SIZE = rf"(?<![\w#])(?:{SYMBOL}|#|Max|Min|(?:Python)?Mod|ModularIndexing|\w+Div|floor|ceiling|Eq|Ne|Ge|Gt|Le|Lt|To\w+|TruncTo\w+)(?![\w#])"
ROW = rf"(?<![\w#])(?:{SIZE}|[\s()+\-*/%<>=,^&|])+"


def without_expressions(message: str) -> str:
    """``message`` with ``#`` for each expression of symbolic sizes: each graph has others."""

    def shortened(row: re.Match[str]) -> str:
        sizes = list(re.finditer(SIZE, row[0])) if re.search(SYMBOL, row[0]) else []
        if not sizes:
            return row[0]
        return f"{row[0][: sizes[0].start()].rstrip('(-')}#{row[0][sizes[-1].end() :].lstrip(')')}"

    return re.sub(ROW, shortened, re.sub("[\ud800-\udfff]", "\ufffd", message))


def same_message(one: str, other: str) -> bool:
    return one == other or without_expressions(one) == without_expressions(other)


@dataclass(frozen=True, slots=True)
class Signature:
    """What makes two failures the same one.

    ``types`` are qualified exception types, outermost first; ``frames`` are ``module:function`` of
    the innermost frames outside torch.fx and minidbg, innermost first, without line numbers;
    ``message`` has addresses, paths, generated names, shapes and numbers taken out.
    """

    kind: Kind
    direction: Direction = Direction.FORWARD
    types: tuple[str, ...] = ()
    frames: tuple[str, ...] = ()
    message: str = ""
    others: tuple[Signature, ...] = ()
    """Further forms of the same failure: chance, like hash order, decides which is raised."""

    def matches(self, other: Signature | None) -> bool:
        """Whether ``other`` is the same failure: every field equal, of the frames the innermost; or
        one of the further forms.

        Outer frames depend on the way to the bug (a pass or a lowering), which reduction changes.
        """
        return any(one.matches(other) for one in self.others) or (
            other is not None
            and (self.kind, self.direction) == (other.kind, other.direction)
            and self.types == other.types
            and self.frames[:1] == other.frames[:1]
            and same_message(self.message, other.message)
        )

    def unlike(self, other: Signature) -> str:
        """Why ``other`` is another failure: ``the same message; frames: expected a:f, got b:g``."""
        messages = f"message: expected {self.message}, got {other.message}"
        parts = ["the same message" if same_message(self.message, other.message) else messages]
        for name in ("kind", "direction", "types", "frames"):
            mine, its = (getattr(one, name) for one in (self, other))
            if isinstance(mine, tuple):
                end = 1 if name == "frames" else None
                mine, its = (", ".join(one[:end]) or "none" for one in (mine, its))
            parts += [f"{name}: expected {mine}, got {its}"] if mine != its else []
        return "; ".join(parts)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The answer of one run: the verdict and what led to it.

    ``to_json`` gives what ``minidbg check --json`` and a repro's own ``--json`` print.
    """

    verdict: Verdict
    signature: Signature | None = None
    reason: str = ""
    """One sentence for people."""
    message: str = ""
    """The first lines of what the backend said, unchanged."""
    seconds: float = 0.0
    device: str = "cpu"
    signal: int | None = None
    """The signal that ended the process, if one did."""
    reproduced: int | None = None
    runs: int | None = None
    """``reproduced`` of ``runs`` runs showed the failure, where it was asked several times."""
    figures: Mapping[str, Any] = field(default_factory=dict)
    """Error figures of an accuracy failure, as the harness names them."""
    stderr: str = ""
    """Of a process that died or was ended: the end of what it wrote, with faulthandler's stack."""
    suspects: tuple[tuple[str, ...], ...] = ()
    """Names of nodes that the failure's frames held, one group a frame, the innermost first."""

    @property
    def in_words(self) -> str:
        """``gone``, ``changed: raises KeyError``: the verdict, and the reason if there is one."""
        return f"{self.verdict}: {self.reason}" if self.reason else str(self.verdict)

    def to_json(self) -> dict[str, Any]:
        return {**plain(self), "seconds": round(self.seconds, 3)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Outcome:
        """Read ``to_json`` back. Raises ValueError on a damaged object."""
        return record_of(data, cls)

    def judged_against(self, expected: Signature | None) -> Outcome:
        """This outcome of a run, with the verdict it means for a case that expects ``expected``.

        A run that failed is ``reproduces`` when its signature matches, else ``changed``; without an
        expectation every failure reproduces. Crashes and hangs are the same by their kind: stacks
        vary.
        """
        shown, no_failure = self.signature, (Verdict.GONE, Verdict.SKIPPED, Verdict.INVALID)
        if shown is None or self.verdict in no_failure:
            return self
        same_death = expected is not None and shown.kind.traits.dies and expected.kind is shown.kind
        if expected is None or same_death or expected.matches(shown):
            return replace(self, verdict=Verdict.REPRODUCES)
        return replace(self, verdict=Verdict(shown.kind.traits.otherwise))
