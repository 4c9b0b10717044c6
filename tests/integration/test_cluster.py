"""``minidbg watch --cluster`` with a real scheduler and real workers on the loopback, whose repros need no torch."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.command_line import cli
from support.toy_repros import BROKEN, WORKS, Checkout, script
from support.watch_driver import WatchProcess, watching

pytest.importorskip("distributed", reason="Dask is not installed here: pip install 'minidbg[cluster]'")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]

OPS = {"relu": BROKEN, "sin": BROKEN, "cos": WORKS}
EXPECT = {"relu": "reproduces", "sin": "reproduces", "cos": "gone"}
SLOW = "import time\n\n\ndef {op}(value):\n    time.sleep(0.3)\n    raise ValueError('{op} is broken')\n"
ROOT = Path(__file__).parents[2]


class Cluster:
    """A scheduler and workers, which can import minidbg and no backend; they end with the block."""

    def __init__(self, folder: Path, scheme: str = "tcp", **env: str) -> None:
        folder.mkdir()
        self.folder, self.processes = folder, list[subprocess.Popen[bytes]]()
        self.env = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "MINIDBG__WATCH_PRELOAD": "none",
            "TMPDIR": str(folder),
            **env,
        }
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.host, self.address = f"{scheme}://127.0.0.1", f"{scheme}://127.0.0.1:{self.port}"

    def __enter__(self) -> Cluster:
        self.scheduler()
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self.processes):
            process.kill()
            process.wait(30)

    def start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", *arguments], stdout=log, stderr=log, cwd=self.folder, env=self.env
            )
        self.processes.append(process)
        return process

    def scheduler(self) -> subprocess.Popen[bytes]:
        module, where = "distributed.cli.dask_scheduler", ("--host", self.host, "--port", str(self.port))
        process = self.start("scheduler", module, "--no-dashboard", *where)
        until(lambda: "Scheduler at" in (self.folder / "scheduler.log").read_text(), "the scheduler's start")
        return process

    def worker(self, log: str, *options: str) -> subprocess.Popen[bytes]:
        process = self.start(log, "minidbg", "worker", self.address, *options)
        until(lambda: "works for" in (self.folder / f"{log}.log").read_text(), "the worker's start")
        return process


def until(done: Callable[[], object], what: str, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, f"{what} did not come within {seconds} s"
        time.sleep(0.05)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path / "cluster") as started:
        yield started


@pytest.fixture
def desk(tmp_path: Path) -> Checkout:
    checkout = Checkout(tmp_path / "desk", OPS, {op: script(op, expect=EXPECT[op]) for op in OPS})
    checkout.commit(ignored="*.so")
    return checkout


def results(running: WatchProcess, since: int = 0) -> list[tuple[str, str, str]]:
    """Each result that was told: repro, device, and the verdict, or ``skipped``."""
    told = running.since(since, "result")
    return sorted((one["repro"], one["device"], one["verdict"] or one["transition"]) for one in told)


def every(*devices: str) -> list[tuple[str, str, str]]:
    return sorted((f"{op}.py", device, EXPECT[op]) for op in OPS for device in devices)


def flips(running: WatchProcess) -> list[tuple[str, str, str]]:
    return [(one["kind"], one["repro"], one["device"]) for one in running.since(0, "flip")]


def test_code_goes_to_each_machine_and_one_that_is_away_is_a_column_that_waits(
    desk: Checkout, cluster: Cluster
) -> None:
    """The workers cannot import the backend by themselves, and a library that git ignores goes with it."""
    (desk.package / "native.so").write_text(BROKEN.format(op="relu"))
    reads = "import pathlib\nexec(pathlib.Path(__file__).with_name('native.so').read_text())\n"
    (desk.package / "relu.py").write_text(reads)
    cluster.worker("one", "--name", "red")
    two = cluster.worker("two", "--name", "blue")
    with watching(desk.folder, "--cluster", cluster.address, env=desk.env) as running:
        running.wait_for_sweep(since=0)
        assert results(running) == every("red/cpu", "blue/cpu")
        two.kill()
        away = "blue is away; its runs wait for it"
        running.wait_for_event("notice", text=away)
        mark = running.mark()
        (desk.package / "native.so").write_text(WORKS.format(op="relu"))
        running.wait_for_sweep(since=mark)
        skipped = [one for one in running.since(mark, "result") if one["device"] == "blue/cpu"]
        assert {(one["transition"], one["reason"]) for one in skipped} == {("skipped", "blue is away")}
        assert flips(running) == [("FIXED", "relu.py", "red/cpu")]
        cluster.worker("two", "--name", "blue")
        running.wait_for_event("flip", device="blue/cpu", since=mark)
        running.wait_until_quiet()
        assert flips(running)[1:] == [("FIXED", "relu.py", "blue/cpu")]
        assert running.stop() == 0


def test_of_a_worker_that_dies_in_a_sweep_each_run_is_done_by_another_of_its_name(
    tmp_path: Path, cluster: Cluster
) -> None:
    ops = [f"op{number}" for number in range(12)]
    desk = Checkout(tmp_path / "desk", dict.fromkeys(ops, SLOW), {op: script(op) for op in ops})
    workers = [cluster.worker(name, "--name", "box", "-j", "2") for name in ("one", "two")]
    options = "-j", "2", "--cluster", cluster.address
    with watching(desk.folder, *options, env=desk.env) as running:
        running.wait_for_sweep(since=0)
        mark = running.mark()
        for op in ops[:3]:
            (desk.package / f"{op}.py").write_text(WORKS.format(op=op))
        running.wait_for_event("result", since=mark)
        workers[0].kill()
        running.wait_for_sweep(since=mark)
        running.wait_until_quiet()
        last = running.since(mark, "sweep_started")[-1]["sweep"]
        judged = [
            (one["repro"], one["device"]) for one in running.since(mark, "result") if one["sweep"] == last
        ]
        assert sorted(judged) == sorted((f"{op}.py", "box/cpu") for op in ops)
        assert sorted(flips(running)) == [("FIXED", f"{op}.py", "box/cpu") for op in ops[:3]]
        assert running.stop() == 0


def test_a_machine_that_joins_and_all_of_them_coming_back_without_the_code(
    desk: Checkout, cluster: Cluster
) -> None:
    with watching(desk.folder, "--cluster", cluster.address, env=desk.env) as running:
        running.wait_for(lambda event: "no machine works for" in event.get("text", ""))
        cluster.worker("one", "--name", "red")
        running.wait_for_sweep(since=0)
        assert results(running) == every("red/cpu")
        for process in cluster.processes:
            process.kill()
            process.wait()
        running.wait_for(lambda event: "does not answer" in event.get("text", ""))
        mark = running.mark()
        cluster.scheduler()
        cluster.worker("two", "--name", "red")
        running.wait_for_sweep(since=mark)
        assert results(running, mark) == every("red/cpu")
        (desk.package / "relu.py").write_text(WORKS.format(op="relu"))
        running.wait_for_event("flip", repro="relu.py", device="red/cpu", since=mark)
        running.wait_until_quiet()
        assert len(flips(running)) == 1
        code = max(cluster.folder.rglob("code"), key=os.path.getmtime)
        (code / "draft").touch()  # nothing can be unpacked any more, as on a full disk
        mark = running.mark()
        (desk.package / "relu.py").write_text(SLOW.format(op="relu"))
        broken = running.wait_for_event("backend_broken", device="red/cpu", since=mark)
        assert broken["reason"].startswith("what is watched cannot be unpacked there: [Errno 20] ")
        assert running.stop(signal.SIGINT) == 0


def test_tls_is_dasks_own_configuration(desk: Checkout, tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate")
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    make = f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=box -keyout {key} -out {certificate}"
    subprocess.run(make.split(), check=True, capture_output=True)
    tls = {"DASK_DISTRIBUTED__COMM__TLS__CA_FILE": str(certificate)}
    for role in ("SCHEDULER", "WORKER", "CLIENT"):
        tls[f"DASK_DISTRIBUTED__COMM__TLS__{role}__CERT"] = str(certificate)
        tls[f"DASK_DISTRIBUTED__COMM__TLS__{role}__KEY"] = str(key)
    with Cluster(tmp_path / "cluster", "tls", **tls) as cluster:
        cluster.worker("one", "--name", "red")
        options = "--once", "--cluster", cluster.address
        with watching(desk.folder, *options, env={**desk.env, **tls}) as running:
            assert running.process.wait(60) == 1
        assert results(running) == every("red/cpu")


def test_what_is_refused_says_what_to_do(desk: Checkout) -> None:
    with contextlib.chdir(desk.folder):
        for address, advice in (
            ("tls://10.0.0.7:8786", "set distributed.comm.tls"),
            ("tcp://127.0.0.1:9", "start one: dask scheduler"),
        ):
            done = cli("watch", "--cluster", address)
            assert (done.returncode, advice in done.stderr) == (125, True), done.stderr
