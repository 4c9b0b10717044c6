"""A repro as one HTML page that stands alone: no network, no scripts to load, opens from disk, light and dark."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pygments
from markupsafe import Markup
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from minidbg.errors import UnreadableRepro
from minidbg.history import Result
from minidbg.metadata import DIVIDER
from minidbg.printable import display_path, moment
from minidbg.report import svg
from minidbg.report.drawn_graph import SMALL, DrawnNode, fold, kept_names, read_graph
from minidbg.report.errors_along import ErrorsAlong
from minidbg.report.story import Story, difference, facts, story_of
from minidbg.repro import templates

MOST_LISTED = 20_000
"""Nodes whose lines are listed on the page."""
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


def page(
    story: Story, errors: ErrorsAlong | None = None, *, complaint: str = "", body_only: bool = False
) -> str:
    """The page of ``story``; ``errors`` along its graph (or its capture's), and a ``complaint`` to be shown.

    ``body_only``: what the page of ``minidbg watch`` does not know itself, as a part of a page: facts, graph, reduction.
    """
    original, from_capture = original_graph(story)
    reduced = read_graph(story.parts.model, story.parts.inputs)
    kept, inputs = kept_names(original, reduced)
    blocks = fold(original, kept, inputs)
    steps, chart = story.steps, ""
    if errors and any(error is not None for error in errors.errors):
        chart = svg.errors_svg(errors.names, errors.errors, errors.allowed)
    lines = difference(story.parts.model, story.neighbour.model) if story.neighbour else ()
    variables = {
        "story": story,
        "title": story.title,
        "facts": [*facts(story), ("run", f"python {display_path(story.path)}")],
        "complaint": complaint,
        "graph": Markup(svg.graph_svg(blocks)) if blocks else "",
        "blocks": [(number, block) for number, block in enumerate(blocks) if not block.is_single],
        "listed": sum(len(block.nodes) for block in blocks) <= MOST_LISTED,
        "graph_note": graph_note(original, kept, inputs, from_capture=from_capture),
        "course": Markup(svg.course_svg(steps, start=story.header.provenance.nodes)) if steps else "",
        "calls": len(steps),
        "errors": errors,
        "errors_chart": Markup(chart),
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


def original_graph(story: Story) -> tuple[Sequence[DrawnNode], bool]:
    """The graph that was captured, and whether it is that: without a capture it is the repro's own."""
    if story.capture is not None and story.capture != story.path:
        try:
            parts = story_of(story.capture).parts
            found = read_graph(parts.model, parts.inputs)
        except UnreadableRepro:
            found = ()
        if found:
            return found, True
    return read_graph(story.parts.model, story.parts.inputs), False


def graph_note(
    original: Sequence[DrawnNode], kept: frozenset[str], inputs: frozenset[str], *, from_capture: bool
) -> str:
    """What the drawing shows, in a sentence."""
    calls = sum(not node.is_input for node in original)
    if not from_capture:
        return (
            f"The repro's own graph, {calls} nodes; no capture of the graph that it came from lies beside it."
        )
    as_inputs = f", {len(inputs)} of its values became inputs" if inputs else ""
    folded = " The rest is folded by module." if calls > SMALL else ""
    return f"The graph as it was captured, {calls} nodes; {len(kept)} kept{as_inputs}.{folded}"


def device_rows(story: Story) -> Iterator[DeviceRow]:
    states = {state.device: state for state in story.past.states}
    runs: dict[str, list[Result]] = {}
    for _, result in story.past.results:
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
