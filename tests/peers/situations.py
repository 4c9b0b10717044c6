"""The situations in which torch's own minifier was measured, as programs of a user, and what a tool made of each.

A user lives one in an empty folder: one command, and what is there afterwards.

``PROGRAMS`` are texts. ``{backend}`` is where a user writes his backend: ``"inductor"`` for torch's tool, which is switched on by
environment variables, and ``minidbg.wrap("inductor")`` for minidbg.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path

HEAD = """
import sys
import torch
from torch import nn
{imports}
torch.manual_seed(0)
{bug}

class Mlp(nn.Module):
    def __init__(self, width=16, activation=torch.relu):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(5))
        self.activation = activation

    def forward(self, x):
        for layer in self.layers:
            x = self.activation(layer(x))
        return x

"""


def injected(kind: str) -> str:
    """The bug that torch builds into inductor's relu for the tests of its own minifier."""
    return (
        f'import torch._inductor.config\ntorch._inductor.config.cpp.inject_relu_bug_TESTING_ONLY = "{kind}"'
    )


MLP = """
with torch.no_grad():
    print(torch.compile(Mlp(), backend={backend})(torch.randn(8, 16)).sum())
"""

CUSTOM = """
def my_backend(gm, example_inputs):
    for node in gm.graph.nodes:
        if node.target is torch.relu:
            raise RuntimeError("my_backend has no relu")
    return gm.forward

with torch.no_grad():
    torch.compile(Mlp(), backend={backend})(torch.randn(8, 16))
"""

SEGFAULT = """
def my_backend(gm, example_inputs):
    if any(node.target is torch.relu for node in gm.graph.nodes):
        import ctypes
        ctypes.string_at(0)
    return gm.forward

with torch.no_grad():
    torch.compile(Mlp(), backend={backend})(torch.randn(8, 16))
"""

HANG = SEGFAULT.replace("import ctypes", "import time").replace("ctypes.string_at(0)", "time.sleep(10000)")

BERT = """
from transformers import BertConfig, BertModel
config = BertConfig(
    vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, hidden_act="relu",
    hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
)
model = BertModel(config).eval()
with torch.no_grad():
    torch.compile(model, backend={backend})(torch.randint(0, 100, (2, 8)))
"""

DYNAMIC = """
with torch.no_grad():
    torch.compile(Mlp(), backend={backend}, dynamic=True)(torch.randn(8, 16))
"""

BACKWARD = """
class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return torch.relu(grad) * 2 * x

compiled = torch.compile(Mlp(activation=Square.apply), backend={backend})
compiled(torch.randn(8, 16)).sum().backward()
"""

COND = """
def branching(x):
    return torch.cond(x.sum() > 0, lambda x: torch.relu(x).sin(), lambda x: torch.relu(x).cos(), (x,))

with torch.no_grad():
    torch.compile(Mlp(activation=branching), backend={backend})(torch.randn(8, 16))
"""

CHECKPOINT = """
from torch.utils.checkpoint import checkpoint

def kept_little(x):
    return checkpoint(lambda x: torch.relu(x).sin(), x, use_reentrant=False)

torch.compile(Mlp(activation=kept_little), backend={backend})(torch.randn(8, 16)).sum().backward()
"""

SUBCLASS = """
from torch.testing._internal.two_tensor import TwoTensor
x = torch.randn(8, 16)
with torch.no_grad():
    torch.compile(lambda x: torch.relu(x.sin()).cos(), backend={backend})(TwoTensor(x, x.clone()))
"""

MUTATION = """
class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.mlp = Mlp()
        self.register_buffer("seen", torch.zeros(16))

    def forward(self, x):
        self.seen.add_(x.sum(0))
        x.mul_(2)
        return self.mlp(x) + self.seen

with torch.no_grad():
    torch.compile(Counting(), backend={backend})(torch.randn(8, 16))
"""

HEALTHY = """
with torch.no_grad():
    torch.compile(Mlp(), backend={backend})(torch.randn(8, 16))
"""

HEALTHY_GRAD = """
torch.compile(Mlp(), backend={backend})(torch.randn(8, 16)).sum().backward()
"""

HEALTHY_FUNCTION = """
torch.compile(lambda x: torch.relu(x).sin(), backend={backend})(torch.randn(8, 16))
"""


@dataclass(frozen=True)
class Situation:
    """One program and what a right answer holds."""

    name: str
    body: str
    bug: str = ""
    backend: str = '"inductor"'
    level: int = 2
    """``TORCHDYNAMO_REPRO_LEVEL`` that torch's documentation says to use."""
    afters: tuple[str, ...] = ("dynamo", "aot")
    """Rows of torch's table: values of ``TORCHDYNAMO_REPRO_AFTER``."""
    kind: str | None = "compile"
    """Kind of the failure that the repro must show; None for a healthy program, which must stay silent."""
    most_nodes: int = 1
    says: str = ""
    """What the repro's text must hold: the bug's own name."""
    may_refuse: bool = False
    """Whether a refusal by name is an answer."""


ONE_AFTER = ("dynamo",)

