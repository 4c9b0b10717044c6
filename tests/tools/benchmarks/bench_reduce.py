"""minidbg.minimize beside torch's fx_minifier: same graphs, same inputs, same predicates, one process, one run.

Run as a program: ``python tests/tools/benchmarks/bench_reduce.py [--nodes 50,300,1000] [--limit 60] [--json PATH] [--seed N]``.
A planted failure is an opaque predicate: the oracle says yes or no and nothing else, and costs nothing, so that calls and
nodes compiled are what counts. ``--limit`` is the time limit of torch's minifier for one case, in seconds; what it has
by then is its result, marked ``>``; with 0 it is left out. Torch's minifier is then started on our result: it must make no progress.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
import math
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from functorch.compile import minifier
from graphs_to_bench import GRAPHS
from planted_failures import Predicate, planted
from torch import Tensor, fx

from minidbg import minimize

# --- measuring ---


class TimeUp(Exception):
    """The time limit of one case has passed."""


@dataclass
class Oracle:
    """The predicate, counted and timed."""

    predicate: Predicate
    limit_s: float = math.inf
    calls: int = 0
    nodes_compiled: int = 0
    seconds: float = 0.0
    started: float = field(default_factory=time.monotonic)

    def __call__(self, graph_module: fx.GraphModule, inputs: Sequence[Any]) -> bool:
        if time.monotonic() - self.started > self.limit_s:
            raise TimeUp
        began = time.process_time()
        self.calls += 1
        self.nodes_compiled += count_calls(graph_module)
        answer = self.predicate(graph_module, inputs)
        self.seconds += time.process_time() - began
        return answer


@dataclass(frozen=True)
class Measured:
    """What one tool did with one case."""

    calls: int
    nodes_compiled: int
    wall_s: float
    cpu_outside_s: float
    nodes: int
    inputs: int
    outputs: int
    input_bytes: int
    finished: bool
    certified: bool = False
    torch_goes_on: bool | None = None
    same_bug: bool | None = None


def count_calls(graph_module: fx.GraphModule) -> int:
    return sum(node.op.startswith("call") for node in graph_module.graph.nodes)


def count_outputs(graph_module: fx.GraphModule) -> int:
    returned = graph_module.graph.output_node().args[0]
    return len(returned) if isinstance(returned, tuple | list) else 1


def measured(
    oracle: Oracle, cpu_s: float, graph_module: fx.GraphModule, inputs: Sequence[Any], **more: Any
) -> Measured:
    return Measured(
        oracle.calls,
        oracle.nodes_compiled,
        round(time.monotonic() - oracle.started, 3),
        round(cpu_s - oracle.seconds, 3),
        count_calls(graph_module),
        len(inputs),
        count_outputs(graph_module),
        sum(value.nbytes for value in inputs if isinstance(value, Tensor)),
        **more,
    )


def run_ours(
    graph_module: fx.GraphModule, inputs: Sequence[Any], predicate: Predicate, limit_s: float
) -> Measured:
    oracle, began = Oracle(predicate), time.process_time()
    result = minimize(graph_module, inputs, oracle)
    cpu_s = time.process_time() - began
    goes_on = limit_s > 0 and torch_goes_on(result.graph_module, list(result.inputs), predicate, limit_s)
    return measured(
        oracle,
        cpu_s,
        result.graph_module,
        result.inputs,
        finished=True,
        certified=result.certified,
        torch_goes_on=goes_on,
        same_bug=predicate(result.graph_module, result.inputs),
    )


def torch_goes_on(
    graph_module: fx.GraphModule, inputs: list[Any], predicate: Predicate, limit_s: float
) -> bool:
    """Whether torch's minifier finds anything to remove in our result."""
    after, _ = run_torch_on(graph_module, inputs, Oracle(predicate, limit_s))
    return count_calls(after[0]) < count_calls(graph_module) or len(after[1]) < len(inputs)


def run_torch_on(
    graph_module: fx.GraphModule, inputs: list[Any], oracle: Oracle
) -> tuple[tuple[fx.GraphModule, list[Any]], bool]:
    """Torch's result, or what it had when its time was up; and whether it finished."""
    best = [(graph_module, inputs)]

    def keep(found: fx.GraphModule, values: list[Any]) -> None:
        best.append((found, list(values)))

    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        try:
            found, values = minifier(graph_module, inputs, oracle, keep)
        except TimeUp:
            return best[-1], False
    return (found, list(values)), True


