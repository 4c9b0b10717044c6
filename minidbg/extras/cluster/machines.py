"""A Dask cluster's machines as watch sees them. A run is a Dask task with one resource, its device.

Which worker runs it is decided by Dask, also when one dies under it. What is asked of a machine
that is away ends as skipped, so that a sweep comes to its end; once the machine is back all is run
again.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from distributed import Client
from distributed.scheduler import KilledWorker

from minidbg import __version__
from minidbg.core.errors import MinidbgError
from minidbg.core.foreign import first_line_of
from minidbg.extras.cluster.routing import ZippedSources
from minidbg.extras.cluster.worker import PLUGIN_NAME, Unpacks, judge_request, resource_of
from minidbg.watch.daemon import DevicesChanged, Message
from minidbg.watch.events import Notice
from minidbg.watch.settings import machine_of
from minidbg.workers import Ended, Request

CONNECT_S = 10.0
MACHINES_REFRESH_S = 1.0


class Machines:
    def __init__(self, address: str, security: Any, tell: Callable[[Message], None]) -> None:
        """Raises MinidbgError where no scheduler answers."""
        logging.getLogger("distributed").setLevel(logging.CRITICAL + 1)  # we say what matters
        self.address, self.security, self.tell = address, security, tell
        self.lock = threading.Lock()
        self.session = f"{PLUGIN_NAME}-{uuid.uuid4()}"
        self.sent = ""
        """The digest of the code that the workers have; empty where one may have lost it."""
        self.known: dict[str, tuple[str, str]] = {}
        """Of each device ever there what it is, and its name as a resource of Dask's."""
        self.there: Mapping[str, tuple[str, str]] = {}
        self.notices: set[str] = set()
        """What was told and is still so."""
        self.closing = threading.Event()
        try:
            self.client = self.connect()
        except OSError as error:
            why = f"no scheduler at {address} ({first_line_of(error)}); start one: dask scheduler"
            raise MinidbgError(why) from error
        self.refresh()
        threading.Thread(target=self.keep_looking, name="minidbg-cluster", daemon=True).start()

    def connect(self) -> Client:
        return Client(self.address, security=self.security, timeout=CONNECT_S, set_as_default=False)

    def devices(self) -> Mapping[str, str]:
        return {name: what for name, (what, _) in list(self.known.items())}

    def close(self) -> None:
        self.closing.set()
        with contextlib.suppress(Exception):  # the cluster may be in any state, and we leave
            self.client.unregister_worker_plugin(self.session)
            self.client.close(timeout=2)

    # A run

    def submit(self, device: str, request: Request, code: ZippedSources) -> Future[Ended]:
        end: Future[Ended] = Future()
        threading.Thread(target=self.run, args=(end, device, request, code), daemon=True).start()
        return end

    def run(self, end: Future[Ended], device: str, request: Request, code: ZippedSources) -> None:
        """In a thread: have it run, and wait."""
        ended = task = None
        try:
            with self.lock:
                if self.sent != code.digest:  # Dask takes a plugin to later workers too
                    plugin = Unpacks(code.digest, code.zipped)
                    self.client.register_plugin(plugin, name=self.session)
                    self.sent = code.digest
            wanted = {self.known[device][1]: 1}
            task = self.client.submit(
                judge_request, request, code.digest, code.paths, pure=False, resources=wanted
            )
            end.add_done_callback(lambda end: task.release())  # Dask ends what nobody wants
            while device in self.there and ended is None:
                with contextlib.suppress(TimeoutError):
                    ended = Ended(**task.result(timeout=MACHINES_REFRESH_S))
        except Exception as error:  # noqa: BLE001 - a machine's error; losses have another status
            failed = getattr(task, "status", "") == "error" and not isinstance(error, KilledWorker)
            ended = unable(first_line_of(error)) if failed else Ended(lost=True)
        if ended is not None and ended.lost:
            self.sent = ""
        if end.set_running_or_notify_cancel():
            end.set_result(ended or unable(f"{machine_of(device)} is away"))

    # Who is there

    def keep_looking(self) -> None:
        while not self.closing.wait(MACHINES_REFRESH_S):
            self.refresh()

    def refresh(self) -> None:
        there: dict[str, tuple[str, str]] = {}
        workers: Mapping[str, Any] = {}
        notices: set[str] = set()
        marks: dict[str, str] = {}
        try:
            if self.client.status == "closed":
                self.client = self.connect()
            ask = self.client.scheduler.identity
            workers = self.client.sync(ask, n_workers=-1, callback_timeout=CONNECT_S)["workers"]
        except Exception as error:  # noqa: BLE001 - a lost connection shows itself in many ways
            notices.add(f"the scheduler at {self.address} does not answer ({first_line_of(error)})")
        ours = {at: row[PLUGIN_NAME] for at, row in workers.items() if PLUGIN_NAME in row}
        for address, facts in sorted(ours.items()):
            name, version, why = facts["name"], facts["version"], ""
            if version != __version__:
                why = f"has minidbg {version}, and here is {__version__}; install the same"
            elif marks.setdefault(name, facts["mark"]) != facts["mark"]:
                why = "is not like another machine of that name; start it with another --name"
            for device, what in facts["devices"].items() if not why else ():
                there[f"{name}/{device}"] = what, resource_of(facts, device)
            notices |= {f"{name} ({address}) gets no runs: it {why}"} if why else set()
        is_news = any(self.there.get(name) != one for name, one in there.items())
        self.there, self.known = there, {**self.known, **there}
        away = {machine_of(device) for device in self.known.keys() - there.keys()}
        notices |= {f"{name} is away; its runs wait for it" for name in away}
        if not self.known:
            start = f"minidbg worker {self.address}"
            notices.add(f"no machine works for {self.address} yet; on each: {start}")
        for text in sorted(notices - self.notices):
            self.tell(Notice(text))
        self.notices = notices
        if is_news:
            self.tell(DevicesChanged())


def unable(reason: str) -> Ended:
    return Ended(exit_status=125, stdout=json.dumps({"verdict": "skipped", "reason": reason}))
