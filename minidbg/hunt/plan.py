"""What a hunt tries, in which order: batches of candidates."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from minidbg.hunt.candidates import name_of
from minidbg.hunt.states import HuntFolder
from minidbg.hunt.twists import order_for

MOST_IN_BATCH = 60
GRAPHS_IN_BATCH = 24


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
        for round_of_twist, dtype in order_for(self.backend, dtypes, self.wanted.samples):
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
