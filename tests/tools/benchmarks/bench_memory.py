"""Peak tensor bytes of a reduction beside one eager run of the same graph, both in this process.

Run as a program: ``python tests/tools/benchmarks/bench_memory.py [--nodes 1000] [--seed N]``. Counted are storages that torch's
ops make and the inputs, each once, while anything holds them; the predicate runs nothing, so that what is counted is
the reducer's own. ``result`` is what the recorded values take that the result has as inputs: far-apart culprits each need theirs.
"""

from __future__ import annotations

import argparse
import gc
import math
import random
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from graphs_to_bench import Blocks, DenseBlocks, Mlp, captured, chain
from planted_failures import Planted, planted
from torch import Tensor, fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from minidbg.reduction.candidate import OracleAnswer
from minidbg.reduction.core import reduce_graph

LARGE: dict[str, Callable[[int], tuple[fx.GraphModule, list[Any]]]] = {
    "chain": lambda calls: (chain(calls)[0], [torch.randn(1 << 24)]),
    "mlp": lambda calls: captured(Mlp(calls // 3, 512), torch.randn(256, 512), calls),
    "densenet": lambda calls: captured(DenseBlocks(calls // 4, 12).eval(), torch.randn(8, 4, 64, 64), calls),
    "transformer": lambda calls: captured(Blocks(calls // 32, 256, 4), torch.randn(8, 128, 256), calls),
}
"""Large enough for the few megabytes that a reduction may always keep not to matter."""


class Counting(TorchDispatchMode):
    """Bytes of the storages that are alive, and the most they ever were."""

    def __init__(self, inputs: Sequence[Any]) -> None:
        super().__init__()
        self.alive = 0
        self.peak = 0
        self.known: set[int] = set()
        for value in inputs:
            self.count(value)

    def count(self, value: Any) -> None:
        if not isinstance(value, Tensor):
            return
        storage = value.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self.known or not size:
            return
        self.known.add(key)
        self.alive += size
        self.peak = max(self.peak, self.alive)
        weakref.finalize(storage, self.forget, key, size)

    def forget(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.alive -= size

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            self.count(value)
        return result


@contextmanager
def counting(inputs: Sequence[Any]) -> Iterator[Counting]:
    gc.collect()
    with Counting(inputs) as found:
        yield found


def peak_of_eager(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> int:
    """Of a run that frees each value after its last use, as a program does."""
    with torch.no_grad(), counting(inputs) as found:
        graph_module(*inputs)
    return found.peak


def peak_of_reduction(
    graph_module: fx.GraphModule, inputs: Sequence[Any], predicate: Planted
) -> tuple[int, int]:
    """The peak, and the bytes of recorded values among the inputs of the result."""
    with torch.no_grad(), counting(inputs) as found:
        reduced = reduce_graph(
            graph_module,
            inputs,
            lambda candidate, values: (
                OracleAnswer.INTERESTING if predicate(candidate, values) else OracleAnswer.NOT
            ),
        )
    given = {value.untyped_storage()._cdata for value in inputs if isinstance(value, Tensor)}
    recorded = {
        value.untyped_storage()._cdata: value.untyped_storage().nbytes()
        for value in reduced.inputs
        if isinstance(value, Tensor)
    }
    return found.peak, sum(size for key, size in recorded.items() if key not in given)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=300)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    print(f"seed {options.seed}; peak tensor bytes, weights and inputs counted once")
    ratios = []
    for name, make in LARGE.items():
        graph_module, inputs = make(options.nodes)
        eager = peak_of_eager(graph_module, inputs)
        for predicate in planted(graph_module, inputs, options.seed):
            if isinstance(predicate, Planted):
                ours, result = peak_of_reduction(graph_module, inputs, predicate)
                ratios.append(ours / eager)
                print(
                    f"{name:12} {predicate.label:14} eager {eager:12,} reduction {ours:12,} "
                    f"x{ours / eager:.2f} result {result:12,}{' OVER' if ours > 1.5 * eager else ''}",
                    flush=True,
                )
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    over = sum(ratio > 1.5 for ratio in ratios)
    print(f"geometric mean x{mean:.2f}, most x{max(ratios):.2f}; {over} of {len(ratios)} over 1.5")


if __name__ == "__main__":
    main()
