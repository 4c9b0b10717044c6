"""What is known about a repro, from its header, its text and the files around it, and that as text.
Nothing of it is executed."""

from __future__ import annotations

import ast
import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from minidbg import repro
from minidbg.core.errors import MinidbgError
from minidbg.core.files import LOG_LIMIT_BYTES, glob, read_regular
from minidbg.core.records import plain
from minidbg.core.script_header import HIDDEN, Header
from minidbg.core.text import display_path, last_json, moment, plural
from minidbg.history import HISTORY_FILE, History, State
from minidbg.report.stages import StageReport, stages_of
from minidbg.repro.header import header_of, script_text
from minidbg.repro.loading import Parts, read_parts

OF_STATE = ("device", "verdict", "since", "seen", "runs")


@dataclass(frozen=True, slots=True)
class ReproDetails:
    path: Path
    text: str
    header: Header
    parts: Parts
    title: str
    capture: Path | None = None
    """The unreduced capture of the same failure."""
    states: tuple[State, ...] = ()
    """The present one on each device."""

    @property
    def message(self) -> str:
        return self.header.provenance.message.strip()

    @property
    def stages(self) -> StageReport | None:
        """At which stage of compiling the failure comes about; None when nobody has asked yet."""
        return stages_of(self.header)

    @property
    def figures(self) -> Mapping[str, Any]:
        provenance = self.header.provenance
        return {
            "reduced": provenance.reduced,
            "nodes": self.header.nodes,
            "nodes_before": provenance.nodes,
            "inputs": self.header.inputs,
            "inputs_before": provenance.inputs,
            "certified": provenance.certified,
            "oracle_calls": provenance.oracle_calls,
            "seconds": round(provenance.seconds, 3),
        }

    def to_json(self) -> dict[str, Any]:
        header, spec, origin = self.header, self.header.spec, self.header.provenance
        return {
            "repro": str(self.path), "title": self.title, "kind": str(spec.expected.kind),
            "backend": spec.backend.name, "device": spec.device, "call": str(spec.call),
            "expect": header.expect, "message": self.message, "signature": plain(spec.signature),
            "figures": dict(self.figures), "captured_from": origin.captured_from,
            "line": origin.line, "torch": origin.torch_version, "python": origin.python_version,
            "dependencies": list(header.dependencies),
            "notes": list(origin.notes), "passes": origin.neighbour,
            "stages": self.stages and {**self.stages.to_json(), "sentence": self.stages.sentence},
            "capture": str(self.capture) if self.capture else None,
            "devices": [
                {name: getattr(state, name) for name in OF_STATE} for state in self.states
            ],
        }  # fmt: skip


def repro_details(path: Path) -> ReproDetails:
    """All that is known, with nothing run. Raises UnreadableRepro."""
    text = script_text(path)
    header = header_of(text, path)
    parts = read_parts(text, header)
    home = repro.folder_of(path)
    capture, result = reduction_of(path, header, home)
    calls, seconds = result.get("oracle_calls"), result.get("seconds")
    if isinstance(calls, int) and isinstance(seconds, int | float):
        counted = replace(header.provenance, oracle_calls=calls, seconds=float(seconds))
        header = replace(header, provenance=counted)
    states = states_seen(path, home)
    title = (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0].strip()
    return ReproDetails(
        path=path,
        text=text,
        header=header,
        parts=parts,
        title=title or f"{header.spec.backend.name}: {header.spec.expected.kind}",
        capture=capture,
        states=states,
    )


# --- what lies around it ---


def reduction_of(path: Path, header: Header, home: Path) -> tuple[Path | None, Mapping[str, Any]]:
    """The capture that the repro was reduced from, or is, and what its reduction wrote down. One
    that was reduced again began with another number of nodes."""
    captures, folder = (home / HIDDEN / "captures").absolute(), home / HIDDEN / "reductions"
    if path.absolute().parent == captures:
        return path, result_in(folder / path.stem / "done.json")
    for done in glob(folder, "*/done.json"):
        written = result_in(done)
        names = Path(str(written.get("path", ""))).name, written.get("nodes_before")
        if names == (path.name, header.provenance.nodes):
            capture = captures / f"{done.parent.name}.py"
            return capture if os.path.isfile(capture) else None, written
    return None, {}


def result_in(done: Path) -> Mapping[str, Any]:
    """What a finished reduction wrote down as its result; empty when it cannot be read."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return last_json(read_regular(done, LOG_LIMIT_BYTES).decode()) or {}
    return {}


def states_seen(path: Path, home: Path) -> tuple[State, ...]:
    resolved, root = path.absolute(), home.absolute()
    name = str(resolved.relative_to(root)) if resolved.is_relative_to(root) else str(resolved)
    with (
        contextlib.suppress(OSError, MinidbgError),
        History(home / HIDDEN / HISTORY_FILE, readonly=True) as opened,
    ):
        return tuple(state for (one, _), state in sorted(opened.states().items()) if one == name)
    return ()


# --- the text of ``minidbg show`` ---


def summary(details: ReproDetails) -> str:
    lines = (line for line in details.message.splitlines()[:8] if line not in details.title)
    rows = (f"{name:<10}{value}" for name, value in facts(details))
    message = (f"    {line}" for line in lines)
    return "\n".join([details.title, *message, "", *rows, "", details.parts.model])


def facts(details: ReproDetails) -> Iterator[tuple[str, object]]:
    header, origin = details.header, details.header.provenance
    yield "script", display_path(details.path)
    failure = f"{header.spec.expected.kind} in {header.spec.backend.name}"
    yield "failure", f"{failure}, on {header.spec.device}, called by {header.spec.call}"
    yield "reduced", reduction_line(details.figures)
    if origin.captured_from:
        yield "from", f"{origin.captured_from}{f' `{origin.line}`' if origin.line else ''}"
    yield "seen with", f"torch {origin.torch_version}"
    yield "expected", header.expect
    yield from (("note", note) for note in origin.notes)
    if details.capture and details.capture.absolute() != details.path.absolute():
        yield "capture", display_path(details.capture)
    if origin.neighbour:
        yield "but", origin.neighbour
    if details.stages:
        yield "stages", details.stages.sentence
    if not details.states:
        yield "history", "not watched yet; 'minidbg watch' begins one"
    for number, state in enumerate(details.states):
        seen = f"{state.verdict} since {moment(state.since)}, {plural(state.runs, 'run')}"
        yield "" if number else "history", f"{state.device}: {seen}, last {moment(state.seen)}"


def reduction_line(figures: Mapping[str, Any]) -> str:
    if not figures["reduced"]:
        nodes = plural(figures["nodes"], "node")
        return f"no: {nodes}, {plural(figures['inputs'], 'input')}, as captured"
    proof = "no single one can be left out" if figures["certified"] else "perhaps more could be left out"
    inputs, before = figures["inputs"], figures["inputs_before"]
    # values on the way become inputs: there may be more than at first
    of = (
        f"{inputs} of {plural(before, 'input')}"
        if inputs <= before
        else f"{plural(inputs, 'input')} for {before}"
    )
    text = f"{figures['nodes']} of {plural(figures['nodes_before'], 'node')}, {of} ({proof})"
    runs = figures["oracle_calls"]
    return f"{text}; {plural(runs, 'run')}, {figures['seconds']:.1f} s" if runs else text
