"""A Dask worker that judges repros, in forks and children of the same warm interpreter that
``minidbg watch`` has on one machine.

The judged code never runs in the worker itself: a task waits in a thread for the end of a run. What
a run is to see lies in a folder that is called by the digest of its content, each file at its path
on the sender's machine.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import logging
import os
import platform
import shutil
import zipfile
from collections.abc import Mapping
from concurrent.futures import CancelledError, Future
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

import click
import dask
from distributed import Worker, WorkerPlugin, get_worker

from minidbg import __version__
from minidbg.core.errors import MinidbgError
from minidbg.core.machine import memory_limit
from minidbg.extras.cluster import on_path
from minidbg.judge.command import JUDGE_SCRIPT
from minidbg.watch.settings import DEVICES_CALL, is_cpu, whole_name
from minidbg.workers import Ended, Request, Scripts, Warmup, leftovers, preload_for

PLUGIN_NAME = "minidbg"
"""Of the plugin, and of what the worker says of itself when it joins."""
MOST_TREES = 4


def resource_of(facts: Mapping[str, Any], device: str) -> str:
    return f"{facts['name']}/{whole_name(device)}#{facts['mark']}"


@dataclass(slots=True)
class Judges(WorkerPlugin):  # type: ignore[misc]
    """This process's interpreters. They stay when the worker loses its scheduler and rejoins."""

    pool: Scripts
    folder: Path
    jobs: int
    name: str = PLUGIN_NAME
    runs: dict[str, Future[Ended]] = field(default_factory=dict)
    """By the key of the task that waits for it."""
    trouble: str = ""
    """Why the last code that came is not here."""

    def facts(self, name: str) -> dict[str, Any]:
        """Facts of this machine; ``mark`` is equal where a verdict is. Raises MinidbgError."""
        ended = self.pool.submit(Request(call=DEVICES_CALL, fork=Warmup())).result()
        if (said := ended.value) is None:
            why = (ended.error or ended.stderr_tail)[-500:]
            raise MinidbgError(f"torch could not be asked for devices: {why}")
        common = f"torch {said['torch']}, Python {platform.python_version()}"
        devices = {name: f"{what}|{common}" for name, what in said["environments"].items()}
        mark = hashlib.sha256(json.dumps(devices, sort_keys=True).encode()).hexdigest()[:6]
        return {"version": __version__, "name": name, "mark": mark, "devices": devices}

    def judge(self, key: str, request: Request, digest: str, paths: tuple[str, ...]) -> Ended:
        """Run, and wait; it is lost where the code is not here, or no more."""
        tree = str(self.folder / digest)
        if not os.path.exists(tree):
            return Ended(lost=True, error=self.trouble)
        script, text = request.argv[1:]
        orders = json.loads(text)
        orders["device"] = orders["device"].rpartition("/")[2]
        folders = os.pathsep.join(tree + path for path in paths)
        end = self.runs[key] = self.pool.submit(replace(
            request, argv=(on_path.__file__, folders, JUDGE_SCRIPT, tree + script, json.dumps(orders)),
            recompiled=(), memory_bytes=request.memory_bytes or memory_limit(self.jobs),
        ))  # fmt: skip
        try:
            ended = end.result()
        except CancelledError:
            return Ended()  # nobody wants it any more
        finally:
            del self.runs[key]
        below = [path for path in ended.files or () if path.startswith(tree)]
        files = ended.files and tuple(path.removeprefix(tree) for path in below)
        names = ("stdout", "stderr_tail", "error")
        texts = {name: getattr(ended, name).replace(tree, "") for name in names}
        return replace(ended, files=files, **texts)

    def unpack(self, digest: str, zipped: bytes) -> None:
        """The folder has its name once it is whole. What fails the runs that need it will say."""
        if not (self.folder / digest).exists():
            try:
                zipfile.ZipFile(io.BytesIO(zipped)).extractall(self.folder / "draft")
                (self.folder / "draft").rename(self.folder / digest)
                self.trouble = ""
            except OSError as error:
                self.trouble = f"what is watched cannot be unpacked there: {error}"
                shutil.rmtree(self.folder / "draft", ignore_errors=True)
            for old in sorted(self.folder.iterdir(), key=os.path.getmtime)[:-MOST_TREES]:
                shutil.rmtree(old, ignore_errors=True)
            self.pool.refresh()

    def transition(self, key: Any, start: str, finish: str, **_: Any) -> None:
        """Dask tells of a task: where nobody wants it any more its run ends."""
        end = self.runs.get(str(key))
        if end is not None and finish in ("cancelled", "released", "forgotten"):
            end.cancel()

    def teardown(self, worker: Worker) -> None:
        """The scheduler has gone, and nobody waits for what still runs."""
        for end in list(self.runs.values()):
            end.cancel()


@dataclass
class Unpacks(WorkerPlugin):  # type: ignore[misc]
    """How code comes to a worker, also to one that joins later."""

    digest: str
    zipped: bytes

    def setup(self, worker: Worker) -> None:
        if PLUGIN_NAME in worker.plugins:
            worker.plugins[PLUGIN_NAME].unpack(self.digest, self.zipped)


def judge_request(request: Request, digest: str, paths: tuple[str, ...]) -> dict[str, Any]:
    worker = get_worker()
    judges: Judges = worker.plugins[PLUGIN_NAME]
    return asdict(judges.judge(str(worker.get_current_task()), request, digest, paths))


def serve_scheduler(address: str, security: Any, name: str, jobs: int) -> None:
    """Be a worker until a signal comes."""
    logging.getLogger("distributed").setLevel(logging.CRITICAL + 1)
    quiet = {"distributed.worker.profile.enabled": False, "distributed.worker.http.routes": []}
    dask.config.set(quiet)
    folder = leftovers.make_temporary_folder("worker").resolve()  # as runs name what they loaded
    (folder / "code").mkdir()
    pool = Scripts(preload_for(["inductor"], forks=True), state=folder)
    try:
        asyncio.run(work(address, security, Judges(pool, folder / "code", jobs), name))
    finally:
        pool.close()
        shutil.rmtree(folder, ignore_errors=True)


async def work(address: str, security: Any, judges: Judges, name: str) -> NoReturn:
    """Join, with a new worker of Dask's whenever the scheduler was lost."""
    facts = judges.facts(name)
    devices = sorted(set(map(whole_name, facts["devices"])))
    while True:
        async with Worker(
            address, security=security, plugins=(judges,), memory_limit=0,
            local_directory=str(judges.folder.parent),
            # tcp:// is for this machine alone
            host="127.0.0.1" if address.startswith("tcp:") else None,
            dashboard_address="127.0.0.1:0",
            # fewer at the same time: as many as there are of the resources
            nthreads=judges.jobs + len(devices),
            startup_information={PLUGIN_NAME: lambda worker: facts},
            resources={resource_of(facts, device): judges.jobs if is_cpu(device) else 1
                       for device in devices},
        ) as worker:  # fmt: skip
            click.echo(f"minidbg: {name} works for {address}: {', '.join(devices)}", err=True)
            await worker.finished()
        click.echo(f"minidbg: connection to {address} lost; waiting for it", err=True)
