"""A Dask preload: what makes a worker of Dask one of minidbg's. ``minidbg worker`` starts one; ``dask worker --preload minidbg.extras.cluster.judges`` too.

The judged code never runs in the process of the Dask worker, but in forks and children of the same warm interpreters that
``minidbg watch`` has on one machine. Here a task waits in a thread for the end of such a run.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import functools
import json
import os
import platform
import shutil
import site
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click
from distributed import Reschedule, Status, Worker, WorkerPlugin, get_worker
from platformdirs import user_cache_dir

from minidbg import __version__
from minidbg.extras.cluster.code import Code, Trees, as_sent, moved, sha_of
from minidbg.extras.cluster.members import resource_of, slots_of
from minidbg.words.json_lines import last_json
from minidbg.workers import leftovers, memory_limit
from minidbg.workers.pool import (  # fmt: skip
    LEAST_ROOM_BYTES,
    NUMBERS,
    Ended,
    Order,
    Preload,
    RunMode,
    ServerPool,
    busyness,
)

PACKAGE = Path(__file__).parents[2]
NAME = "minidbg"
"""Of the plugin, of what the worker says of itself when it joins, and of the topic of its events."""
DEVICES_SECONDS = 300.0
LOOK_AT_DISK_S = 5.0
QUESTIONS = ("minidbg.asking.packing",)
"""Imported by the interpreter that is forked, for questions of a reduction."""


@dataclass(slots=True)
class Judges(WorkerPlugin):
    """The interpreters of this process, and the code that they run. They stay when the worker loses its scheduler and joins again."""

    trees: Trees
    facts: Mapping[str, Any] = field(default_factory=dict)
    name: str = NAME
    pools: dict[str, ServerPool] = field(default_factory=dict)
    """By what their warm interpreters have compiled with: ``aot`` or ``inductor``."""
    state: Path = field(default_factory=lambda: leftovers.make_folder("worker"))
    numbers: dict[str, int] = field(default_factory=dict)
    """By the key of the task that waits for it: the number of the order."""
    code: str = ""
    """The digest that the last run was asked for."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def pool(self, warm: str) -> ServerPool:
        """The interpreters for backends that need ``warm``, started at the first call."""
        with self.lock:
            if warm not in self.pools:
                preload = Preload(modules=(*Preload().modules, *QUESTIONS), warm=warm)
                if os.environ.get("MINIDBG__WATCH_PRELOAD") == "none":
                    preload = Preload(modules=(), warm="")
                (self.state / warm).mkdir()
                self.pools[warm] = ServerPool(lambda message: None, preload, state=self.state / warm)
            return self.pools[warm]

    def run(self, order: Order, key: str, warm: str = "aot") -> Ended:
        """Run and wait. ``key`` is that of the task."""
        self.numbers[key] = order.id
        try:
            return self.pool(warm).submit(order).result()
        finally:
            self.numbers.pop(key, None)

    def cancel(self, number: int) -> None:
        """End a run; whoever waits for it hears of that."""
        for pool in list(self.pools.values()):
            pool.cancel(number)

    def look_round(self, kind: str, slots: int) -> None:
        """Find out what devices are here, and what this machine is called."""
        no_torch = () if self.pool("aot").preload.modules else ("--no-torch",)
        argv = (str(PACKAGE / "watch" / "probe.py"), "devices", *no_torch)
        ended = self.run(Order(next(NUMBERS), argv, RunMode.FORK, DEVICES_SECONDS), "devices")
        said = last_json(ended.stdout)
        if said is None:
            raise RuntimeError(f"torch could not be asked for devices: {ended.stderr[-500:]}")
        names = {name for folder in site.getsitepackages() for name in os.listdir(folder)}
        packages = sorted(name for name in names if name.endswith(".dist-info"))
        alike = {
            "torch": said["torch"], "python": said["python"], "machine": said["machine"], "devices": said["devices"],
            "packages": sha_of("\n".join(packages).encode()), "minidbg": __version__,
        }  # fmt: skip
        mark = sha_of(json.dumps(alike, sort_keys=True).encode())[:4]
        kind = kind or f"{platform.machine()}-torch{said['torch'].partition('+')[0] or 'none'}-{mark}"
        self.facts = {**alike, "host": said["host"], "slots": slots, "kind": kind, "mark": mark}

    # As a plugin of one Dask worker

    def teardown(self, worker: Worker) -> None:
        """The scheduler has gone, and nobody waits for what still runs."""
        for number in list(self.numbers.values()):
            self.cancel(number)

    def transition(self, key: Any, start: str, finish: str, **_: Any) -> None:
        """End a run whose task nobody wants any more."""
        if start in ("executing", "long-running") and finish in ("cancelled", "released", "forgotten"):
            number = self.numbers.get(str(key))
            if number is not None:
                self.cancel(number)

    # Answering

    def answer(self, request: Mapping[str, Any], zipped: bytes, key: str) -> dict[str, Any]:
        """How the run that is asked for ended. Raises OSError where the disk is full."""
        tree, code, why = self.trees.ready(request["code"], zipped)
        said: dict[str, Any] = {"host": self.facts["host"], "code": code.digest}
        if why:
            return {**said, "unable": f"{why} (on {self.facts['host']})"}
        if self.code != code.digest:
            self.code = code.digest
            self.pool(request["warm"]).refresh()
        with self.trees.draft() as folder:
            script = Path(folder, Path(request["name"]).name)
            text = moved(request["script"].decode("utf-8-sig"), [*code.paths, *code.files], tree)
            script.write_text(text, encoding="utf-8")
            if request["tensors"]:
                script.with_suffix(".safetensors").write_bytes(request["tensors"])
            ended = self.run(self.order(request, script, tree, code), key, request["warm"])
        if self.lacks_room():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.trees.folder))
        files = None if ended.files is None else as_sent(ended.files, tree)
        return {**said, "ended": {**asdict(ended), "files": files}}

    def order(self, request: Mapping[str, Any], script: Path, tree: Path, code: Code) -> Order:
        words = {"@script": str(script)}
        argv = [
            words.get(word) or (str(PACKAGE / word[1:]) if word.startswith("/") else word)
            for word in request["argv"]
        ]
        paths = [str(tree) + path for path in code.paths if os.path.isdir(str(tree) + path)]
        memory = request["memory_bytes"] or memory_limit(self.facts["slots"])
        return Order(
            next(NUMBERS), tuple(argv), RunMode(request["mode"]), request["seconds"] * max(1.0, busyness() / request["busy"]),
            memory_bytes=memory, nice=request["nice"], one_thread=request["one_thread"],
            env=request["env"], paths=tuple(paths),
        )  # fmt: skip

    def lacks_room(self) -> bool:
        """Whether the disk has no room for code, or for what runs write."""
        free = min(shutil.disk_usage(path).free for path in (self.trees.folder, self.state))
        return free < LEAST_ROOM_BYTES

    def close(self) -> None:
        for pool in self.pools.values():
            pool.close()
        shutil.rmtree(self.state, ignore_errors=True)


