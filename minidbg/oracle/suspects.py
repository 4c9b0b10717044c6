"""What the frames of a failure say about its cause: the graph's nodes that their local variables, or generated lines, name."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable, Mapping, Set
from itertools import takewhile
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias

from torch import fx

from minidbg import _torch
from minidbg.oracle.signature import CALLS_BACKEND, exception_chain

Suspects: TypeAlias = tuple[tuple[str, ...], ...]
"""Names of nodes, one group for each frame that holds some, the innermost frame first."""

MOST_GROUPS = 6
MOST_FRAMES = 200
MOST_IN_CONTAINER = 256
"""Elements of a list or dict that are looked at: what holds more tells nothing apart."""
FEW = 8
"""Nodes that may always be suspected together, however small the graph."""
SOURCE_NODES = re.compile(r"Source Nodes: \[(?P<names>[^\]]*)\]")
"""Inductor's comment above the code of a kernel and above its call."""
STACK_LINE = re.compile(r'(?m)^  File "(?P<file>.*)", line (?P<line>\d+) in .*$')
"""A frame as faulthandler writes it."""


def suspects_of(error: BaseException, calls: Iterable[_torch.GivenCall]) -> Suspects:
    """The calls of the graph, as dynamo gave it to the backend, that the frames of ``error`` name."""
    traced = [one for one in exception_chain(error) if one.__traceback__ is not None]
    if not traced:
        return ()
    frames = list(traceback.walk_tb(traced[-1].__traceback__))[:-MOST_FRAMES:-1]
    known = {call.name: call for call in calls}
    of_backend = takewhile(lambda one: one[0].f_code.co_name not in CALLS_BACKEND, frames)
    return telling((_named_by(frame, line, known) for frame, line in of_backend), len(known))


def suspects_in_stack(stderr: str, names: Set[str]) -> Suspects:
    """The nodes among ``names`` that the stack of a dead process names, as faulthandler wrote it."""
    current = stderr.rpartition("Current thread")[2]
    lines = [(found["file"], int(found["line"])) for found in STACK_LINE.finditer(current)]
    groups = (frozenset(source_nodes(file, line)) & names for file, line in lines)
    return telling(groups, len(names))


def telling(groups: Iterable[Set[str]], nodes: int) -> Suspects:
    """The groups that tell some of so many nodes from the others: each once, the first few."""
    most = max(FEW, nodes // 4)
    found = dict.fromkeys(
        frozenset(group) for group in groups if 0 < len(group) <= most and len(group) < nodes
    )
    return tuple(tuple(sorted(group)) for group in list(found)[:MOST_GROUPS])


def renamed(suspects: Suspects, names: Mapping[str, str]) -> Suspects:
    """The same nodes by other names; what has none is left out."""
    groups = (tuple(names[name] for name in group if name in names) for group in suspects)
    return tuple(group for group in groups if group)


def source_nodes(file: str, line: int) -> list[str]:
    """The nodes that the nearest comment above a line of a file that inductor generated names."""
    try:
        lines = Path(file).read_text(errors="replace").splitlines()[:line]
    except OSError:
        return []
    if not any("inductor" in text for text in lines[:60]):
        return []
    for text in reversed(lines):
        if found := SOURCE_NODES.search(text):
            return [name.strip() for name in found["names"].split(",")]
        if text.lstrip().startswith("def "):
            break
    return []


def _named_by(frame: FrameType, line: int, known: Mapping[str, _torch.GivenCall]) -> Set[str]:
    generated = source_nodes(frame.f_code.co_filename, line)
    if generated:
        return known.keys() & set(generated)
    return {name for value in list(frame.f_locals.values()) for name in _names_behind(value, known)}


def _names_behind(value: Any, known: Mapping[str, _torch.GivenCall]) -> set[str]:
    try:
        nodes = [node for part in _parts(value) for node in _torch.fx_nodes_behind(part)]
    except Exception:  # noqa: BLE001 - an object of a compiler that has just failed; what it cannot tell is not needed
        return set()
    return {name for node in nodes for name in _names_in_graph(node, known)}


def _parts(value: Any) -> Iterable[Any]:
    """``value``, or what a container holds."""
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, list | tuple | Set):
        return (value,)
    return value if len(value) <= MOST_IN_CONTAINER else ()


def _names_in_graph(node: fx.Node, known: Mapping[str, _torch.GivenCall]) -> Iterable[str]:
    """The names in dynamo's graph of what a compiler's ``node`` was made from, else of what has its line of source."""
    sources = [name for name in _torch.names_of_sources(node) if name in known]
    if sources:
        return sources[-1:]
    if node.name in known and known[node.name].target == node.target:
        return (node.name,)
    trace = node.stack_trace if node.op.startswith("call") else None
    alike = [name for name, other in known.items() if trace and other.stack_trace == trace]
    return alike if len(alike) <= FEW else ()
