"""Programs of torch.export as cases; repros of torch's own minifier, executed in a child.

The texts of such repros have the forms that torch 2.13 writes.
"""

from __future__ import annotations

import os
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import planted_backends as planted
import pytest
import torch

from minidbg.core.errors import BackendUnreachable, UnreadableRepro
from minidbg.core.run_spec import CallPath, Level
from minidbg.extras import importers
from minidbg.extras.importers import UnreadableTorchRepro
from minidbg.repro.cases import backend_named


class Sum(torch.nn.Module):
    """A dictionary and a keyword as inputs, and a class of its own as result."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 2)

    def forward(self, given: dict[str, torch.Tensor], *, k: torch.Tensor) -> Answer:
        return Answer(torch.relu(self.linear(given["x"] + given["y"])) + k)


@dataclass
class Answer:
    result: torch.Tensor


torch.export.register_dataclass(Answer, serialized_type_name="late_results.Answer")


def exported(**options: Any) -> torch.export.ExportedProgram:
    given = {"x": torch.randn(3, 4), "y": torch.randn(3, 4)}
    return torch.export.export(Sum(), (given,), {"k": torch.ones(2)}, **options)


def test_a_saved_program_is_one_graph_in_inference_and_in_training(tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    torch.export.save(exported(), path)
    inference, training = importers.cases_of_exported(
        importers.read_exported(path), backend_named("aot_eager")
    )
    assert "late_results" in sys.modules, "torch reads a class that its module has registered"
    assert (inference.spec.context.grad, inference.spec.backward) == (False, False)
    assert (training.spec.context.grad, training.spec.backward) == (True, True)
    targets = [str(node.target) for node in inference.graph_module.graph.nodes if node.op == "call_function"]
    assert any("relu" in target for target in targets)
    assert sorted(tuple(value.shape) for value in inference.inputs) == [(2,), (2,), (2, 4), (3, 4), (3, 4)]


def test_symbolic_sizes_stay(tmp_path: Path) -> None:
    size = torch.export.Dim("size", min=2, max=64)
    program = exported(dynamic_shapes={"given": {"x": {0: size}, "y": {0: size}}, "k": None})
    assert next(importers.cases_of_exported(program, backend_named("aot_eager"))).spec.dynamic


def test_a_program_without_example_inputs_is_refused() -> None:
    program = exported()
    program.example_inputs = None
    with pytest.raises(UnreadableRepro, match=r"has no example inputs; set its example_inputs = "):
        next(importers.cases_of_exported(program, backend_named("aot_eager")))


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x05\x06" + b"\0" * 18])
def test_what_is_no_program_is_refused_by_name(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "bad.pt2"
    path.write_bytes(content)
    with pytest.raises(UnreadableRepro, match=r"bad\.pt2"):
        importers.read_exported(path)


RAN: list[int] = []


class Attack:
    """A pickle that runs code."""

    def __reduce__(self) -> Any:
        return RAN.append, (1,)


def test_a_pickle_inside_a_program_is_not_run(tmp_path: Path) -> None:
    path, evil = tmp_path / "model.pt2", tmp_path / "evil.pt2"
    torch.export.save(exported(), path)
    torch.save(Attack(), tmp_path / "attack")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(evil, "w") as new:
        for name in old.namelist():
            is_inputs = "sample_inputs" in name and name.endswith(".pt")
            new.writestr(name, (tmp_path / "attack").read_bytes() if is_inputs else old.read(name))
    with pytest.raises(UnreadableRepro):
        importers.read_exported(evil)
    assert not RAN


# ---- repros of torch's minifier

AFTER_DYNAMO = """
import os
os.environ['TORCH_COMPILE_DEBUG_DIR'] = '/nowhere'
os.environ.pop('TORCHDYNAMO_REPRO_AFTER', None)
from math import inf
import torch
from torch import tensor, device
import torch._dynamo.config
import torch._inductor.config
torch._inductor.config.epilogue_fusion = False
torch._inductor.config.comprehensive_padding = True
torch._inductor.config.no_such_option = 3
torch._inductor.config.no_such_group.option = 3
torch._functorch.config.fake_tensor_allow_unsafe_data_ptr_access = True
from torch.nn import *
class Repro(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
    def forward(self, L_x_ : torch.Tensor, G_w_ : torch.nn.parameter.Parameter):
        l_x_ = L_x_
        x = torch.sin(l_x_);  l_x_ = None
        x_1 = torch.relu(x @ G_w_);  x = None
        return (x_1,)
mod = Repro()
def load_args(reader):
    buf0 = reader.storage('aaaa', 24)
    reader.tensor(buf0, (2, 3), is_leaf=True)  # L_x_
    buf1 = reader.storage('bbbb', 36)
    reader.tensor(buf1, (3, 3), requires_grad=True, is_leaf=True)  # G_w_
load_args._version = 0
if __name__ == '__main__':
    from torch._dynamo.repro.after_dynamo import run_repro
    run_repro(mod, load_args, accuracy=False, command='run',
        save_dir='/nowhere/checkpoints', autocast=False, backend=BACKEND)
"""

AFTER_AOT = """s77 = 5
s27 = 3
import torch
from torch.nn import *
class Repro(torch.nn.Module):
    def forward(self, arg0_1, arg1_1, arg2_1):
        sin = torch.ops.aten.sin.default(arg2_1);  arg2_1 = None
        mul = torch.ops.aten.mul.Tensor(torch.ops.aten.relu.default(sin), arg0_1)
        return (mul,)
def load_args(reader):
    reader.symint(5, expr='s77')  # arg0_1
    reader.symint(3, expr='s27')  # arg1_1
    buf0 = reader.storage(None, 4*s27*(s77 - 1) + 4*s27)
    reader.tensor(buf0, (s77, s27), is_leaf=True)  # arg2_1
load_args._version = 0
mod = Repro()
if __name__ == '__main__':
    from torch._dynamo.repro.after_aot import run_repro
    with torch.no_grad():
        run_repro(mod, load_args, accuracy=False, command='run', save_dir=None, tracing_mode='symbolic', check_str=None)
"""


@pytest.fixture
def after_dynamo(tmp_path: Path) -> Path:
    path = tmp_path / "repro.py"
    path.write_text(AFTER_DYNAMO.replace("BACKEND", "'aot_eager'"))
    return path


@pytest.fixture
def after_aot(tmp_path: Path) -> Path:
    path = tmp_path / "fx_graph_runnable.txt"
    path.write_text(AFTER_AOT)
    return path


def test_both_forms_are_told_from_our_own(after_dynamo: Path, after_aot: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.py"
    other.write_text("x = 1\n")
    assert [importers.is_torch_repro(path) for path in (after_dynamo, after_aot, other)] == [
        True,
        True,
        False,
    ]


@pytest.mark.slow
def test_settings_become_part_of_the_case_and_reach_no_other_process(
    after_dynamo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those with their default's value are none, nor is what torch's minifier sets itself."""
    monkeypatch.delenv("TORCH_COMPILE_DEBUG_DIR", raising=False)
    case = next(importers.cases_of_torch_repro(after_dynamo, None))
    assert "TORCH_COMPILE_DEBUG_DIR" not in os.environ
    assert torch._inductor.config.epilogue_fusion
    assert case.spec.context.config == {"torch._inductor.config": {"epilogue_fusion": False}}
    assert case.spec.context.threads is None
    assert case.backend.name == "aot_eager"


def test_options_that_this_torch_lacks_are_left_out_and_said(
    after_dynamo: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("WARNING", logger="minidbg"):
        case = next(importers.cases_of_torch_repro(after_dynamo, None))
    left_out = "left out: line 12: torch._inductor.config.no_such_option does not exist"
    assert left_out in case.provenance.notes
    assert left_out in caplog.text
    assert "left out: line 13: torch._inductor.config.no_such_group does not exist" in caplog.text


def test_autocast_around_the_call_is_part_of_the_case(after_dynamo: Path) -> None:
    after_dynamo.write_text(after_dynamo.read_text().replace("autocast=False", "autocast=True"))
    case = next(importers.cases_of_torch_repro(after_dynamo, None))
    assert [device for device, _, _ in case.spec.context.autocast] == ["cpu"]


@pytest.mark.slow
def test_training_is_tried_too_and_the_values_are_torchs_random_ones(after_dynamo: Path) -> None:
    state = torch.get_rng_state()
    forward, backward = importers.cases_of_torch_repro(after_dynamo, None)
    assert torch.equal(torch.get_rng_state(), state)
    assert (forward.spec.backward, backward.spec.backward) == (False, True)
    assert sorted(tuple(value.shape) for value in forward.inputs) == [(2, 3), (3, 3)]
    assert any("random values stand in" in note for note in forward.provenance.notes)


@pytest.mark.slow
def test_stored_values_are_found_beside_a_file_that_was_moved(after_dynamo: Path) -> None:
    values = torch.arange(6.0)
    storages = after_dynamo.parent / "checkpoints" / "storages"
    from torch.utils._content_store import ContentStoreWriter

    key = ContentStoreWriter(str(storages.parent)).write_storage(values.untyped_storage())
    after_dynamo.write_text(after_dynamo.read_text().replace("'aaaa'", repr(key)))
    case = next(importers.cases_of_torch_repro(after_dynamo, None))
    assert any(torch.equal(value, values.view(2, 3)) for value in case.inputs if value.shape == (2, 3))


@pytest.mark.slow
def test_a_graph_of_aot_autograd_is_tried_through_torch_compile_first(after_aot: Path) -> None:
    through_dynamo, direct = importers.cases_of_torch_repro(after_aot, None)
    assert through_dynamo.backend.name == "inductor"
    assert through_dynamo.spec.dynamic
    assert not through_dynamo.spec.context.grad
    assert (direct.spec.level, direct.spec.call) == (Level.ATEN, CallPath.DIRECT)


def test_a_backend_can_be_named_instead(after_aot: Path) -> None:
    (case,) = importers.cases_of_torch_repro(after_aot, "planted_backends:raises_on_relu")
    assert case.compiler is planted.raises_on_relu
    assert case.backend.name == "planted_backends.raises_on_relu"
    with pytest.raises(BackendUnreachable, match="cannot be imported"):
        backend_named("planted_backends:raises_on_nothing_at_all")


def test_a_backend_that_the_file_imports_is_found_again(after_dynamo: Path) -> None:
    """What torch says to do where it has no name for a backend."""
    text = AFTER_DYNAMO.replace("BACKEND", "mine").replace(
        "    run_repro(", "    from beside_the_file import mine\n    run_repro("
    )
    after_dynamo.write_text(text)
    (after_dynamo.parent / "beside_the_file.py").write_text(
        "def mine(gm, example_inputs):\n    return gm.forward\n"
    )
    case = next(importers.cases_of_torch_repro(after_dynamo, None))
    assert case.backend.name == "beside_the_file.mine"


NO_MODULE = "from no_such_package.sub import mine"
NO_SUCH = "ModuleNotFoundError: No module named 'no_such_package'"
AT_THE_END = AFTER_DYNAMO.replace("    run_repro(", f"    {NO_MODULE}\n    run_repro(")
NOT_HERE = {
    "a name that nobody registered": (AFTER_DYNAMO, "'mine'", "its backend is 'mine': no backend named 'mine'; .*--backend"),
    "none": (AFTER_DYNAMO, "None", "its backend is None: torch had no name for it; .*--backend"),
    "a name that nothing defines": (AFTER_DYNAMO, "mine", r"line 34, .*backend=mine\): NameError: name 'mine' is not defined"),
    "no Python": (AFTER_DYNAMO, "<function mine at 0x7f>", r"line 34, .*backend=<function mine at 0x7f>: SyntaxError: invalid syntax$"),
    "imported above": (f"{NO_MODULE}\n{AFTER_DYNAMO}", "mine", f"line 1, {NO_MODULE}: {NO_SUCH}"),
    "imported at the end": (AT_THE_END, "mine", f"line 33, {NO_MODULE}: {NO_SUCH}"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("what", NOT_HERE)
def test_a_backend_that_is_not_here_is_refused_by_name_and_replaced_where_the_file_runs_without_it(
    what: str, after_dynamo: Path
) -> None:
    text, backend, why = NOT_HERE[what]
    after_dynamo.write_text(text.replace("BACKEND", backend))
    with pytest.raises(UnreadableTorchRepro, match=why) as refused:
        next(importers.cases_of_torch_repro(after_dynamo, None))
    cases = importers.cases_of_torch_repro(after_dynamo, "planted_backends:raises_on_relu")
    if "--backend" in str(refused.value):
        case, *_ = cases
        assert case.compiler is planted.raises_on_relu
    else:  # the file itself cannot be executed here
        with pytest.raises(UnreadableTorchRepro, match=why):
            next(cases)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("raise ValueError('trouble')", "line 31, raise ValueError.*: ValueError: trouble"),
        ("raise SystemExit(3)", "line 31 ends it, with status 3"),
        ("os._exit(3)", "the process that executed it ended by exit status 3"),
        ("os.kill(os.getpid(), 11)", "the process that executed it ended by SIGSEGV"),
        ("__import__('time').sleep(1000)", "the process that executed it ran for more than 5 s"),
        ("__name__ = 'other'", "it never calls run_repro"),
    ],
)
def test_a_file_that_does_not_come_to_its_call_is_refused_in_one_sentence(
    statement: str, said: str, after_dynamo: Path
) -> None:
    lines = after_dynamo.read_text().replace("if __name__ ==", f"{statement}\nif __name__ ==")
    after_dynamo.write_text(lines)
    with pytest.raises(UnreadableTorchRepro, match=said):
        next(importers.cases_of_torch_repro(after_dynamo, None, seconds=5.0))


def test_inputs_that_this_torch_cannot_read_are_refused_with_their_line(after_dynamo: Path) -> None:
    after_dynamo.write_text(
        after_dynamo.read_text().replace("reader.tensor(buf1", "reader.tensor_of_2099(buf1")
    )
    with pytest.raises(UnreadableTorchRepro, match=r"line 29, reader\.tensor_of_2099.*AttributeError"):
        next(importers.cases_of_torch_repro(after_dynamo, None))
