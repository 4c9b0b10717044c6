"""``minidbg watch --cluster`` with a real scheduler and real workers, whose repros need no torch."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

pytest.importorskip("distributed", reason="the extra 'cluster' is not installed")

from support.cluster_driver import Cluster, Net, end, wait_until, why_no_hosts
from support.command_line import cli, python
from support.toy_repros import BROKEN, WORKS, Checkout, git, script
from support.watch_driver import WatchProcess, watching

from minidbg.extras.cluster.code import MANIFEST

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]

OPS = {"relu": BROKEN, "sin": BROKEN, "cos": WORKS}
WAITS = """
import os, time


def {op}(value):
    open(r"{folder}/began-%d" % os.getpid(), "w").close()
    while not os.path.exists(r"{folder}/go"):
        time.sleep(0.05)
    raise ValueError("{op} is broken")
"""
EXPECT = {"relu": "reproduces", "sin": "reproduces", "cos": "gone"}


@pytest.fixture
def desk(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path / "desk", OPS, {op: script(op, expect=EXPECT[op]) for op in OPS})


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path / "cluster") as found:
        yield found


def results(running: WatchProcess, since: int) -> dict[tuple[str, str], str]:
    """Verdict by repro and column."""
    return {(event["repro"], event["device"]): event["verdict"] for event in running.since(since, "result")}


def columns(running: WatchProcess, *names: str, since: int = 0, seconds: float = 60.0) -> dict[str, object]:
    """The event that says there are these columns."""
    wanted = lambda event: event["event"] == "columns" and set(event["places"]) == set(names)  # noqa: E731
    return running.wait_for(wanted, since=since, seconds=seconds)


def both_work(cluster: Cluster) -> None:
    logs = lambda: map(cluster.log, ("one", "two"))  # noqa: E731
    wait_until(lambda: all("working for" in log for log in logs()), "the workers' start")


def test_a_cluster_of_this_machine_is_one_worker_for_so_many_runs(desk: Checkout) -> None:
    options = ["minidbg_repros", "--cluster", "local:3", "--jobs", "1", "--once"]
    with watching(desk.folder, *options, env=desk.env) as running:
        assert columns(running, "cpu@local")["places"] == {"cpu@local": 3}
        running.wait_for_sweep(since=0)
        assert results(running, 0) == {(f"{op}.py", "cpu@local"): EXPECT[op] for op in OPS}
        assert running.process.wait(20) == 1


def test_columns_are_kinds_of_machines_and_code_travels(desk: Checkout, cluster: Cluster) -> None:
    """The workers cannot import the backend by themselves. A worker that dies takes its column with it, and no state."""
    cluster.worker("one", "--kind", "red")
    two = cluster.worker("two", "--kind", "blue")
    both_work(cluster)
    with watching(desk.folder, "minidbg_repros", *cluster.watch_options(), env=desk.env) as running:
        columns(running, "cpu@red", "cpu@blue")
        running.wait_for_sweep(since=0)
        wanted = {(f"{op}.py", f"cpu@{kind}"): EXPECT[op] for op in OPS for kind in ("red", "blue")}
        assert results(running, 0) == wanted
        (tree,) = (cluster.folder / "cache-one" / "code").iterdir()
        sent = {path for path in tree.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
        code = {Path(f"{tree}{path}"): path.read_text() for path in desk.package.glob("*.py")}
        assert sent == {*code, tree / MANIFEST}
        assert {path: path.read_text() for path in code} == code
        end(two)
        mark = running.mark()
        columns(running, "cpu@red", since=mark)
        (desk.package / "relu.py").write_text(WORKS.format(op="relu"))
        running.wait_for_event("flip", since=mark)
        running.wait_for_sweep(since=mark)
        running.wait_until_quiet()
        assert running.flips() == [("FIXED", "relu.py")]

        mark = running.mark()
        cluster.worker("two", "--kind", "blue")
        columns(running, "cpu@red", "cpu@blue", since=mark)
        running.wait_for_event("flip", since=mark)
        running.wait_for_sweep(since=mark)
        running.wait_until_quiet()
        assert set(results(running, mark)) == {(f"{op}.py", "cpu@blue") for op in OPS}, "only what is owed"
        assert [event["device"] for event in running.since(0, "flip")] == ["cpu@red", "cpu@blue"]
        assert running.stop() == 0


def test_a_run_whose_worker_dies_is_asked_elsewhere(desk: Checkout, cluster: Cluster) -> None:
    (desk.package / "relu.py").write_text(WAITS.format(op="relu", folder=cluster.folder))
    workers = [cluster.worker(name, "--kind", "red", "-j", "1") for name in ("one", "two")]
    both_work(cluster)

    def began() -> set[int]:
        return {int(path.name.partition("-")[2]) for path in cluster.folder.glob("began-*")}

    with watching(desk.folder, "minidbg_repros", *cluster.watch_options(), "--once", env=desk.env) as running:
        (first,) = wait_until(began, "the run that waits")
        (busy,) = [one for one in workers if first in {child.pid for child in descendants(one)}]
        end(busy)
        wait_until(lambda: began() - {first}, "a second run elsewhere")
        (cluster.folder / "go").touch()
        running.wait_for_sweep(since=0)
        assert results(running, 0) == {(f"{op}.py", "cpu@red"): EXPECT[op] for op in OPS}
        assert running.process.wait(20) == 1


def descendants(worker: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """What the worker runs."""
    return psutil.Process(worker.pid).children(recursive=True)


def test_the_scheduler_restarts(desk: Checkout, cluster: Cluster) -> None:
    cluster.worker("one", "--kind", "red")
    with watching(desk.folder, "minidbg_repros", *cluster.watch_options(), env=desk.env) as running:
        running.wait_for_sweep(since=0)
        end(cluster.scheduler)
        mark = running.mark()
        said = lambda event: event["event"] == "notice" and "does not answer" in event["text"]  # noqa: E731
        running.wait_for(said, since=mark)
        (desk.package / "relu.py").write_text(WORKS.format(op="relu"))
        time.sleep(1)
        cluster.start_scheduler()
        running.wait_for_event("flip", since=mark)
        running.wait_until_quiet()
        assert running.flips() == [("FIXED", "relu.py")]
        assert running.stop(signal.SIGINT) == 0


def test_a_build_runs_on_the_worker_once_a_content(desk: Checkout, cluster: Cluster) -> None:
    """The build makes a module that the backend imports, and that is on the developer's machine only as a source."""
    package = desk.package
    (package / "relu.py").write_text("from toy.made import relu\n")
    (package / "made.in").write_text(BROKEN.format(op="relu"))
    count = cluster.folder / "builds"
    build = f"echo x >> {count}; cp backend/toy/made.in backend/toy/made.py"
    desk.commit(ignored="made.py")
    cluster.worker("one", "--kind", "red")
    arguments = ["minidbg_repros", *cluster.watch_options(), "--build", build]
    with watching(desk.folder, *arguments, env=desk.env) as running:
        running.wait_for_sweep(since=0)
        assert results(running, 0) == {(f"{op}.py", "cpu@red"): EXPECT[op] for op in OPS}
        assert count.read_text() == "x\n"
        assert not (package / "made.py").exists()
        mark = running.mark()
        (package / "made.in").write_text(WORKS.format(op="relu"))
        running.wait_for_event("flip", since=mark)
        running.wait_until_quiet()
        assert count.read_text() == "x\nx\n"
        mark = running.mark()
        (package / "made.in").unlink()
        broken = running.wait_for_event("backend_broken", since=mark)
        assert "the build failed with status" in broken["reason"]
        running.wait_until_quiet()
        assert running.flips() == [("FIXED", "relu.py")]


