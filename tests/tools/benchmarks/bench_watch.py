"""How soon after a save does ``minidbg watch`` know? Beside running each script with a fresh ``python repro.py``.

    python tests/tools/benchmarks/bench_watch.py [--repros 1,20,100] [--backends custom,inductor] [--baseline 10] [--hangs 5]

For each backend and number of repros: seconds from the save to the first and to the last verdict (median of several
saves), seconds for all of them run one by one as ``python repro.py``, two at a time (measured on ``--baseline`` of
them and scaled), the same in CPU seconds, which a busy machine does not change, and whether the verdicts are the same. The custom backend is a package with an ``aot_autograd`` compiler. With ``--hangs`` so many
repros more hang in it, and a last save mends one op: seconds from a repro's warm verdict to its confirmed flip.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from side_by_side import add_option, run_others
from support.watch_driver import WatchProcess

OPS = ("relu", "sigmoid", "tanh", "sin", "cos", "exp", "erf", "abs", "neg", "floor")
BROKEN = OPS[::2]

BACKEND = '''"""A backend of one's own, at the level of aot_autograd."""
from functorch.compile import make_boxed_func
from torch._dynamo import register_backend
from torch._dynamo.backends.common import aot_autograd

from bench_backend.lowering import lower


def compiler(gm, example_inputs):
    for node in gm.graph.nodes:
        lower(node)
    return make_boxed_func(gm.forward)


bench = register_backend(name="bench", compiler_fn=aot_autograd(fw_compiler=compiler))
'''

LOWERING = '''"""Which ops can be lowered."""
BROKEN = {broken!r}


def lower(node):
    name = str(node.target).split(".")[1] if node.op == "call_function" and "." in str(node.target) else ""
    if name in BROKEN:
        raise NotImplementedError("no lowering for " + name)
    while name == "cosh":
        pass
