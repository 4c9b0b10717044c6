"""Rows, made in a child: a node cut out and run alone, or the whole graph with all its values."""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from minidbg import oracle
from minidbg.codegen.origins import location
from minidbg.core.errors import BackendUnreachable
from minidbg.core.metrics import Metrics, worst_of
from minidbg.core.outcome import Outcome, Verdict
from minidbg.core.records import plain
from minidbg.core.run_spec import CallPath
from minidbg.core.text import abridged
from minidbg.fx.case import Case
from minidbg.fx.context import entered_modes
from minidbg.fx.copying import returning
from minidbg.fx.edit import CannotExtract, Piece, extract, is_tensor, is_unpacking, parts_of
from minidbg.fx.effects import Fact, is_call, mode_of, op_name, tensors_in
from minidbg.fx.effects import Mode as ModeChange
from minidbg.fx.mutation import written_arguments
from minidbg.fx.record import Recording
from minidbg.judge.compare import Comparison
from minidbg.judge.eager_runs import Tag
from minidbg.judge.leaves import CannotCompare, Leaves
from minidbg.judge.metrics import metrics_of
from minidbg.judge.run import BY_DESIGN, HANDED_BACK, compiles_one_op
from minidbg.nodes.row import Row, Status, TableMode
from minidbg.torch_internals import devices, graphs_of_inductor, noting_fallbacks

OF_CATEGORY = {
    "shape": Status.SHAPE_MISMATCH,
    "structure": Status.SHAPE_MISMATCH,
    "dtype": Status.DTYPE_MISMATCH,
    "aliasing": Status.OK,  # of what a node gets and gives, which in the graph are values inside
    "requires_grad": Status.OK,
}


def write_rows(argument: Mapping[str, Any], note: Callable[[str], object]) -> dict[str, Any]:
    """Write a line of JSON to the ``stream`` before each node, ``{"at": name}``, and its row after
    it: ``{"row": {...}}``, or ``{}`` where it has none. ``{"failed": why}``: none of what was asked
    for together has one."""
    try:
        case = oracle.unpacked(argument["case"])
    except BackendUnreachable as refusal:
        return {"refused": str(refusal)}
    alone = argument["mode"] == TableMode.ISOLATED
    table = Table(case, argument["names"], Places(case, note, alone=alone))
    rows = table.isolated() if alone else table.accumulated()
    with os.fdopen(argument["stream"], "w", encoding="utf-8") as stream:
        for line in rows:
            stream.write(json.dumps(line) + "\n")
            stream.flush()
    return {}


