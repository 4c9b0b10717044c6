"""Many sweeps in a row: do memory, file descriptors, threads, processes and files of the daemon stay as they were?

    python tests/tools/soaks/soak_watch.py [--sweeps 1000] [--repros 5]

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

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from support.toy_repros import BROKEN, WORKS, Checkout, script
from support.watch_driver import WatchProcess

FLAT = {
    "daemon_mb": (1.1, 4.0), "server_mb": (1.1, 4.0), "descriptors": (1.0, 2), "threads": (1.0, 2),
    "processes": (1.0, 3), "scratch_files": (1.0, 8),
}  # fmt: skip
"""How many times as much as after the warm-up is still flat, and how much more."""
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
    desk = Checkout(folder, ops, {op: script(op, expect="gone") for op in ops})
    desk.commit(ignored="")
    running = WatchProcess(folder, "--jobs", "2", env=desk.env)
    began, baseline, last = time.monotonic(), {}, {}
    try:
        running.wait_for_sweep(since=0)
        for number in range(1, sweeps + 1):
            mark = running.mark()
            broken = number % 20 >= 10
            source = (BROKEN if broken else WORKS) + "# save {number}\n"
            (desk.package / "op0.py").write_text(source.format(op="op0", number=number))
            running.wait_for_sweep(since=mark, seconds=120)
            running.events.clear()
            if number == int(sweeps * WARM_UP):
                baseline = sizes(running, desk.repros)
            if number % max(1, sweeps // 20) == 0:
                last = sizes(running, desk.repros)
                seconds = round(time.monotonic() - began)
                print(json.dumps({"sweep": number, "seconds": seconds, **last}), flush=True)
        status = running.stop()
    finally:
        running.close()
    grown = {
        name: (baseline[name], last[name])
        for name, (times, more) in FLAT.items()
        if last[name] > baseline[name] * times + more
    }
    each = round((last["daemon_mb"] - baseline["daemon_mb"]) * 1e6 / (sweeps * (1 - WARM_UP)))
    print(
        json.dumps({"sweeps": sweeps, "exit_status": status, "daemon_bytes_per_sweep": each, "grown": grown})
    )
    return 1 if grown or status else 0


def sizes(running: WatchProcess, repros: Path) -> dict[str, float]:
    """What the daemon and its server hold now."""
    time.sleep(0.3)
    daemon = psutil.Process(running.process.pid)
    children = daemon.children()
    hidden = repros / ".minidbg"
    return {
        "daemon_mb": round(daemon.memory_info().rss / 1e6, 1),
        "server_mb": round(max((child.memory_info().rss for child in children), default=0) / 1e6, 1),
        "descriptors": daemon.num_fds(),
        "threads": daemon.num_threads(),
        "processes": len(daemon.children(recursive=True)),
        "scratch_files": sum(1 for path in (hidden / "scratch").rglob("*")),
        "history_kb": round((hidden / "history.sqlite").stat().st_size / 1e3),
    }


if __name__ == "__main__":
    sys.exit(main())
