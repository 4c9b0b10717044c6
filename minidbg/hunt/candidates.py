"""A candidate, which is plain data, as a case; and several cases as one, which costs a backend hardly more than one of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from minidbg.backend.capture import current_context
from minidbg.case import Case
from minidbg.hunt import programs, samples
from minidbg.intake.asking import UsedBackend, backend_named, case_of

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
        backward = any(isinstance(one, torch.Tensor) and one.requires_grad for one in inputs)
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
    return replace(case, backward=backward, dynamic=dynamic)


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
