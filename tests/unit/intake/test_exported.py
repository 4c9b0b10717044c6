"""Programs of torch.export as cases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from minidbg import intake
from minidbg.errors import UnreadableRepro
from minidbg.intake.asking import backend_named


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
    inference, training = intake.cases_of_exported(intake.read_exported(path), backend_named("aot_eager"))
    assert (inference.context.grad, inference.backward) == (False, False)
    assert (training.context.grad, training.backward) == (True, True)
    targets = [str(node.target) for node in inference.graph_module.graph.nodes if node.op == "call_function"]
    assert any("relu" in target for target in targets)
    assert sorted(tuple(value.shape) for value in inference.inputs) == [(2,), (2,), (2, 4), (3, 4), (3, 4)]


def test_symbolic_sizes_stay(tmp_path: Path) -> None:
    size = torch.export.Dim("size", min=2, max=64)
    program = exported(dynamic_shapes={"given": {"x": {0: size}, "y": {0: size}}, "k": None})
    assert next(intake.cases_of_exported(program, backend_named("aot_eager"))).dynamic


def test_without_example_inputs_seeded_ones_stand_in() -> None:
    program = exported()
    program.example_inputs = None
    state = torch.get_rng_state()
    case = next(intake.cases_of_exported(program, backend_named("aot_eager")))
    assert torch.equal(torch.get_rng_state(), state)
    assert any("stand in" in note for note in case.provenance.notes)


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x05\x06" + b"\0" * 18])
def test_what_is_no_program_is_refused_by_name(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "bad.pt2"
    path.write_bytes(content)
    with pytest.raises(UnreadableRepro, match=r"bad\.pt2"):
        intake.read_exported(path)


RAN: list[int] = []


class Attack:
    """A pickle that runs code."""

    def __reduce__(self) -> Any:
        return RAN.append, (1,)


def test_a_pickle_inside_a_program_is_not_run(tmp_path: Path) -> None:
    import zipfile

    path, evil = tmp_path / "model.pt2", tmp_path / "evil.pt2"
    torch.export.save(exported(), path)
    torch.save(Attack(), tmp_path / "attack")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(evil, "w") as new:
        for name in old.namelist():
            is_inputs = "sample_inputs" in name and name.endswith(".pt")
            new.writestr(name, (tmp_path / "attack").read_bytes() if is_inputs else old.read(name))
    with pytest.raises(UnreadableRepro):
        intake.read_exported(evil)
    assert not RAN
