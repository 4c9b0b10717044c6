"""The asker's side of the table: many nodes to a child; one that dies or hangs costs its own row.

A child says at which node it is before it begins with it, and is ended where it is silent for
longer than the limit. There is one child at a time: a device may be there for one process alone.
The node at which it died or was ended is asked once more, alone and with a longer limit: a node
before it may have done the damage, or the machine was busy. Another child goes on after it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from minidbg import oracle, workers
from minidbg.core.errors import BackendUnreachable, DeviceInUse
from minidbg.core.machine import memory_limit
from minidbg.core.records import record_of
from minidbg.core.text import last_line
from minidbg.fx.case import Case
from minidbg.fx.effects import is_call
from minidbg.judge.death import outcome_of_death
from minidbg.nodes.child import cut_out, recording_of, row_without_values, status_of_failure, why
from minidbg.nodes.row import Row, Status, TableMode
from minidbg.workers import Request

WRITE_ROWS = "minidbg.nodes.child:write_rows"
MOST_IN_A_CHILD = 50
"""Nodes of one child: what torch keeps of each goes with it."""
TIMES_ALONE = 3.0
"""The limit of a node that is asked once more, in units of the limit of others."""
START_S = 300.0
"""For imports, and for eager's run of the whole graph."""
TIMES_ACCUMULATED = 6.0
"""The whole graph with all its values may take so many times the limit of a node."""
RIGHT_ALONE = "not so when asked again in a process of its own: by chance, or by nodes before it"
PARTS = 4
"""In so many parts are the values of a graph asked for at last, where it fails with all of them."""


@dataclass(frozen=True, slots=True)
class Asker:
    """What each question has in common."""

    case: Case
    package: dict[str, Any]
    mode: TableMode
    seconds: float
    submit: workers.Submit

    def lines(self, names: Sequence[str], times: float = 1.0) -> Iterator[dict[str, Any]]:
        """What a child says of these nodes; last ``{"end": why, ...}`` where it died or is late.

        Raises OSError when no process can be made, DeviceInUse, and BackendUnreachable."""
        seconds = self.seconds * times
        reading, writing = os.pipe()
        with open(reading, "rb", buffering=0) as stream:
            try:
                asked = self.submit(Request(
                    call=WRITE_ROWS, stream=writing,
                    seconds=START_S + seconds * (len(names) + 1),
                    memory_bytes=memory_limit(2), fork=oracle.warmup_for(self.case),
                    argument={"case": self.package, "names": list(names), "mode": self.mode},
                ))  # fmt: skip
            finally:
                os.close(writing)
            try:
                waits, data = START_S, b""
                while True:
                    if not select.select([stream], [], [], waits)[0]:
                        reason = f"no end within {waits:g} s"
                        yield {"end": reason, "status": Status.ERROR, "late": True}
                        return
                    piece = stream.read(1 << 16)
                    *whole, data = (data + piece).split(b"\n")
                    yield from map(json.loads, whole)
                    if whole:
                        waits = seconds
                    if not piece:
                        break
                ended = asked.result()
            finally:
                asked.cancel()
        if ended.answered and "refused" in ended.value:
            raise BackendUnreachable(ended.value["refused"])
        if device := oracle.taken_device(self.case, ended):
            raise DeviceInUse(device)
        if ended.error:
            yield {"end": f"a bug in minidbg: {last_line(ended.error)}", "status": Status.ERROR}
        elif not ended.answered:
            outcome = outcome_of_death(ended, self.case.spec, tells_phases=False)
            yield {"end": why(outcome), "status": status_of_failure(outcome)}


def node_rows(
    case: Case,
    *,
    mode: TableMode = TableMode.ISOLATED,
    seconds: float = 20.0,
    submit: workers.Submit = workers.submit,
) -> Iterator[Row]:
    """A row for each node of ``case``'s graph that gives tensors, in order, as it is there.

    A row is bad by the judge of ``case``. ``seconds`` are for each node. Raises OSError when no
    process can be made, DeviceInUse, and BackendUnreachable.
    """
    case = case.with_spec(signature=None, backward=False)
    with contextlib.ExitStack() as stack:
        stack.enter_context(workers.own_kernel_cache())
        case = stack.enter_context(oracle.pickled_for_children(case))
        package = stack.enter_context(oracle.packed(case))
        limit = seconds if mode is TableMode.ISOLATED else seconds * TIMES_ACCUMULATED
        asker = Asker(case, package, mode, limit, submit)
        names = [node.name for node in case.graph_module.graph.nodes if is_call(node)]
        if mode is TableMode.ISOLATED:
            yield from isolated(asker, names)
        else:
            yield from accumulated(asker, names, len(names))


def isolated(asker: Asker, names: Sequence[str]) -> Iterator[Row]:
    """What ends a child, and the first bad row, is asked once more, alone: a backend may keep
    what a node left in it. What only was late is no failure where it is right there."""
    waiting, doubted, is_sound = list(names), None, True
    while waiting:
        count, times = (MOST_IN_A_CHILD, 1.0) if doubted is None else (1, TIMES_ALONE)
        left, again = waiting[:count], None
        for line in asker.lines([*left], times):
            if "at" in line or not left:
                continue
            row = record_of(line["row"], Row) if "row" in line else None
            if ended := "end" in line:
                row = unmeasured(asker, left[0], line)
            if row and doubted is None and (ended or (is_sound and row.status.is_bad)):
                again = replace(row, status=Status.OK) if "late" in line else row
                break
            del left[0], waiting[0]
            if row and doubted and not row.status.is_bad:
                in_company = doubted if doubted.status.is_bad else row
                row = replace(in_company, reason=f"{doubted.reason}: {RIGHT_ALONE}")
            if row:
                is_sound = is_sound and not row.status.is_bad
                yield row
        doubted = again


def accumulated(asker: Asker, names: Sequence[str], whole: int) -> Iterator[Row]:
    """The rows of the graph's own values; of halves of them where it fails with all."""
    lines = list(asker.lines(names))
    failure = next((line for line in lines if "failed" in line or "end" in line), None)
    if failure is None:
        rows = [record_of(line["row"], Row) for line in lines if "row" in line]
        yield from (replace(row, mode=asker.mode) for row in rows)
    elif len(names) > max(1, whole // PARTS):
        middle = len(names) // 2
        for half in (names[:middle], names[middle:]):
            yield from accumulated(asker, half, whole)
    else:
        have_rows = next((line["asked"] for line in lines if "asked" in line), names)
        yield from (unmeasured(asker, name, failure) for name in have_rows)


def unmeasured(asker: Asker, name: str, failure: dict[str, Any]) -> Row:
    """The row of a node of which only the graph is known: its child failed."""
    node = next(node for node in asker.case.graph_module.graph.nodes if node.name == name)
    reason, status = failure.get("failed") or failure["end"], Status(failure["status"])
    return replace(row_without_values(node, {}), mode=asker.mode, reason=reason, status=status)


def case_of_node(case: Case, name: str) -> Case:
    """The case of that node alone, fed with eager's values, with no failure expected. Runs eager
    here. Raises CannotExtract."""
    recording = recording_of(case)
    node = next(node for node in recording.nodes if node.name == name)
    piece = cut_out(recording, node)
    case = case.with_spec(signature=None, backward=False)
    return case.with_graph(piece.graph_module, piece.inputs)