def test_a_library_built_in_place_and_a_tracked_file_travel_although_git_ignores_them(
    desk: Checkout, cluster: Cluster
) -> None:
    """And when the library is built again, runs see the new one. The folder is called like one for what is built."""
    (desk.package / "build").mkdir()
    (desk.package / "cos.py").rename(desk.package / "build" / "cos.py")
    (desk.package / "cos.py").write_text("from toy.build.cos import cos\n")
    library = desk.package / "native.so"
    reads = "import pathlib\nexec(pathlib.Path(__file__).with_name('native.so').read_text())\n"
    (desk.package / "relu.py").write_text(reads)
    library.write_text(BROKEN.format(op="relu"))
    desk.commit(ignored="*.so\nbuild/")
    git(desk.source, "add", "-f", "toy/build/cos.py")
    cluster.worker("one", "--kind", "red")
    with watching(desk.folder, "minidbg_repros", *cluster.watch_options(), env=desk.env) as running:
        running.wait_for_sweep(since=0)
        assert results(running, 0) == {(f"{op}.py", "cpu@red"): EXPECT[op] for op in OPS}
        mark = running.mark()
        library.write_text(WORKS.format(op="relu"))
        running.wait_for_event("flip", since=mark)
        running.wait_until_quiet()
        assert running.flips() == [("FIXED", "relu.py")]