def run_torch(
    graph_module: fx.GraphModule, inputs: Sequence[Any], predicate: Predicate, limit_s: float
) -> Measured:
    oracle, began = Oracle(predicate, limit_s), time.process_time()
    (found, values), finished = run_torch_on(graph_module, list(inputs), oracle)
    return measured(oracle, time.process_time() - began, found, values, finished=finished)


# --- the table ---


def rows(nodes: Sequence[int], graphs: Sequence[str], seed: int, limit_s: float) -> Iterator[dict[str, Any]]:
    for name, calls in itertools.product(graphs, nodes):
        graph_module, inputs = GRAPHS[name](calls)
        for label, case, predicate in planted(graph_module, inputs, seed):
            with torch.no_grad():
                ours = run_ours(case, inputs, predicate, limit_s)
                theirs = run_torch(case, inputs, predicate, limit_s) if limit_s else None
            yield {
                "graph": name,
                "asked_for": calls,
                "calls": count_calls(graph_module),
                "planted": label,
                "minidbg": asdict(ours),
                "torch": asdict(theirs) if theirs else None,
            }


HEAD = (
    "graph        nodes planted          | minidbg: calls compiled python_s  n/in/out    bytes cert |"
    " torch: calls compiled python_s  n/in/out    bytes | ratio"
)


def line(row: dict[str, Any]) -> str:
    ours, theirs = row["minidbg"], row["torch"]
    text = (
        f"{row['graph']:12} {row['calls']:5} {row['planted']:16} |"
        f"{ours['calls']:15} {ours['nodes_compiled']:8} {ours['cpu_outside_s']:8.2f} {size_of(ours):>9} "
        f"{ours['input_bytes']:8} {'yes' if ours['certified'] else 'NO':>4} |"
    )
    if theirs:
        more = "" if theirs["finished"] else ">"
        text += (
            f"{more + str(theirs['calls']):>13} {theirs['nodes_compiled']:8} {theirs['cpu_outside_s']:8.2f} "
            f"{size_of(theirs):>9} {theirs['input_bytes']:8} | {more}{theirs['calls'] / ours['calls']:.1f}"
        )
    return text + "".join(f" {loss.upper()}" for loss in losses(row))


def size_of(found: dict[str, Any]) -> str:
    return f"{found['nodes']}/{found['inputs']}/{found['outputs']}"


def losses(row: dict[str, Any]) -> Iterator[str]:
    """What minidbg did worse than torch's minifier, or not at all."""
    ours, theirs = row["minidbg"], row["torch"]
    if not ours["same_bug"]:
        yield "another bug"
    if not ours["certified"]:
        yield "not certified"
    if ours["torch_goes_on"]:
        yield "torch goes on"
    if theirs and theirs["finished"]:
        for what in ("calls", "nodes_compiled", "nodes", "inputs", "input_bytes"):
            if ours[what] > theirs[what]:
                yield f"more {what.replace('_', ' ')}"


def summary(found: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Geometric means for each kind of failure, then every loss by name."""
    for label in dict.fromkeys(row["planted"] for row in found):
        ours = [row["minidbg"]["calls"] for row in found if row["planted"] == label]
        both = [row for row in found if row["planted"] == label and row["torch"]]
        ratios = [row["torch"]["calls"] / row["minidbg"]["calls"] for row in both]
        text = f"{label:16} {statistics.geometric_mean(ours):6.1f} calls, at most {max(ours)}"
        cut_off = sum(not row["torch"]["finished"] for row in both)
        yield text + (f"; torch x{statistics.geometric_mean(ratios):.1f}, {cut_off} cut off" if both else "")
    lost = [(row, list(losses(row))) for row in found]
    yield f"{sum(bool(what) for _, what in lost)} of {len(found)} rows with a loss"
    for row, what in lost:
        if what:
            yield f"  {row['graph']} {row['calls']} {row['planted']}: {', '.join(what)}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", default="50,300,1000")
    parser.add_argument("--graphs", default=",".join(GRAPHS))
    parser.add_argument(
        "--limit", type=float, default=60.0, help="seconds for torch's minifier, a case; 0 leaves it out"
    )
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--json", default=None, help="where to write the rows")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10**6)
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, seed {seed}\n{HEAD}")
    found = []
    for row in rows(
        [int(text) for text in options.nodes.split(",")], options.graphs.split(","), seed, options.limit
    ):
        found.append(row)
        print(line(row), flush=True)
    print("\n".join(summary(found)))
    if options.json:
        with open(options.json, "w") as stream:
            json.dump({"torch": torch.__version__, "seed": seed, "rows": found}, stream, indent=1)


if __name__ == "__main__":
    main()
