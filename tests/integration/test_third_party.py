"""Backends that nobody here wrote: those of the extra ``backends``, and those that tutorials show.

Each program runs in a process of its own, as a stranger's would.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from support.command_line import python

from minidbg import repro
from minidbg.core.outcome import Verdict

PROGRAM = """
import json, warnings
import torch, minidbg
{setup}
calls, paths = 0, []
compiled = torch.compile(model, backend=minidbg.wrap({backend}, seconds=120{more}))
with torch.no_grad():
    for inputs in runs:
        try:
            assert torch.allclose(compiled(*inputs), model(*inputs), atol=1e-2)
            calls += 1
        except Exception as error:
            report = minidbg.report_of(error)
            paths.append([str(report.path), report.line] if report else ["", repr(error)])
print(json.dumps([calls, paths]))
"""

SLICES = """
table, weight = torch.arange(512).unsqueeze(0), torch.randn(99, 32)

def model(ids):
    places = table[:, : ids.shape[1]]
    x = torch.nn.functional.embedding(ids, weight) + torch.nn.functional.embedding(places, weight.repeat(6, 1))
    return torch.tanh(torch.nn.functional.layer_norm(x, (32,))) * 2

runs = [(torch.randint(0, 99, (2, length)),) for length in (7, 9)]
"""
BAG = """
def model(x):
    x = (x * 2).view(2, -1) % 10
    return torch.nn.functional.embedding_bag(x, torch.ones(10, 3)).tanh() + 1

runs = [(torch.arange(8),)]
"""
MLP = """
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4)).eval()
runs = [(torch.randn(2, 8),)] * 2
"""
INVERSE = """
def model(x):
    y = torch.tanh(x) + 1
    for _ in range(4):
        y = torch.sin(y) * 2
    return torch.linalg.inv(y @ y.T + torch.eye(2)).sum() + y.sum()

runs = [(torch.randn(2, 8),)]
"""
WARM = """
torch.compile(torch.nn.Linear(8, 4), backend="turbine_cpu")(torch.randn(2, 8))  # its threads are started
"""
EMBEDS = """
table = torch.randn(99, 8)

def model(ids):
    return torch.tanh(torch.nn.functional.embedding(ids, table)) + 1

runs = [(torch.randint(0, 99, (2, 7)),)]
"""
PROJECTS = """
import zentorch

model = torch.nn.Sequential(torch.nn.Linear(32, 64, bias=False), torch.nn.SiLU(), torch.nn.Linear(64, 32)).eval()
runs = [(torch.randn(2, 9, 32),)]
"""
BAG_OF_MODEL = """
import zentorch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.bag = torch.nn.EmbeddingBag(50, 16, mode="sum")
        self.first, self.last = torch.nn.Linear(16, 32), torch.nn.Linear(32, 8)

    def forward(self, ids, offsets):
        return self.last(torch.nn.functional.gelu(self.first(self.bag(ids, offsets)))).softmax(-1)

model = Model().eval()
runs = [(torch.randint(50, (30,)), torch.tensor([0, 10, 20]))]
"""
TUTORIALS = """
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch import fx

def traces(gm, example_inputs):
    return torch.jit.trace(gm, example_inputs, check_trace=False)

class Interpreter(fx.Interpreter):
    def call_function(self, target, args, kwargs):
        if target is torch.relu:
            raise NotImplementedError("no relu here")
        return super().call_function(target, args, kwargs)

def interprets(gm, example_inputs):
    return Interpreter(gm).run

def boxed(gm, example_inputs):
    return make_boxed_func(gm.forward)

def refuses_relu(gm, example_inputs):
    if "relu" in str(gm.graph):
        raise NotImplementedError("no relu here")
    return make_boxed_func(gm.forward)

aot, aot_refuses = aot_autograd(fw_compiler=boxed), aot_autograd(fw_compiler=refuses_relu)

def model(x):
    x = torch.tanh(x) + 1
    return torch.relu(torch.sin(x)) * 2

