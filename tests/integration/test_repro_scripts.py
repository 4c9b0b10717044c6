"""Scripts as commands, as pytest modules, and away from home: what somebody who was sent one can do with it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
import torch
from support.command_line import python

from minidbg.core.outcome import Kind, Signature, Verdict
from minidbg.core.run_spec import BackendRef, CallPath, RunSpec
from minidbg.fx.case import Case
from minidbg.fx.copying import capture_by_dynamo
from minidbg.judge.command import judge_command
from minidbg.repro import Exactness, Form, run, write

pytestmark = pytest.mark.slow

RAISES = """\
def raises_on_relu(gm, example_inputs):
    for node in gm.graph.nodes:
        if "relu" in str(node.target):
            raise ValueError("no relu here")
    return gm.forward"""
SIGNATURE = Signature(
    Kind.COMPILE, types=("ValueError",), frames=("<script>:raises_on_relu",), message="no relu here"
)


def relu_case(**fields):
    def f(x):
        return x.relu()

    graph_module, inputs = capture_by_dynamo(f, (torch.randn(30, 8),))
    backend = BackendRef("raises_on_relu", "raises_on_relu", embedded=RAISES)
    return Case(graph_module, inputs, RunSpec(**{"backend": backend, "signature": SIGNATURE, **fields}))


def ended(*argv, cwd):
    done = python(*argv, cwd=cwd, timeout=100)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def elsewhere(tmp_path):
    """An empty folder to run from."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    return folder


def judged(script, cwd, **orders):
    """What the installed judge says of the script: exit status and the JSON object."""
    status, said, _ = ended(*judge_command(script, **orders), cwd=cwd)
    return status, json.loads(said)


def test_a_script_shows_the_traceback_says_its_verdict_and_exits_with_it(tmp_path, elsewhere):
    script = write(relu_case(), tmp_path / "r.py")
    status, said, erred = ended(script, cwd=elsewhere)
    assert (status, said) == (1, "reproduces\n")
    assert "raise ValueError" in erred


def test_another_failure_is_told_apart_and_skipped_by_git_bisect(tmp_path, elsewhere):
    other = replace(SIGNATURE, message="something else", types=("KeyError",))
    script = write(relu_case(signature=other), tmp_path / "r.py")
    status, told, _ = ended(script, cwd=elsewhere)
    assert status == 3
    assert told.startswith("fails differently: no 'KeyError: .*something else' in 'BackendCompilerFailed: ")
    assert "no relu here" in told
    assert ended(script, "--bisect", cwd=elsewhere)[0] == 125
    assert ended(script, "--no-such-option", cwd=elsewhere)[0] == 125
    assert judged(script, cwd=elsewhere)[0] == 3


@pytest.mark.parametrize(
    ("backend", "orders", "why"),
    [
        (BackendRef("b", '"b"', setup=("import no_such_package",)), {}, "no_such_package"),
        (
            BackendRef("b", "b", embedded="import no_such_package\n\n\ndef b(gm, x):\n    return gm"),
            {},
            "no_such_package",
        ),
        (BackendRef("not_registered", '"not_registered"'), {}, "not_registered"),
        (None, {"device": "nonsense"}, "nonsense"),
    ],
)
def test_what_cannot_be_judged_here_is_125(tmp_path, elsewhere, backend, orders, why):
    script = write(relu_case(backend=backend) if backend else relu_case(), tmp_path / "r.py")
    words = [word for name, value in orders.items() for word in (f"--{name}", value)]
    for command in ((script, *words), judge_command(script, **orders)):
        status, said, erred = ended(*command, cwd=elsewhere)
        assert status == 125
        assert why in said + erred


@pytest.mark.parametrize("form", [Form.SHORT, Form.SHOWS])
def test_without_torch_nothing_is_judged(tmp_path, elsewhere, form):
    """``python -S`` finds no installed package; status 1 would mean that the failure reproduces."""
    script = write(relu_case(), tmp_path / "r.py", form)
    status, _, erred = ended("-S", script, cwd=elsewhere)
    assert status == 125
    assert "No module named 'torch'" in erred


def test_a_torch_without_a_private_name_of_the_judge_is_125(tmp_path, elsewhere):
    script = write(relu_case().with_spec(call=CallPath.DIRECT), tmp_path / "r.py", Form.CAPTURE)
    assert judged(script, cwd=elsewhere)[1]["verdict"] == "reproduces"
    lacks = "import torch\ndel torch._TorchCompileWrapper\n"
    script.write_text(script.read_text().replace("import torch\n", lacks, 1))
    status, found = judged(script, cwd=elsewhere)
    assert (status, found["verdict"]) == (125, "skipped")
    assert "torch._TorchCompileWrapper" in found["reason"]


@pytest.mark.parametrize(("form", "who"), [(Form.CAPTURE, "reduce"), (Form.SHOWS, "check")])
def test_a_script_that_judges_nothing_ends_with_125_and_says_who_does(tmp_path, elsewhere, form, who):
    script = write(relu_case(), tmp_path / "r.py", form)
    status, _, erred = ended(script, cwd=elsewhere)
    assert status == 125
    assert f"minidbg {who}" in erred
    assert judged(script, cwd=elsewhere)[1]["verdict"] == "reproduces"


def test_script_and_tensors_can_move_together(tmp_path, elsewhere):
    script = write(relu_case(), tmp_path / "r.py", exactness=Exactness.EXACT)
    for file in (script, script.with_suffix(".safetensors")):
        shutil.move(file, elsewhere / file.name)
    assert run(elsewhere / "r.py").verdict is Verdict.REPRODUCES