def certificates(folder: Path) -> list[str]:
    """An authority, and one certificate of it for all; as options."""
    folder.mkdir()
    fresh = ["-days", "2", "-nodes", "-newkey", "rsa:2048"]
    ca, cert, key, request = (str(folder / name) for name in ("ca.pem", "cert.pem", "key.pem", "request.pem"))
    for command in (
        ["req", "-x509", *fresh, "-subj", "/CN=authority", "-keyout", str(folder / "ca-key.pem"), "-out", ca],
        ["req", *fresh, "-subj", "/CN=member", "-keyout", key, "-out", request],
        ["x509", "-req", "-in", request, "-CA", ca, "-CAkey", str(folder / "ca-key.pem"), "-CAcreateserial", "-days", "2", "-out", cert],
    ):  # fmt: skip
        subprocess.run(["openssl", *command], check=True, capture_output=True)
    return ["--tls-ca", ca, "--tls-cert", cert, "--tls-key", key]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make certificates")
def test_tls_lets_only_those_in_who_have_a_certificate(desk: Checkout, tmp_path: Path) -> None:
    with Cluster(tmp_path / "cluster", tls=certificates(tmp_path / "tls")) as cluster:
        cluster.worker("one", "--kind", "red")
        options = ["minidbg_repros", *cluster.watch_options(), "--once"]
        with watching(desk.folder, *options, env=desk.env) as running:
            running.wait_for_sweep(since=0)
            assert results(running, 0) == {(f"{op}.py", "cpu@red"): EXPECT[op] for op in OPS}
            assert running.process.wait(20) == 1
        others = certificates(tmp_path / "others")
        options = ["minidbg_repros", "--cluster", cluster.address, *others]
        with watching(desk.folder, *options, env=desk.env) as running:
            said = running.wait_for_event("notice", seconds=40)
            assert "does not answer" in said["text"]
            assert not running.since(0, "result")


BACKEND = """
import os, torch


def needs_both(gm, example_inputs):
    print(__file__, file=open(os.environ["CALLS"], "a")) if "CALLS" in os.environ else None
    if {torch.relu, torch.tanh} <= {node.target for node in gm.graph.nodes}:
        raise ValueError("no kernel")
    return gm.forward
"""
PROGRAM = """
import contextlib, torch, minidbg, needy


def model(x):
    for layer in range(12):
        x = torch.relu(x) if layer == 9 else torch.tanh(x) if layer == 3 else torch.sin(x)
        x = x + 1
    return x


with contextlib.suppress(Exception):
    torch.compile(model, backend=minidbg.wrap(needy.needs_both, reduce="later"))(torch.randn(3, 4))
"""


def counting(folder: Path) -> dict[str, str]:
    """For a worker that holds torch, and whose backend notes where it was imported from whenever it is called."""
    return {"MINIDBG__WATCH_PRELOAD": "", "CALLS": str(folder / "calls")}


def calls(folder: Path) -> list[str]:
    """The calls of the backend on workers, all of which had it from what was sent to them."""
    found = (folder / "calls").read_text().splitlines()
    assert all(path.startswith(str(folder / "cluster" / "cache-")) for path in found), found
    return found


@pytest.mark.exhaustive
def test_a_reduction_on_workers_has_the_same_result(tmp_path: Path) -> None:
    """The worker cannot import the backend by itself, and is asked two questions at a time."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "needy.py").write_text(BACKEND)
    env = {"PYTHONPATH": str(tmp_path / "src")}
    python("-c", PROGRAM, cwd=tmp_path, env=env, check=True)
    (capture,) = tmp_path.glob("minidbg_repros/.minidbg/captures/*.py")

    def reduced(folder: str, *options: str) -> tuple[str, str]:
        done = cli("reduce", capture, "--dir", folder, *options, cwd=tmp_path, env=env, check=True)
        return (tmp_path / done.stdout.strip()).read_text(), done.stderr

    alone, _ = reduced("alone")
    with Cluster(tmp_path / "cluster") as cluster:
        cluster.worker("one", "--kind", "red", "-j", "2", env=counting(tmp_path))
        together, said = reduced("together", *cluster.watch_options())
        assert "questions are asked on cpu@red, 2 at a time" in said
        assert len(calls(tmp_path)) > 3
    assert together == alone


JOB = """
import contextlib, sys, torch, minidbg, needy