'''

MAKE = """
import sys
import torch
import minidbg
import bench_backend
minidbg.save_repro(lambda x: torch.relu(x) + 1, (torch.linspace(-1, 1, 8).reshape(2, 4),), "bench", sys.argv[1])
"""
"""Writes one real repro script, from which the others are made by changing its op, its shape or its backend."""

STATUS = {
    "gone": 0,
    "reproduces": 1,
    "flaky": 1,
    "changed": 3,
    "crashed": 3,
    "timeout": 3,
    "skipped": 125,
    "invalid": 125,
}
INDUCTOR_FAILS = "x + torch.full((), 5.0).cumsum(0)"


def main() -> None:
    """Measure and print one line for each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repros", default="1,20,100")
    parser.add_argument("--backends", default="custom,inductor")
    parser.add_argument("--baseline", type=int, default=10)
    parser.add_argument("--saves", type=int, default=5)
    parser.add_argument("--hangs", type=int, default=0)
    parser.add_argument("--watch", default="--jobs 2", help="further options of watch")
    add_option(parser)
    options = parser.parse_args()
    run_others(options)
    for backend in options.backends.split(","):
        for count in map(int, options.repros.split(",")):
            with tempfile.TemporaryDirectory(prefix="minidbg-bench-") as folder:
                print(json.dumps(measure(backend, count, Path(folder), options)), flush=True)


def measure(backend: str, count: int, folder: Path, options: argparse.Namespace) -> dict[str, object]:
    """The figures of one case."""
    package = folder / "src" / "bench_backend"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(BACKEND)
    lowering = package / "lowering.py"
    lowering.write_text(LOWERING.format(broken=BROKEN))
    repros = folder / "repros"
    repros.mkdir()
    path = os.pathsep.join([str(folder / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "PYTHONPATH": path}
    write_repros(backend, count, repros, env)
    alone, alone_cpu, fresh_verdicts = fresh_runs(sorted(repros.glob("*.py"))[: options.baseline], env)
    write_hangs(sorted(repros.glob("*.py"))[0], options.hangs)
    lags: list[float] = []
    first, last, cpu, verdicts, start = watched(folder, lowering, options, env, lags)
    same = all(STATUS[verdicts[script]] == status for script, status in fresh_verdicts.items())
    return {
        "backend": backend, "repros": count, "start_s": round(start, 2), "first_verdict_s": round(statistics.median(first), 3),
        "all_verdicts_s": round(statistics.median(last), 2), "fresh_all_s": round(alone * count, 1),
        "times_faster": round(alone * count / statistics.median(last), 1),
        "cpu_s": round(cpu, 2), "fresh_cpu_s": round(alone_cpu * count, 1), "times_less_cpu": round(alone_cpu * count / cpu, 1),
        "flips": len(lags), "median_lag_s": round(statistics.median(lags), 2) if lags else None, "most_lag_s": round(max(lags), 2) if lags else None,
        "same_verdicts": same, "load": round(os.getloadavg()[0], 1),
    }  # fmt: skip


def write_repros(backend: str, count: int, folder: Path, env: dict[str, str]) -> None:
    """That many scripts: for the custom backend half of the ops fail, for inductor a fifth of them."""
    model = folder.parent / "model.py"
    subprocess.run([sys.executable, "-c", MAKE, str(model)], env=env, check=True, cwd=folder)
    text = model.read_text()
    for number in range(count):
        op, rows = OPS[number % len(OPS)], number // len(OPS) + 2
        changed = text.replace("torch.relu(", f"torch.{op}(").replace("(2, 4)", f"({rows}, 4)")
        changed = changed.replace("for relu", f"for {op}")
        if backend == "inductor":
            changed = re.sub("(?m)^backend = .*", 'backend = "inductor"', changed)
            changed = changed.replace('backend = "bench"', 'backend = "inductor"')
            if number % 5 == 0:
                changed = changed.replace(f"torch.{op}(x)", INDUCTOR_FAILS)
        if (op not in BROKEN) if backend == "custom" else (number % 5 != 0):
            changed = changed.replace('# expect = "reproduces"', '# expect = "gone"')
        (folder / f"r{number:03d}_{op}.py").write_text(changed)


def write_hangs(model: Path, count: int) -> None:
    """That many scripts like ``model`` which hang, and say so in their headers."""
    for number in range(count):
        text = model.read_text().replace("torch.relu(", "torch.cosh(").replace("for relu", "for cosh")
        text = text.replace('kind = "compile"', 'kind = "hang", time_limit_s = 10.0')
        text = re.sub(r"signature = \{[^{}]*\}, ", "", text)
        (model.parent / f"h{number}_cosh.py").write_text(text.replace("(2, 4)", f"({number + 2}, 4)"))


def fresh_runs(scripts: list[Path], env: dict[str, str]) -> tuple[float, float, dict[str, int]]:
    """Wall and CPU seconds for each script when they run two at a time in fresh interpreters, and their exit statuses."""

    def run(script: Path) -> int:
        done = subprocess.run([sys.executable, str(script)], env=env, capture_output=True, check=False)
        return done.returncode

    began, cpu = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    with ThreadPoolExecutor(2) as two:
        verdicts = list(two.map(run, scripts))
    wall, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - cpu.ru_utime - cpu.ru_stime
    by_name = {script.name: verdict for script, verdict in zip(scripts, verdicts, strict=True)}
    return wall / len(scripts), spent / len(scripts), by_name


def watched(
    folder: Path, lowering: Path, options: argparse.Namespace, env: dict[str, str], lags: list[float]
) -> tuple[list[float], list[float], float, dict[str, str], float]:
    """Seconds from each save to the first and to the last verdict, CPU seconds of a sweep, the verdicts, and start-up seconds.

    Into ``lags`` go the seconds by which each flip of the last save follows its warm verdict.
    """
    began = time.time()
    saves = options.saves
    running = WatchProcess(folder, "repros", *shlex.split(options.watch), "--source", "src", env=env)
    first: list[float] = []
    last: list[float] = []
    try:
        end = running.wait_for_sweep(since=0, seconds=1200)
        start = end["at"] - began
        settle(running)
        spent = cpu_of(running)
        for number in range(saves):
            mark = running.mark()
            saved = time.time()
            lowering.write_text(LOWERING.format(broken=BROKEN) + f"\n# save {number}\n")
            end = running.wait_for_sweep(since=mark, seconds=1200)
            results = running.since(mark, "result")
            first.append(min(event["at"] for event in results) - saved)
            last.append(end["at"] - saved)
        spent = (cpu_of(running) - spent) / saves
        verdicts = {event["repro"]: event["verdict"] for event in results}
        mark = running.mark()
        lowering.write_text(LOWERING.format(broken=BROKEN[1:]))
        running.wait_for_sweep(since=mark, seconds=1200)
        seen = {event["repro"]: event["at"] for event in running.since(mark, "unconfirmed")}
        lags += [event["at"] - seen[event["repro"]] for event in running.since(mark, "flip")]
        running.stop()
    finally:
        running.close()
    return first, last, spent, verdicts, start


def cpu_of(running: WatchProcess) -> float:
    """CPU seconds that the daemon, its server and all that they ran have spent so far."""
    daemon = psutil.Process(running.process.pid)
    times = [process.cpu_times() for process in (daemon, *daemon.children())]
    return sum(one.user + one.system + one.children_user + one.children_system for one in times)


def settle(running: WatchProcess) -> None:
    """Wait until the daemon does nothing any more: after its start it runs everything a few times more."""
    # Workers and a scheduler that wait spend some 0.03 s a second each.
    resting = 0.2 + 0.3 * len(psutil.Process(running.process.pid).children(recursive=True))
    before, said = -100.0, -1
    while cpu_of(running) - before > resting or running.mark() != said:
        before, said = cpu_of(running), running.mark()
        time.sleep(3)


if __name__ == "__main__":
    main()
