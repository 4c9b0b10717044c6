"""What is known about a repro, from its header, its text and the files around it, and that as text.
Nothing of it is executed."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minidbg import repro
from minidbg.core.errors import MinidbgError
from minidbg.core.records import plain
from minidbg.core.script_header import HIDDEN, Header
from minidbg.core.text import display_path, moment, plural
from minidbg.history import HISTORY_FILE, History, State
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
    states: tuple[State, ...] = ()
    """The present one on each device."""

    @property
    def message(self) -> str:
        return self.header.provenance.message.strip()

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
            "devices": [
                {name: getattr(state, name) for name in OF_STATE} for state in self.states
            ],
        }  # fmt: skip


def repro_details(path: Path) -> ReproDetails:
    """All that is known, with nothing run. Raises UnreadableRepro."""
    text = script_text(path)
    header = header_of(text, path)
    parts = read_parts(text, header)
    title = (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0].strip()
    return ReproDetails(
        path=path,
        text=text,
        header=header,
        parts=parts,
        title=title or f"{header.spec.backend.name}: {header.spec.expected.kind}",
        states=states_seen(path, repro.folder_of(path)),
    )


# --- what lies around it ---


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
    if origin.neighbour:
        yield "but", origin.neighbour
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
    return f"{figures['nodes']} of {plural(figures['nodes_before'], 'node')}, {of} ({proof})"
