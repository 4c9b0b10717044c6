"""A repro as one HTML page that stands alone: no network, no scripts to load, opens from disk, light and dark.

Its drawings are SVG: the folded graph, the course of a reduction, the error along a graph. Colours are classes of the page's
style sheet, so that a drawing follows the page into the dark.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

import pygments
from markupsafe import Markup
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from minidbg.history import Result
from minidbg.report.drawn_graph import SMALL, DrawnNode, FoldedNodes, fold, kept_names, read_graph
from minidbg.report.errors_along import ErrorsAlong
from minidbg.report.story import LoggedCall, Story, difference, facts, story_of
from minidbg.repro import templates
from minidbg.words.errors import UnreadableRepro
from minidbg.words.script_header import DIVIDER
from minidbg.words.text import display_path, moment

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
        chart = errors_svg(errors.names, errors.errors, errors.allowed)
    lines = difference(story.parts.model, story.neighbour.model) if story.neighbour else ()
    variables = {
        "story": story,
        "title": story.title,
        "facts": [*facts(story), ("run", f"python {display_path(story.path)}")],
        "complaint": complaint,
        "graph": Markup(graph_svg(blocks)) if blocks else "",
        "blocks": [(number, block) for number, block in enumerate(blocks) if not block.is_single],
        "listed": sum(len(block.nodes) for block in blocks) <= MOST_LISTED,
        "graph_note": graph_note(original, kept, inputs, from_capture=from_capture),
        "course": Markup(course_svg(steps, start=story.header.provenance.nodes)) if steps else "",
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


# --- the drawing of the graph ---

ROW = 40
BOX_HEIGHT = 28
BOX_WIDTH = 380
LEFT = 12
CHART_WIDTH, CHART_HEIGHT = 720, 240
MARGIN_LEFT, MARGIN_BOTTOM, MARGIN_TOP, MARGIN_RIGHT = 64, 40, 12, 16
MOST_POINTS = 1500
LABEL_CHARACTERS = 44
TICK_DISTANCE = 18


def graph_svg(blocks: Sequence[FoldedNodes]) -> str:
    """One column of boxes in the graph's order; edges to the next box straight, others as arcs on the right."""
    place = {node.name: number for number, block in enumerate(blocks) for node in block.nodes}
    edges = sorted(
        {
            (place[name], number)
            for number, block in enumerate(blocks)
            for node in block.nodes
            for name in node.inputs
            if name in place and place[name] < number
        }
    )
    reach = max((reach_of(last - first) for first, last in edges), default=0.0)
    width, height = LEFT + BOX_WIDTH + reach + 24, ROW * len(blocks) + 8
    parts = [edge(first, last, blocks) for first, last in edges]
    parts += [box(number, block) for number, block in enumerate(blocks)]
    return (
        f'<svg class="graph" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}" height="{height}" role="img" '
        f'aria-label="graph of {len(blocks)} blocks">{"".join(parts)}</svg>'
    )


def box(number: int, block: FoldedNodes) -> str:
    """A box with its label; a folded one leads to its list of nodes."""
    kind = "as-input" if block.as_input else "kept" if block.kept else "folded"
    top = ROW * number + 6
    if block.is_single:
        node = block.nodes[0]
        label = f"{node.name} = {node.label}" if not node.is_input else f"{node.name}  {node.comment}"
        title = f"{node.text}  {node.comment}"
    else:
        kept = f", {block.kept} kept" if block.kept else ""
        label, title = f"{block.label} · {len(block.nodes)} nodes{kept}", block.summary
    shape = (
        f'<rect x="{LEFT}" y="{top}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="{14 if block.as_input else 5}"/>'
        f'<text x="{LEFT + 12}" y="{top + 19}">{escape(shortened(label))}</text><title>{escape(title)}</title>'
    )
    inner = f'<g class="box {kind}">{shape}</g>'
    return inner if block.is_single else f'<a href="#block-{number}">{inner}</a>'


