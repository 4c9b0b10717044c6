"""A repro as one HTML page that stands alone: no network, no scripts, opens from disk, light and dark."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pygments
from markupsafe import Markup
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from minidbg.history import Observation
from minidbg.report.errors_along import ErrorsAlong
from minidbg.report.marked_nodes import Mark, left_in
from minidbg.report.story import LoggedCall, Story, difference, facts
from minidbg.repro.header import script_text
from minidbg.source.node_list import ListedNode, read_nodes
from minidbg.words import templates
from minidbg.words.errors import UnreadableRepro
from minidbg.words.outcome import Verdict, contradiction
from minidbg.words.script_header import DIVIDER, heading
from minidbg.words.text import display_path, moment, plural

MOST_LISTED = 20_000
"""Nodes that a list on the page has at most."""
SMALLEST_SHOWN, BAR_PX = 1e-8, 72
TIMELINE = 120
"""Runs of a device that are shown."""


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """What was seen of a repro on one device."""

    device: str
    verdict: str
    since: str
    runs: int
    cells: Sequence[tuple[str, str]]
    """Verdict and when, oldest first."""


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A line of the graph's list."""

    number: int
    mark: Mark | None
    node: ListedNode
    error: float | None
    is_wrong: bool

    @property
    def bar_px(self) -> float:
        """How long the bar of the error is, by the logarithm: nothing up to SMALLEST_SHOWN, BAR_PX from 1 on."""
        error = min(max(self.error or 0.0, SMALLEST_SHOWN), 1.0)
        return round(BAR_PX * (1 - math.log10(error) / math.log10(SMALLEST_SHOWN)), 1)


def page(
    story: Story, errors: ErrorsAlong | None = None, *, complaint: str = "", body_only: bool = False
) -> str:
    """The page of ``story``; ``errors`` along its graph (or its capture's), and a ``complaint`` to be shown.

    ``body_only``: what the page of ``minidbg watch`` does not know itself, as a part of a page: facts, neighbour, captured
    graph, reduction.
    """
    nodes = marked_nodes(story)
    rows = list(node_rows(nodes or measured_nodes(errors), errors))
    lines = difference(story.parts.model, story.neighbour.model) if story.neighbour else ()
    variables = {
        "story": story,
        "title": heading(story.docstring, story.message) or story.title,
        "news": list(filter(None, news(story))),
        "facts": [*facts(story), *(() if body_only else [("run", f"python {display_path(story.path)}")])],
        "complaint": complaint,
        "graph_note": graph_note(story, nodes),
        "left": [row for row in rows if row.mark is not Mark.REMOVED],
        "removed": [row for row in rows if row.mark is Mark.REMOVED],
        "most_listed": MOST_LISTED,
        "answers": answer_counts(story.steps),
        "successes": list(successes(story.steps)),
        "errors": errors,
        "devices": list(device_rows(story)),
        "flips": [
            (moment(flip.at), flip.device, flip.kind, f"{flip.before} → {flip.after}")
            for flip in story.past.flips
        ],
        "stages": story.stages,
        # what each line is: fails, passes, or in both
        "neighbour": [({"-": "fails", "+": "passes"}.get(line[:1], ""), line) for line in lines],
        "neighbour_nodes": story.neighbour.nodes if story.neighbour else 0,
        "model": Markup(highlighted(story.parts.model)),
        "script": Markup(highlighted(story.text.split(DIVIDER)[0].rstrip() + "\n")),
        "made": moment(time.time()),
    }
    return templates.fill("story.html.j2" if body_only else "page.html.j2", variables)


def highlighted(source: str) -> str:
    """``source`` as HTML, to stand in ``<pre>``: a span with a class for each kind of word."""
    text: str = pygments.highlight(source, PythonLexer(stripnl=False), HtmlFormatter(nowrap=True))
    return text


# --- the graph, one line a node ---


def marked_nodes(story: Story) -> Sequence[tuple[Mark | None, ListedNode]]:
    """The nodes that the capture carries, each with what became of it; without marks for a capture's own page."""
    if story.capture is None:
        return ()
    try:
        nodes = read_nodes(script_text(story.capture))
    except UnreadableRepro:
        return ()
    left = left_in(story.parts.model) if story.capture.absolute() != story.path.absolute() else None
    return [(left.mark(node) if left else None, node) for node in nodes]


def node_rows(
    nodes: Sequence[tuple[Mark | None, ListedNode]], errors: ErrorsAlong | None
) -> Iterator[NodeRow]:
    """A row for each node, in the graph's order."""
    known = dict(zip(errors.names, errors.errors, strict=True)) if errors else {}
    for number, (mark, node) in enumerate(nodes, 1):
        error = None if node.graph else known.get(node.name)
        is_wrong = error is not None and errors is not None and error > errors.allowed
        yield NodeRow(number, mark, node, error, is_wrong)


def measured_nodes(errors: ErrorsAlong | None) -> Sequence[tuple[None, ListedNode]]:
    """For a script that carries no list of its nodes, those whose errors are known."""
    return [(None, ListedNode(name, "")) for name in errors.names] if errors else ()


def graph_note(story: Story, nodes: Sequence[tuple[Mark | None, ListedNode]]) -> str:
    """What the list shows, in a sentence."""
    marks = Counter(mark for mark, _ in nodes)
    if not nodes:
        lacking = "its capture carries no list of its nodes"
        why = lacking if story.capture else "no capture of the graph that it came from lies beside it"
        return f"The script's own graph stands above: {why}."
    counts = ", ".join(f"{marks[mark]} {mark}" for mark in Mark)
    return f"The {len(nodes)} inputs and nodes of the graph as it was captured{'' if None in marks else f': {counts}'}."


# --- how it was found ---

ANSWERS = {
    "interesting": "failed the same way",
    "not": "passed",
    "other": "failed otherwise",
    "invalid": "proved nothing",
}


def answer_counts(steps: Sequence[LoggedCall]) -> str:
    """``6 runs: 3 failed the same way, 1 passed``; empty when none were logged."""
    counts = Counter(step.answer for step in steps)
    said = ", ".join(f"{counts[answer]} {words}" for answer, words in ANSWERS.items() if counts[answer])
    return f"{plural(len(steps), 'run')}: {said}" if steps else ""


def successes(steps: Sequence[LoggedCall]) -> Iterator[tuple[int, LoggedCall]]:
    """The calls that found a smaller graph than all before, each with its number."""
    best = (math.inf, math.inf)
    for number, step in enumerate(steps, 1):
        if step.answer == "interesting" and (step.nodes, step.inputs) < best:
            best = (step.nodes, step.inputs)
            yield number, step


# --- where it was seen ---


def news(story: Story) -> Iterator[str]:
    """Where the header is contradicted, a sentence for each device; empty for the others."""
    for state in story.past.states:
        verdict, expect = Verdict(state.verdict), Verdict(story.header.expect)
        yield contradiction(verdict, expect, repro=story.path.stem, device=state.device)


def device_rows(story: Story) -> Iterator[DeviceRow]:
    states = {state.device: state for state in story.past.states}
    runs: dict[str, list[Observation]] = {}
    for result in story.past.runs:
        runs.setdefault(result.device, []).append(result)
    for device in sorted({*states, *runs}):
        state = states.get(device)
        latest = runs.get(device, [])[:TIMELINE]
        yield DeviceRow(
            device,
            str(state.verdict) if state else "not judged",
            moment(state.since) if state else "",
            state.runs if state else len(latest),
            [
                (str(one.verdict), f"{moment(result.at)} {one.verdict} {one.reason}")
                for result in reversed(latest)
                if (one := result.outcome)
            ],
        )
