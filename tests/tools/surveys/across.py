"""Failures across devices and ranks: each situation from the program to the script, as a table.

    python tests/tools/surveys/across.py                      # all; several minutes
    python tests/tools/surveys/across.py "ranks ddp" acme     # those whose names begin so

A row runs its program in an empty folder (``torchrun`` where there are ranks, a stand-in device where it says acme), reduces what was
captured and not reduced at once, and runs each repro by itself. Exit status 1 when a situation was not captured, or no script of it exits 1,
where one is due.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TESTS))
from support.command_line import python, torchrun  # noqa: E402 - where the line above looks

RANKS, DEVICE = TESTS / "integration/ranks_program.py", TESTS / "device/program.py"
STAND_IN = TESTS / "stand_ins/acme_device"
SAID = re.compile(
    r"No mesh, DTensor or collective is needed|DTensors are part of the failure|Collectives are part of the failure|"
    r"Seen on rank \d of \d|The backend asks for its rank|Fails on \w+, (?:passes|fails) on cpu|on a device in error|"
    r"not reduced at once: out of memory|cannot be written into a repro script[^\n]{0,120}",
    re.IGNORECASE,
)
"""What minidbg says of ranks, devices and subclasses, in a repro or while the program runs."""


# ---- programs of one process, with tensor subclasses


def two_tensor(torch: Any) -> Any:
    from torch.testing._internal.two_tensor import TwoTensor

    return TwoTensor(torch.randn(4, 8), torch.randn(4, 8))


def jagged(torch: Any) -> Any:
    return torch.nested.nested_tensor_from_jagged(torch.randn(6, 8), torch.tensor([0, 2, 6]))


def masked(torch: Any) -> Any:
    """torch.compile gives no graph of one to any backend (2.13, 2.14): reductions of torch.masked get as far."""
    return torch.rand(4, 8) > 0.5


def torchao(torch: Any) -> Any:
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    model = torch.nn.Sequential(torch.nn.Linear(8, 8)).eval()
    quantize_(model, Int8WeightOnlyConfig())
    return model[0].weight


def unknown(torch: Any) -> Any:
    from torch.testing._internal.two_tensor import TwoTensor

    class Local(TwoTensor):
        """No import statement names it."""

    return Local(torch.randn(4, 8), torch.randn(4, 8))


SUBCLASSES: dict[str, Callable[[Any], Any]] = {
    one.__name__: one for one in (two_tensor, jagged, masked, torchao, unknown)
}


def subclass_program(name: str, op: str) -> None:
    """A small function of a tensor of the subclass; the backend refuses ``op``."""
    import fails_on
    import torch

    import minidbg

    torch.manual_seed(0)
    value = SUBCLASSES[name](torch)

    def function(x: Any, y: Any) -> Any:
        z = y.relu() * 2
        if name == "torchao":
            return torch.nn.functional.linear(z, x).tanh() + 1
        if name == "masked":
            return torch.masked.sum(z.sin(), 1, mask=x) + 1
        return (x * 2).sin() * 3, z

    backend = minidbg.wrap(fails_on.raises_on(op), on_failure="fallback")
    with torch.no_grad():
        torch.compile(function, backend=backend)(value, torch.randn(4, 8))


# ---- situations


@dataclass(frozen=True, slots=True)
class Situation:
    """``item`` is the issue's number of it."""

    item: int
    name: str
    command: tuple[object, ...]
    env: dict[str, str] = field(default_factory=dict)
    due: bool = True
    """Whether a script that exits 1 is to come of it."""


def ranks(number: int, *arguments: str) -> tuple[object, ...]:
    return torchrun(number, RANKS, *arguments)


TEN = (
    "ddp", "ddp_inside", "compiled_autograd", "fsdp", "tensor_parallel", "tensor_parallel_all", "dtensor_in",
    "dtensor_gelu", "dtensor_out", "functional_collectives",
)  # fmt: skip