def edge(first: int, last: int, blocks: Sequence[FoldedNodes]) -> str:
    strong = all(blocks[one].kept or blocks[one].as_input for one in (first, last))
    style = "edge strong" if strong else "edge"
    if last == first + 1:
        x, y = LEFT + 40, ROW * first + 6 + BOX_HEIGHT
        path = f"M{x} {y}V{ROW * last + 4}"
    else:
        x, start, end = LEFT + BOX_WIDTH, ROW * first + 6 + BOX_HEIGHT - 7, ROW * last + 6 + 9
        bend = x + reach_of(last - first)
        path = f"M{x} {start}C{bend:.0f} {start},{bend:.0f} {end},{x + 3} {end}"
    return f'<path class="{style}" d="{path}" marker-end="url(#tip)"/>'


def reach_of(span: int) -> float:
    """How far to the right an arc over so many boxes goes."""
    return 0.0 if span <= 1 else 30 + 46 * math.log2(span)


def shortened(text: str) -> str:
    """``text`` in as many characters as a box has room for."""
    return text if len(text) <= LABEL_CHARACTERS else f"{text[: LABEL_CHARACTERS - 1]}…"


# --- charts ---


def course_svg(steps: Sequence[LoggedCall], *, start: int = 0) -> str:
    """Nodes of each candidate against the number of the oracle call, with the best so far as a line.

    ``start``: nodes of the whole, which was seen to fail before the first call; 0 when that is not known.
    """
    whole = [LoggedCall("the whole, as captured", start, 0, "interesting", 0.0)] if start else []
    shown = [*whole, *steps]
    first = 1 - len(whole)
    tallest = max(step.nodes for step in shown)
    x = [scaled(first + place, first, len(steps)) for place in range(len(shown))]
    y = [height_of(step.nodes, tallest) for step in shown]
    every = max(1, math.ceil(len(shown) / MOST_POINTS))
    dots = "".join(
        mark(step, x[place], y[place], first + place)
        for place, step in enumerate(shown)
        if place % every == 0 or step.answer == "interesting"
    )
    ticks = [(height_of(value, tallest), str(value)) for value in node_ticks(tallest)]
    body = f'<path class="best" d="{best_path(shown, x, y)}"/>{dots}'
    return chart(body, ticks, call_ticks(len(steps), first), "nodes of the candidate", "oracle call")


def best_path(steps: Sequence[LoggedCall], x: Sequence[float], y: Sequence[float]) -> str:
    """A line of stairs through the calls that found a smaller one."""
    best, path = math.inf, ""
    for place, step in enumerate(steps):
        if step.answer == "interesting" and step.nodes < best:
            best = step.nodes
            path += f"H{x[place]:.1f}V{y[place]:.1f}" if path else f"M{x[place]:.1f} {y[place]:.1f}"
    return f"{path}H{CHART_WIDTH - MARGIN_RIGHT}" if path else ""


def mark(step: LoggedCall, x: float, y: float, number: int) -> str:
    """One call: filled where it failed the same way, hollow where it passed, a cross where nothing was proven."""
    title = f"call {number}: {step.nodes} nodes, {step.inputs} inputs, {step.answer}, {step.phase}, {step.seconds:.2f} s"
    if step.answer in ("other", "invalid"):
        shape = f'<path d="M{x - 3:.1f} {y - 3:.1f}l6 6m0 -6l-6 6"/>'
    else:
        shape = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>'
    return f'<g class="call {escape(step.answer)}">{shape}<title>{escape(title)}</title></g>'


def errors_svg(names: Sequence[str], errors: Sequence[float | None], allowed: float) -> str:
    """Relative error of each node's value, along the graph, on a logarithmic scale; ``allowed`` is a dashed line.

    None: the value could not be compared. Infinite: NaN, inf or a wrong shape or dtype.
    """
    finite = [error for error in errors if error and math.isfinite(error)]
    low = math.floor(math.log10(min([*finite, allowed]))) - 1
    high = math.ceil(math.log10(max([*finite, allowed]))) + 1

    def height(error: float) -> float:
        if not math.isfinite(error):
            return float(MARGIN_TOP)
        shown = max(math.log10(error), low) if error > 0 else low
        return MARGIN_TOP + (high - shown) / (high - low) * (CHART_HEIGHT - MARGIN_TOP - MARGIN_BOTTOM)

    dots = "".join(
        f'<g class="error {"wrong" if error > allowed else "right"}">'
        f'<circle cx="{scaled(place + 1, 1, len(names)):.1f}" cy="{height(error):.1f}" r="3.5"/>'
        f"<title>{escape(name)}: {error:.3g}</title></g>"
        for place, (name, error) in enumerate(zip(names, errors, strict=True))
        if error is not None
    )
    bound = height(allowed)
    line = f'<path class="allowed" d="M{MARGIN_LEFT} {bound:.1f}H{CHART_WIDTH - MARGIN_RIGHT}"/>'
    step = max(1, math.ceil((high - low) / 6))
    ticks = [(height(10.0**power), f"1e{power}") for power in range(low, high + 1, step)]
    return chart(line + dots, ticks, call_ticks(len(names)), "relative error", "node of the graph")


