"""The fork server with scripts that need no torch: what it answers, and that it leaves nothing behind."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from minidbg.judge.death import died_by
from minidbg.workers.pool import Died, Ended, Order, Preload, Ready, RunMode, ServerPool
from minidbg.workers.server import fingerprints

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the fork server is for Linux")

NO_TORCH = Preload(modules=("json",), warm="")


class Driver:
    """A pool and what it told."""

    def __init__(self, folder: Path, preload: Preload = NO_TORCH) -> None:
        self.folder = folder
        self.heard: queue.SimpleQueue[Ended | Ready | Died] = queue.SimpleQueue()
        self.pool = ServerPool(self.heard.put, preload, state=folder)
        self.number = 0

    def script(self, text: str, name: str = "script.py") -> Path:
        path = self.folder / name
        path.write_text(text)
        return path

    def start(
        self, script: Path, *, mode: RunMode = RunMode.FORK, seconds: float = 30.0, **more: object
    ) -> int:
        self.number += 1
        self.pool.run(Order(self.number, (str(script), "--json"), mode, seconds, **more))
        return self.number

    def next_end(self) -> Ended:
        while not isinstance(message := self.heard.get(timeout=30), Ended):
            pass
        return message

    def run(self, text: str, **more: object) -> Ended:
        self.start(self.script(text), **more)
        return self.next_end()


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


MODES = pytest.mark.parametrize("mode", list(RunMode))


@MODES
def test_a_script_runs_as_main_with_its_arguments_folder_and_status(driver: Driver, mode: RunMode) -> None:
    driver.script("VALUE = 41", "beside.py")
    ended = driver.run(
        "import sys, json, beside\n"
        "if __name__ == '__main__':\n"
        "    print(json.dumps([sys.argv[1:], beside.VALUE, __file__]))\n"
        "    sys.exit(3)\n",
        mode=mode,
    )
    assert (ended.status, ended.signal, ended.timed_out) == (3, None, False)
    assert json.loads(ended.stdout) == [["--json"], 41, str(driver.folder / "script.py")]


@MODES
def test_an_uncaught_exception_never_looks_like_a_verdict_of_the_warm_runs(
    driver: Driver, mode: RunMode
) -> None:
    ended = driver.run("raise ValueError('not a verdict')", mode=mode)
    assert "ValueError: not a verdict" in ended.stderr
    assert ended.status == 70


def test_a_module_runs_as_main_in_an_interpreter_of_its_own(driver: Driver) -> None:
    driver.pool.run(Order(99, ("-m", "json.tool", "--help"), RunMode.FRESH, 60.0))
    assert "json.tool" in driver.next_end().stdout


def test_the_files_that_a_run_had_loaded_are_told(driver: Driver) -> None:
    beside = driver.script("import json", "beside.py")
    assert str(beside) in (driver.run("import beside", mode=RunMode.FORK).files or ())
    assert str(beside) in (driver.run("import beside", mode=RunMode.FRESH).files or ())


@MODES
def test_a_crash_is_told_with_its_signal(driver: Driver, mode: RunMode) -> None:
    ended = driver.run("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", mode=mode)
    assert (ended.status, ended.signal) == (None, signal.SIGSEGV)
    assert "Segmentation fault" in ended.stderr, "faulthandler says where"


@MODES
def test_a_hang_ends_at_its_time_limit_with_the_stack(driver: Driver, mode: RunMode) -> None:
    began = time.monotonic()
    ended = driver.run("def stuck():\n    while True: pass\nstuck()", mode=mode, seconds=1.0)
    assert ended.timed_out
    assert time.monotonic() - began < 5
    assert "in stuck" in ended.stderr


def test_a_hang_that_ignores_every_signal_it_can_is_killed(driver: Driver) -> None:
    ended = driver.run(
        "import signal, time\nfor s in (signal.SIGABRT, signal.SIGTERM): signal.signal(s, signal.SIG_IGN)\n"
        "while True: time.sleep(1)",
        seconds=0.5,
    )
    assert (ended.timed_out, ended.signal) == (True, signal.SIGKILL)


SPAWNS = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"]{more})
open({path!r}, "w").write(str(child.pid))
{then}
"""


