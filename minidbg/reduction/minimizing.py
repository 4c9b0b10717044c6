"""``minidbg.minimize``: reduction with a predicate of the user's, in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx

from minidbg.errors import MinidbgError
from minidbg.graphs.copying import clone_values
from minidbg.reduction.core import Answer, Budget, reduce_graph


@dataclass(frozen=True, slots=True)
class Minimized:
    """The smallest graph that still fails, and its inputs."""

    graph_module: fx.GraphModule
    inputs: tuple[Any, ...]
    oracle_calls: int
    certified: bool
    """Whether it was proven 1-minimal: every single removal of a node, an input or an output was tried and does not fail."""
    seconds: float
    interrupted: bool
    """Whether Ctrl-C ended it early."""
    steps: tuple[tuple[fx.GraphModule, tuple[Any, ...]], ...]
    """Failing graphs on the way, largest first."""


def minimize(
    gm: fx.GraphModule,
    inputs: Sequence[Any],
    fails: Callable[[fx.GraphModule, list[Any]], bool],
    *,
    max_calls: int | None = None,
    seconds: float | None = None,
    simplify: bool = False,
) -> Minimized:
    """The smallest part of ``gm`` for which ``fails(gm, inputs)`` is still true.

    ``fails`` runs in this process and gets copies of its own, which it may change. ``simplify`` goes on with plainer arguments,
    smaller shapes and simpler values, and merges inputs. ``max_calls`` and ``seconds``
    are looked at between calls. ``gm`` and ``inputs`` are only read; ``gm`` runs in eager, in the current
    grad mode, to find the values inside it. Raises NotReproduced when ``fails`` is false for the whole of it,
    MinidbgError when ``inputs`` do not fit the graph, and what ``fails`` raises.
    """
    placeholders = sum(node.op == "placeholder" for node in gm.graph.nodes)
    if placeholders != len(inputs):
        raise MinidbgError(
            f"the graph takes {placeholders} inputs, {len(inputs)} were given; one is needed for each placeholder"
        )

    def ask(graph_module: fx.GraphModule, values: tuple[Any, ...]) -> Answer:
        return Answer.INTERESTING if fails(graph_module, clone_values(values)) else Answer.NOT

    reduced = reduce_graph(
        gm,
        tuple(inputs),
        ask,
        budget=Budget(max_calls, seconds),
        whole_is_known=False,
        allow_no_calls=True,
        simplify=simplify,
    )
    return Minimized(
        reduced.graph_module,
        reduced.inputs,
        reduced.oracle_calls,
        reduced.certified,
        reduced.seconds,
        reduced.interrupted,
        reduced.steps,
    )