def chart(
    body: str,
    ticks_y: Sequence[tuple[float, str]],
    ticks_x: Sequence[tuple[float, str]],
    label_y: str,
    label_x: str,
) -> str:
    bottom = CHART_HEIGHT - MARGIN_BOTTOM
    grid = "".join(
        f'<path class="grid" d="M{MARGIN_LEFT} {y:.1f}H{CHART_WIDTH - MARGIN_RIGHT}"/>'
        f'<text class="tick" x="{MARGIN_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{escape(text)}</text>'
        for y, text in ticks_y
    )
    below = "".join(
        f'<text class="tick" x="{x:.1f}" y="{bottom + 17}" text-anchor="middle">{escape(text)}</text>'
        for x, text in ticks_x
    )
    middle = (MARGIN_TOP + bottom) / 2
    labels = (
        f'<text class="axis" transform="translate(14 {middle:.0f}) rotate(-90)" text-anchor="middle">{escape(label_y)}</text>'
        f'<text class="axis" x="{(MARGIN_LEFT + CHART_WIDTH) / 2}" y="{CHART_HEIGHT - 4}" text-anchor="middle">{escape(label_x)}</text>'
    )
    frame = f'<path class="frame" d="M{MARGIN_LEFT} {MARGIN_TOP}V{bottom}H{CHART_WIDTH - MARGIN_RIGHT}"/>'
    return (
        f'<svg class="chart" viewBox="0 0 {CHART_WIDTH} {CHART_HEIGHT}" role="img" aria-label="{escape(label_y)} against '
        f'{escape(label_x)}">{grid}{below}{labels}{frame}{body}</svg>'
    )


def scaled(value: float, low: float, high: float) -> float:
    """Where ``value`` lies from left to right."""
    part = (value - low) / (high - low) if high > low else 0.5
    inset = 8
    return MARGIN_LEFT + inset + part * (CHART_WIDTH - MARGIN_LEFT - MARGIN_RIGHT - 2 * inset)


def height_of(nodes: int, tallest: int) -> float:
    """Where a number of nodes lies from top to bottom, on a logarithmic scale with a place for 0."""
    part = math.log1p(nodes) / math.log1p(max(tallest, 1))
    return MARGIN_TOP + 4 + (1 - part) * (CHART_HEIGHT - MARGIN_TOP - MARGIN_BOTTOM - 8)


def node_ticks(tallest: int) -> Iterator[int]:
    """Numbers to write on the axis of nodes: far enough apart to be read."""
    last = -math.inf
    round_ones = {base * 10**power for power in range(6) for base in (1, 2, 5)}
    for value in sorted({tallest, 0, *round_ones}, reverse=True):
        if value <= tallest and height_of(value, tallest) - last >= TICK_DISTANCE:
            last = height_of(value, tallest)
            yield value


def call_ticks(count: int, first: int = 1) -> list[tuple[float, str]]:
    """Numbers to write below: the first, the last and some between."""
    step = round_up(count / 8)
    values = [first, *range(step, count - step // 2, step), count]
    return [(scaled(value, first, count), str(value)) for value in dict.fromkeys(values)]


def round_up(value: float) -> int:
    """The next of 1, 2, 5, 10, 20, ..."""
    power: int = 10 ** max(0, math.floor(math.log10(max(value, 1))))
    return next(base * power for base in (1, 2, 5, 10) if base * power >= value)