@pytest.mark.parametrize("more", ["", ", start_new_session=True"])
@pytest.mark.parametrize("then", ["", "time.sleep(1000)"])
def test_what_a_run_started_ends_with_it(driver: Driver, more: str, then: str) -> None:
    path = driver.folder / "pid"
    driver.run(SPAWNS.format(path=str(path), more=more, then=then), seconds=1.0)
    pid = int(path.read_text())
    assert eventually(lambda: not psutil.pid_exists(pid))


def test_runs_go_on_side_by_side_and_one_can_be_cancelled(driver: Driver) -> None:
    slow_number = driver.start(driver.script("import time; time.sleep(1000)", "slow.py"))
    quick_number = driver.start(driver.script("print('quick')", "quick.py"))
    assert driver.next_end().id == quick_number
    driver.pool.cancel(slow_number)
    ended = driver.next_end()
    assert (ended.id, ended.cancelled) == (slow_number, True)


def test_output_without_end_keeps_only_its_tail(driver: Driver) -> None:
    ended = driver.run("for i in range(200_000): print('line', i)")
    assert len(ended.stdout) <= 64_000
    assert ended.stdout.endswith("line 199999\n")


TAKES = "held = [b'x' * (8 << 20) for _ in range(64)]; import time; time.sleep(60)"
STARTS = f"import subprocess, sys; subprocess.run([sys.executable, '-S', '-c', {TAKES!r}])"


@MODES
@pytest.mark.parametrize("script", [TAKES, STARTS], ids=["itself", "what it started"])
def test_a_run_that_takes_too_much_memory_is_ended_and_no_other(
    driver: Driver, mode: str, script: str
) -> None:
    done = driver.folder / "done"
    waits = f"import os, time\nwhile not os.path.exists({str(done)!r}): time.sleep(0.01)"
    other = driver.start(driver.script(waits, "other.py"))
    ended = driver.run(script, mode=mode, memory_bytes=256 << 20)
    done.touch()
    assert (ended.out_of_memory, ended.timed_out) == (True, False)
    assert died_by(ended.result) == "memory limit"
    assert ((ended := driver.next_end()).id, ended.status) == (other, 0)


@MODES
def test_a_change_of_the_same_size_in_the_same_second_is_seen_where_modules_are_recompiled(
    driver: Driver, mode: str
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
        shown = driver.run("import beside; print(beside.VALUE)", mode=mode, recompiled=recompiled).stdout
        values.append(int(shown))
    assert values == [1, 1, 2, 2, 1], "else the bytecode of before is taken for that of the source"


def test_a_server_whose_files_change_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "preloaded_library.py"
    library.write_text("VALUE = 1")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    driver = Driver(tmp_path, Preload(modules=("preloaded_library",), warm=""))
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
    driver.start(driver.script("import time; time.sleep(1000)", "slow.py"))
    while not isinstance(driver.heard.get(timeout=30), Ready):
        pass
    pid = driver.pool.server.process.pid
    assert eventually(lambda: bool(psutil.Process(pid).children()))
    child = psutil.Process(pid).children()[0].pid
    os.kill(pid, signal.SIGKILL)
    assert driver.next_end().lost
    assert isinstance(died := driver.heard.get(timeout=30), Died)
    assert died.status == -signal.SIGKILL
    assert eventually(lambda: not psutil.pid_exists(child)), "children die with their server"
    assert driver.run("print('back')").stdout == "back\n"


DAEMON = """
import sys, time
from pathlib import Path
from minidbg.workers.pool import Order, Preload, ServerPool
pool = ServerPool(lambda message: None, Preload((), ""), state=Path(sys.argv[1]))
pool.run(Order(1, (sys.argv[2],), "fork", 1000.0))
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
    assert driver.run(program, mode=RunMode.FORK).stdout == "1\n"
    assert driver.run(program, mode=RunMode.FRESH).stdout == f"{had}\n"
