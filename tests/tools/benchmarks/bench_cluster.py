"""How busy does ``minidbg watch --cluster`` keep many workers? Runs are replaced by sleeps, the repros and the workers are simulated.

    python tests/tools/benchmarks/bench_cluster.py [--repros 10000] [--columns 16] [--workers 64] [--seconds 600] [--faster 1]

The daemon is a real one: its sweep, its history and its client of Dask; so are Dask's scheduler and protocol. The workers are Dask
workers in one process of their own, whose tasks sleep as long as a real run took (drawn from 100 runs of a custom backend and of
inductor). After a first sweep a save is simulated: seconds until the first verdict of a failing repro. Printed: how busy the workers
were between the first and the last run, runs in a second, the most memory of the daemon, and CPU milliseconds a run of each process.
``--faster`` divides the sleeps: what a scheduler can do is seen by shorter runs on fewer cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import queue
import random
import resource
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil

from minidbg import __version__

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

REAL = (
    0.09, 0.10, 0.11, 0.12, 0.12, 0.13, 0.13, 0.14, 0.15, 0.17, 0.19, 0.21, 0.26, 0.31, 0.36, 0.41, 0.44, 0.52, 0.75, 1.4,
)  # fmt: skip
"""Seconds of runs: five percent each."""


class Sleeper:
    """In place of ``judges.Judges``: answers after a sleep, and counts how long it was busy."""

    def __init__(self, kind: str, faster: float) -> None:
        self.kind, self.faster, self.busy = kind, faster, [0.0]
        self.name = "minidbg"

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        seconds = random.choice(REAL) / self.faster
        began = time.time()
        time.sleep(seconds)
        with open(self.log, "ab") as log:
            log.write(f"{began} {time.time()}\n".encode())
        failing = int(request["name"][1:-3]) % 10 == 0
        found = {
            "verdict": "reproduces" if failing else "gone", "signature": None, "reason": "", "message": "", "seconds": seconds,
            "device": "cpu", "signal": None, "reproduced": None, "runs": None, "figures": {},
        }  # fmt: skip
        said = {"canary": "passes", "reason": ""} if "canary" in request["argv"] else found
        ended = {
            "id": 0,
            "status": 0,
            "stdout": json.dumps(said),
            "seconds": seconds,
            "files": list(request.get("loads", ())),
        }
        return {"host": "h", "code": request["code"], "worker": "w", "ended": ended}

    log = ""


def judge(request: Mapping[str, Any], zipped: bytes) -> None:
    """In place of ``judges.judge``."""
    from distributed import get_worker

    worker = get_worker()
    key = str(worker.get_current_task())
    sleeper: Any = worker.plugins["minidbg"]
    worker.log_event(request["topic"], {**sleeper.answer(request), "key": key})


def serve(port: int, folder: str, columns: int, workers: int, faster: float) -> None:
    """A process with all workers."""

    async def run() -> None:
        import dask
        from distributed import Worker

        # On machines of their own, nothing of this would be in the way of scheduler and daemon.
        dask.config.set({"distributed.admin.system-monitor.interval": "60s"})
        started = []
        for number in range(workers):
            kind = f"k{number % columns}"
            worker = Worker(
                f"tcp://127.0.0.1:{port}", nthreads=1, memory_limit=0, dashboard=False, local_directory=folder
            )
            sleeper = Sleeper(kind, faster)
            sleeper.log = f"{folder}/busy-{number}"
            facts = {
                "minidbg": __version__, "torch": "", "python": "", "machine": "m", "packages": "p", "mark": "1",
                "devices": {"cpu": {"name": "c", "driver": ""}}, "host": f"h{number}", "slots": 1, "kind": kind,
            }  # fmt: skip
            worker.startup_information["minidbg"] = lambda _, facts=facts: facts
            worker.state.total_resources[f"cpu@{kind}#1"] = worker.state.available_resources[
                f"cpu@{kind}#1"
            ] = 1
            await worker
            worker.plugins["minidbg"] = sleeper  # type: ignore[assignment]
            started.append(worker)
        await asyncio.gather(*(one.finished() for one in started))

    asyncio.run(run())


def scheduler(port: int) -> None:
    """A process with the scheduler."""

    async def run() -> None:
        from distributed import Scheduler

        async with Scheduler(port=port, host="127.0.0.1", dashboard=False) as found:
            await found.finished()

    asyncio.run(run())


def started(target: Callable[..., None], *arguments: object) -> psutil.Process:
    process = multiprocessing.get_context("spawn").Process(target=target, args=arguments, daemon=True)
    process.start()
    return psutil.Process(process.pid)


def main() -> None:
    """Measure and print one line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repros", type=int, default=10_000)
    parser.add_argument("--columns", type=int, default=16)
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--faster", type=float, default=1.0)
    parser.add_argument(
        "--seconds", type=float, default=600, help="of the first sweep; what is left then is not run"
    )
    options = parser.parse_args()
    # workers that were ended have left threads in their last sleeps, which write into it
    with tempfile.TemporaryDirectory(prefix="minidbg-bench-", ignore_cleanup_errors=True) as folder:
        print(json.dumps(measure(Path(folder), options)), flush=True)


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The figures."""
    from support.toy_repros import WORKS, script, toy_package
    from support.watch_driver import free_port

    from minidbg.extras.cluster import judges
    from minidbg.extras.cluster.pool import ClusterPool
    from minidbg.watch.announce import Announcer
    from minidbg.watch.daemon import Daemon, Hint, Inbox, Stop
    from minidbg.watch.events import Event
    from minidbg.watch.file_events import FileEvents
    from minidbg.watch.settings import load
    from minidbg.words.cluster_address import Cluster

    package = toy_package(folder / "src", {"op": WORKS})
    sys.path.insert(0, str(folder / "src"))
    repros = folder / "repros"
    repros.mkdir()
    for number in range(options.repros):
        expect = "reproduces" if number % 10 == 0 else "gone"
        (repros / f"r{number}.py").write_text(script("op", expect=expect))
    port = free_port()
    boss = started(scheduler, port)
    crew = started(serve, port, str(folder), options.columns, options.workers, options.faster)
    judges.judge = judge
    events: list[Event] = []
    counts: Counter[str] = Counter()
    lock = threading.Condition()

    class View:
        def show(self, event: Event) -> None:
            if enough and (sweep := daemons[0].sweeper.current) is not None:  # in the daemon's thread
                sweep.without(lambda job: True)
            with lock:
                counts[event.name] += 1
                if event.name != "result" or (event.verdict == "reproduces" and saved_at):
                    events.append(event)  # not 160,000 of them: the memory of the daemon is measured
                    lock.notify_all()

        def close(self) -> None: ...

    import dataclasses

    settings = dataclasses.replace(
        load({"reduce": False}, folder=folder), cluster=Cluster(f"tcp://127.0.0.1:{port}")
    )
    saved_at: list[float] = []
    enough: list[bool] = []
    """Whether what is left of the first sweep is not to be run."""
    daemons: list[Daemon] = []
    inboxes: list[Inbox] = []

    def run() -> None:
        inbox: Inbox = queue.SimpleQueue()
        inboxes.append(inbox)

        def pool(hidden: Path) -> ClusterPool:
            made = ClusterPool(inbox.put, settings.cluster, here=lambda: None)  # type: ignore[arg-type, return-value]
            while (
                len(made.places) < options.columns
                or sum(place.slots for place in made.places.values()) < options.workers
            ):
                time.sleep(0.1)
            return made

        daemons.append(
            Daemon(
                [repros],
                settings,
                Announcer([View()]),
                inbox,
                FileEvents(lambda path: inbox.put(Hint(path))),
                pool,
            )
        )
        daemons[0].run()

    def wait_for(
        name: str, since: int, seconds: float, wanted: Callable[[Event], bool] = lambda event: True
    ) -> Event | None:
        until = time.monotonic() + seconds
        with lock:
            while True:
                found = next(
                    (event for event in events[since:] if event.name == name and wanted(event)), None
                )
                if found or (
                    not lock.wait(max(0.0, min(5.0, until - time.monotonic()))) and time.monotonic() > until
                ):
                    return found

    thread = threading.Thread(target=run)
    thread.start()
    wait_for("sweep_started", 0, 120)
    cpu = [time.process_time(), *(sum(one.cpu_times()[:2]) for one in (boss, crew))]
    finished = wait_for("sweep_finished", 0, options.seconds)
    spent = [time.process_time(), *(sum(one.cpu_times()[:2]) for one in (boss, crew))]
    daemon_ms, scheduler_ms, workers_ms = (
        round(1000 * (after - before) / len(runs_in(folder)), 2)
        for before, after in zip(cpu, spent, strict=True)
    )
    done = counts["result"]
    if finished is None:
        enough.append(True)
    runs = runs_in(folder)
    first, last = min(began for began, _ in runs), max(ended for _, ended in runs)
    # The end is thin: each column has its own last runs.
    last = sorted(ended for _, ended in runs)[int(len(runs) * 0.98)]
    busy = sum(min(ended, last) - min(began, last) for began, ended in runs) / (
        options.workers * (last - first)
    )
    wait_for("sweep_finished", 0, 60)
    enough.clear()
    mark, saved = len(events), time.time()
    saved_at.append(saved)
    (package / "op.py").write_text(WORKS.format(op="op") + "# saved\n")
    verdict = wait_for("result", mark, 60, lambda event: event.verdict == "reproduces")
    inboxes[0].put(Stop("measured"))
    thread.join(60)
    for one in (crew, boss):
        one.kill()
    return {
        "repros": options.repros, "columns": options.columns, "workers": options.workers, "faster": options.faster,
        "complete": finished is not None, "verdicts": done, "runs": len(runs), "busy": round(busy, 3),
        "runs_per_s": round(len(runs) / (last - first)), "seconds": round(last - first, 1),
        "daemon_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024), "daemon_cpu_ms_a_run": daemon_ms,
        "scheduler_cpu_ms_a_run": scheduler_ms, "workers_cpu_ms_a_run": workers_ms,
        "first_failing_verdict_s": round(verdict.at - saved, 2) if verdict else None, "load": round(os.getloadavg()[0], 1),
    }  # fmt: skip


def runs_in(folder: Path) -> list[tuple[float, ...]]:
    """When each run began and ended, as the workers wrote it down."""
    logs = [path.read_text() for path in folder.glob("busy-*")]
    return [tuple(map(float, line.split())) for text in logs for line in text.splitlines()]


if __name__ == "__main__":
    main()
