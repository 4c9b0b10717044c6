"""A pool whose interpreters are on the workers of a Dask cluster. Which worker runs what is decided by Dask.

Each order is one task with one resource, the column that it belongs to; the zip of the code under test is another task, which all
orders of a column depend on: Dask takes it to the workers, and makes it again where a worker that had it dies. The pool sees to what
Dask cannot know: that a task is not asked for ever by dying workers, and that all of it survives the scheduler. What a run came
to arrives as an event: a result of Dask's would have to be fetched from the worker by way of the scheduler.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from distributed import Client
from distributed.scheduler import KilledWorker

from minidbg import __version__
from minidbg.extras.cluster import judges
from minidbg.extras.cluster.code import INSTALLED, Code, code_of
from minidbg.extras.cluster.connection import RETRY_S, Connection
from minidbg.extras.cluster.members import Roster
from minidbg.watch.events import Notice
from minidbg.watch.places import Members, Place
from minidbg.words.cluster_address import Cluster
from minidbg.words.text import display_path, plural
from minidbg.workers.pool import NUMBERS, Died, Ended, Order, Pool, Ready, busyness

MOST_DEATHS = 3
"""Workers that may die under one order: it is asked again elsewhere twice."""
MOST_TROUBLE = 5
NO_CODE = Code()


@dataclass(slots=True)
class Asked:
    """An order under way."""

    order: Order
    request: dict[str, Any]
    code: Code
    """What the run is to see."""
    resource: str = ""
    deaths: list[str] = field(default_factory=list)
    """The workers that died under it."""
    done: bool = False
    future: Any = None
    said: Mapping[str, Any] | None = None
    """What the worker answered."""


class ClusterPool:
    """What the daemon uses in place of ``ServerPool``; orders and members belong to the thread of the connection."""

    def __init__(
        self, listener: Callable[[Ended | Ready | Died | Members | Notice], None], cluster: Cluster, *,
        here: Callable[[], Pool] | None = None, slots: int = 1, build: str = "", build_folder: str = "",
    ) -> None:  # fmt: skip
        """``here`` makes the pool for orders without a place, if there are any; ``slots`` is what the worker of ``local`` takes. Raises MinidbgError."""
        self.listener, self.make_pool_here = listener, here
        self.here: Pool | None = None
        self.session = uuid.uuid4().hex[:8]
        self.asked: dict[int, Asked] = {}
        self.keys: dict[str, Asked] = {}
        self.build, self.build_folder = build, build_folder
        self.code = NO_CODE
        """What runs are to see now."""
        self.installed: dict[str, str] = {}
        """Path of each watched file inside an installation, by its path in there."""
        self.zips: dict[tuple[Client, str, str], Any] = {}
        """The futures of zips, by client, digest and resource."""
        self.zipping = asyncio.Lock()
        self.roster = Roster(__version__)
        # Of the answers. A scheduler keeps the last events of each topic for ever, so there are only sixteen.
        self.topic = f"{judges.NAME}-{self.session[0]}"
        topics = {"all": self.event, judges.NAME: self.event, self.topic: self.answered}
        self.connection = Connection(cluster, slots, topics, found=self.look_round, lost=self.lost)
        self.staying = self.connection.soon(self.connection.stay())

    @property
    def places(self) -> Mapping[str, Place]:
        return self.roster.places

    # What the daemon calls

    def run(self, order: Order) -> None:
        """Have the order run at its place; without one, in an interpreter on this machine."""
        if not order.place:
            assert self.make_pool_here is not None
            self.here = self.here or self.make_pool_here()
            self.here.run(order)
            return
        try:
            asked = Asked(order, self.request(order), self.code)
        except OSError as error:
            self.listener(Ended(order.id, unable=f"{order.script} cannot be read: {error.strerror}"))
            return
        self.connection.soon(self.answer(asked))

    def cancel(self, number: int) -> None:
        """End a run; its end is told like any other."""
        if self.here is not None:
            self.here.cancel(number)
        self.connection.loop.call_soon_threadsafe(self.give_up, number)

    def refresh(self) -> Sequence[str]:
        """Nothing to do here: workers replace their interpreters themselves."""
        return ()

    def take(self, files: Mapping[str, str], paths: Iterable[str]) -> Code:
        """From now on runs are to see these files, each with its hash. Raises OSError."""
        is_first = self.code is NO_CODE
        self.code = code = code_of(files, paths, build=self.build, build_folder=self.build_folder)
        self.installed = {found["inner"]: path for path in files if (found := INSTALLED.match(path))}
        if is_first:
            size = sum(os.path.getsize(path) for path in code.files)
            where = ", ".join(map(display_path, code.folders())) or "no folder"
            text = f"{plural(len(code.files), 'file')} of {where} ({size / 1000:.0f} kB) go to the workers, and the repros; nothing else of this machine does"
            self.listener(Notice(text))
        return code

    def close(self) -> None:
        """Give up what is under way, and leave the cluster."""
        for number in list(self.asked):
            self.connection.loop.call_soon_threadsafe(self.give_up, number)
        self.connection.close(self.staying)
        if self.here is not None:
            self.here.close()

    # Members

    def look_round(self, workers: Mapping[str, Any]) -> None:
        """Tell the daemon which places there are, if that has changed."""
        changed, news = self.roster.look(workers, self.connection.loop.time())
        for text in news:
            self.listener(Notice(text))
        if not changed:
            return
        self.listener(Members(dict(self.places)))
        for number, one in list(self.asked.items()):
            if one.order.place not in self.places:
                self.give_up(number)
            elif one.future is not None and self.places[one.order.place].resource != one.resource:
                self.withdraw(one)  # other machines have taken the place of these

    def lost(self, why: str) -> None:
        """The scheduler does not answer."""
        for text in self.roster.news({why}):
            self.listener(Notice(text))

    def event(self, event: Any) -> None:
        """Dask tells of its workers."""
        said = event[1] if isinstance(event, tuple) else event
        if not isinstance(said, Mapping):
            return
        if said.get("action") == "remove-worker" and not said.get("expected"):
            for key in said.get("processing-tasks", ()):
                if asked := self.keys.get(str(key)):
                    asked.deaths.append(str(said.get("worker")))
                    if len(asked.deaths) >= MOST_DEATHS:
                        self.withdraw(asked)
        if "text" in said:
            self.roster.full[str(said["worker"])] = self.connection.loop.time(), str(said["text"])
        self.connection.look.set()

    # One order

    def request(self, order: Order) -> dict[str, Any]:
        """What travels, but for the code. Raises OSError."""
        path = Path(order.script)
        tensors = path.with_suffix(".safetensors")
        package = str(judges.PACKAGE)
        words = {order.script: "@script", str(path.absolute()): "@script"}
        return {
            "argv": [words.get(word) or word.removeprefix(package) for word in order.argv], "topic": self.topic,
            "name": path.name, "script": path.read_bytes(), "tensors": tensors.read_bytes() if tensors.exists() else b"",
            "code": self.code.digest, "mode": order.mode,
            "seconds": order.seconds, "busy": busyness(), "memory_bytes": order.memory_bytes, "nice": order.nice,
            "one_thread": order.one_thread, "env": dict(order.env), "warm": order.warm,
        }  # fmt: skip

    async def answer(self, asked: Asked) -> None:
        """See the order through, however often it must be asked."""
        order = asked.order
        self.asked[order.id] = asked
        ended = Ended(order.id, cancelled=True)
        try:
            ended = await self.ended(asked)
        finally:
            self.asked.pop(order.id, None)
            self.listener(ended)

    async def ended(self, asked: Asked) -> Ended:
        """How the run ended. What goes wrong between here and a worker is no end: the order is given to Dask again."""
        number, trouble = asked.order.id, 0
        while not asked.done:
            await self.connection.connected.wait()
            client, place = self.connection.client, self.places.get(asked.order.place)
            if place is None:
                break  # it has left
            if client is None:
                await asyncio.sleep(RETRY_S)
                continue
            try:
                return self.as_ended(number, await self.ask(client, asked, place), asked.code.digest)
            except KilledWorker as killed:
                return Ended(number, unable=died(asked.deaths or [str(killed.last_worker.address)]))
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - a lost connection shows itself in many ways
                if asked.done:
                    break
                if len(asked.deaths) >= MOST_DEATHS:
                    return Ended(number, unable=died(asked.deaths))
                trouble += client is self.connection.client and client.status == "running"
                if trouble >= MOST_TROUBLE:
                    return Ended(number, unable=f"{type(error).__name__}: {error}"[:500])
                self.zips.clear()  # one may be what has gone wrong
                await asyncio.sleep(RETRY_S)
        return Ended(number, cancelled=True)

    async def ask(self, client: Client, asked: Asked, place: Place) -> Mapping[str, Any]:
        """What a worker answers. Raises Edited, OSError and what Dask raises."""
        zipped = await self.zipped(client, asked.code, place)
        if asked.done:
            raise asyncio.CancelledError
        key = f"minidbg-{self.session}-{next(NUMBERS)}"
        self.keys[key], asked.resource, asked.said = asked, place.resource, None
        try:
            asked.future = client.submit(
                judges.judge, asked.request, zipped, key=key, pure=False, resources={place.resource: 1}
            )
            error = await asked.future.exception()  # waits, and fetches nothing
            if error is not None:
                raise error
            if asked.said is None:  # cancelled, or the event was lost
                raise asyncio.CancelledError
            return asked.said
        finally:
            del self.keys[key]
            asked.future = None

    async def zipped(self, client: Client, code: Code, place: Place) -> Any:
        """The future of the zip at workers of this kind. Raises Edited and OSError."""
        wanted = client, code.digest, place.resource
        async with self.zipping:
            if wanted not in self.zips:
                data = await asyncio.to_thread(lambda: code.zipped)
                self.zips = {known: future for known, future in self.zips.items() if known[:2] == wanted[:2]}
                # It takes none of the resource, so that it is there before a worker has ended its last run.
                self.zips[wanted] = client.submit(
                    bytes, data, key=f"minidbg-{self.session}-code-{next(NUMBERS)}", pure=False, resources={place.resource: 0},
                )  # fmt: skip
            return self.zips[wanted]

    def answered(self, event: Any) -> None:
        """A worker has answered, before Dask knows that its task is done."""
        said = event[1] if isinstance(event, tuple) else event
        if asked := self.keys.get(str(said["key"])):
            asked.said = said

    def as_ended(self, number: int, said: Mapping[str, Any], code: str) -> Ended:
        """What a worker said. A verdict on other code than was asked for counts for nothing."""
        if said["code"] != code:
            return Ended(number, unable=f"{said['host']} judged other code than was asked for")
        if "unable" in said:
            return Ended(number, unable=said["unable"])
        ended = Ended(**{**said["ended"], "id": number})
        files = ended.files
        if files is not None:
            known = (path if path.startswith("/") else self.installed.get(path) for path in files)
            files = tuple(path for path in known if path)
        return replace(ended, files=files, cancelled=False, lost=ended.lost or ended.cancelled)

    def give_up(self, number: int) -> None:
        asked = self.asked.get(number)
        if asked is not None and not asked.done:
            asked.done = True
            self.withdraw(asked)

    def withdraw(self, asked: Asked) -> None:
        """Take an order back from Dask."""
        if asked.future is not None:
            asked.future.release()  # not 'cancel', which waits for the scheduler, once for each order


def died(workers: Iterable[str]) -> str:
    """What to say of an order under which workers died: a fact about machines."""
    return f"the machine failed, not the repro: workers died under it ({', '.join(workers)})"
