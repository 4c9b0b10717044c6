"""How often does verification cry wolf? torch's own samples of its ops, each compiled and held against eager.

    python tests/benchmarks/sweep_op_db.py --backend aot_eager              # must be silent
    python tests/benchmarks/sweep_op_db.py --backend inductor --every 25    # each alarm is to be looked at

Prints one JSON object a line for each alarm, and a summary at the end. ``--every`` takes each n-th op, ``--seconds``
ends the sweep early and says so. Needs ``expecttest``, which torch's testing module imports.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch

import minidbg
from minidbg.backend.budget import PROCESS
from minidbg.errors import AccuracyError

DTYPES = (torch.float32, torch.float16, torch.int64, torch.complex64)
SLOW_OR_STRANGE = frozenset({"_refs", "signal"})
"""First parts of names: Python references of other ops, and windows, which take no tensors."""


@dataclass(slots=True)
class Sweep:
    """Counts of what became of the samples."""

    backend: str
    alarms: list[dict[str, Any]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    unverified: Counter[str] = field(default_factory=Counter)

    def one(self, op: Any, dtype: torch.dtype, number: int, call: Callable[[], Any], folder: Path) -> None:
        """Compile and run one sample."""
        torch._dynamo.reset()
        PROCESS.reset()
        wrapped = minidbg.wrap(self.backend, reduce="later", repro_dir=folder, flight_recorder=False)
        name = f"{op.name}{'.' + op.variant_test_name if op.variant_test_name else ''}"
        place = {"op": name, "dtype": str(dtype), "sample": number}
        try:
            call()  # some samples are for errors
        except Exception:  # noqa: BLE001 - whatever an op says to a sample that is not for it
            self.counts["eager fails"] += 1
            return
        try:
            torch.compile(call, backend=wrapped)()
        except AccuracyError as error:
            self.counts["alarm"] += 1
            self.alarms.append({**place, "category": error.category, "message": str(error)})
            print(json.dumps(self.alarms[-1]), flush=True)
        except Exception as error:  # noqa: BLE001 - the backend's own failures are not the question here
            self.counts[f"backend fails: {type(error).__name__}"] += 1
        else:
            self.counts["silent"] += 1
        for text in PROCESS.said:
            kind, _, why = text.partition(": ")
            if kind == "not verified":
                self.unverified[why[:90]] += 1


def samples(op: Any, dtype: torch.dtype, most: int) -> Iterator[Callable[[], Any]]:
    """Calls of ``op`` on torch's own sample inputs, seeded."""
    torch.manual_seed(0)
    trains = dtype in (torch.float32, torch.complex64) and op.supports_autograd
    for sample in islice(op.sample_inputs("cpu", dtype, requires_grad=trains), most):
        args = (sample.input, *sample.args)

        def call(args: Any = args, kwargs: Any = sample.kwargs) -> Any:
            return op(*args, **kwargs)

        yield call


def main(argv: list[str] | None = None) -> int:
    """Exit status 1 when there was an alarm, 125 where the samples cannot be had."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--backend", default="aot_eager")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the op to begin with")
    parser.add_argument("--samples", type=int, default=3, help="of each op and dtype")
    parser.add_argument("--dtypes", nargs="*", default=[str(one) for one in DTYPES])
    parser.add_argument("--ops", nargs="*", help="only these, by name")
    parser.add_argument("--seconds", type=float, default=600.0)
    options = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    logging.getLogger("minidbg").setLevel(logging.ERROR)
    try:
        from torch.testing._internal.common_methods_invocations import op_db
    except ImportError as error:
        print(f"torch's samples are not to be had here: {error}", file=sys.stderr)
        return 125
    wanted = [op for op in op_db if op.name.partition(".")[0] not in SLOW_OR_STRANGE]
    if options.ops:
        wanted = [op for op in wanted if op.name in options.ops]
    dtypes = [one for one in DTYPES if str(one) in options.dtypes]
    sweep, began, done = Sweep(options.backend), time.monotonic(), 0
    with tempfile.TemporaryDirectory() as folder:
        for op in wanted[options.first :: options.every]:
            if time.monotonic() - began > options.seconds:
                break
            done += 1
            for dtype in dtypes:
                if dtype in op.supported_dtypes("cpu"):
                    for number, call in enumerate(samples(op, dtype, options.samples)):
                        sweep.one(op, dtype, number, call, Path(folder))
    summary = {
        "backend": options.backend,
        "ops": done,
        "of": len(wanted[options.first :: options.every]),
        "seconds": round(time.monotonic() - began, 1),
        **sweep.counts,
        "unverified": dict(sweep.unverified),
    }
    print(json.dumps(summary))
    return 1 if sweep.alarms else 0


if __name__ == "__main__":
    sys.exit(main())
