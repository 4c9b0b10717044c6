"""What a graph costs in a hunt's warm worker, several in one compilation, against a fresh process for each: CPU seconds.

Run as a program: ``python tests/tools/benchmarks/bench_hunt.py [--backend aot_eager] [--graphs 48] [--fresh 3]``. CPU seconds are those of
a child and all that it started (C++ compilers too), so a busy machine changes them little; kernels are compiled anew in each run.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

PROGRAM = """
import json, sys
from minidbg import torch_internals
from minidbg.extras.hunt import judging, samples
argument = json.loads(sys.argv[1])
samples.operators()
if len(argument["batch"]) != 1:  # what a hunt's worker is forked from; a process for one graph compiles that alone
    torch_internals.warm_up_compiling(inductor=argument["backend"]["name"] == "inductor")
judging.run_batch(argument, lambda text: None)
"""


def cpu_seconds(folder: Path, backend: str, batch: list[dict[str, Any]], together: int) -> tuple[float, int]:
    """Of one process that judges the batch, and how many of the batch were ok."""
    place = Path(tempfile.mkdtemp(dir=folder))
    argument = {
        "backend": {"name": backend, "options": {}, "mode": None}, "seed": 0, "known": [], "call_seconds": 300.0,
        "results": str(place / "results"), "doing": str(place / "doing"), "folder": str(place), "batch": batch,
        "seconds": 3000.0, "tried": [], "most_together": together, "patience": 300.0,
    }  # fmt: skip
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(place / "kernels"), "OMP_NUM_THREADS": "1"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", PROGRAM, json.dumps(argument)], env=environment, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    lines = (place / "results").read_text().splitlines() if batch else []
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return spent, sum(json.loads(line)["state"] == "ok" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="aot_eager")
    parser.add_argument("--graphs", type=int, default=48)
    parser.add_argument("--fresh", type=int, default=3, help="fresh processes, one graph each")
    parser.add_argument("--together", type=int, default=12)
    given = parser.parse_args()
    from minidbg.extras.hunt import samples

    cells = samples.plan((), ("float32",), ("cpu",))
    step = max(1, len(cells) // given.graphs)
    batch = [
        {"op": op, "dtype": dtype, "device": device, "number": 0} for op, dtype, device in cells[::step]
    ][: given.graphs]
    with tempfile.TemporaryDirectory() as folder:
        start, _ = cpu_seconds(Path(folder), given.backend, [], 1)
        alone = [
            cpu_seconds(Path(folder), given.backend, [one], 1)[0]
            for one in batch[:: max(1, len(batch) // given.fresh)][: given.fresh]
        ]
        whole, fine = cpu_seconds(Path(folder), given.backend, batch, given.together)
    process = sum(alone) / len(alone)
    graph = (whole - start) / len(batch)
    print(f"{given.backend}: {fine} of {len(batch)} ok; CPU seconds: start {start:.2f}")
    print(
        f"a process for each graph {process:.2f}; in the warm worker {graph:.3f} a graph: {process / graph:.0f} times"
    )


if __name__ == "__main__":
    main()
