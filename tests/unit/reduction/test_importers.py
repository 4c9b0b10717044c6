"""Programs of torch.export as cases; repros of torch's own minifier: read without being run, executed without their settings.

The texts of such repros have the forms that torch 2.13 writes.
"""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import planted_backends as planted
import pytest
import torch

from minidbg.reduction import importers
from minidbg.reduction.importers import UnreadableTorchRepro, backend_named, read_torch_repro
from minidbg.words.errors import BackendUnreachable, UnreadableRepro
from minidbg.words.run_spec import CallPath, Level


class Sum(torch.nn.Module):
    """A dictionary and a keyword as inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 2)

    def forward(self, given: dict[str, torch.Tensor], *, k: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.relu(self.linear(given["x"] + given["y"])) + k
        return result


def exported(**options: Any) -> torch.export.ExportedProgram:
    given = {"x": torch.randn(3, 4), "y": torch.randn(3, 4)}
    return torch.export.export(Sum(), (given,), {"k": torch.ones(2)}, **options)


def test_a_saved_program_is_one_graph_in_inference_and_in_training(tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    torch.export.save(exported(), path)
    inference, training = importers.cases_of_exported(
        importers.read_exported(path), backend_named("aot_eager")
    )
    assert (inference.spec.context.grad, inference.spec.backward) == (False, False)
    assert (training.spec.context.grad, training.spec.backward) == (True, True)
    targets = [str(node.target) for node in inference.graph_module.graph.nodes if node.op == "call_function"]
    assert any("relu" in target for target in targets)
    assert sorted(tuple(value.shape) for value in inference.inputs) == [(2,), (2,), (2, 4), (3, 4), (3, 4)]


def test_symbolic_sizes_stay(tmp_path: Path) -> None:
    size = torch.export.Dim("size", min=2, max=64)
    program = exported(dynamic_shapes={"given": {"x": {0: size}, "y": {0: size}}, "k": None})
    assert next(importers.cases_of_exported(program, backend_named("aot_eager"))).spec.dynamic


def test_without_example_inputs_seeded_ones_stand_in() -> None:
    program = exported()
    program.example_inputs = None
    state = torch.get_rng_state()
    case = next(importers.cases_of_exported(program, backend_named("aot_eager")))
    assert torch.equal(torch.get_rng_state(), state)
    assert any("stand in" in note for note in case.provenance.notes)


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


def test_only_options_that_differ_from_their_defaults_are_kept(after_dynamo: Path) -> None:
    assert read_torch_repro(after_dynamo).config == {"torch._inductor.config": {"epilogue_fusion": False}}


def test_settings_and_the_call_are_not_executed(after_dynamo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCH_COMPILE_DEBUG_DIR", raising=False)
    case = next(importers.cases_of_torch_repro(after_dynamo, None))
    assert "TORCH_COMPILE_DEBUG_DIR" not in os.environ
    assert torch._inductor.config.epilogue_fusion
    assert case.spec.context.config == {"torch._inductor.config": {"epilogue_fusion": False}}
    assert case.backend.name == "aot_eager"


def test_training_is_tried_too_and_the_values_are_torchs_random_ones(after_dynamo: Path) -> None:
    state = torch.get_rng_state()
    forward, backward = importers.cases_of_torch_repro(after_dynamo, None)
    assert torch.equal(torch.get_rng_state(), state)
    assert (forward.spec.backward, backward.spec.backward) == (False, True)
    assert sorted(tuple(value.shape) for value in forward.inputs) == [(2, 3), (3, 3)]
    assert any("random values stand in" in note for note in forward.provenance.notes)


def test_stored_values_are_found_beside_a_file_that_was_moved(after_dynamo: Path) -> None:
    values = torch.arange(6.0)
    storages = after_dynamo.parent / "checkpoints" / "storages"
    from torch.utils._content_store import ContentStoreWriter

    key = ContentStoreWriter(str(storages.parent)).write_storage(values.untyped_storage())
    after_dynamo.write_text(after_dynamo.read_text().replace("'aaaa'", repr(key)))
    case = next(importers.cases_of_torch_repro(after_dynamo, None))
    assert any(torch.equal(value, values.view(2, 3)) for value in case.inputs if value.shape == (2, 3))


def test_a_graph_of_aot_autograd_is_tried_through_torch_compile_first(after_aot: Path) -> None:
    through_dynamo, direct = importers.cases_of_torch_repro(after_aot, None)
    assert through_dynamo.backend.name == "inductor"
    assert through_dynamo.spec.dynamic
    assert not through_dynamo.spec.context.grad
    assert (direct.spec.level, direct.spec.call) == (Level.ATEN, CallPath.DIRECT)


def test_a_backend_can_be_named_instead(after_aot: Path) -> None:
    (case,) = importers.cases_of_torch_repro(after_aot, "planted_backends:raises_on_relu")
    assert case.compiler is planted.raises_on_relu
    with pytest.raises(BackendUnreachable, match="leads nowhere"):
        importers.backend_named("planted_backends:raises_on_nothing_at_all")


def test_a_backend_that_torch_wrote_as_an_object_is_an_error_that_names_the_line(after_dynamo: Path) -> None:
    """torch writes ``backend=<function my_backend at 0x...>`` for a callable, which is no Python."""
    after_dynamo.write_text(AFTER_DYNAMO.replace("BACKEND", "<function mine at 0x7f>"))
    with pytest.raises(UnreadableTorchRepro, match=r"line 3\d is no Python: .*function mine"):
        read_torch_repro(after_dynamo)
    after_dynamo.write_text(AFTER_DYNAMO.replace("BACKEND", "mine"))
    with pytest.raises(BackendUnreachable, match="--backend"):
        next(importers.cases_of_torch_repro(after_dynamo, None))
