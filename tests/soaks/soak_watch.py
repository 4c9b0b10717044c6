"""Many sweeps in a row: do memory, file descriptors, threads, processes and files of the daemon stay as they were?

    python tests/soaks/soak_watch.py [--sweeps 1000] [--repros 5]

The scripts need no torch, so that a sweep takes a fraction of a second: what is tried is the daemon. A save flips a repro in
every tenth sweep. Prints a line of JSON now and then and one at the end; exits with 1 when something grew.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))

from toy_repros import BROKEN, WORKS, git, script, toy_package
from watch_driver import WatchProcess

GROWTH = {
    "daemon_mb": 1.1,
    "server_mb": 1.1,
    "descriptors": 1.0,
    "threads": 1.0,
    "processes": 1.0,
    "scratch_files": 1.0,
}
"""How many times as much as after the warm-up is still flat."""
SLACK = {
    "daemon_mb": 4.0,
    "server_mb": 4.0,
    "descriptors": 2,
    "threads": 2,
    "processes": 3,
    "scratch_files": 8,
}
WARM_UP = 0.1


def main() -> int:
    """Run the sweeps; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sweeps", type=int, default=1000)
    parser.add_argument("--repros", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="minidbg-soak-") as name:
        return soak(Path(name), options.sweeps, options.repros)


def soak(folder: Path, sweeps: int, repros: int) -> int:
    """Save and wait for the sweep, that many times; 1 when something grew after the first tenth."""
    ops = {f"op{number}": WORKS for number in range(repros)}
    package = toy_package(folder / "src", ops)
    (folder / "repros").mkdir()
    for op in ops:
        (folder / "repros" / f"{op}.py").write_text(script(op, expect="gone"))
    git(folder / "src", "init", "-q")
    git(folder / "src", "add", ".")
    git(folder / "src", "commit", "-q", "-m", "first")
    running = WatchProcess(
        folder,
        "repros",
        "--jobs",
        "2",
        env={"MINIDBG__WATCH_PRELOAD": "none", "PYTHONPATH": str(folder / "src")},
    )
    began, baseline, last = time.monotonic(), {}, {}
    try:
        running.wait_for_sweep(since=0)
        for number in range(1, sweeps + 1):
            mark = running.mark()
            broken = number % 20 >= 10
            source = (BROKEN if broken else WORKS) + "# save {number}\n"
            (package / "op0.py").write_text(source.format(op="op0", number=number))
            running.wait_for_sweep(since=mark, seconds=120)
            running.events.clear()
            if number == int(sweeps * WARM_UP):
                baseline = sizes(running, folder)
            if number % max(1, sweeps // 20) == 0:
                last = sizes(running, folder)
                print(
                    json.dumps({"sweep": number, "seconds": round(time.monotonic() - began), **last}),
                    flush=True,
                )
        status = running.stop()
    finally:
        running.close()
    grown = {
        name: (baseline[name], last[name])
        for name in GROWTH
        if last[name] > baseline[name] * GROWTH[name] + SLACK[name]
    }
    each = round((last["daemon_mb"] - baseline["daemon_mb"]) * 1e6 / (sweeps * (1 - WARM_UP)))
    print(
        json.dumps({"sweeps": sweeps, "exit_status": status, "daemon_bytes_per_sweep": each, "grown": grown})
    )
    return 1 if grown or status else 0


def sizes(running: WatchProcess, folder: Path) -> dict[str, float]:
    """What the daemon and its server hold now."""
    time.sleep(0.3)
    daemon = psutil.Process(running.process.pid)
    children = daemon.children()
    hidden = folder / "repros" / ".minidbg"
    return {
        "daemon_mb": round(daemon.memory_info().rss / 1e6, 1),
        "server_mb": round(max((child.memory_info().rss for child in children), default=0) / 1e6, 1),
        "descriptors": daemon.num_fds(),
        "threads": daemon.num_threads(),
        "processes": len(daemon.children(recursive=True)),
        "scratch_files": sum(1 for path in (hidden / "scratch").rglob("*"))
        + sum(1 for path in (hidden / "pycache").iterdir()),
        "history_kb": round((hidden / "history.sqlite").stat().st_size / 1e3),
    }


if __name__ == "__main__":
    sys.exit(main())