SITUATIONS: tuple[Situation, ...] = (
    Situation("compile_error", MLP, injected("compile_error"), says="relu"),
    Situation("runtime_error", MLP, injected("runtime_error"), kind="runtime", says="relu"),
    Situation("accuracy", MLP, injected("accuracy"), level=4, kind="accuracy", says="relu"),
    Situation("custom_callable", CUSTOM, backend="my_backend", says="my_backend has no relu"),
    Situation("bert_accuracy", BERT, injected("accuracy"), level=4, afters=ONE_AFTER, kind="accuracy", says="relu"),
    Situation("bert_compile", BERT, injected("compile_error"), afters=("aot",), says="relu"),
    Situation("segfault", SEGFAULT, backend="my_backend", afters=ONE_AFTER, kind="crash", says="relu"),
    Situation("hang", HANG, backend="my_backend", afters=ONE_AFTER, kind="hang", says="relu"),
    Situation("dynamic", DYNAMIC, injected("compile_error"), says="relu"),
    Situation("backward_only", BACKWARD, injected("compile_error"), most_nodes=3, says="relu"),
    Situation("cond", COND, injected("compile_error"), says="relu"),
    Situation("checkpoint", CHECKPOINT, injected("compile_error"), says="relu"),
    Situation("subclass", SUBCLASS, injected("compile_error"), says="relu", may_refuse=True),
    Situation("inputmut", MUTATION, injected("compile_error"), says="relu"),
    Situation(
        "inputmut_accuracy", MUTATION, injected("accuracy"), level=4, afters=ONE_AFTER, kind="accuracy", says="relu"
    ),
    Situation("healthy", HEALTHY, kind=None),
    Situation("healthy_grad", HEALTHY_GRAD, kind=None),
    Situation("healthy_function", HEALTHY_FUNCTION, kind=None),
)  # fmt: skip


def program(situation: Situation, *, with_minidbg: bool) -> str:
    """The user's program, for torch's tool or wrapped by minidbg."""
    backend = f"minidbg.wrap({situation.backend})" if with_minidbg else situation.backend
    head = HEAD.replace("{imports}", "import minidbg" if with_minidbg else "").replace("{bug}", situation.bug)
    return textwrap.dedent(head + situation.body.replace("{backend}", backend))


# ---- one of them lived

DEATHS = ("crash", "hang")
"""Kinds that end or stop the user's process: ``minidbg run`` looks after it."""


@dataclass(frozen=True)
class Ended:
    """A process that has ended or was interrupted."""

    status: int
    output: str
    seconds: float


@dataclass(frozen=True)
class Result:
    """What the user has."""

    seconds: float
    repro: Path | None
    nodes: int | None
    kind: str
    status: int | None
    """Exit status of ``python repro.py``; None where there is none."""
    said: str
    """Its first line, or the last line of the program where there is no repro."""

    def is_right_for(self, situation: Situation) -> bool:
        """Whether it is the right bug's repro, or silence where all is well."""
        if situation.kind is None:
            return self.repro is None and "minidbg" not in self.said
        if self.repro is None:
            return situation.may_refuse and "not captured: " in self.said
        small = self.nodes is not None and self.nodes <= situation.most_nodes
        right = self.kind == situation.kind and situation.says in self.repro.read_text()
        return self.status == 1 and self.said.startswith("reproduces") and small and right


def run(command: list[str], cwd: Path, *, seconds: float, env: dict[str, str] | None = None) -> Ended:
    """``command`` to its end; interrupted as by Ctrl-C when it takes longer, and then left to end."""
    began = time.monotonic()
    child = subprocess.Popen(
        command,
        cwd=cwd,
        env={**os.environ, **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        child.send_signal(signal.SIGTERM)
        try:
            output, _ = child.communicate(timeout=seconds + 400)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            output, _ = child.communicate()
    return Ended(child.returncode, output, time.monotonic() - began)


def with_minidbg(situation: Situation, folder: Path, *, seconds: float = 600.0) -> Result:
    """The program run once; then what ``python repro.py`` says."""
    dies = situation.kind in DEATHS
    (folder / "train.py").write_text(program(situation, with_minidbg=not dies))
    command = [sys.executable, *(["-m", "minidbg", "run"] if dies else []), "train.py"]
    ended = run(command, folder, seconds=40.0 if situation.kind == "hang" else seconds)
    repros = sorted((folder / "minidbg_repros").glob("*.py"))
    last = ended.output.strip().rpartition("\n")[2]
    if not repros:
        return Result(ended.seconds, None, None, "", None, last)
    text = repros[0].read_text()
    again = run([sys.executable, str(repros[0])], folder, seconds=seconds)
    verdict = re.search(
        r"(?m)^(reproduces|gone|changed|crashed|timeout|skipped|invalid|flaky)\b.*", again.output
    )
    nodes, kind = (
        re.search(r"(?m)^# .*\bdevice = \S+, nodes = (\d+)", text),
        re.search(r'(?m)^# .*\bkind = "(\w+)"', text),
    )
    return Result(
        ended.seconds,
        repros[0],
        int(nodes[1]) if nodes else None,
        kind[1] if kind else "",
        again.status,
        verdict[0] if verdict else again.output[-300:],
    )