name = sys.argv[1]


def model(x):
    for layer in range(6):
        x = getattr(torch, name)(x) if layer == 3 else torch.sin(x)
    return x


with contextlib.suppress(Exception):
    torch.compile(model, backend=minidbg.wrap(needy.needs_none_of, reduce="later", repro_dir=sys.argv[2]))(torch.randn(3, 4))
"""
NEEDS_NONE_OF = """
import os, torch


def needs_none_of(gm, example_inputs):
    print(__file__, file=open(os.environ["CALLS"], "a")) if "CALLS" in os.environ else None
    for node in gm.graph.nodes:
        if node.target in (torch.relu, torch.tanh):
            raise ValueError(f"no kernel for {node.target.__name__}")
    return gm.forward
"""


@pytest.mark.exhaustive
@pytest.mark.timeout(500)
def test_what_training_jobs_left_in_a_shared_folder_is_reduced_on_workers(tmp_path: Path) -> None:
    """Two jobs, one capture each. Their repros are then judged on the workers like any other."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "needy.py").write_text(NEEDS_NONE_OF)
    env = {"PYTHONPATH": str(tmp_path / "src")}
    shared = tmp_path / "shared"
    for name in ("relu", "tanh"):
        python("-c", JOB, name, shared, cwd=tmp_path, env=env, check=True)
    assert len(list(shared.glob(".minidbg/captures/*.py"))) == 2
    with Cluster(tmp_path / "cluster") as cluster:
        for name in ("one", "two"):
            cluster.worker(name, "--kind", "red", "-j", "1", env=counting(tmp_path))
        with watching(tmp_path, "shared", *cluster.watch_options(), env=env) as running:
            columns(running, "cpu@red", seconds=120)
            running.wait_for(lambda _: len(running.since(0, "reduction_finished")) == 2, seconds=250)
            finished = running.since(0, "reduction_finished")
            repros = {Path(event["repro"]).name for event in finished}
            assert len(repros) == 2
            running.wait_for(
                lambda event: set(results(running, 0)) >= {(one, "cpu@red") for one in repros}, seconds=60
            )
            assert set(results(running, 0).values()) == {"reproduces"}
        assert len(calls(tmp_path)) > 4


def test_a_worker_on_a_slow_network_that_fails_for_a_while(desk: Checkout, tmp_path: Path) -> None:
    """Scheduler, worker and watch on hosts of their own, 20 ms apart. The worker's cable is out while a file is saved."""
    if why := why_no_hosts():  # here: to find out, networks are made
        pytest.skip(why)
    with Net("mdbgt", 3) as net:
        hosts = [net.host(name) for name in ("sched", "w", "desk")]
        hosts[1].slow(0.02)
        with Cluster(tmp_path / "cluster", host=hosts[0]) as cluster:
            cluster.worker("w", "--kind", "red", host=hosts[1])
            running = WatchProcess(
                desk.folder, "minidbg_repros", *cluster.watch_options(), env=desk.env, prefix=hosts[2].prefix
            )
            try:
                running.wait_for_sweep(since=0)
                running.wait_until_quiet()
                saved, mark = time.time(), running.mark()
                (desk.package / "relu.py").write_text(WORKS.format(op="relu"))
                first = running.wait_for(
                    lambda event: event["event"] in ("unconfirmed", "result"), since=mark
                )
                print(f"first verdict after {first['at'] - saved:.2f} s")
                running.wait_for_event("flip", since=mark)
                hosts[1].is_cut = True
                mark = running.mark()
                (desk.package / "sin.py").write_text(WORKS.format(op="sin"))
                time.sleep(4)
                assert not running.since(mark, "flip")
                hosts[1].is_cut = False
                running.wait_for_event("flip", since=mark)
                running.wait_until_quiet()
                assert running.flips() == [("FIXED", "relu.py"), ("FIXED", "sin.py")]
                running.stop()
            finally:
                running.close()
