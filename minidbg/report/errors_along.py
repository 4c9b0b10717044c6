"""Where values first go wrong: the relative error of each node's value under the backend, along the graph.

Every value becomes an output, so the backend may compile another program than it did, and the bug may hide: then
``is_shown`` is False. Runs the backend; ``errors_of`` does so in a process of its own.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx

from minidbg import repro, workers
from minidbg.fx.case import Case
from minidbg.fx.copying import clone_values, copy_graph_module
from minidbg.fx.mutation import written_arguments
from minidbg.judge.compare import TOLERANCES
from minidbg.source.module_text import instantiate, write_module
from minidbg.words.errors import MinidbgError
from minidbg.words.json_lines import last_json

SECONDS = 300.0
MOST_NODES = 10_000


@dataclass(frozen=True, slots=True)
class ErrorsAlong:
    """Relative errors along a graph, dimensionless; None for a value that cannot be compared, inf for NaN or a wrong shape."""

    names: tuple[str, ...]
    errors: tuple[float | None, ...]
    allowed: float
    """The tolerance of the widest dtype among the values, by which a node is called wrong."""

    @property
    def first_wrong(self) -> str:
        """The first node whose value is wrong; empty when none is: with all values as outputs the bug hides."""
        found = zip(self.names, self.errors, strict=True)
        return next((name for name, error in found if error is not None and error > self.allowed), "")


def errors_of(path: Path) -> ErrorsAlong:
    """The errors along the graph of the script at ``path``, computed in a new process. Raises MinidbgError."""
    ended = workers.run_python(["-m", "minidbg.report.errors_along", str(path)], seconds=SECONDS)
    answer = last_json(ended.stdout)
    if answer is None:
        last = (ended.stderr_tail.strip().splitlines() or ["no message"])[-1]
        how = f"not within {SECONDS:g} s" if ended.timed_out else last
        raise MinidbgError(f"{path}: the errors along the graph could not be computed: {how}")
    errors = tuple(None if error is None else float(error) for error in answer["errors"])
    return ErrorsAlong(tuple(answer["names"]), errors, float(answer["allowed"]))


def compute(path: Path) -> ErrorsAlong:
    """As ``errors_of``, in this process."""
    case = repro.load(path)
    tapped, names = with_all_outputs(case.graph_module)
    source = write_module(tapped)
    eager = values_of(instantiate(source, source.constants), case)
    compiled = values_of(compiled_module(case, source), case)
    errors = [relative_error(actual, expected) for actual, expected in zip(compiled, eager, strict=True)]
    dtypes = {value.dtype for value in eager if isinstance(value, Tensor)} & set(TOLERANCES)
    allowed = max((TOLERANCES[dtype][2] for dtype in dtypes), default=3e-5)
    return ErrorsAlong(tuple(names), tuple(errors), allowed)


def with_all_outputs(graph: fx.GraphModule) -> tuple[fx.GraphModule, list[str]]:
    """A copy of ``graph`` that returns what each call computes and nothing writes to; and the calls' names."""
    tapped = copy_graph_module(graph)
    calls = [node for node in tapped.graph.nodes if node.op.startswith("call")]
    written = {one for node in calls for one in written_arguments(tapped, node)}
    calls = [node for node in calls if node.users and node not in written][:MOST_NODES]
    output = next(node for node in reversed(tapped.graph.nodes) if node.op == "output")
    output.args = (tuple(calls),)
    tapped.recompile()
    return tapped, [node.name for node in calls]


def compiled_module(case: Case, source: Any) -> Any:
    """What the backend makes of the module; its frames are found by name, so it is a module of its own."""
    backend: Any = case.compiler
    module = instantiate(source, source.constants)
    options, mode = dict(case.backend.options) or None, case.backend.mode
    return torch.compile(
        module, backend=backend, fullgraph=True, dynamic=case.spec.dynamic, options=options, mode=mode
    )


def values_of(run: Any, case: Case) -> Sequence[Any]:
    """The outputs of one run on clones of the inputs, in the case's modes that matter for values."""
    torch.manual_seed(0)
    inputs = clone_values(case.inputs)
    with torch.set_grad_enabled(case.spec.context.grad):
        outputs: Sequence[Any] = run(*inputs)
    return outputs


def relative_error(actual: Any, expected: Any) -> float | None:
    """Largest error of ``actual`` relative to the largest of ``expected``; None for what is no plain tensor."""
    both_tensors = isinstance(actual, Tensor) and isinstance(expected, Tensor)
    if not both_tensors or expected.layout is not torch.strided:
        return None
    if (actual.shape, actual.dtype) != (expected.shape, expected.dtype):
        return float("inf")
    if expected.numel() == 0:
        return 0.0
    kind = torch.complex128 if expected.is_complex() else torch.float64
    first, second = actual.detach().to(kind), expected.detach().to(kind)
    both = torch.isfinite(first) & torch.isfinite(second)
    same = (first == second) | (torch.isnan(first) & torch.isnan(second))
    if not bool((both | same).all()):
        return float("inf")
    if not bool(both.any()):
        return 0.0
    difference = (first - second).abs()[both].max().item()
    largest = second.abs()[both].max().item()
    return float(difference / largest) if largest else (float("inf") if difference else 0.0)


if __name__ == "__main__":
    # infinity is written as a number that JSON readers of Python know
    print(json.dumps(asdict(compute(Path(sys.argv[1])))), flush=True)
