"""The installed judge of a script: it prints its outcome, and never exits 1 by accident."""

from __future__ import annotations

import gc
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import PLANTED

from minidbg.core.outcome import EXIT_STATUS, Kind, Outcome, Signature, Verdict
from minidbg.core.run_spec import PRECISIONS, BackendRef, CallPath, RunSpec
from minidbg.judge import command
from minidbg.judge.signature import failure
from minidbg.repro import running

MODEL = """
class Repro(torch.nn.Module):
    def forward(self, x):
        return (torch.relu(x),)
"""
GRAPH = """
def graph():
    g = torch.fx.Graph()
    g.output((g.call_function(torch.relu, (g.placeholder("x"),)),))
    return torch.fx.GraphModule(torch.nn.Module(), g)
"""
INPUTS = """
def inputs(device="cpu"):
    return (torch.linspace(-1, 1, 12, device=device).reshape(3, 4),)
"""

WriteScript = Callable[..., Path]


@pytest.fixture
def write_script(tmp_path: Path) -> WriteScript:
    """``write_script(backend, kind="compile", call=..., header="more = 1", model=..., inputs=...)``."""

    def write(
        backend: str,
        kind: str = "compile",
        call: str = "torch.compile",
        *,
        header: str = "",
        model: str = "",
        inputs: str = INPUTS,
        function: str = "",
    ) -> Path:
        table = f'[tool.minidbg]\nschema = 1\nkind_if_unseen = "{kind}"\nbackend.name = "{backend}"\ncall = "{call}"\n{header}'
        lines = "\n".join("# " + line if line else "#" for line in table.splitlines())
        function = function or f"import planted_backends\nbackend = planted_backends.{backend}\n"
        text = (
            f"import torch\n{function}\n{model or (GRAPH if call == 'direct' else MODEL)}\n{inputs}\n"
            f"# /// script\n{lines}\n# ///\n"
        )
        path = tmp_path / f"{backend}_{kind}.py"
        path.write_text(text)
        return path

    return write


@pytest.fixture(autouse=True)
def nothing_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command is run in this process, and is made for one of its own."""
    monkeypatch.setattr(gc, "freeze", lambda: None)
    monkeypatch.setattr(sys, "path", list(sys.path))


def run_here(path: Path, **orders: Any) -> int:
    return command.main([*command.judge_command(path, **orders)][1:])


def in_words(printed: str) -> str:
    """Verdict, reason and message of the outcome that was printed."""
    found = Outcome.from_json(json.loads(printed))
    return ": ".join(part for part in (found.in_words, found.message) if part)


@pytest.mark.parametrize(
    ("backend", "status", "said"),
    [
        ("raises_on_relu", 1, "reproduces: ReluNotSupported: cannot lower"),
        ("raises_in_run_on_relu", 1, "reproduces: RuntimeError: relu kernel failed"),
        ("runs_the_graph", 0, "gone"),
        ("returns_gm_forward", 0, "gone: the backend returns each graph as it is, for eager to run"),
        ("ends_the_program_on_relu", 1, "reproduces: SystemExit: 1"),
    ],
)
def test_the_status_fits_the_verdict(
    write_script: WriteScript, capfd: Any, backend: str, status: int, said: str
) -> None:
    assert run_here(write_script(backend, call=CallPath.DIRECT)) == status
    assert in_words(capfd.readouterr().out).startswith(said)


TARGETS = """
from torch._guards import TracingContext
CONTEXT = TracingContext.try_get

def backend(gm, example_inputs, options=None):
    targets = {{getattr(node.target, "__name__", str(node.target)) for node in gm.graph.nodes if "call" in node.op}}
    {line}
    return gm.forward
