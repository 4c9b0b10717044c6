"""Which failures a short script cannot judge: ``python tests/tools/surveys/short_forms.py [COUNT]`` asks of some 240, a third wrong results.

The programs are the constructs of dynamo and torch's own operator samples between two other ops; each fails on one op in one of a
dozen ways (it raises while it compiles, runs or is differentiated; gives wrong values, NaN, another dtype, another shape, wrong
gradients; ends the process, or hangs). Each is captured, reduced and verified as for a user, with the runs in forks of this process.
One line a failure, and at the end how many were written in which form, and why.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "planted"))

from fails_on import name_of
from one_op import on_op
from support.constructs import CONSTRUCTS
from support.quick_path import failing_program, take_the_quick_path

from minidbg.extras.hunt.samples import operators

SEED = 20261125
WAYS = [
    *["compile"] * 3, *["run"] * 3, *["backward"] * 2, *["values"] * 6, *["nan"] * 3, "dtype", "shape", *["gradient"] * 3,
    "segfault", "abort", "exit",
]  # fmt: skip
"""In which proportion; the constructs come on top, which raise while they compile."""
HANGS = 2
FROM_CONSTRUCTS = 60


@dataclass
class Plant:
    """A program that fails: ``function(*args)`` under ``backend``."""

    name: str
    way: str
    function: Callable[..., Any]
    args: Callable[[], Any]
    backend: Any
    given: dict[str, Any] = field(default_factory=dict)
    around: Callable[[], Any] = contextlib.nullcontext


def constructs() -> Iterator[Plant]:
    for one in CONSTRUCTS:
        if one.backend is not None:
            yield Plant(one.name, "construct", one.function, one.args, one.backend, one.given, one.around)


def samples(ways: Iterator[str]) -> Iterator[Plant]:
    """Operator samples in an order that is always the same, each with the next way that suits it."""
    names = sorted(operators())
    random.Random(SEED).shuffle(names)
    for name in names:
        with contextlib.suppress(Exception):  # no sample of that dtype, or dynamo does not take it
            plant = of_operator(name, next(ways))
            if plant is not None:
                yield plant


def of_operator(name: str, way: str) -> Plant | None:
    """The operator's first sample of floats between two other ops; None where it has none, or no name of its own in a graph."""
    op = operators()[name]
    trains = way in ("gradient", "backward")
    if torch.float32 not in op.supported_dtypes("cpu") or (trains and not op.supports_autograd):
        return None
    torch.manual_seed(SEED)
    sample = next(iter(op.sample_inputs("cpu", torch.float32, requires_grad=trains)))
    if not isinstance(sample.input, torch.Tensor) or not sample.input.is_floating_point():
        return None

    def program(x: torch.Tensor) -> Any:
        result = op.op(torch.cos(x), *sample.args, **sample.kwargs)
        first = next(one for one in torch.utils._pytree.tree_leaves(result) if isinstance(one, torch.Tensor))
        return torch.asinh(first) if first.is_floating_point() else result

    calls: list[str] = []

    def looks(gm: fx.GraphModule, example_inputs: Any) -> Any:
        calls.extend(name_of(node) for node in gm.graph.nodes if node.op.startswith("call"))
        return gm.forward

    torch._dynamo.reset()
    torch.compile(program, backend=looks, fullgraph=True)(sample.input)
    inner = [call for call in calls if call not in ("cos", "asinh", "getitem")]
    if not inner:
        return None
    return Plant(name, way, program, lambda: (sample.input,), on_op(inner[-1], way))


def main(count: int) -> None:
    found: Counter[str] = Counter()
    ways: Counter[str] = Counter()
    began = time.monotonic()
    order = itertools.chain(itertools.repeat("hang_in_c", HANGS), itertools.cycle(WAYS))
    plants = itertools.chain(itertools.islice(constructs(), FROM_CONSTRUCTS), samples(order))
    with pytest.MonkeyPatch.context() as monkeypatch:
        take_the_quick_path(monkeypatch)
        for plant in itertools.islice(plants, count):
            form = form_of(plant)
            print(f"{plant.way:10} {plant.name:40} {form}", flush=True)
            found[form.partition(":")[0]] += 1
            ways[plant.way] += not form.startswith("no ")
    scripts = sum(ways.values())
    print(
        f"{scripts} repros of {sum(found.values())} programs in {time.monotonic() - began:.0f} s: {dict(ways)}"
    )
    for form, number in found.most_common():
        print(f"{number:4} {100 * number / scripts:5.1f} %  {form}")


def form_of(plant: Plant) -> str:
    """``short``, why it is another one, or why there is no repro."""
    folder = Path(tempfile.mkdtemp())
    with contextlib.redirect_stderr(None), warnings.catch_warnings(), plant.around():
        warnings.simplefilter("ignore")
        try:
            found = failing_program(plant.function, plant.args(), plant.backend, folder, **plant.given)
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - told, and the next one is asked
            return f"no repro: {' '.join(str(error).split())[:150]}"
    text = " ".join(found.text.split())
    return text.partition(MARK)[2].partition(". ")[0] if MARK in text else "short"


MARK = "it asks minidbg for the verdict: "


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 240)
