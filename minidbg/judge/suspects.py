"""What the frames of a failure say about its cause: the graph's nodes that their local variables,
or generated lines, name."""

from __future__ import annotations

import linecache
import re
import traceback
from collections.abc import Iterable, Mapping, Set
from itertools import takewhile
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias

from torch import fx

from minidbg import torch_internals
from minidbg.fx.effects import op_name
from minidbg.judge.signature import CALLS_BACKEND, exception_chain

Calls: TypeAlias = "Mapping[str, fx.Node]"
Suspects: TypeAlias = tuple[tuple[str, ...], ...]
"""Names of nodes, one group for each frame that holds some, the innermost frame first."""

MOST_GROUPS = 6
MOST_FRAMES = 200
MOST_IN_CONTAINER = 256
"""Elements of a list or dict that are looked at: what holds more tells nothing apart."""
FEW_MEMBERS = 8
"""Nodes that may always be suspected together, however small the graph."""
SOURCE_NODES = re.compile(r"Source Nodes: \[(?P<names>[^\]]*)\]")
"""Inductor's comment above a kernel's call; a C++ kernel's has none."""
FX_FILE = "<eval_with_key>"
"""Begins the name of the file that a GraphModule's code seems to come from."""
FX_LINE = re.compile(r"^\s*(?P<name>\w+)(: [^=]*)? = (?P<call>.*)$")
"""A line of that code, which assigns to the name of the node."""
STACK_LINE = re.compile(r'(?m)^  File "(?P<file>.*)", line (?P<line>\d+) in .*$')
"""A frame as faulthandler writes it."""


def suspects_of(error: BaseException, calls: Iterable[fx.Node]) -> Suspects:
    traced = [one for one in exception_chain(error) if one.__traceback__ is not None]
    if not traced:
        return ()
    frames = list(traceback.walk_tb(traced[-1].__traceback__))[:-MOST_FRAMES:-1]
    known = {call.name: call for call in calls}
    of_backend = takewhile(lambda one: one[0].f_code.co_name not in CALLS_BACKEND, frames)
    groups = (group for frame, line in of_backend for group in _named_by(frame, line, known))
    return telling(groups, len(known))


def suspects_in_stack(stderr: str, calls: Iterable[fx.Node]) -> Suspects:
    known = {call.name: call for call in calls}
    current = stderr.rpartition("Current thread")[2]
    lines = [(found["file"], int(found["line"])) for found in STACK_LINE.finditer(current)]
    groups = (group for place in lines for group in of_generated_line(*place, known))
    return telling(groups, len(known))


def telling(groups: Iterable[Set[str]], nodes: int) -> Suspects:
    """The groups that tell some of so many nodes from the others: each once, the first few."""
    most = max(FEW_MEMBERS, nodes // 4)
    found = dict.fromkeys(
        frozenset(group) for group in groups if 0 < len(group) <= most and len(group) < nodes
    )
    return tuple(tuple(sorted(group)) for group in list(found)[:MOST_GROUPS])


def renamed(suspects: Suspects, names: Mapping[str, str]) -> Suspects:
    groups = (tuple(names[name] for name in group if name in names) for group in suspects)
    return tuple(group for group in groups if group)


def of_generated_line(file: str, line: int, known: Calls) -> list[Set[str]]:
    """The nodes in the comment above a line of a file that inductor generated."""
    try:
        lines = Path(file).read_text(errors="replace").splitlines()
    except OSError:
        return []
    if line > len(lines) or not any("inductor" in text for text in lines[:60]):
        return []
    if lines[line - 1].lstrip().startswith("cpp_fused_"):
        return []  # the comment is of another kernel
    above = takewhile(lambda text: not text.lstrip().startswith("def "), reversed(lines[:line]))
    comment = next(filter(None, map(SOURCE_NODES.search, above)), None)
    names = comment["names"].split(",") if comment else []
    return [{name for name in map(str.strip, names) if name in known}]


def of_fx_line(frame: FrameType, line: int, known: Calls) -> list[Set[str]]:
    """The node that a GraphModule's line runs, if one of ``known`` and no other op of its name."""
    file = frame.f_code.co_filename
    found = FX_LINE.match(linecache.getline(file, line)) if file.startswith(FX_FILE) else None
    if found is None or found["name"] not in known:
        return []
    call = known[found["name"]]
    return [{found["name"]}] if op_name(call) in found["call"] else []


def _named_by(frame: FrameType, line: int, known: Calls) -> list[Set[str]]:
    file = frame.f_code.co_filename
    generated = of_generated_line(file, line, known) or of_fx_line(frame, line, known)
    if any(generated):
        return generated
    is_ours = str(frame.f_globals.get("__name__")).startswith("minidbg.")  # with any graph's nodes
    values = [] if is_ours else list(frame.f_locals.values())
    return [{name for value in values for name in _names_behind(value, known)}]


def _names_behind(value: Any, known: Calls) -> set[str]:
    try:
        nodes = [node for part in _members(value) for node in torch_internals.fx_nodes_behind(part)]
    except Exception:  # noqa: BLE001 - of a failed compiler; what it cannot tell is not needed
        return set()
    return {name for node in nodes for name in _names_in_graph(node, known)}


def _members(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    # not abstract Set: its first look at each class of a compiler takes milliseconds, per question
    is_ordered_set = type(value).__name__ == "OrderedSet"
    if not (isinstance(value, list | tuple | set | frozenset) or is_ordered_set):
        return (value,)
    return value if len(value) <= MOST_IN_CONTAINER else ()


def _names_in_graph(node: fx.Node, known: Calls) -> Iterable[str]:
    """Names in dynamo's graph behind a compiler's ``node``, else of what has its source line."""
    sources = [name for name in torch_internals.names_of_sources(node) if name in known]
    if sources:
        return sources[-1:]
    if node.name in known and known[node.name].target == node.target:
        return (node.name,)
    trace = node.stack_trace if node.op.startswith("call") else None
    alike = [name for name, other in known.items() if trace and other.stack_trace == trace]
    return alike if len(alike) <= FEW_MEMBERS else ()
