"""What a hunt tries, in which order: candidates, which are plain data, in batches.

A candidate becomes a case, and several become one, which costs a backend hardly more than one of them.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import fx

from minidbg.extras.hunt import programs, samples
from minidbg.extras.hunt.states import HuntFolder
from minidbg.fx.case import Case
from minidbg.fx.context import current_context
from minidbg.reduction.importers import UsedBackend, backend_named, case_of, need_grad
from minidbg.words.settings import VALUE_LIMIT_BYTES

MOST_IN_BATCH = 60
GRAPHS_IN_BATCH = 24

Candidate = Mapping[str, Any]
"""``{"op", "dtype", "device", "number"}`` of a sample, maybe with ``"twist"``; ``{"program"}``; ``{"together"}``, a list of those."""


def name_of(candidate: Candidate) -> str:
    """The candidate's id in the state on disk; a batch of random graphs has one too."""
    if "graphs" in candidate:
        return f"graphs {candidate['graphs']}"
    if "op" in candidate:
        return samples.Sample(**candidate).id
    text = json.dumps(candidate.get("program") or candidate["together"], sort_keys=True)
    return f"graph {hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()[:12]}"


# --- the order ---


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is hunted, and with what."""

    backend: str
    folder: Path
    ops: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    devices: tuple[str, ...] = ("cpu",)
    options: Mapping[str, Any] = field(default_factory=dict)
    mode: str | None = None
    seconds: float | None = None
    """No candidate is begun after that; None: until each sample has been tried."""
    jobs: int = 1
    seed: int = 0
    samples: int | None = None
    """Of each op and dtype at most; None: all of them, and random graphs without end."""
    graphs: bool = True
    fresh: bool = False
    call_seconds: float = 30.0
    reduce_seconds: float = 60.0
    value_limit_bytes: int = VALUE_LIMIT_BYTES


class Plan:
    """The batches of one hunt. ``swept`` says whether a sample of each operator has been handed out."""

    def __init__(
        self, wanted: Wanted, backend: str, store: HuntFolder, cells: Sequence[tuple[str, str, str]]
    ) -> None:
        self.wanted, self.backend, self.store, self.cells = wanted, backend, store, cells
        self.swept = False

    def batches(self) -> Iterator[list[dict[str, Any]]]:
        """Batches of what has not been tried: the corpus first, then rounds over the cells with random graphs between them."""
        yield from in_parts(untried(filter(self.is_wanted, self.store.corpus), self.store))
        graphs = self.graph_batches() if self.wanted.graphs else iter(())
        dtypes = list(dict.fromkeys(dtype for _, dtype, _ in self.cells))
        for round_of_twist, dtype in samples.order_for(self.backend, dtypes, self.wanted.samples):
            round_of_cells = untried(self.samples_of_round(dtype, *round_of_twist), self.store)
            for number, batch in enumerate(in_parts(round_of_cells)):
                yield batch
                if number % (2 if self.swept else 6) == 1:  # the table comes first
                    yield from itertools.islice(graphs, 1)
            self.swept = True
        if self.wanted.samples is not None or self.wanted.seconds is None:
            graphs = itertools.islice(graphs, 20)
        yield from graphs

    def is_wanted(self, candidate: Mapping[str, Any]) -> bool:
        """Whether a candidate of an earlier hunt is one of this: it may be over fewer operators."""
        if "op" not in candidate:
            return self.wanted.graphs
        return (candidate["op"], candidate["dtype"], candidate["device"]) in self.cells

    def samples_of_round(self, dtype: str, twist: str, first: int, last: int) -> Iterator[dict[str, Any]]:
        """The samples of one round over the operators of one dtype."""
        for cell in self.cells:
            for number in range(first, min(last, self.store.ends.get(cell, last))):
                if cell[1] == dtype:
                    one = dict(zip(("op", "dtype", "device", "number"), (*cell, number), strict=True))
                    yield one | ({"twist": twist} if twist else {})

    def graph_batches(self) -> Iterator[list[dict[str, Any]]]:
        for number in itertools.count():
            one = {"graphs": self.wanted.seed * 100_000 + number, "count": GRAPHS_IN_BATCH}
            if name_of(one) not in self.store.results:
                yield [one]


def untried(some: Iterable[dict[str, Any]], store: HuntFolder) -> Iterator[dict[str, Any]]:
    """Those of which there is no record yet."""
    for one in some:
        if name_of(one) not in store.results:
            yield one


def in_parts(candidates: Iterator[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    while part := list(itertools.islice(candidates, MOST_IN_BATCH)):
        yield part


def about(batch: Sequence[Mapping[str, Any]]) -> str:
    first = batch[0]
    return "random graphs" if "op" not in first else f"{first['op']} {first['dtype']}"


# --- from a candidate to a case ---


def used_backend(given: Mapping[str, Any]) -> UsedBackend:
    """The backend under its name, with its options and mode. Raises UnknownBackend or BackendUnreachable."""
    used = backend_named(given["name"])
    return replace(used, ref=replace(used.ref, options=given["options"], mode=given["mode"]))


def built_case(
    candidate: Candidate, backend: UsedBackend, seed: int, *, by_dynamo: bool = True
) -> Case | None:
    """The candidate as a case of which no failure is known; None past an operator's last sample."""
    if "together" in candidate:
        parts = [built_case(one, backend, seed, by_dynamo=by_dynamo) for one in candidate["together"]]
        return joined([part for part in parts if part is not None])
    dynamic = False
    if "program" in candidate:
        graph_module, inputs, dynamic = programs.built(candidate["program"])
        backward = need_grad(inputs)
        note = f"a random graph of minidbg hunt, seed {seed}"
    else:
        sample = samples.Sample(**candidate)
        found = samples.built(sample, seed, by_dynamo=by_dynamo)
        if found is None:
            return None
        graph_module, inputs, backward = found
        dynamic = "symbolic" in sample.twists
        note = f"torch's own operator sample {sample.id}, found by minidbg hunt"
    case = case_of(graph_module, inputs, backend, context=current_context(inputs), notes=(note,))
    return case.with_spec(backward=backward, dynamic=dynamic)


