"""Captures whose failure is planted, and what ``minidbg reduce`` makes of each in one interpreter, whose server is warm from the first.

``python -m corpus.captures FOLDER NAME ...`` prints an object for each. A capture is what ``wrap(reduce="later")`` writes, in a
fork of its own: two failures with one signature are captured once in a process.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import json
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from fails_on import all_nodes, name_of, raises_on, raises_where
from torch import Tensor
from torch.nn import functional as F

import minidbg

(COMMAND,) = importlib.metadata.entry_points(group="console_scripts", name="minidbg")
SECONDS = 120


@dataclass(frozen=True)
class Capture:
    """A program, what is wrong with the backend, and the calls that must be left, those of nested graphs first."""

    name: str
    function: Callable[..., Any]
    args: Callable[[], tuple[Any, ...]]
    backend: Any
    ops: list[str]
    given: dict[str, Any] = field(default_factory=dict)
    quick: bool = False


def square(**how: Any) -> Callable[[], tuple[Any, ...]]:
    return lambda: (torch.randn(4, 4, **how),)


def long(x: Tensor) -> Tensor:
    """Fifteen calls, no two of which do the same."""
    y = (x.sin() + x.cos()).relu().tanh() * x.sigmoid()
    z = F.gelu(F.silu(y)).exp().log1p() - y.abs().sqrt()
    return (z.softmax(-1) @ y).mean(0).neg()


CAPTURES = [
    Capture("one_of_fifteen", long, square(), raises_on("tanh"), ["tanh"], quick=True),
    Capture("the_first", long, square(), raises_on("sin"), ["sin"]),
    Capture("the_last", long, square(), raises_on("neg"), ["neg"]),
    Capture("two_far_apart", long, square(), raises_on("cos", "mean"), ["cos", "mean"]),
    Capture("when_it_runs", long, square(), raises_on("sigmoid", when="run"), ["sigmoid"]),
    Capture("symbolic", long, square(), raises_where("symbolic"), ["sin"], {"dynamic": True}),
]


def fail(one: Capture, folder: Path) -> None:
    """The program, in a fork: the parent has never compiled anything."""
    torch.manual_seed(0)
    wrapped = minidbg.wrap(one.backend, reduce="later", repro_dir=folder)
    with contextlib.suppress(Exception):
        answer = torch.compile(one.function, backend=wrapped, **one.given)(*one.args())
        if answer.requires_grad:
            answer.sum().backward()


def captured(one: Capture, folder: Path) -> Path | None:
    """The capture that the program leaves; beside it what it says."""
    folder.mkdir()
    child = os.fork()
    if not child:
        try:
            with (folder.parent / f"{one.name}.txt").open("w") as said:
                os.dup2(said.fileno(), 2)
                fail(one, folder)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    return next((path for path in folder.rglob("*.py") if "captures" in path.parts), None)


def reduced(path: Path) -> dict[str, Any]:
    """What ``minidbg reduce --json`` prints of a capture, as far as any version must say the same, and what its script holds."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        COMMAND.load()(["reduce", "--json", "--seconds", str(SECONDS), str(path)])
    said = json.loads(out.getvalue().strip().splitlines()[-1])
    case = minidbg.load(said["path"])
    calls = [node for node in all_nodes(case.graph_module) if node.op.startswith("call")]
    ops = [name_of(node) for node in sorted(calls, key=lambda node: node.graph is case.graph_module.graph)]
    facts = {name: said[name] for name in ("nodes_before", "nodes_after", "certified", "verdict")}
    return {"ops": ops, "inputs": len(case.inputs), **facts, "questions": said["oracle_calls"]}


def main(folder: Path, *names: str) -> None:
    asked = [one for one in CAPTURES if one.name in names]
    paths = {one.name: captured(one, folder / one.name) for one in asked}  # before anything here has threads
    for name, path in paths.items():
        try:
            found = reduced(path) if path else {"broke": "no capture"}
        except Exception:  # noqa: BLE001 - the others are asked all the same
            found = {"broke": traceback.format_exc().splitlines()[-3:]}
        print(json.dumps({"name": name, **found}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
