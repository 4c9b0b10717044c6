"""``StageReport``: what a repro's graph does under each stage of compiling, as values, TOML and a sentence, and how a script comes to hold it."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from minidbg.errors import UnreadableRepro
from minidbg.failure import Verdict
from minidbg.metadata import BLOCK
from minidbg.repro import Header
from minidbg.repro.folder import replace_file
from minidbg.repro.header import header_of, script_text, write_value
from minidbg.repro.wording import USAGE, escaped

FAILING = frozenset({"reproduces", "flaky", "changed", "crashed", "timeout"})
"""Verdicts of a stage at which the graph fails, in the same way or another."""

EARLIER = ("eager", "aot_eager", "aot_eager_decomp_partition")
"""Stages before a compiler: dynamo alone, with AOTAutograd, with decompositions and the partitioner."""

WHAT = {
    "eager": "dynamo's own graph fails without any backend, so torch.compile's frontend is at fault",
    "aot_eager": "it fails in AOTAutograd already, before any compiler",
    "aot_eager_decomp_partition": "it fails with decompositions and the partitioner already, before any compiler",
}


@dataclass(frozen=True, slots=True)
class StageReport:
    """What the stages said."""

    verdicts: Mapping[str, Verdict]
    """Stage -> verdict, in the order of compiling; the last one is the repro's own backend."""
    backend: str
    subsystem: str = ""
    """Of inductor: without it the failure is gone. ``lowerings``, ``post_grad_passes``, ``inductor_cse``."""
    number: int | None = None
    """Which application of the subsystem, counted from 0, brings the failure; None for one that is on or off."""
    detail: str = ""
    """What the bisector says of that application: a pass, a node."""
    seconds: float = 0.0
    torch: str = ""
    notes: tuple[str, ...] = field(default=())
    """Why something could not be found out."""

    @property
    def guilty(self) -> str:
        """The first stage that fails; an empty text when none does."""
        return next((name for name, verdict in self.verdicts.items() if verdict in FAILING), "")

    @property
    def sentence(self) -> str:
        """The result for people, one line."""
        return "; ".join((self._stage(), *self.notes))

    def _stage(self) -> str:
        passing = [name for name, verdict in self.verdicts.items() if verdict is Verdict.GONE]
        listed = " and ".join(filter(None, (", ".join(passing[:-1]), *passing[-1:])))
        passed = f"{listed} pass{'es' if len(passing) == 1 else ''}" if passing else ""
        if not self.guilty:
            return f"no stage fails through torch.compile ({passed or 'none could be judged'})"
        if self.guilty in WHAT and self.guilty != self.backend:
            return WHAT[self.guilty] + (f"; {passed}" if passed else "")
        fails = f"{self.guilty} fails{self._culprit()}"
        return f"{passed}; {fails}" if passed else fails

    def _culprit(self) -> str:
        if not self.subsystem:
            return ""
        if self.number is None:
            return f", and passes with {self.subsystem} changed"
        told = f" ({self.detail})" if self.detail else ""
        return f", and passes without number {self.number} of its {self.subsystem}{told}"

    def to_table(self) -> dict[str, Any]:
        """Plain values for the header; ``from_table`` reads them back."""
        told: dict[str, Any] = {"subsystem": self.subsystem, "number": self.number, "detail": self.detail}
        table: dict[str, Any] = {"guilty": self.guilty, "backend": self.backend}
        table |= {name: value for name, value in told.items() if value not in ("", None)}
        table |= {"seconds": round(self.seconds, 1), "torch": self.torch}
        table |= {"notes": list(self.notes)} if self.notes else {}
        return {**table, "verdicts": {name: str(verdict) for name, verdict in self.verdicts.items()}}

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> StageReport:
        """Read ``to_table`` back. Raises KeyError, ValueError or TypeError on a damaged table."""
        return cls(
            verdicts={str(name): Verdict(verdict) for name, verdict in table["verdicts"].items()},
            backend=str(table["backend"]),
            subsystem=str(table.get("subsystem", "")),
            number=table.get("number"),
            detail=str(table.get("detail", "")),
            seconds=float(table.get("seconds", 0.0)),
            torch=str(table.get("torch", "")),
            notes=tuple(map(str, table.get("notes", ()))),
        )


def stages_of(header: Header) -> StageReport | None:
    """What the repro's header says about the stages; None when nobody has asked yet, or it was damaged by hand."""
    table = header.table.get("stages")
    try:
        return StageReport.from_table(table) if isinstance(table, Mapping) else None
    except (KeyError, ValueError, TypeError, AttributeError):
        return None


LINE = re.compile(r"(?m)^Stages: .*\n\n?")


def keep_stages(path: Path | str, report: StageReport) -> None:
    """Write ``report`` into the script at ``path``, in place of an earlier one; all else stays as it is.

    A reader sees the old script or the new one. A docstring that a person has rewritten is left alone. Raises
    UnreadableRepro when the script is none of ours, and OSError.
    """
    path = Path(path)
    old = script_text(path)
    before = header_of(old, path)
    new = with_line(with_table(old, report), report)
    after = header_of(new, path)
    rest = {key: value for key, value in after.table.items() if key != "stages"}
    if rest != {key: value for key, value in before.table.items() if key != "stages"}:
        raise UnreadableRepro(f"{path}: its header has a form in which nothing can be added to it")
    ast.parse(new)
    replace_file(path, new.encode())


def with_table(text: str, report: StageReport) -> str:
    """``text`` with ``stages = {...}`` as the first line of ``[tool.minidbg]``."""
    block = BLOCK.search(text)
    assert block is not None, "header_of has read it"
    kept, inside = [], False
    for line in block["content"].rstrip("\n").split("\n"):
        if line.startswith("# ["):
            inside = line.startswith(("# [tool.minidbg.stages]", "# [tool.minidbg.stages."))
        if not inside and not line.startswith("# stages = "):
            kept.append(line)
            if line == "# [tool.minidbg]":
                kept.append(f"# stages = {write_value(report.to_table())}")
    return text[: block.start("content")] + "\n".join(kept) + "\n" + text[block.end("content") :]


def with_line(text: str, report: StageReport) -> str:
    """``text`` whose docstring says the report's sentence before the exit statuses."""
    usage = text.find("\n" + USAGE.partition("\n")[0])
    if usage < 0:
        return text
    docstring, rest = text[: usage + 1], text[usage + 1 :]
    line = escaped(f"Stages: {report.sentence}.")
    return LINE.sub("", docstring) + f"{line}\n{rest}"
