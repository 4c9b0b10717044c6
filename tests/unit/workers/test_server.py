"""The fork server with scripts that need no torch: what it answers, and that it leaves nothing behind."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import psutil
import pytest

from minidbg.workers import Ended, Request, Warmup
from minidbg.workers.pool import Died, ServerPool
from minidbg.workers.server import fingerprints

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the fork server is for Linux")

NO_TORCH = Warmup(("json",))


class Driver:
    """A pool and what it told."""

    def __init__(self, folder: Path, preload: Warmup = NO_TORCH) -> None:
        self.folder = folder
        self.heard: queue.SimpleQueue[Died] = queue.SimpleQueue()
        self.pool = ServerPool(self.heard.put, preload, state=folder)

    def script(self, text: str, name: str = "script.py") -> Path:
        path = self.folder / name
        path.write_text(text)
        return path

    def start(
        self, script: Path, *, fork: Warmup | None = NO_TORCH, seconds: float = 30.0, **more: Any
    ) -> Future[Ended]:
        return self.pool.submit(Request((str(script), "--json"), fork=fork, seconds=seconds, **more))

    def run(self, text: str, **more: Any) -> Ended:
        return self.start(self.script(text), **more).result(timeout=60)


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    driver = Driver(tmp_path)
    yield driver
    driver.pool.close()
    assert list((tmp_path / "scratch").iterdir()) == [], "the scratch folder was not cleaned up"


def eventually(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


WAYS = pytest.mark.parametrize("fork", [NO_TORCH, None], ids=["fork", "fresh"])


@WAYS
def test_an_uncaught_exception_never_looks_like_a_verdict_of_the_warm_runs(
    driver: Driver, fork: Warmup | None
) -> None:
    ended = driver.run("raise ValueError('not a verdict')", fork=fork)
    assert "ValueError: not a verdict" in ended.stderr_tail
    assert ended.exit_status == 70


def test_the_files_that_a_run_had_loaded_are_told(driver: Driver) -> None:
    beside = driver.script("import json", "beside.py")
    assert str(beside) in (driver.run("import beside", fork=NO_TORCH).files or ())
    assert str(beside) in (driver.run("import beside", fork=None).files or ())


def test_runs_go_on_side_by_side_and_one_can_be_cancelled(driver: Driver) -> None:
    pid = driver.folder / "pid"
    slow = driver.start(
        driver.script(
            f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(1000)", "slow.py"
        )
    )
    assert driver.start(driver.script("print('quick')", "quick.py")).result(timeout=30).stdout == "quick\n"
    assert eventually(lambda: pid.exists() and pid.read_text() != "")
    assert slow.cancel()
    assert eventually(lambda: not psutil.pid_exists(int(pid.read_text())))


@WAYS
def test_a_change_of_the_same_size_in_the_same_second_is_seen_where_modules_are_recompiled(
    driver: Driver, fork: Warmup | None
) -> None:
    beside = driver.script("VALUE = 1", "beside.py")
    moment = (time.time_ns() // 10**9) * 10**9
    values = []
    for number, recompiled in (
        (1, ()),
        (2, ()),
        (2, (str(driver.folder),)),
        (2, (str(beside),)),
        (2, ("/elsewhere",)),
    ):
        beside.write_text(f"VALUE = {number}")
        os.utime(beside, ns=(moment, moment))
        shown = driver.run("import beside; print(beside.VALUE)", fork=fork, recompiled=recompiled).stdout
        values.append(int(shown))
    assert values == [1, 1, 2, 2, 1], "else the bytecode of before is taken for that of the source"


def test_a_server_whose_files_change_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "preloaded_library.py"
    library.write_text("VALUE = 1")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    driver = Driver(tmp_path, Warmup(("preloaded_library",)))
    try:
        print_value = "import preloaded_library; print(preloaded_library.VALUE)"
        assert driver.run(print_value).stdout == "1\n"
        server = driver.pool.server
        assert eventually(lambda: bool(server.loaded)), "it says what it has loaded"
        assert driver.pool.refresh() == ()
        assert driver.pool.server is server
        library.write_text("VALUE = 2  # another size")
        assert driver.pool.refresh() == (str(library),)
        assert driver.pool.server is not server
        assert driver.run(print_value).stdout == "2\n"
    finally:
        driver.pool.close()


def test_what_is_installed_is_known_by_its_names(tmp_path: Path) -> None:
    """A sweep waited 28 s for new workers, though nothing that they had loaded had changed: the folder's own time had."""

    def seen() -> dict[str, list[int]]:
        return fingerprints([str(tmp_path)])

    (tmp_path / "library.pth").write_text("/src")
    before = seen()
    (tmp_path / "__pycache__").mkdir()  # by the first import of a single module
    (tmp_path / "library.pth").unlink()
    (tmp_path / "library.pth").write_text("/src")  # installed again
    os.utime(tmp_path, ns=(1, 1))
    assert seen() == before
    (tmp_path / "library.pth").write_text("/elsewhere")
    elsewhere = seen()
    assert elsewhere != before
    (tmp_path / "another-1.0.dist-info").mkdir()
    assert seen() not in (before, elsewhere)


def test_a_server_that_is_killed_loses_its_runs_and_the_next_order_starts_another(driver: Driver) -> None:
    slow = driver.start(driver.script("import time; time.sleep(1000)", "slow.py"))
    pid = driver.pool.server.process.pid
    assert eventually(lambda: bool(psutil.Process(pid).children()))
    child = psutil.Process(pid).children()[0].pid
    os.kill(pid, signal.SIGKILL)
    assert slow.result(timeout=30).lost
    assert isinstance(died := driver.heard.get(timeout=30), Died)
    assert died.status == -signal.SIGKILL
    assert eventually(lambda: not psutil.pid_exists(child)), "children die with their server"
    assert driver.run("print('back')").stdout == "back\n"


DAEMON = """
import sys, time
from pathlib import Path
from minidbg.workers import Warmup, Request
from minidbg.workers.pool import ServerPool
pool = ServerPool(lambda message: None, Warmup(), state=Path(sys.argv[1]))
pool.submit(Request((sys.argv[2],), seconds=1000.0, fork=Warmup()))
print(pool.server.process.pid, flush=True)
time.sleep(1000)
"""


def test_nothing_outlives_a_killed_daemon(tmp_path: Path) -> None:
    script = tmp_path / "slow.py"
    script.write_text(
        f"import os, time\nopen({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\ntime.sleep(1000)"
    )
    command = [sys.executable, "-c", DAEMON, str(tmp_path), str(script)]
    daemon = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    server = int(daemon.stdout.readline())
    pid_file = tmp_path / "pid"
    assert eventually(lambda: pid_file.exists() and pid_file.read_text() != "")
    daemon.kill()
    daemon.wait()
    daemon.stdout.close()
    assert eventually(lambda: not any(map(psutil.pid_exists, (server, int(pid_file.read_text())))))


def test_a_fresh_run_has_the_threads_a_person_would_have(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = "import os; print(os.environ.get('OMP_NUM_THREADS', 'unset'))"
    had = os.environ.get("OMP_NUM_THREADS", "unset")
    assert driver.run(program, fork=NO_TORCH).stdout == "1\n"
    assert driver.run(program, fork=None).stdout == f"{had}\n"