def may_join(case: Case) -> bool:
    """Whether the case's graph can be a part of a larger one: it has no attributes and no nested graphs."""
    return all(
        node.op in ("placeholder", "call_function", "call_method", "output")
        for node in case.graph_module.graph.nodes
    )


def joined(cases: Sequence[Case]) -> Case:
    """One case whose graph holds the graphs of all, side by side: a failure of any of them is one of it."""
    if len(cases) == 1:
        return cases[0]
    graph = fx.Graph()
    known: list[dict[fx.Node, fx.Node]] = [{} for _ in cases]
    for values, case in zip(known, cases, strict=True):
        for node in case.graph_module.graph.nodes:
            if node.op == "placeholder":
                values[node] = graph.placeholder(f"input_{len(graph.nodes)}")
    outputs: list[Any] = []
    for values, case in zip(known, cases, strict=True):
        for node in case.graph_module.graph.nodes:
            if node.op == "output":
                given = fx.map_arg(node.args[0], values.__getitem__)
                outputs += given if isinstance(given, tuple | list) else [given]
            elif node.op != "placeholder":
                values[node] = graph.node_copy(node, values.__getitem__)
    graph.output(tuple(outputs))
    inputs = tuple(value for case in cases for value in case.inputs)
    nodes = sum(case.provenance.nodes for case in cases)
    notes = tuple(note for case in cases for note in case.provenance.notes)
    return replace(
        cases[0],
        graph_module=fx.GraphModule(torch.nn.Module(), graph),
        inputs=inputs,
        provenance=replace(cases[0].provenance, nodes=nodes, inputs=len(inputs), notes=notes),
    )
