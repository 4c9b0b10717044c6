"""The questions of a reduction, asked on the machines of a cluster."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

import torch

from minidbg import asking
from minidbg.asking import packing
from minidbg.extras.cluster.pool import ClusterPool
from minidbg.fx.case import Case
from minidbg.repro import discard
from minidbg.watch.events import Notice
from minidbg.watch.places import Members, Place, whole_name
from minidbg.words.cluster_address import Cluster
from minidbg.words.errors import CannotWrite, MinidbgError
from minidbg.words.json_lines import last_json
from minidbg.words.outcome import Outcome, Verdict
from minidbg.workers.pool import NUMBERS, Died, Ended, Order, Ready, RunMode

QUESTION = str(packing.__file__)
JOIN_S = 120.0


@dataclass(slots=True)
class Asker:
    """Asks one question per call, from any thread."""

    folder: Path
    tell: Callable[[str], object]
    place: str = ""
    pool: ClusterPool | None = None
    members: queue.SimpleQueue[Mapping[str, Place]] = field(default_factory=queue.SimpleQueue)
    ends: dict[int, Future[Ended]] = field(default_factory=dict)
    """Of the questions under way, by the number of the order."""

    def heard(self, message: Ended | Ready | Died | Members | Notice) -> None:
        """Called from the pool's thread."""
        if isinstance(message, Ended) and message.id in self.ends:
            self.ends[message.id].set_result(message)
        elif isinstance(message, Members):
            self.members.put(message.places)
        elif isinstance(message, Notice):
            self.tell(message.text)

    def __call__(self, case: Case, seconds: float, memory_bytes: int | None, *, to_the_end: bool) -> Outcome:
        """One run on a worker. Raises OSError where no machine can do it."""
        number = next(NUMBERS)
        file = self.folder / f"case_{number}.json"
        warm = "inductor" if case.backend.name == "inductor" else "aot"
        argv = (QUESTION, str(file), json.dumps(to_the_end))
        order = Order(
            number,
            argv,
            RunMode.FORK,
            seconds,
            one_thread=True,
            place=self.place,
            script=str(file),
            warm=warm,
        )
        pool = self.pool
        assert pool is not None
        try:
            asking.save(case, file)
            end = self.ends[number] = Future()
            pool.run(order)
            ended = end.result()
        except CannotWrite as refusal:
            return Outcome(Verdict.INVALID, reason=str(refusal))
        finally:
            self.ends.pop(number, None)
            discard(file)
        if ended.unable or ended.lost or ended.cancelled:
            raise OSError(ended.unable or "the worker's interpreter died under a question")
        said = last_json(ended.stdout)
        if said is not None and ended.status == 0:
            return Outcome.from_json(said).judged_against(case.signature)
        return asking.outcome_of(case, ended.result)


@contextlib.contextmanager
def asked_on(
    cluster: Cluster,
    device: str,
    code: tuple[Mapping[str, str], Iterable[str]],
    *,
    tell: Callable[[str], object],
) -> Iterator[tuple[int, asking.Executor]]:
    """How many questions at a time, and who runs them within the block: machines that have ``device`` and this torch.

    ``code`` is that of the backend: files with their hashes, and the folders to import from. Raises MinidbgError.
    """
    with tempfile.TemporaryDirectory(prefix="minidbg-") as folder:
        asker = Asker(Path(folder), tell)
        slots = os.cpu_count() or 1
        asker.pool = ClusterPool(asker.heard, cluster, slots=slots)
        try:
            asker.place, count = place_for(asker.members, device)
            asker.pool.take(*code)
            tell(f"questions are asked on {asker.place}, {count} at a time")
            yield count, asker
        finally:
            asker.pool.close()


def place_for(members: queue.SimpleQueue[Mapping[str, Place]], device: str) -> tuple[str, int]:
    """The place with the most slots among those that have the device and the torch of this process. Raises MinidbgError."""
    wanted = whole_name(device)
    try:
        places = members.get(timeout=JOIN_S)
    except queue.Empty:
        raise MinidbgError(
            f"no worker has joined the cluster within {JOIN_S:.0f} s; 'minidbg worker' starts one"
        ) from None
    fitting = {
        name: place.slots
        for name, place in places.items()
        if name.partition("@")[0] == wanted and place.environment.torch == torch.__version__
    }
    if not fitting:
        here = ", ".join(
            f"{name} (torch {place.environment.torch})" for name, place in sorted(places.items())
        )
        raise MinidbgError(
            f"no worker has {wanted} and torch {torch.__version__}, as the reduction here has; there are: {here or 'none'}"
        )
    best = max(fitting, key=lambda name: (fitting[name], name))
    return best, fitting[best]
