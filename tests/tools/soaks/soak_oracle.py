"""Hundreds of runs that pass, crash, hang, leak and fill the memory: what is left of them in this process.

Run as a program: ``python tests/tools/soaks/soak_oracle.py [--calls 300] [--json]``. The figures of the
second half must not grow: exit status 1 when they do.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import torch

PLANTED = Path(__file__).parents[2] / "planted"
sys.path.insert(0, str(PLANTED))

import planted_backends as planted  # noqa: E402 - found beside the tests
from dies import dies  # noqa: E402

from minidbg import asking, backends, workers  # noqa: E402
from minidbg.fx.case import Case  # noqa: E402
from minidbg.fx.copying import capture_by_dynamo  # noqa: E402
from minidbg.words.outcome import Kind, Signature  # noqa: E402
from minidbg.words.run_spec import RunSpec  # noqa: E402

MIX: list[tuple[str, Any, Kind | None]] = [
    ("passes", planted.returns_gm_forward, None),
    ("passes in aot_eager", "aot_eager", None),
    ("raises", planted.raises_on_relu, None),
    ("crashes", planted.segfaults_on_relu, None),
    ("wrong values", planted.adds_one_to_relu, None),
    ("exits", planted.exits_on_relu, None),
    ("aborts", planted.aborts_on_relu, None),
    ("crashes in backward", dies("segfault", "backward run"), None),
    ("leaves a process and hangs", planted.leaves_processes_on_relu, Kind.HANG),
    ("fills the memory", dies("memory", "run"), None),
]
GROWTH_BYTES = 24 << 20


def figures(folder: Path) -> dict[str, int]:
    """What must stay as it is."""
    gc.collect()
    me = psutil.Process()
    return {
        "resident_bytes": me.memory_info().rss,
        "descriptors": me.num_fds(),
        "threads": me.num_threads(),
        "children": len([child for child in me.children(recursive=True) if not is_a_kept_worker(child)]),
        "zombies": sum(child.status() == psutil.STATUS_ZOMBIE for child in me.children()),
        "sleeps": sum(one.info["cmdline"] == ["sleep", "613"] for one in psutil.process_iter(["cmdline"])),
        "temporary_files": sum(1 for _ in folder.rglob("*")),
    }


def is_a_kept_worker(process: psutil.Process) -> bool:
    return any("minidbg.workers.forkserver" in part for part in process.cmdline())


def soak(calls: int, folder: Path) -> dict[str, Any]:
    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.sin(x)) + 1

    graph, inputs = capture_by_dynamo(model, (torch.linspace(-1, 1, 12, requires_grad=True),))
    cases = {
        name: Case(
            graph,
            inputs,
            RunSpec(
                backends.find(backend),
                signature=Signature(kind) if kind else None,
                backward=name.endswith("backward"),
            ),
            compiler=backend,
        )
        for name, backend, kind in MIX
    }
    seen: Counter[str] = Counter()
    seconds: Counter[str] = Counter()
    course = []
    for number in range(calls + 1):
        if number % (calls // 4) == 0 and number:
            course.append(figures(folder))
        name = list(cases)[number % len(cases)]
        began = time.monotonic()
        outcome = asking.submit(cases[name], seconds=60, memory_bytes=512 << 20)
        seen[f"{name}: {outcome.verdict}"] += 1
        seconds[name] += time.monotonic() - began
    return {
        "calls": calls,
        "course": course,
        "seen": dict(sorted(seen.items())),
        "seconds_each": {name: round(total / (calls / len(MIX)), 2) for name, total in seconds.items()},
    }


def grown(course: list[dict[str, int]]) -> list[str]:
    """What is more at the end than after half of the calls."""
    half, end = course[1], course[-1]
    allowed = {"resident_bytes": GROWTH_BYTES}
    return [name for name in half if end[name] > half[name] + allowed.get(name, 0)]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = str(PLANTED)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        found = soak(options.calls, Path(folder))
        workers.end_server()
        tempfile.tempdir = None
    found["grown"] = grown(found["course"])
    print(json.dumps(found) if options.json else json.dumps(found, indent=1))
    return 1 if found["grown"] else 0


if __name__ == "__main__":
    sys.exit(main())