class Table:
    def __init__(self, case: Case, names: Sequence[str], places: Places) -> None:
        self.case, self.places = case, places
        places("eager")
        self.recording = recording_of(case)
        self.facts = self.recording.facts
        self.calls = [node for node in self.recording.nodes if is_call(node)]
        self.nodes = [node for node in self.calls if node.name in set(names)]

    def isolated(self) -> Iterator[dict[str, Any]]:
        for node in self.nodes:
            yield {"at": node.name}
            if is_unpacking(node, self.facts) or not (self.makes_tensors(node) or writes(node)):
                yield {}
            else:
                yield {"row": plain(self.alone(node))}

    def accumulated(self) -> Iterator[dict[str, Any]]:
        """A tuple's parts have rows, and it has none. What is written to later has no value left of
        its own; what the graph writes to an input is the last row of that."""
        asked = [node for node in self.nodes if is_tensor(self.facts.get(node))]
        yield {"at": "", "asked": [node.name for node in asked]}
        if not asked:
            return
        graph_module = returning(self.case.graph_module, asked)
        graph_module.graph.eliminate_dead_code(
            lambda node: not is_call(node) or writes(node) or mode_of(node) is not ModeChange.NONE
        )
        graph_module.recompile()
        outcome, comparison = self.compared(self.case.with_graph(graph_module, self.case.inputs))
        if comparison is None:
            yield {"failed": why(outcome), "status": status_of_failure(outcome)}
            return
        actual, expected, end = comparison.actual, comparison.expected, len(self.recording.nodes)
        others = comparison.eager_runs, self.case.spec
        for index, node in enumerate(asked):
            own, wanted = part_of_output(actual, index), part_of_output(expected, index)
            where, _ = self.places.of(own, outcome)
            row = replace(row_without_values(node, self.facts), ran_on=where)
            if later := self.recording.writes_to(node, end):
                yield {"row": plain(replace(row, reason=f"{later[-1].name} writes to it later"))}
            else:
                yield {"row": plain(with_metrics(row, Comparison(own, wanted, *others)))}
        for index, node in enumerate(self.case.graph_module.graph.find_nodes(op="placeholder")):
            label = f"input {index} after the call"
            if label in expected and self.nodes[-1] is self.calls[-1]:
                part = Comparison({label: actual[label]}, {label: expected[label]}, *others)
                row = with_metrics(Row(node.name, "after the call"), part)
                if row.status.is_bad or self.recording.writes_to(node, end):
                    yield {"row": plain(row)}

    def compared(self, case: Case, *calls: CallPath) -> tuple[Outcome, Comparison | None]:
        """By the call path of ``case``; where that proves nothing, since dynamo hands over another
        graph or takes none of these modules, directly."""
        comparisons: list[Comparison] = []
        for call in calls or (case.spec.call, CallPath.DIRECT):
            comparisons.clear()
            case = case.with_spec(call=call)
            outcome = oracle.execute(case, note=self.places, seen=comparisons.append)
            if outcome.verdict is not Verdict.INVALID:
                break
        is_judged = comparisons and outcome.verdict not in (Verdict.INVALID, Verdict.SKIPPED)
        return outcome, comparisons[0] if is_judged else None

    def makes_tensors(self, node: fx.Node) -> bool:
        fact = self.facts.get(node)
        if fact is None:  # eager came no further
            return mode_of(node) is ModeChange.NONE
        return any(is_tensor(part) for _, part in parts_of(fact))

    def alone(self, node: fx.Node) -> Row:
        """The row of ``node``, compiled alone and fed with eager's values."""
        row = row_without_values(node, self.facts)
        try:
            if node not in self.facts:
                raise CannotExtract(str(self.recording.failure))
            piece = cut_out(self.recording, node)
        except CannotExtract as refusal:
            return replace(row, reason=f"no eager value: {refusal}")
        # dynamo itself gives ``z.real``, and the backend a graph without it
        calls = (CallPath.DIRECT,) if op_name(node) in ("getattr", "_get_data_attr") else ()
        case = self.case.with_graph(piece.graph_module, piece.inputs)
        outcome, comparison = self.compared(case, *calls)
        if comparison is None:
            return replace(row, status=status_of_failure(outcome), reason=why(outcome))
        where, reason = self.places.of(comparison.actual, outcome)
        row = with_metrics(replace(row, ran_on=where), comparison)
        return replace(row, reason=row.reason or reason)


def with_metrics(row: Row, runs: Comparison) -> Row:
    """``row`` with how near the backend's run is to eager's, and its status."""
    try:
        difference = runs.difference()
    except CannotCompare as refusal:
        return replace(row, reason=str(refusal))
    actual, expected, notes = runs.actual, runs.expected, runs.notes()
    outputs = [at for at, leaf in expected.items() if leaf.role == "output"] or [*expected]
    outputs += [difference["where"]] if difference and difference["where"] in expected else []
    leaves = {where: expected[where].value for where in outputs if where not in runs.unjudged}
    both = [*actual.items(), *expected.items()]
    empty = {where for where, leaf in both if getattr(leaf.value, "is_meta", False)}
    metrics = [metrics_of_leaf(at, runs) for at in leaves if at not in empty]
    failed = difference and OF_CATEGORY.get(difference["category"], Status.NUMERICS_FAIL)
    if not (metrics or (failed and failed.is_bad)):
        return replace(row, reason="; ".join(notes) or "it gives nothing to compare")
    worst = worst_of(metrics) if metrics else Metrics()
    return replace(
        row,
        pcc=worst.pcc,
        cosine=worst.cosine,
        max_abs_diff=worst.max_abs,
        mean_abs_diff=worst.mean_abs,
        max_rel_diff=worst.max_rel,
        sqnr_db=worst.sqnr,
        ratio=worst.ratio,
        status=failed or Status.OK,
        reason=difference["message"].partition("\n")[0] if difference else "; ".join(notes),
    )


