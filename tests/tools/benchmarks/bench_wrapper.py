"""What wrapping costs a healthy model: CPU seconds for each compile and its verification, microseconds for each call.

Run as a program: ``python tests/tools/benchmarks/bench_wrapper.py [--json] [--python OTHER]``. Wrapped and unwrapped runs alternate in one
process, and the smallest of several repetitions counts, so that a busy machine spoils the ratio as little as possible.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from side_by_side import add_option, run_others
from torch import fx, nn

from minidbg import wrap


class Residual(nn.Module):
    """A few hundred call nodes, with buffers that a training step writes to."""

    def __init__(self, layers: int = 20, width: int = 32) -> None:
        super().__init__()
        self.ins = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.outs = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for first, out, norm in zip(self.ins, self.outs, self.norms, strict=True):
            q, k, v = first(x).chunk(3, dim=-1)
            h = torch.softmax(q @ k.transpose(-1, -2), -1) @ v
            x = norm(x + torch.relu(out(h)))
        return x


def cpu_seconds(action: Callable[[], Any]) -> float:
    """Of this process, so that others on the machine count for little."""
    start = time.process_time()
    action()
    return time.process_time() - start


def first_call(backend: Any) -> float:
    """CPU seconds of a first call, tracing and compiling included, from nothing."""
    torch._dynamo.reset()
    model, x = Residual(), torch.randn(8, 32)
    compiled = torch.compile(model, backend=backend)
    gc.collect()  # what the run before has left is not this one's cost
    return cpu_seconds(lambda: compiled(x))


def returns_at_once(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
    """A compiled function as fast as any can be: what is measured is the wrapper alone."""
    return lambda *args: args


def call_microseconds(function: Callable[..., Any], args: Sequence[Any], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        function(*args)
    return (time.perf_counter() - start) / calls * 1e6


def bare_call(calls: int = 200_000, repetitions: int = 7) -> tuple[float, float]:
    """Microseconds of a call of the compiled function itself: unwrapped, and settled behind the wrapper."""
    gm = fx.symbolic_trace(lambda x: (x + 1,))
    args = [torch.ones(1)] * 20
    plain = returns_at_once(gm, args)
    wrapped = wrap(returns_at_once, verify="never", crash_records=False)(gm, args)
    wrapped(*args)
    pairs = [
        (call_microseconds(plain, args, calls), call_microseconds(wrapped, args, calls))
        for _ in range(repetitions)
    ]
    return min(pair[0] for pair in pairs), min(pair[1] for pair in pairs)


def compiled_call(backend: str, calls: int = 2_000, repetitions: int = 7) -> tuple[float, float]:
    """Microseconds of a call through torch.compile, guards included, for a small model: plain and wrapped."""
    x = torch.randn(4, 8)
    functions = []
    for wrapper in (lambda name: name, wrap):
        torch._dynamo.reset()
        model = nn.Linear(8, 8).requires_grad_(False)
        # a function object of its own: dynamo keeps compiled code by code object
        function = torch.compile(lambda value, model=model: model(value).relu(), backend=wrapper(backend))
        functions.append(function)
        function(x), function(x)
    pairs = [[call_microseconds(function, [x], calls) for function in functions] for _ in range(repetitions)]
    return min(pair[0] for pair in pairs), min(pair[1] for pair in pairs)


def measure(repetitions: int, backends: Sequence[str]) -> list[dict[str, Any]]:
    """One row for each thing measured: plain, wrapped, extra and ratio."""
    rows = []
    for backend in backends:
        first_call(backend)  # imports
        ways = (backend, wrap(backend, verify="never"), wrap(backend))
        runs = [[first_call(way) for way in ways] for _ in range(repetitions)]
        plain, unverified, verified = (min(column) for column in zip(*runs, strict=True))
        rows.append(row(f"first call with {backend}, not verified", "s", plain, unverified))
        rows.append(row(f"first call with {backend}, verified with gradients", "s", plain, verified))
        with torch.no_grad():
            runs = [[first_call(way) for way in ways] for _ in range(repetitions)]
        plain, _, verified = (min(column) for column in zip(*runs, strict=True))
        rows.append(row(f"first call with {backend}, verified, no gradients", "s", plain, verified))
        rows.append(row(f"later call with {backend}", "us", *compiled_call(backend)))
    rows.append(row("compiled function alone, 20 arguments", "us", *bare_call()))
    return rows


def row(what: str, unit: str, plain: float, wrapped: float) -> dict[str, Any]:
    return {
        "what": what,
        "unit": unit,
        "plain": round(plain, 4),
        "wrapped": round(wrapped, 4),
        "extra": round(wrapped - plain, 4),
        "ratio": round(wrapped / plain, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--repetitions", type=int, default=6)
    parser.add_argument("--backends", nargs="+", default=["eager", "aot_eager"])
    add_option(parser)
    options = parser.parse_args()
    run_others(options)
    for found in measure(options.repetitions, options.backends):
        if options.json:
            print(json.dumps(found))
        else:
            print(
                "{what:55} {plain:>10} {unit} {wrapped:>10} {unit}  extra {extra:>8}  x{ratio}".format(
                    **found
                )
            )


if __name__ == "__main__":
    main()