"""


@pytest.mark.parametrize(
    ("line", "model", "status"),
    [
        ("pass", "torch.relu(x)", 0),
        ("assert targets != {'relu'}", "torch.relu(x)", 1),
        ("assert targets != {'relu'}", "torch.relu(x).sin()", 0),
        ("assert targets & {'relu', 'add'}", "torch.relu(x) + 1", 0),
        ("if targets == {'add'}: return lambda *args: gm(*args)", "torch.relu(x)", 125),
        ("if 'sin' in targets: return torch.fx.Interpreter(gm).run", "torch.relu(x)", 125),
        ("if 'sin' in targets: return torch.fx.Interpreter(gm).run", "torch.relu(x).sin()", 0),
        ("assert targets == {'tanh'}", "torch.tanh(x)", 0),
        ("if CONTEXT().fake_mode and 'sin' in targets: return lambda *args: gm(*args)", "torch.relu(x)", 125),
        ("CONTEXT().fake_mode", "torch.relu(x)", 0),
        ("backend.calls = getattr(backend, 'calls', 0) + 1; assert backend.calls < 3", "torch.relu(x)", 0),
    ],
)
def test_what_is_handed_back_is_no_answer_of_a_backend_that_compiles_other_graphs(
    write_script: WriteScript, capfd: Any, line: str, model: str, status: int
) -> None:
    model = MODEL.replace("torch.relu(x)", model)
    for kind in ("compile", "accuracy"):
        path = write_script("own", kind=kind, function=TARGETS.format(line=line), model=model)
        assert run_here(path) == status
        assert ("handed back: eager ran it" in capfd.readouterr().out) is (status == 125)


def test_another_failure_than_the_headers_is_changed(write_script: WriteScript, capfd: Any) -> None:
    header = '[tool.minidbg.signature]\nkind = "compile"\ndirection = "forward"\ntypes = ["acme.Error"]\nmessage = ""\n'
    assert run_here(write_script("raises_on_relu", header=header)) == 3
    said = capfd.readouterr().out
    assert in_words(said).startswith("changed: ")
    assert "ReluNotSupported" in said


def test_the_outcome_is_one_line_of_json(write_script: WriteScript, capfd: Any) -> None:
    noisy = "import planted_backends\nprint('hello')\nbackend = planted_backends.raises_on_relu\n"
    path = write_script("raises_on_relu", function=noisy)
    assert run_here(path) == 1
    captured = capfd.readouterr()
    (line,) = captured.out.splitlines()
    assert "hello" in captured.err
    assert Outcome.from_json(json.loads(line)).verdict is Verdict.REPRODUCES


def test_another_backend_can_be_asked(write_script: WriteScript, capfd: Any) -> None:
    path = write_script("raises_on_relu")
    assert run_here(path, backend="eager") == 0
    assert run_here(path, backend="planted_backends:raises_in_run_on_relu") == 1
    assert run_here(path, backend="planted_backends:nothing_of_that_name") == 125
    assert run_here(path, backend="acme") == 125
    assert run_here(path, backend="") == 125
    unreachable = write_script("acme", function="import acme_not_here\nbackend = acme_not_here.b\n")
    assert run_here(unreachable, backend="eager") == 0


def test_a_script_that_lacks_its_backend_says_what_and_is_judged_with_what_an_expression_gives(
    write_script: WriteScript, tmp_path: Path, capfd: Any
) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "train.py").write_text(
        "import planted_backends\n\ndef make(name):\n    return getattr(planted_backends, name)\n"
    )
    header = (
        f'backend.paths = [{str(tmp_path / "lib")!r}]\nbackend.missing_backend = "a closure of train.py:4"\n'
    )
    path = write_script("make.backend", header=header, function="backend = ...\n")
    assert run_here(path) == 125
    said = in_words(capfd.readouterr().out)
    assert said == "skipped: its backend is to be filled in: a closure of train.py:4"
    assert run_here(path, backend="train:make('raises_on_relu')") == 1
    assert run_here(path, backend="train:make(name='runs_the_graph')") == 0
    assert run_here(path, backend="train:make('nothing_of_that_name')") == 125
    assert run_here(path, backend="train:make(") == 125


@pytest.mark.parametrize(
    ("parts", "orders", "said"),
    [
        ({"function": "import acme_not_here\n"}, {}, "skipped: .*acme_not_here"),
        ({"function": "raise RuntimeError('old driver')\n"}, {}, "skipped: .*old driver"),
        ({"function": "backend = 'acme_not_known'\n"}, {}, "skipped: .*acme_not_known"),
        ({}, {"device": "cuda:77"}, "skipped: .*cuda:77"),
        ({}, {"device": "acme"}, "skipped: .*acme"),
        ({"model": MODEL.replace("torch.relu(x)", "x @ x")}, {}, ".*eager itself"),
        ({"inputs": "def inputs(device='cpu'):\n    raise OSError('no tensors')\n"}, {}, ".*no tensors"),
        ({"inputs": "def outputs(device='cpu'):\n    return ()\n"}, {}, "invalid: .*inputs"),
    ],
)
def test_what_is_not_here_or_proves_nothing_exits_with_125(
    write_script: WriteScript, capfd: Any, parts: dict[str, str], orders: dict[str, Any], said: str
) -> None:
    assert run_here(write_script("raises_on_relu", **parts), **orders) == 125
    assert re.match(said, in_words(capfd.readouterr().out))


def test_a_damaged_header_is_told_with_the_scripts_name(write_script: WriteScript, capfd: Any) -> None:
    path = write_script("raises_on_relu", header="this is no toml\n")
    assert run_here(path) == 125
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"{path}: ")


def test_orders_of_another_form_exit_with_125(write_script: WriteScript, capfd: Any) -> None:
    assert command.main([str(write_script("raises_on_relu")), "--device"]) == 125


BFLOAT16 = "import wrong_results\nbackend = wrong_results.computes_in_bfloat16\n"


@pytest.mark.parametrize(
    ("tolerances", "status"), [(None, 1), (PRECISIONS["bfloat16"], 0), ({"any": (0.1, 0.1)}, 0)]
)
def test_a_script_may_allow_what_a_lower_precision_gives(
    write_script: WriteScript, tolerances: Any, status: int
) -> None:
    assert run_here(write_script("own", kind="accuracy", function=BFLOAT16), tolerances=tolerances) == status


def test_statuses_are_below_128() -> None:
    assert set(EXIT_STATUS) == set(Verdict)
    assert max(EXIT_STATUS.values()) < 128


SIGNATURES = [
    Signature(Kind(kind), frames=frames, types=types, message=message)
    for kind in ("compile", "runtime", "crash", "hang", "accuracy")
    for frames in ((), ("a:f",), ("a:f", "b:g"), ("b:g",))
    for types in ((), ("ValueError",))
    for message in ("", "x")
]


def test_a_judged_run_and_its_outcome_agree_on_what_is_the_same_failure() -> None:
    for expected in SIGNATURES:
        for found in SIGNATURES:
            package = Outcome(Verdict.CHANGED, signature=found).judged_against(expected).verdict
            spec = RunSpec(BackendRef("b", "b"), signature=expected)
            assert failure(found, spec, "").verdict is package
            dies, is_of_kind = expected.kind in (Kind.CRASH, Kind.HANG), expected.kind is found.kind
            is_same = is_of_kind if dies else expected.matches(found)
            assert (package is Verdict.REPRODUCES) is is_same


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "kind", "status", "words"),
    [
        ("raises_on_relu", "compile", 1, "reproduces: "),
        ("segfaults_on_relu", "crash", 1, "SIGSEGV while compiling forward: Segmentation"),
        ("aborts_on_relu", "crash", 1, "terminate called"),
        ("exits_on_relu", "crash", 1, "exit status 7"),
        ("exits_with_zero_on_relu", "crash", 1, "exit status 0"),
        ("is_killed_on_relu", "crash", 1, "SIGKILL"),
        ("raises_on_relu", "crash", 3, "changed: "),
        ("runs_the_graph", "crash", 0, "gone"),
        ("hangs_on_relu", "hang", 1, "no end while compiling forward"),
        ("segfaults_in_run_on_relu", "hang", 3, "crashed: "),
        ("leaves_processes_on_relu", "hang", 1, "reproduces: "),
    ],
)
def test_dangerous_scripts_live_to_tell_the_verdict(
    write_script: WriteScript,
    monkeypatch: pytest.MonkeyPatch,
    backend: str,
    kind: str,
    status: int,
    words: str,
) -> None:
    header = (
        f'time_limit_s = 6\n[tool.minidbg.signature]\nkind = "{kind}"\n' if kind in ("crash", "hang") else ""
    )
    monkeypatch.setenv("PYTHONPATH", str(PLANTED))
    found = running.run(write_script(backend, kind=kind, header=header))
    said = ": ".join(part for part in (found.in_words, found.message) if part)
    assert (found.verdict.exit_status, words in said) == (status, True), said