class Places:
    """Where nodes ran; hears, as ``note`` of ``execute``, when a call begins and ends.

    Of a node that is not ``alone`` in its graph nobody knows which operators are its own.
    """

    def __init__(self, case: Case, note: Callable[[str], object], *, alone: bool) -> None:
        self.case, self.note, self.alone = case, note, alone
        self.call, self.fell_back = contextlib.ExitStack(), list[str]()
        self.graphs_of_inductor = 0

    def __call__(self, phase: str) -> None:
        self.call.close()
        if phase == "compile forward":
            self.graphs_of_inductor = graphs_of_inductor()
        if phase in ("compile forward", "runtime forward"):  # with dynamo one call does both
            self.fell_back.clear()
            if self.alone and any(devices.kinds_here()):
                self.call.enter_context(noting_fallbacks(self.fell_back))
        self.note(phase)

    def of(self, actual: Leaves, outcome: Outcome) -> tuple[str, str]:
        """The devices of the node's results with who ran it there, and what is to be said of it."""
        self.call.close()
        values = tensors_in([leaf.value for leaf in actual.values() if leaf.role == "output"])
        where = " ".join(dict.fromkeys(str(value.device) for value in values))
        if any(words in outcome.reason for words in (HANDED_BACK, BY_DESIGN)):
            return "eager (handed back)", ""
        if self.fell_back:
            names = ", ".join(dict.fromkeys(self.fell_back))
            return "cpu (fell back)", f"{names} by torch's CPU fallback"
        if graphs_of_inductor() > self.graphs_of_inductor and not self.is_built_on_inductor:
            return f"{where} (inductor)", "inductor compiled it, in the backend's place"
        return where, ""

    @functools.cached_property
    def is_built_on_inductor(self) -> bool:
        """Whether the backend calls inductor for the smallest graphs too."""
        before = graphs_of_inductor()
        compiles_one_op(self.case.compiler, self.case.spec, self.case.inputs)
        return graphs_of_inductor() > before


def writes(node: fx.Node) -> bool:
    return next(written_arguments(node), None) is not None


def recording_of(case: Case) -> Recording:
    context = case.spec.context
    return Recording(case.graph_module, case.inputs, around=lambda: entered_modes(context))


def cut_out(recording: Recording, node: fx.Node) -> Piece:
    """``node`` alone, with what takes the parts out of it where it gives a tuple. Raises
    CannotExtract."""
    parts = {user for user in node.users if is_unpacking(user, recording.facts)}
    return extract(recording, {node} | parts)


def row_without_values(node: fx.Node, facts: Mapping[fx.Node, Fact]) -> Row:
    parts = [part for _, part in parts_of(facts[node])] if node in facts else []
    likes: list[Any] = [part.like for part in parts if is_tensor(part)]
    return Row(
        node.name,
        op_name(node),
        location(node),
        " ".join(str(list(shape)) for shape, *_ in likes),
        " ".join(str(dtype).removeprefix("torch.") for _, dtype, *_ in likes),
    )


def part_of_output(leaves: Leaves, index: int) -> Leaves:
    label = f"output {index}"
    begins = (f"{label}[", f"{label}.")
    own = [where for where in leaves if where == label or where.startswith(begins)]
    return {where: leaves[where] for where in own}


def metrics_of_leaf(where: str, runs: Comparison) -> Metrics:
    a, e = (run[where].value if where in run else None for run in (runs.actual, runs.expected))
    near = metrics_of(a, e)
    if near.max_abs == 0 or not isinstance(e, torch.Tensor):
        return near
    next(runs.eager_runs.members(Tag.AGAIN), None)  # what draws has no float64
    return metrics_of(a, e, runs.eager_runs.leaf(Tag.FLOAT64, where, e))


def status_of_failure(outcome: Outcome) -> Status:
    return Status.ERROR if outcome.signature is not None else Status.NO_GOLDEN


def why(outcome: Outcome) -> str:
    message = outcome.message if outcome.signature else ""
    return abridged(message or outcome.reason or outcome.in_words, 300)
