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
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from fails_on import all_nodes, name_of, raises_on, raises_where
from one_op import on_op, through_inductor
from torch import Tensor, nn
from torch._higher_order_ops import while_loop
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import minidbg

(COMMAND,) = importlib.metadata.entry_points(group="console_scripts", name="minidbg")
SECONDS = 300


@dataclass(frozen=True)
class Capture:
    """A program, what is wrong with the backend, and the calls that must be left, those of nested graphs first."""

    name: str
    function: Callable[..., Any]
    args: Callable[[], tuple[Any, ...]]
    backend: Any
    ops: list[str]
    given: dict[str, Any] = field(default_factory=dict)
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    quick: bool = False


def square(**how: Any) -> Callable[[], tuple[Any, ...]]:
    return lambda: (torch.randn(4, 4, **how),)


def made(make: Callable[[], Tensor]) -> Callable[[], tuple[Any, ...]]:
    return lambda: (make(),)


def long(x: Tensor) -> Tensor:
    """Fifteen calls, no two of which do the same."""
    y = (x.sin() + x.cos()).relu().tanh() * x.sigmoid()
    z = F.gelu(F.silu(y)).exp().log1p() - y.abs().sqrt()
    return (z.softmax(-1) @ y).mean(0).neg()


def deep(x: Tensor) -> Tensor:
    for _ in range(12):
        x = (x.sin() * 0.5).cos() + x
    x = x.relu()
    for _ in range(12):
        x = (x.sin() * 0.5).cos() + x
    return x


def wide(x: Tensor) -> Tensor:
    parts = [x.sin() * number for number in range(10)]
    return torch.stack(parts).sum(0) + torch.tanh(parts[3]) * parts[8].exp()


def plus_one(x: Tensor) -> Tensor:
    return (x + 1).sin()


def branching(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda x: x.sin().relu().cos(), lambda x: x.cos().tan(), (x.sinh(),)).exp()


def looping(x: Tensor) -> Any:
    start = torch.tensor(0), x.sinh()
    return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x.sin().relu().cos()), start)[1].exp()


def checkpointed(x: Tensor) -> Any:
    return checkpoint(lambda y: y.sin().relu().cos(), x.sinh(), use_reentrant=False).exp()