runs = [(torch.randn(2, 8),)]
warnings.simplefilter("ignore")
"""


def ran(folder: Path, setup: str, backend: str, more: str = "") -> tuple[int, list[list[str]], str]:
    """Calls that went well, path and line of each report, and what minidbg said."""
    (folder / "program.py").write_text(PROGRAM.format(setup=setup, backend=backend, more=more))
    done = python("program.py", cwd=folder, timeout=400)
    assert done.returncode == 0, done.stderr[-3000:]
    calls, paths = json.loads(done.stdout.splitlines()[-1])
    return calls, paths, "\n".join(line for line in done.stderr.splitlines() if "minidbg" in line)


def judged(folder: Path, paths: list[list[str]], nodes: int) -> None:
    """One verified repro of at most ``nodes`` nodes, which reproduces each of three times."""
    ((path, line),) = paths
    script = folder / path
    assert script.is_file(), line
    assert (repro.read_header(script).nodes or 0) <= nodes
    assert {repro.run(script).verdict for _ in range(3)} == {Verdict.REPRODUCES}


def needs(module: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        importlib.util.find_spec(module.partition(".")[0]) is None,
        reason=f"{module} is not here; pip install 'minidbg[backends]'",
    )


@pytest.mark.slow
@pytest.mark.timeout(500)
@pytest.mark.parametrize("backend", ["traces", "interprets", "aot", "aot_refuses"])
def test_backends_of_tutorials(backend: str, tmp_path: Path) -> None:
    calls, paths, said = ran(tmp_path, TUTORIALS, backend)
    if backend in ("traces", "aot"):
        assert (calls, paths, said) == (1, [], "")
    else:
        judged(tmp_path, paths, 1)


@pytest.mark.slow
@pytest.mark.timeout(500)
@needs("openvino")
class TestOpenvino:
    def test_a_healthy_model_is_left_alone(self, tmp_path: Path) -> None:
        assert ran(tmp_path, MLP, '"openvino"', ', verify="never"') == (2, [], "")

    def test_guards_that_dynamo_cannot_build(self, tmp_path: Path) -> None:
        """Torch 2.13: ``sources must not be empty for symbol s9``, after openvino has returned."""
        calls, paths, _ = ran(tmp_path, SLICES, '"openvino"', ', verify="never"')
        assert calls == 1
        judged(tmp_path, paths, 2)

    def test_guards_that_dynamo_cannot_build_with_fallback(self, tmp_path: Path) -> None:
        more = ', verify="never", on_failure="fallback", reduce="later"'
        calls, paths, said = ran(tmp_path, SLICES, '"openvino"', more)
        assert (calls, paths) == (2, [])
        assert "going on with eager" in said

    def test_a_list_that_is_too_short(self, tmp_path: Path) -> None:
        _, paths, _ = ran(tmp_path, BAG, '"openvino"', ', verify="never"')
        judged(tmp_path, paths, 2)


@pytest.mark.slow
@pytest.mark.timeout(500)
@needs("iree.turbine")
class TestIree:
    """Its threads are missing in each fork, so that each question there would hang."""

    def test_a_healthy_model_is_left_alone(self, tmp_path: Path) -> None:
        assert ran(tmp_path, MLP, '"turbine_cpu"') == (2, [], "")

    def test_questions_move_to_a_process_without_its_threads(self, tmp_path: Path) -> None:
        _, paths, said = ran(tmp_path, WARM + INVERSE, '"turbine_cpu"')
        judged(tmp_path, paths, 1)
        assert "fresh interpreter" in said


@pytest.mark.slow
@pytest.mark.timeout(500)
@needs("tvm")
class TestTvm:
    def test_a_healthy_model_is_left_alone(self, tmp_path: Path) -> None:
        assert ran(tmp_path, MLP, '"tvm"') == (2, [], "")

    def test_an_op_that_it_does_not_have(self, tmp_path: Path) -> None:
        _, paths, _ = ran(tmp_path, EMBEDS, '"tvm"')
        judged(tmp_path, paths, 1)


@pytest.mark.slow
@pytest.mark.timeout(500)
@needs("zentorch")
class TestZentorch:
    def test_weights_that_it_packs_in_place(self, tmp_path: Path) -> None:
        """zentorch 2.14.0: what the module holds afterwards is no weight any more, for eager, other graphs and a checkpoint."""
        _, paths, _ = ran(tmp_path, PROJECTS, '"zentorch"')
        judged(tmp_path, paths, 1)
        [(path, _)] = paths
        assert "which eager leaves as it is" in (tmp_path / path).read_text()

    def test_a_pattern_that_takes_a_tuple_for_a_tensor(self, tmp_path: Path) -> None:
        _, paths, _ = ran(tmp_path, BAG_OF_MODEL, '"zentorch"')
        judged(tmp_path, paths, 3)
