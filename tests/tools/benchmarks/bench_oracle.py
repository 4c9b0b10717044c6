"""What one run costs in a child against in this process, and what the flight recorder costs for each compile.

Run as a program: ``python tests/tools/benchmarks/bench_oracle.py [--no-inductor] [--json]``. The smallest of several repetitions counts.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from bench_wrapper import Residual
from torch import fx

from minidbg import asking, backends, workers
from minidbg.asking.execute import execute
from minidbg.fx.case import Case
from minidbg.fx.copying import capture_by_dynamo, copy_graph_module
from minidbg.repro.flights import Step
from minidbg.words.run_spec import RunSpec
from minidbg.words.settings import Settings
from minidbg.wrapper.chain import Link
from minidbg.wrapper.flight import Record

GPT2 = Path(__file__).parents[2] / "cases" / "models" / "compile_193265_gpt2_step_schedule.py"


def best(action: Callable[[], object], times: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of the shortest of ``times`` runs; those of this process's own work by ``time.process_time``."""
    found = []
    for _ in range(times):
        began = clock()
        action()
        found.append(clock() - began)
    return min(found)


def oracle_call(backend: str, times: int) -> dict[str, float]:
    """Seconds of one call for a graph of three nodes: here, in a fork, in a kept interpreter."""

    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.sin(x)) + 1

    graph, inputs = capture_by_dynamo(model, (torch.linspace(-1, 1, 12),))
    case = Case(graph, inputs, RunSpec(backends.find(backend)), compiler=backend)
    found = {}
    with workers.own_kernel_cache():
        execute(case)  # kernels are compiled and modules imported

        def here() -> None:
            torch._dynamo.reset()
            assert execute(case).verdict == "gone"

        found["here_s"] = best(here, times)
        asking.submit(case, seconds=200)
        found["question_s"] = best(lambda: asking.submit(case, seconds=200), times)
    return found


def recorder(model: Callable[..., Any], inputs: tuple[Any, ...], times: int) -> dict[str, float]:
    """The recorder's part in one compile and first run, CPU time."""
    found: dict[str, float] = {}

    def backend(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        untouched, link = copy_graph_module(gm), Link("aot_eager")
        with tempfile.TemporaryDirectory() as folder:
            settings = Settings(repro_dir=Path(folder))

            def recorded() -> None:
                record = Record(untouched, settings)
                with record.during(Step.COMPILE, link, example_inputs):
                    sizes.append(sum(path.stat().st_size for path in Path(folder).rglob("*-*")))
                with record.during(Step.RUN, link, example_inputs):
                    pass
                record.close()

            sizes: list[int] = []
            found["nodes"], found["inputs"] = len(untouched.graph.nodes), len(example_inputs)
            found["record_ms"] = 1000 * best(recorded, times, time.process_time)
            found["record_bytes"] = sizes[-1]
            record = Record(untouched, settings)
            record.begin(Step.COMPILE, link, example_inputs)

            def two_moves() -> None:
                record.begin(Step.RUN, link, example_inputs)
                record.quietly_move(Step.IDLE)

            found["two_moves_ms"] = 1000 * best(two_moves, 50)
            record.close()
            off = Record(untouched, Settings(repro_dir=Path(folder), flight_recorder=False))

            def switched_off() -> None:
                with off.during(Step.RUN, link, example_inputs):
                    pass

            found["switched_off_us"] = 1e6 * best(switched_off, 1000)
        return gm.forward

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(model, backend=backend)(*inputs)
    return found


def gpt2() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    spec = importlib.util.spec_from_file_location("gpt2_case", GPT2)
    module = importlib.util.module_from_spec(spec)
    sys.modules["gpt2_case"] = module
    spec.loader.exec_module(module)
    made: tuple[Callable[..., Any], tuple[Any, ...]] = module.make()
    return made


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--no-inductor", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, Any] = {
        "recorder, 462 nodes": recorder(Residual(), (torch.randn(8, 32),), 15),
        "recorder, GPT-2": recorder(*gpt2(), 15),
        "run, aot_eager": oracle_call("aot_eager", 5),
    }
    if not options.no_inductor:
        found["run, inductor"] = oracle_call("inductor", 5)
    rounded = {name: {key: round(value, 3) for key, value in table.items()} for name, table in found.items()}
    print(json.dumps(rounded) if options.json else json.dumps(rounded, indent=1))


if __name__ == "__main__":
    main()
