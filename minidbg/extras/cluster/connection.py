"""The way to a Dask scheduler: a client as long as somebody needs one, a new one whenever the scheduler was lost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from typing import Any

import dask
from distributed import Client, LocalCluster

from minidbg.extras.cluster.members import LEAN, LOOK_S
from minidbg.words.cluster_address import Cluster
from minidbg.words.errors import MinidbgError

CONNECT_S = 10.0
RETRY_S = 0.5


class Connection:
    """Runs an event loop in a thread of its own, in which everything else here is called."""

    def __init__(
        self, cluster: Cluster, slots: int, topics: Mapping[str, Callable[[Any], None]], *,
        found: Callable[[Mapping[str, Any]], None], lost: Callable[[str], None],
    ) -> None:  # fmt: skip
        """``found`` hears who is there, ``lost`` why nobody answers; ``slots`` is for the worker of ``local``. Raises MinidbgError."""
        self.cluster, self.slots, self.topics, self.found, self.lost = cluster, slots, topics, found, lost
        self.security = cluster.security()
        logging.getLogger("distributed").setLevel(logging.CRITICAL + 1)  # what matters of it we say ourselves
        dask.config.set(
            {"distributed.admin.large-graph-warning-threshold": "1 TB"}
        )  # code and tensors are sent on purpose
        self.client: Client | None = None
        self.local: Any = None
        """The ``LocalCluster`` that was started for us."""
        self.closing = False
        self.connected, self.look = asyncio.Event(), asyncio.Event()
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="minidbg-cluster", daemon=True)
        self.thread.start()

    def soon(self, work: Coroutine[Any, Any, None]) -> Future[None]:
        """Have the loop do this. Called from other threads."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    async def address(self) -> str:
        """Of the scheduler; a local cluster is started first."""
        if not self.cluster.local_runs:
            return self.cluster.address
        if self.local is None:
            # One worker, however many runs: each worker would warm an interpreter of its own after a save.
            with dask.config.set(LEAN):
                self.local = await LocalCluster(
                    n_workers=1, threads_per_worker=max(self.slots, self.cluster.local_runs), processes=True,
                    host="127.0.0.1", dashboard_address=None, memory_limit=0, asynchronous=True,
                    preload=["minidbg.extras.cluster.judges"], preload_argv=["--kind", "local"], silence_logs=logging.CRITICAL + 1,
                )  # fmt: skip
        return str(self.local.scheduler_address)

    async def stay(self) -> None:
        """Have a client until ``close``; tell who is there."""
        while not self.closing:
            try:
                self.client = client = await Client(
                    await self.address(), asynchronous=True, security=self.security, timeout=CONNECT_S,
                    set_as_default=False, name="minidbg",
                )  # fmt: skip
                for topic, hear in self.topics.items():
                    client.subscribe_topic(topic, hear)
                self.connected.set()
                scheduler = None
                while client.status == "running" and not self.closing:
                    self.look.clear()
                    identity = await asyncio.wait_for(client.scheduler.identity(n_workers=-1), CONNECT_S)
                    if scheduler not in (None, identity["id"]):
                        break  # another one, which does not know what we want to hear
                    scheduler = identity["id"]
                    self.found(identity["workers"])
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self.look.wait(), LOOK_S)
            except (OSError, TimeoutError, MinidbgError) as error:
                why = f"{type(error).__name__}: {error}".partition("\n")[0][:200]
                self.lost(
                    f"the scheduler at {self.cluster.address} does not answer; runs wait for it ({why})"
                )
            self.connected.clear()
            gone, self.client = self.client, None
            if gone is not None:
                with contextlib.suppress(Exception):  # it is lost already
                    await asyncio.wait_for(gone.close(), 2)
            self.found({})
            await asyncio.sleep(RETRY_S)

    def close(self, staying: Future[None]) -> None:
        """Leave the cluster, and end the loop with its task ``staying``. Called from another thread."""
        self.closing = True
        self.loop.call_soon_threadsafe(self.look.set)
        with contextlib.suppress(Exception):  # the cluster may be in any state, and we want to leave
            self.soon(self.leave()).result(timeout=10)
            staying.cancel()
            self.soon(asyncio.sleep(0)).result(timeout=1)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(timeout=5)
        if not self.thread.is_alive():
            self.loop.close()

    async def leave(self) -> None:
        if self.client is not None:
            await self.client.close()
        if self.local is not None:
            await self.local.close()
