"""A pool whose interpreters are on the workers of a Dask cluster. Which worker runs what is decided by Dask.

Each order is one task with one resource, the column that it belongs to. The pool sees to what Dask cannot know: that the code
under test is on the worker, that a task is not asked for ever by dying workers, and that all of it survives the scheduler.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import logging
import os
import threading
import uuid
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from distributed import Client, LocalCluster
from distributed.scheduler import KilledWorker

from minidbg.cluster import judges
from minidbg.cluster.code import INSTALLED, Code, code_of, read_blob, sha_of
from minidbg.cluster.members import Cluster, Members, Notice, Place, members_of
from minidbg.errors import MinidbgError
from minidbg.printable import display_path
from minidbg.processes.pool import NUMBERS, Died, Ended, Order, Pool, Ready, busyness

CONNECT_S = 10.0
RETRY_S = 0.5
LOOK_S = 2.0
"""How often the members are looked at although no event said so."""
LEAVE_S = 15.0
"""A column whose last worker has gone stays for so long: workers restart, and networks fail for a while."""
MOST_DEATHS = 3
"""Workers that may die under one order: it is asked again elsewhere twice."""
MOST_TROUBLE = 5
NO_BLOBS: Mapping[str, bytes] = {}
SMALL_BYTES = 1 << 16
"""Larger files are read again when they are sent."""


@dataclass(slots=True)
class Asked:
    """An order under way."""

    order: Order
    request: dict[str, Any]
    resource: str = ""
    deaths: list[str] = field(default_factory=list)
    """The workers that died under it."""
    done: bool = False
    future: Any = None


class ClusterPool:
    """What the daemon uses in place of ``ServerPool``; all state belongs to one thread, which runs the event loop."""

    def __init__(
        self, listener: Callable[[Ended | Ready | Died | Members | Notice], None], cluster: Cluster, *,
        here: Callable[[], Pool], slots: int = 1, build: str = "", build_folder: str = "",
    ) -> None:  # fmt: skip
        """``here`` makes the pool for orders without a place, ``slots`` is what a worker of ``local`` takes. Raises MinidbgError."""
        self.listener, self.cluster, self.make_pool_here = listener, cluster, here
        self.build, self.build_folder, self.slots = build, build_folder, slots
        self.security = cluster.security()
        self.here: Pool | None = None
        self.session = uuid.uuid4().hex[:8]
        self.asked: dict[int, Asked] = {}
        self.keys: dict[str, Asked] = {}
        self.sources: dict[str, str | bytes] = {}
        """By blob: the file that has it, or the bytes themselves."""
        self.code = self.digest = ""
        self.installed: dict[str, str] = {}
        """Path of each watched file inside an installation, by its path in there."""
        self.sending: dict[tuple[str, tuple[str, ...]], asyncio.Task[None]] = {}
        self.sent_bytes = 0
        self.places: dict[str, Place] = {}
        self.last_seen: dict[str, float] = {}
        self.told: set[str] = set()
        """What was said and is still so."""
        self.full: dict[str, tuple[float, str]] = {}
        """By worker: when it said that its disk has no room, and the text."""
        self.client: Client | None = None
        logging.getLogger("distributed").setLevel(logging.CRITICAL + 1)  # what matters of it we say ourselves
        self.loop = asyncio.new_event_loop()
        self.connected, self.look = asyncio.Event(), asyncio.Event()
        self.closing = False
        self.started: Any = None
        self.thread = threading.Thread(target=self.loop.run_forever, name="minidbg-cluster", daemon=True)
        self.thread.start()
        self.connection = self.soon(self.stay_connected())

    # What the daemon calls

    def run(self, order: Order, blobs: Mapping[str, bytes] = NO_BLOBS) -> None:
        """Have the order run at its place; without one, in an interpreter on this machine. Its script needs the ``blobs``."""
        if not order.place:
            self.here = self.here or self.make_pool_here()
            self.here.run(order)
            return
        try:
            asked = Asked(order, {**self.request(order), "blobs": list(blobs)})
        except OSError as error:
            self.listener(Ended(order.id, unable=f"{order.script} cannot be read: {error.strerror}"))
            return
        self.soon(self.answer(asked, blobs))

    def cancel(self, number: int) -> None:
        """End a run; its end is told like any other."""
        if self.here is not None:
            self.here.cancel(number)
        self.loop.call_soon_threadsafe(self.give_up, number)

    def refresh(self) -> bool:
        """Nothing to do here: workers replace their interpreters themselves."""
        return False

    def take(self, files: Mapping[str, str], paths: Iterable[str]) -> Code:
        """From now on runs are to see these files, each with its hash. Raises OSError."""
        code = code_of(files, paths, build=self.build, build_folder=self.build_folder)
        if not self.digest:
            size = sum(os.path.getsize(path) for path in code.files)
            where = ", ".join(map(display_path, code.folders())) or "no folder"
            count = f"{len(code.files)} file{'' if len(code.files) == 1 else 's'}"
            text = f"{count} of {where} ({size / 1000:.0f} kB) go to the workers, and the repros; nothing else of this machine does"
            self.listener(Notice(text))
        manifest = code.manifest
        self.digest = sha_of(manifest)
        sources = {sha.rstrip("*"): path for path, sha in code.files.items()}
        self.sources |= {**sources, self.digest: manifest}
        self.installed = {found["inner"]: path for path in files if (found := INSTALLED.match(path))}
        return code

    def close(self) -> None:
        """Give up what is under way, and leave the cluster."""
        self.closing = True
        self.loop.call_soon_threadsafe(self.look.set)
        with contextlib.suppress(Exception):  # the cluster may be in any state, and we want to leave
            self.soon(self.leave()).result(timeout=10)
            self.connection.cancel()
            self.soon(asyncio.sleep(0)).result(timeout=1)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(timeout=5)
        if not self.thread.is_alive():
            self.loop.close()
        if self.here is not None:
            self.here.close()

    # The connection

    def soon(self, work: Coroutine[Any, Any, None]) -> Future[None]:
        """Have the loop do this."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    async def address(self) -> str:
        """Of the scheduler; a local cluster is started first."""
        if not self.cluster.workers:
            return self.cluster.address
        if self.started is None:
            self.started = await LocalCluster(
                n_workers=self.cluster.workers, threads_per_worker=max(1, self.slots // self.cluster.workers),
                processes=True, host="127.0.0.1", dashboard_address=None, memory_limit=0, asynchronous=True,
                preload=["minidbg.cluster.judges"], preload_argv=["--kind", "local"], silence_logs=logging.CRITICAL + 1,
            )  # fmt: skip
        return str(self.started.scheduler_address)

    async def stay_connected(self) -> None:
        """Have a client as long as the pool lives, a new one whenever the scheduler was lost; tell who is there."""
        while not self.closing:
            try:
                self.client = client = await Client(
                    await self.address(), asynchronous=True, security=self.security, timeout=CONNECT_S,
                    set_as_default=False, name="minidbg",
                )  # fmt: skip
                for topic in ("all", judges.NAME):
                    client.subscribe_topic(topic, self.event)
                self.connected.set()
                scheduler = None
                while client.status == "running" and not self.closing:
                    self.look.clear()
                    found = await asyncio.wait_for(client.scheduler.identity(n_workers=-1), CONNECT_S)
                    if scheduler not in (None, found["id"]):
                        break  # another one, which does not know what we want to hear
                    scheduler = found["id"]
                    self.look_round(found["workers"])
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self.look.wait(), LOOK_S)
            except (OSError, TimeoutError, MinidbgError) as error:
                why = f"{type(error).__name__}: {error}".partition("\n")[0][:200]
                self.tell(
                    {f"the scheduler at {self.cluster.address} does not answer; runs wait for it ({why})"}
                )
            self.connected.clear()
            lost, self.client = self.client, None
            if lost is not None:
                with contextlib.suppress(Exception):  # it is lost already
                    await asyncio.wait_for(lost.close(), 2)
            self.look_round({})
            await asyncio.sleep(RETRY_S)

    def look_round(self, workers: Mapping[str, Any]) -> None:
        """Tell the daemon which places there are, if that has changed. A place whose workers have gone stays for a while."""
        before, now = self.places, self.loop.time()
        resources = {place.resource for place in before.values()}
        places, notices = members_of(workers, importlib.metadata.version("minidbg"), resources)
        self.last_seen.update(dict.fromkeys(places, now))
        for name, place in before.items():
            if name not in places and now - self.last_seen[name] < LEAVE_S:
                places[name] = place
        if workers:
            # What was found out before the worker spoke may still say that it runs.
            self.full = {
                who: (at, text)
                for who, (at, text) in self.full.items()
                if who in workers and (now - at < LOOK_S or workers[who]["status"] == "paused")
            }
            self.tell(notices | {text for _, text in self.full.values()})
        if places != before:
            self.places = places
            self.listener(Members(dict(places)))
            for number, one in list(self.asked.items()):
                if one.order.place not in places:
                    self.give_up(number)
                elif one.future is not None and places[one.order.place].resource != one.resource:
                    self.loop.create_task(one.future.cancel())  # other machines have taken the place of these

    def tell(self, notices: set[str]) -> None:
        """Say what was not so before."""
        for text in sorted(notices - self.told):
            self.listener(Notice(text))
        self.told = notices

    def event(self, event: Any) -> None:
        """Dask tells of its workers. Called in the loop."""
        said = event[1] if isinstance(event, tuple) else event
        if not isinstance(said, Mapping):
            return
        if said.get("action") == "remove-worker" and not said.get("expected"):
            for key in said.get("processing-tasks", ()):
                if asked := self.keys.get(str(key)):
                    asked.deaths.append(str(said.get("worker")))
                    if len(asked.deaths) >= MOST_DEATHS and asked.future is not None:
                        self.loop.create_task(asked.future.cancel())
        if "text" in said:
            self.full[str(said["worker"])] = self.loop.time(), str(said["text"])
        self.look.set()

    # One order

    def request(self, order: Order) -> dict[str, Any]:
        """What travels. Raises OSError."""
        path, shas = Path(order.script), []
        for one in (path, path.with_suffix(".safetensors")):
            data = one.read_bytes() if one.exists() else b""
            shas.append(sha_of(data) if data else "")
            self.sources[shas[-1]] = data if len(data) < SMALL_BYTES else str(one)
        package = str(judges.PACKAGE)
        words = {order.script: "@script", str(path.absolute()): "@script"}
        return {
            "argv": [words.get(word) or word.removeprefix(package) for word in order.argv],
            "name": path.name, "script": shas, "code": self.digest, "mode": order.mode,
            "seconds": order.seconds, "busy": busyness(), "memory_bytes": order.memory_bytes, "nice": order.nice,
            "one_thread": order.one_thread, "env": dict(order.env), "warm": order.warm,
        }  # fmt: skip

    async def answer(self, asked: Asked, blobs: Mapping[str, bytes]) -> None:
        """See the order through, however often it must be asked."""
        order = asked.order
        self.asked[order.id] = asked
        self.sources |= blobs
        ended = Ended(order.id, cancelled=True)
        try:
            ended = await self.ended(asked)
        finally:
            self.asked.pop(order.id, None)
            for sha in blobs:
                self.sources.pop(sha, None)
            self.listener(ended)

    async def ended(self, asked: Asked) -> Ended:
        """How the run ended. What goes wrong between here and a worker is no end: the order is given to Dask again."""
        number, trouble = asked.order.id, 0
        while not asked.done:
            await self.connected.wait()
            client, place = self.client, self.places.get(asked.order.place)
            if place is None:
                break  # it has left
            if client is None:
                await asyncio.sleep(RETRY_S)
                continue
            try:
                said = await self.ask(client, asked, place.resource)
                if "lacking" not in said:
                    return self.as_ended(number, said, asked.request["code"])
                await self.send(client, said["worker"], said["lacking"])
            except KilledWorker as killed:
                return Ended(number, unable=died(asked.deaths or [str(killed.last_worker.address)]))
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - a lost connection shows itself in many ways
                if asked.done:
                    break
                if len(asked.deaths) >= MOST_DEATHS:
                    return Ended(number, unable=died(asked.deaths))
                trouble += client is self.client and client.status == "running"
                if trouble >= MOST_TROUBLE:
                    return Ended(number, unable=f"{type(error).__name__}: {error}"[:500])
                await asyncio.sleep(RETRY_S)
        return Ended(number, cancelled=True)

    async def ask(self, client: Client, asked: Asked, resource: str) -> Mapping[str, Any]:
        """What a worker answers. Raises what Dask raises."""
        key = f"minidbg-{self.session}-{next(NUMBERS)}"
        self.keys[key], asked.resource = asked, resource
        try:
            asked.future = client.submit(
                judges.judge, asked.request, key=key, pure=False, resources={resource: 1}
            )
            found: Mapping[str, Any] = await asked.future
            return found
        finally:
            del self.keys[key]
            asked.future = None

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

    async def send(self, client: Client, worker: str, shas: Iterable[str]) -> None:
        """Send blobs to a worker, once also where several orders ask for it. Raises Edited and OSError."""
        wanted = worker, tuple(shas)
        if wanted not in self.sending:
            self.sending[wanted] = self.loop.create_task(self.send_now(client, *wanted))
        try:
            await asyncio.shield(self.sending[wanted])
        finally:
            self.sending.pop(wanted, None)

    async def send_now(self, client: Client, worker: str, shas: Iterable[str]) -> None:
        blobs = {}
        for sha in shas:
            source = self.sources.get(sha, b"")
            blobs[sha] = read_blob(source, sha) if isinstance(source, str) else source
        self.sent_bytes += sum(map(len, blobs.values()))
        await client.run(judges.receive, blobs, workers=[worker], on_error="return")

    def give_up(self, number: int) -> None:
        """Have an order answered as cancelled."""
        asked = self.asked.get(number)
        if asked is None or asked.done:
            return
        asked.done = True
        if asked.future is not None:
            self.loop.create_task(asked.future.cancel())

    async def leave(self) -> None:
        """End what is under way."""
        for number in list(self.asked):
            self.give_up(number)
        if self.client is not None:
            await self.client.close()
        if self.started is not None:
            await self.started.close()


def died(workers: Iterable[str]) -> str:
    """What to say of an order under which workers died: a fact about machines."""
    return f"the machine failed, not the repro: workers died under it ({', '.join(workers)})"
