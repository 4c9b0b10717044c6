"""The text of ``minidbg show``: a repro at a glance, in a terminal."""

from __future__ import annotations

import difflib
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

from minidbg.printable import display_path
from minidbg.report.story import Story

COMMENT = re.compile(r"\s+#.*$")


def difference(fails: str, passes: str) -> Iterator[str]:
    """The lines of both, ``-`` before what only the failing one has, ``+`` before what only the passing one has.

    Comments do not count: they tell where a line came from.
    """
    first, second = uncommented(fails), uncommented(passes)
    for line in difflib.ndiff(first, second):
        if not line.startswith("?"):
            yield line.rstrip()


def uncommented(text: str) -> list[str]:
    """The lines of ``text`` without comments."""
    return [plain for line in text.split("\n") if (plain := COMMENT.sub("", line)).strip()]


def glance(story: Story) -> str:
    """What is known about the repro, the most telling first, and its model."""
    return "\n".join(lines(story))


def lines(story: Story) -> Iterator[str]:
    """The text, line by line."""
    header = story.header
    yield story.title
    yield from (f"    {line}" for line in story.message.splitlines()[:8] if line not in story.title)
    yield ""
    yield f"script    {display_path(story.path)}"
    yield f"failure   {header.kind} in {header.backend}, on {header.device}, called by {header.call}"
    yield f"reduced   {reduction_line(story.figures)}"
    if header.provenance.captured_from:
        source = f" `{header.provenance.line}`" if header.provenance.line else ""
        yield f"from      {header.provenance.captured_from}{source}, torch {header.provenance.torch_version}"
    if story.capture and story.capture.absolute() != story.path.absolute():
        yield f"capture   {display_path(story.capture)}"
    for number, note in enumerate(header.provenance.notes):
        yield f"{'note' if not number else '':<10}{note}"
    if header.provenance.neighbour:
        yield f"but       it {header.provenance.neighbour}"
    if story.stages:
        yield f"stages    {story.stages.sentence}"
    if story.workaround:
        yield f"until it is mended: {story.workaround}"
    yield from past_lines(story)
    yield from ("", story.parts.model)
    if story.neighbour:
        yield ""
        yield f"the nearest graph that passes ({counted(story.neighbour.nodes, 'node')}, {display_path(story.neighbour.path)}):"
        yield from difference(story.parts.model, story.neighbour.model)


def reduction_line(figures: Mapping[str, Any]) -> str:
    """The figures of the reduction in words."""
    if not figures["reduced"]:
        return f"no: {counted(figures['nodes'], 'node')}, {counted(figures['inputs'], 'input')}, as captured"
    proof = "no single one can be left out" if figures["certified"] else "perhaps more could be left out"
    return (
        f"{figures['nodes']} of {figures['nodes_before']} nodes, {figures['inputs']} of {figures['inputs_before']} inputs"
        f" ({proof}); {figures['oracle_calls']} oracle calls, {figures['seconds']:.1f} s"
    )


def counted(count: int, what: str) -> str:
    """``1 node``, ``2 nodes``."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def past_lines(story: Story) -> Iterator[str]:
    """What was seen of it on each device."""
    if not story.past.states:
        yield "history   not watched yet; 'minidbg watch' begins one"
    for number, state in enumerate(story.past.states):
        seen = f"{state.verdict} since {moment(state.since)}, {counted(state.runs, 'run')}, last {moment(state.seen)}"
        yield f"{'history' if not number else '':<10}{state.device}: {seen}"


def moment(at: float) -> str:
    """A time as people write it."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))
