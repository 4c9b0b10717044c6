"""minidbg.minimize beside torch's fx_minifier: same graphs, same inputs, same predicates, one process, one run.

Run as a program: ``python tests/benchmarks/bench_reduce.py [--nodes 50,300,1000] [--limit 60] [--json PATH] [--seed N]``.
A planted failure is an opaque predicate: the oracle says yes or no and nothing else, and costs nothing, so that calls and
nodes compiled are what counts. ``--limit`` is the time limit of torch's minifier for one case, in seconds; what it has
by then is its result, marked ``>``. Torch's minifier is then started on our result: it must make no progress.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
import math
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from functorch.compile import minifier
from torch import Tensor, fx, nn

from minidbg.reduction.minimizing import minimize

Predicate = Callable[[fx.GraphModule, Sequence[Any]], bool]


# --- graphs ---


def chain(calls: int) -> tuple[fx.GraphModule, list[Any]]:
    """One value through unary ops."""
    graph = fx.Graph()
    value = graph.placeholder("x")
    for op in itertools.islice(itertools.cycle((torch.sin, torch.cos, torch.relu, torch.tanh)), calls):
        value = graph.call_function(op, (value,))
    graph.output((value,))
    return fx.GraphModule(nn.Module(), graph), [torch.randn(4)]


class Mlp(nn.Module):
    def __init__(self, layers: int, width: int = 8) -> None:
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for linear, norm in zip(self.linears, self.norms, strict=True):
            x = torch.relu(norm(linear(x)))
        return x


class Blocks(nn.Module):
    """Transformer blocks with attention written out."""

    def __init__(self, layers: int, width: int = 8, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers))
        self.ins = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.outs = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.ups = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(layers))
        self.downs = nn.ModuleList(nn.Linear(4 * width, width) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for number, (first, out, up, down) in enumerate(
            zip(self.ins, self.outs, self.ups, self.downs, strict=True)
        ):
            h = self.norms[2 * number](x)
            q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in first(h).chunk(3, -1))
            weights = torch.softmax(q @ k.transpose(-1, -2) / 2.0, -1)
            x = x + out((weights @ v).transpose(1, 2).flatten(-2))
            x = x + down(nn.functional.gelu(up(self.norms[2 * number + 1](x))))
        return x


def captured(model: nn.Module, x: Tensor, calls: int) -> tuple[fx.GraphModule, list[Any]]:
    """The graph of ``model`` as dynamo gives it to a backend."""
    found: list[tuple[fx.GraphModule, list[Any]]] = []

    def keep(graph_module: fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        found.append((graph_module, list(example_inputs)))
        return graph_module.forward

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(model, backend=keep, fullgraph=True)(x)
    return found[0]


GRAPHS: dict[str, Callable[[int], tuple[fx.GraphModule, list[Any]]]] = {
    "chain": chain,
    "mlp": lambda calls: captured(Mlp(max(1, calls // 3)), torch.randn(4, 8), calls),
    "transformer": lambda calls: captured(Blocks(max(1, calls // 32)), torch.randn(2, 4, 8), calls),
}


# --- planted failures ---


@dataclass(frozen=True)
class Planted:
    """Nodes that must all be there for the failure to show, by name."""

    label: str
    names: frozenset[str]

    def __call__(self, graph_module: fx.GraphModule, inputs: Sequence[Any]) -> bool:
        there = {node.name for node in graph_module.graph.nodes if node.op.startswith("call")}
        return self.names <= there


@dataclass(frozen=True)
class PlantedOp:
    """One op of a kind that is nowhere else in the graph."""

    label: str = "unique op"

    def __call__(self, graph_module: fx.GraphModule, inputs: Sequence[Any]) -> bool:
        return any(node.target is torch.erf for node in graph_module.graph.nodes)


def planted(graph_module: fx.GraphModule, seed: int) -> Iterator[Predicate]:
    """The failures for one graph; places are random but for the first and the last."""
    names = [node.name for node in graph_module.graph.nodes if node.op.startswith("call")]
    chance, last = random.Random(seed), len(names) - 1

    def at(label: str, places: Iterable[int]) -> Planted:
        return Planted(label, frozenset(names[place] for place in places))

    near = chance.randrange(last)
    yield at("first", [0])
    yield at("middle", [last // 2 + chance.randrange(-last // 8, last // 8)])
    yield at("last", [last])
    yield PlantedOp()
    yield at("adjacent pair", [near, near + 1])
    yield at("far pair", [chance.randrange(last // 3), last - chance.randrange(last // 3)])
    yield at("three", chance.sample(range(last + 1), 3))
    yield at("five", chance.sample(range(last + 1), 5))


def with_unique_op(graph_module: fx.GraphModule, seed: int) -> fx.GraphModule:
    """The graph with one unary call turned into an op that is nowhere else."""
    graph = fx.Graph()
    new: dict[fx.Node, fx.Node] = {}
    graph.output(graph.graph_copy(graph_module.graph, new))
    alike = [
        node
        for node in graph.nodes
        if node.target in (torch.relu, torch.sin, torch.softmax, nn.functional.gelu)
    ]
    node = random.Random(seed).choice(alike)
    node.target, node.args, node.kwargs = torch.erf, node.args[:1], {}
    return fx.GraphModule(graph_module, graph)


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
    goes_on = torch_goes_on(result.graph_module, list(result.inputs), predicate, limit_s)
    return measured(
        oracle,
        cpu_s,
        result.graph_module,
        result.inputs,
        finished=True,
        certified=result.certified,
        torch_goes_on=goes_on,
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
        for predicate in planted(graph_module, seed):
            case = with_unique_op(graph_module, seed) if isinstance(predicate, PlantedOp) else graph_module
            with torch.no_grad():
                ours = run_ours(case, inputs, predicate, limit_s)
                theirs = run_torch(case, inputs, predicate, limit_s)
            yield {
                "graph": name,
                "calls": count_calls(graph_module),
                "planted": predicate.label,  # type: ignore[attr-defined]
                "minidbg": asdict(ours),
                "torch": asdict(theirs),
            }


HEAD = (
    "graph        nodes planted       | minidbg: calls compiled python_s  n/in/out    bytes cert |"
    " torch: calls compiled python_s  n/in/out    bytes | ratio"
)


def line(row: dict[str, Any]) -> str:
    ours, theirs = row["minidbg"], row["torch"]
    sizes = [f"{found['nodes']}/{found['inputs']}/{found['outputs']}" for found in (ours, theirs)]
    more = "" if theirs["finished"] else ">"
    return (
        f"{row['graph']:12} {row['calls']:5} {row['planted']:13} |"
        f"{ours['calls']:15} {ours['nodes_compiled']:8} {ours['cpu_outside_s']:8.2f} {sizes[0]:>9} "
        f"{ours['input_bytes']:8} {'yes' if ours['certified'] else 'NO':>4} |"
        f"{more + str(theirs['calls']):>13} {theirs['nodes_compiled']:8} {theirs['cpu_outside_s']:8.2f} {sizes[1]:>9} "
        f"{theirs['input_bytes']:8} | {more}{theirs['calls'] / ours['calls']:.1f}"
        + (" TORCH GOES ON" if ours["torch_goes_on"] else "")
    )


def geometric_mean(values: Iterable[float]) -> float:
    listed = list(values)
    return math.exp(sum(map(math.log, listed)) / len(listed)) if listed else math.nan


GROUPS = {
    "one culprit, unknown kind": ("first", "middle", "last"),
    "one culprit, an op of its own": ("unique op",),
    "adjacent pair": ("adjacent pair",),
    "two to five spread": ("far pair", "three", "five"),
}


def summary(found: Sequence[dict[str, Any]]) -> Iterator[str]:
    for size in sorted({row["calls"] // 100 for row in found}):
        for group, labels in GROUPS.items():
            chosen = [row for row in found if row["planted"] in labels and row["calls"] // 100 == size]
            if chosen:
                calls = geometric_mean(row["minidbg"]["calls"] for row in chosen)
                ratio = geometric_mean(row["torch"]["calls"] / row["minidbg"]["calls"] for row in chosen)
                python = max(row["minidbg"]["cpu_outside_s"] for row in chosen)
                yield (
                    f"~{size * 100:5} nodes, {group:30} {calls:6.1f} calls, torch x{ratio:.1f}, "
                    f"at most {python:.2f} s of Python"
                )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", default="50,300,1000")
    parser.add_argument("--graphs", default=",".join(GRAPHS))
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for torch's minifier, a case")
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