def autocast(x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        y = torch.mm(x.sin(), x)
    return y.cos()


def without_grad(x: Tensor) -> Tensor:
    y = x.sin()
    with torch.no_grad():
        z = y.relu().cos()
    return (y + z).tan()


def written_through_a_view(x: Tensor) -> Tensor:
    y = x.sin()
    y[0].relu_()
    return y.cos()


def assigned(x: Tensor) -> Tensor:
    y = x.sin()
    y[1:, 0] = 2.0
    return y.cos()


def writes_its_input(x: Tensor) -> Tensor:
    x.mul_(2)
    return x.cos().tan()


def two_views() -> tuple[Any, ...]:
    base = torch.randn(4, 4)
    return base, base[1:]


class Block(nn.Module):
    """Parameters, a buffer, statistics and an index."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 4, bias=False)
        self.embedding, self.norm = nn.Embedding(4, 8), nn.BatchNorm1d(8)
        self.register_buffer("scale", torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm(self.first(x)).relu() * self.scale
        return self.last(hidden + self.embedding(torch.arange(4)))


def convolved(x: Tensor) -> Tensor:
    return F.max_pool2d(F.conv2d(x.sin(), torch.ones(2, 3, 3, 3)).relu(), 2).flatten(1)


CAPTURES = [
    # compile errors
    Capture("one_of_fifteen", long, square(), raises_on("tanh"), ["tanh"], quick=True),
    Capture("the_first", long, square(), raises_on("sin"), ["sin"]),
    Capture("the_last", long, square(), raises_on("neg"), ["neg"]),
    Capture("two_far_apart", long, square(), raises_on("cos", "mean"), ["cos", "mean"]),
    Capture("three", long, square(), raises_on("sin", "gelu", "softmax"), ["sin", "gelu", "softmax"]),
    Capture("middle_of_a_chain", deep, square(), raises_on("relu"), ["relu"]),
    Capture("wide", wide, square(), raises_on("tanh", "exp"), ["tanh", "exp"]),
    Capture("when_it_runs", long, square(), raises_on("sigmoid", when="run"), ["sigmoid"]),
    Capture("two_when_it_runs", wide, square(), raises_on("stack", "exp", when="run"), ["stack", "exp"]),
    # inputs of a kind
    Capture("transposed", plus_one, made(lambda: torch.randn(3, 4).t()), raises_where("transposed"), ["add"]),
    Capture("expanded", plus_one, made(lambda: torch.randn(4, 1).expand(4, 4)), raises_where("expanded"), ["add"]),
    Capture("no_elements", plus_one, made(lambda: torch.randn(0, 4)), raises_where("zero_size"), ["add"]),
    Capture("bool", lambda x: (x & True).float().sin(), made(lambda: torch.randn(4) > 0), raises_where("bool"), ["float"]),
    Capture("bfloat16", plus_one, made(lambda: torch.randn(4, 4).bfloat16()), raises_where("bfloat16"), ["add"]),
    Capture("conjugated", lambda c: (c + 1).abs(), made(lambda: torch.randn(4, dtype=torch.complex64).conj()),
            raises_where("conjugated"), ["add"]),
    Capture("aliased", lambda x, y: (x + 1, y.cos().tan()), two_views, raises_where("aliased"), ["add", "cos"]),
    Capture("parameter", Block(), square(), raises_where("parameter"), ["embedding"]),
    Capture("symbolic", long, square(), raises_where("symbolic"), ["sin"], {"dynamic": True}),
    # what dynamo puts into a graph
    Capture("cond", branching, square(), raises_on("cond"), ["sin", "cos", "cond"]),
    Capture("in_a_branch", branching, square(), raises_on("cond", "relu"), ["relu", "cos", "cond"]),
    Capture("in_a_loop", looping, square(), raises_on("while_loop", "relu"), ["lt", "add", "relu", "while_loop"]),
    Capture("in_a_checkpoint", checkpointed, square(requires_grad=True), raises_on("tag_activation_checkpoint", "relu"),
            ["relu", "tag_activation_checkpoint"]),
    Capture("autocast", autocast, square(), raises_on("_enter_autocast", "mm"), ["_enter_autocast", "mm", "_exit_autocast"]),
    Capture("no_grad", without_grad, square(requires_grad=True), raises_on("_set_grad_enabled", "relu"),
            ["_set_grad_enabled", "relu", "_set_grad_enabled"]),
    Capture("through_a_view", written_through_a_view, square(), raises_on("relu_"), ["relu_"]),
    Capture("assignment", assigned, square(), raises_on("setitem"), ["setitem"]),
    Capture("writes_its_input", writes_its_input, square(), raises_on("mul_", "tan"), ["mul_", "tan"]),
    Capture("several_outputs", lambda x: torch.std_mean(x.sin(), 0)[1].cos(), square(), raises_on("std_mean"), ["std_mean"]),
    Capture("dropout", lambda x: F.dropout(x.sin(), 0.5).relu(), square(), raises_on("dropout", "relu"), ["dropout", "relu"]),
    Capture("statistics", Block(), square(), raises_on("batch_norm"), ["batch_norm"]),
    Capture("pooled", convolved, made(lambda: torch.randn(1, 3, 8, 8)), raises_on("conv2d", "max_pool2d"), ["conv2d", "max_pool2d"]),
    # wrong results
    Capture("values", long, square(), on_op("softmax", "values"), ["softmax"], quick=True),
    Capture("nan", long, square(), on_op("exp", "nan"), ["exp"]),
    Capture("dtype", lambda x: x.sin().cumsum(0).cos(), square(), on_op("cumsum", "dtype"), ["cumsum"]),
    Capture("gradient", long, square(requires_grad=True), on_op("tanh", "gradient"), ["tanh"]),
    Capture("backward", long, square(requires_grad=True), on_op("sigmoid", "backward"), ["sigmoid"]),
    # inductor
    Capture("inductor_values", long, square(), through_inductor("softmax", "values"), ["softmax"]),
    Capture("inductor_compile", Block(), square(), through_inductor("embedding", "compile"), ["embedding"]),
]  # fmt: skip


def fail(one: Capture, folder: Path) -> None:
    """The program, in a fork: the parent has never compiled anything."""
    torch.manual_seed(0)
    wrapped = minidbg.wrap(one.backend, reduce="later", repro_dir=folder)
    with one.around(), contextlib.suppress(Exception):
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
