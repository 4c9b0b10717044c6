"""Sentences for people, each asserted once: here, by name, against ``messages.txt``. Other tests look at types, fields and key words.

After a change that is meant, write them anew with ``MINIDBG_WRITE_GOLDEN=1 pytest tests/golden/test_messages.py`` and read the
difference. To add one, give it a name and what produces it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from minidbg.commands.output import existing_folder, find_repro
from minidbg.commands.run.launch import failure_lines, graph_lines, nothing_failed
from minidbg.core.errors import MinidbgError
from minidbg.core.outcome import Kind, Signature, Verdict
from minidbg.core.run_spec import BackendRef, Provenance, RunSpec
from minidbg.core.script_header import Header
from minidbg.core.settings import Reduce, Settings
from minidbg.core.text import moment
from minidbg.fx.case import Case
from minidbg.fx.copying import capture_by_dynamo
from minidbg.reduction.result import Progress, ReductionResult, figures_of
from minidbg.report.details import reduction_line
from minidbg.report.stages import StageReport
from minidbg.repro.loading import read_parts
from minidbg.watch.queries import list_text
from minidbg.workers import Ended
from minidbg.wrapper import handle

FILE = Path(__file__).with_name("messages.txt")
NOW = 1_800_000_000.0


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(MinidbgError) as refusal:
        call()
    return str(refusal.value)


def folder_of(*names: str) -> Path:
    """A repro folder below the working directory."""
    folder = Path("repros")
    folder.mkdir()
    for name in names:
        (folder / f"{name}.py").touch()
    return folder


WRITTEN = ReductionResult(Path("r.py"), 812, 1, 14, 3.21, True, Verdict.REPRODUCES)
NOTHING = replace(WRITTEN, path=None, verdict=Verdict.GONE)


def written(**changes: Any) -> str:
    return replace(WRITTEN, **changes).line


def report_on(*, notes: tuple[str, ...] = (), same_as: Path | None = None) -> str:
    """The line on an exception whose failure is captured, and not reduced now."""
    graph_module, inputs = capture_by_dynamo(torch.relu, (torch.ones(3),))
    spec = RunSpec(BackendRef("b", "b"), signature=Signature(Kind.COMPILE))
    case = Case(graph_module, inputs, spec, Provenance(notes=notes))
    settings = Settings(repro_dir=Path("repros"), reduce=Reduce.LATER)
    return re.sub(r"captures/\w+\.py", "captures/c.py", handle.respond(case, settings, same_as).line)


def graphs(*kinds: str, **changes: Any) -> str:
    counts = {"graphs": 0, "verified": 0, "failed": 0, "not_run": 0, "not_verified": {}, "left_out": {}}
    return "\n".join(graph_lines([{**counts, **changes}], kinds))


def graphs_of_two_processes() -> str:
    counts = {
        "graphs": 3,
        "verified": 1,
        "failed": 0,
        "not_run": 1,
        "not_verified": {"no memory": 1},
        "left_out": {},
    }
    other = {**counts, "graphs": 1, "not_run": 0, "not_verified": {}, "left_out": {"output 0": 1}}
    return "\n".join(graph_lines([counts, other]))


def failures(*kinds: str) -> str:
    return "\n".join(failure_lines([{"backend": "mine", "kind": kind, "line": "1 -> 0"} for kind in kinds]))


def parts_without(name: str) -> str:
    text = "class Repro: ...\ndef inputs(): ...\n"
    lacking = re.sub(rf"(?m)^(class|def) {name}.*\n", "", text)
    return refused(lambda: read_parts(lacking, Header(RunSpec(BackendRef("b", "b")), path=Path("r.py"))))


def row(**changes: Any) -> dict[str, Any]:
    known = {"repro": "a.py", "device": "cpu", "kind": "compile", "backend": "mine", "expect": "reproduces"}
    return {**known, "verdict": None, "since": None, "reason": "", **changes}


def listed(**changes: Any) -> str:
    return list_text([row(**changes)]).replace(moment(NOW), "MOMENT")


FIGURES = {
    "reduced": True,
    "nodes": 1,
    "nodes_before": 21,
    "inputs": 1,
    "inputs_before": 1,
    "certified": True,
}
STAGES = StageReport(
    {"eager": Verdict.GONE, "inductor": Verdict.REPRODUCES},
    "inductor",
    ("`pattern_matcher=False`",),
)

MESSAGES: Mapping[str, Callable[[], str]] = {
    "a result": written,
    "a result: one run": lambda: written(oracle_calls=1),
    "a result: nothing to remove": lambda: written(nodes_before=1),
    "a result: none removed": lambda: written(nodes_before=3, nodes_after=3, certified=False),
    "a result: known": lambda: written(known_before=True),
    "a result: another failure": lambda: written(also_found=1, others=(("input 3 differs", "c/a.py"),)),
    "a result: other failures": lambda: written(also_found=3, others=(("input 3 differs", "c/a.py"),)),
    "a result: others that could not be kept": lambda: written(also_found=1),
    "a result: perhaps not minimal": lambda: written(certified=False),
    "a result: out of budget": lambda: written(certified=False, ended_by="budget of 8 s"),
    "a result: out of budget at the end": lambda: written(ended_by="budget of 8 s"),
    "a result: nothing": lambda: NOTHING.line,
    "a result: nothing, with reasons": lambda: replace(NOTHING, notes=("eager agrees", "it is late")).line,
    "a result: not verified": lambda: replace(NOTHING, ended_by="budget of 8 s").line,
    "progress": lambda: figures_of(Progress("nodes", 7, 8, 3, 5.4)),
    "progress: one run": lambda: figures_of(Progress("nodes", 8, 8, 1, 0.4)),
    "progress: waiting": lambda: figures_of(Progress("waiting", 0, 0, 0, 7.0)),
    "an exception: later": report_on,
    "an exception: later, with a reason": lambda: report_on(notes=("not reduced at once: it is late",)),
    "an exception: the same failure again": lambda: report_on(same_as=Path("repros/compile_relu_38c761.py")),
    "no answer: disk full": lambda: Ended(error="x\nOSError: [Errno 28] No space left on device").why_no_answer,
    "no answer: signal": lambda: Ended(signal=11, stderr_tail="first\nlast words\n").why_no_answer,
    "no answer: status": lambda: Ended(exit_status=3).why_no_answer,
    "no answer: time": lambda: Ended(timed_out=True, seconds=7.2).why_no_answer,
    "run: a failure": lambda: failures("compile"),
    "run: equal failures": lambda: failures("runtime", "runtime"),
    "run: wrong results": lambda: failures("accuracy"),
    "run: a graph that agrees": lambda: graphs(graphs=1, verified=1),
    "run: graphs that agree": lambda: graphs(graphs=3, verified=2, not_run=1),
    "run: a graph that did not compile": lambda: graphs("compile", graphs=1, failed=1),
    "run: graphs that failed": lambda: graphs("compile", "accuracy", graphs=3, verified=1, failed=2),
    "run: a graph that was not verified": lambda: graphs(graphs=1, not_verified={"no memory": 1}),
    "run: nothing was compiled": lambda: nothing_failed([], 0),
    "run: nothing was compiled, and the program failed": lambda: nothing_failed([], 2),
    "run: nothing was compiled, and the program died": lambda: nothing_failed([], -11),
    "run: no failure": lambda: nothing_failed([{"event": "wrapped", "backend": one} for one in ("a", "a", "b")], 0),
    "run: graphs of two processes": graphs_of_two_processes,
    "run: graphs verified in part": lambda: graphs(graphs=2, verified=2, left_out={"output 0": 2}),
    "a result: known, of one node": lambda: written(known_before=True, nodes_before=1),
    "a name: of another folder": lambda: refused(lambda: find_repro(Path("other/x.py"), folder_of("x"))),
    "a name: none": lambda: refused(lambda: find_repro(Path("x"), folder_of("a_relu", "b_relu"))),
    "a name: several": lambda: refused(lambda: find_repro(Path("relu"), folder_of(*"abcdefg", *(f"{one}_relu" for one in "abcdefg")))),
    "a name: no repros": lambda: refused(lambda: find_repro(Path("x"), folder_of())),
    "a script without inputs": lambda: parts_without("inputs"),
    "a script without its model": lambda: parts_without("Repro"),
    "stages": lambda: STAGES.sentence,
    "show: figures": lambda: reduction_line(FIGURES),
    "show: figures where values on the way became inputs": lambda: reduction_line({**FIGURES, "inputs": 2}),
    "list: no folder": lambda: refused(lambda: existing_folder(None)),
    "list: not seen": listed,
    "list: not seen since it was written": lambda: listed(written=NOW),
    "list: contradicts its header": lambda: listed(verdict="gone", since=NOW, expected=False),
    "list: empty": lambda: list_text([]),
}  # fmt: skip


def golden() -> Iterator[tuple[str, str]]:
    """Name and text of each message in the file."""
    if FILE.exists():
        parts = re.split(r"(?m)^## (.+)\n", FILE.read_text())
        yield from zip(parts[1::2], (text.rstrip("\n") for text in parts[2::2]), strict=True)


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_says_what_was_agreed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.environ.get("MINIDBG_WRITE_GOLDEN")
    monkeypatch.delenv("MINIDBG_WRITE_GOLDEN", raising=False)  # it is no setting of minidbg
    monkeypatch.delenv("MINIDBG_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    said = MESSAGES[name]()
    if write:
        known = {**dict(golden()), name: said}
        FILE.write_text("".join(f"## {one}\n{known[one]}\n" for one in MESSAGES if one in known))
    assert said == dict(golden()).get(name)


def test_the_file_has_no_message_that_nothing_produces() -> None:
    assert [name for name, _ in golden()] == list(MESSAGES)