@functools.cache
def judges_of_this_process(folder: str) -> Judges:
    """Made at the first call."""
    judges = Judges(Trees(Path(folder, "code")))
    atexit.register(judges.close)
    return judges


# What Dask calls


@click.command()
@click.option("--kind", default="", help="What machines are called that may stand in for each other.")
@click.option("--cache", default="", help="The folder for code under test.")
async def dask_setup(worker: Worker, kind: str, cache: str) -> None:
    """Make ``worker`` ours before it joins."""
    judges = judges_of_this_process(cache or str(Path(user_cache_dir("minidbg"), "cluster")))
    if not judges.facts:
        await worker.loop.run_in_executor(None, judges.look_round, kind, worker.state.nthreads)
    worker.startup_information[NAME] = lambda _: dict(judges.facts)
    slots = {resource_of(judges.facts, name): count for name, count in slots_of(judges.facts).items()}
    worker.state.total_resources.update(slots)
    worker.state.available_resources.update(slots)
    await worker.plugin_add(plugin=judges, name=NAME)


def judge(request: Mapping[str, Any], zipped: bytes) -> None:
    """The task; its answer is an event. A machine without room on its disk takes no more of them, and this one goes elsewhere."""
    worker = get_worker()
    judges: Judges = worker.plugins[NAME]  # type: ignore[assignment]
    key = str(worker.get_current_task())
    try:
        said = {**judges.answer(request, zipped, key), "worker": worker.address, "key": key}
        worker.log_event(request["topic"], said)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        worker.loop.add_callback(withdraw, worker, error)
        time.sleep(0.1)  # the scheduler must hear of the pause before it looks for another worker
        raise Reschedule from None


def withdraw(worker: Worker, error: OSError) -> None:
    """Take no tasks until there is room on the disk again."""
    if worker.status != Status.running:
        return
    worker.status = Status.paused
    judges: Judges = worker.plugins[NAME]  # type: ignore[assignment]
    why = f"{judges.facts['host']}: {error.strerror}: {judges.trees.folder}"
    text = f"{why}; the worker there gets no runs until there is room"
    with contextlib.suppress(ValueError):
        worker.log_event(NAME, {"worker": worker.address, "text": text})

    def look() -> None:
        if judges.lacks_room():
            worker.loop.call_later(LOOK_AT_DISK_S, look)
        elif worker.status == Status.paused:
            worker.status = Status.running

    worker.loop.call_later(LOOK_AT_DISK_S, look)