def situations() -> Iterator[Situation]:
    for bug in ("raises:gelu", "wrong:gelu", "late:gelu", "broken:gelu"):
        yield acme(5 if bug[0] in "lb" else 2, f"acme plain {bug}", "plain", bug)
    yield acme(2, "acme plain crash:gelu", "plain", "crash:gelu")
    yield acme(3, "acme mixed wrong:gelu", "mixed", "wrong:gelu")
    yield acme(3, "acme draws wrong:gelu", "draws", "wrong:gelu")
    yield acme(2, "acme plain memory:gelu", "plain", "memory:gelu", due=False)
    yield acme(2, "acme out of memory", "plain", "", device="acme:1", due=False, ACME_LIMIT="300")
    for name in TEN:
        yield Situation(6, f"ranks {name} gelu, 2 ranks", ranks(2, name, "gelu"))
    for name in ("ddp", "fsdp", "tensor_parallel_all", "functional_collectives"):
        yield Situation(6, f"ranks {name} gelu at run time, 2 ranks", ranks(2, name, "gelu", "run"))
    for name, op in (("dtensor_in", "redistribute"), ("functional_collectives", "all_reduce")):
        yield Situation(6, f"ranks {name} {op}, 2 ranks", ranks(2, name, op))
        yield Situation(6, f"ranks {name} {op} at run time, 2 ranks", ranks(2, name, op, "run"))
    for name in ("fsdp", "dtensor_gelu"):
        yield Situation(6, f"ranks {name} gelu, 4 ranks", ranks(4, name, "gelu"))
    yield Situation(6, "ranks ddp, the backend asks for its rank", ranks(2, "ddp", "raises", "on_last_rank"))
    for name in ("dtensor_in", "dtensor_gelu", "functional_collectives"):
        yield Situation(7, f"ranks {name} relu wrong on one rank", ranks(2, name, "relu", "wrong"))
    yield Situation(
        7,
        "ranks functional_collectives a rank dies",
        ranks(2, "functional_collectives", "dies", "on_last_rank"),
    )
    for name in SUBCLASSES:
        op = "tanh" if name == "torchao" else "sin"
        yield Situation(9, f"subclass {name}", (__file__, "--program", name, op), due=name != "unknown")


def acme(
    item: int, name: str, what: str, bug: str, *, device: str = "acme:0", due: bool = True, **more: str
) -> Situation:
    env = {"PYTHONPATH": str(STAND_IN), "ACME_BUG": bug, "ACME_ON": "acme", **more}
    return Situation(item, name, (DEVICE, device, what), env, due)


# ---- a row


def run(folder: Path, env: dict[str, str], *command: object) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join(filter(None, [env.get("PYTHONPATH", ""), str(TESTS.parent)]))
    env = {"OMP_NUM_THREADS": "1"} | env | {"PYTHONPATH": paths}
    return python(*command, cwd=folder, env=env, timeout=400)


def row(situation: Situation) -> tuple[bool, str]:
    """Whether all went as it should, and the table's line."""
    with tempfile.TemporaryDirectory() as made:
        folder, begun = Path(made), time.monotonic()
        told = [run(folder, situation.env, *situation.command)]
        ran_s = time.monotonic() - begun
        repros = folder / "minidbg_repros"
        captures = sorted(repros.glob(".minidbg/captures/*.py"))
        records = sorted(repros.glob(".minidbg/flight/*.py"))
        if situation.due and not list(repros.glob("*.py")):
            for what in captures or ["--last-crash"]:
                told.append(run(folder, situation.env, "-m", "minidbg", "reduce", what))
        text = "\n".join(one.stdout + one.stderr for one in told)
        reduced = ", ".join(
            f"{a} -> {b}" for a, b in dict.fromkeys(re.findall(r"(\d+) -> (\d+) nodes", text))
        )
        scripts = sorted(repros.glob("*.py"))
        statuses = [run(folder, situation.env, path).returncode for path in scripts]
        said = " ".join(" ".join([text, *(path.read_text() for path in scripts)]).split())
        words = "; ".join(dict.fromkeys(match[0].lower() for match in SAID.finditer(said)))
        captured = bool(captures or records or scripts) and "not captured:" not in text
        in_words = any(repros.glob(".minidbg/captures/*.txt"))  # what no script can hold
        found = "yes" if captured else "in words" if in_words and not situation.due else "NO"
        good = found != "NO" and (not situation.due or set(statuses) == {1})
        verified = "exits " + ", ".join(map(str, statuses)) if statuses else "-"
        seconds = f"{ran_s:.0f} + {time.monotonic() - begun - ran_s:.0f}"
        if not good:
            print(text, file=sys.stderr)
    line = f"| {situation.item} | {situation.name} | {found} | {reduced or '-'} | {verified} | {seconds} | {words} |"
    return good, line


def main(*chosen: str) -> int:
    if chosen[:1] == ("--program",):
        subclass_program(*chosen[1:])
        return 0
    rows = [one for one in situations() if not chosen or one.name.startswith(chosen)]
    if any(one.name.startswith("acme") for one in rows):
        built = run(STAND_IN, {"PYTHONPATH": str(STAND_IN)}, "-m", "acme.build")
        built.check_returncode()
    print(
        "| item | situation | captured | reduced | verified | seconds: program + rest | words |", flush=True
    )
    print("|---|---|---|---|---|---|---|", flush=True)
    bad = 0
    for situation in rows:
        good, line = row(situation)
        bad += not good
        print(line, flush=True)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
