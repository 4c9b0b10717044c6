"""A damaged file of tensors is an error that names it and says what to do; nothing waits for it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from minidbg.codegen.inputs import Exactness
from minidbg.core.errors import UnreadableRepro
from minidbg.repro.folder import write
from minidbg.repro.loading import load


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-9]),
    "empty": lambda path: path.write_bytes(b""),
    "a header without an end": lambda path: path.write_bytes(b"\xff" * 64),
    "another file's": lambda path: path.write_bytes(save({"other": torch.ones(2)})),
    "gone": Path.unlink,
    "a pipe": pipe,
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=list(DAMAGE))
def test_damaged_tensors_are_named_with_what_to_do(
    make_case: Callable[..., object], tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    path = tmp_path / "r.py"
    write(make_case(inputs=(torch.randn(100, 100),)), path, exactness=Exactness.EXACT)
    beside = path.with_suffix(".safetensors")
    assert beside.exists()
    load(path)
    damage(beside)
    with pytest.raises(UnreadableRepro, match=r"copy the file anew, together with its script") as refused:
        load(path)
    assert str(refused.value).startswith(f"{beside}: ")
