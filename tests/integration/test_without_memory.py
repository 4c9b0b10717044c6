"""Tensors without plain memory: what is written, cloned and compared of each; wrong results beside them are rows of the corpus."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import PLANTED
from support.command_line import python


@pytest.mark.slow
def test_every_look_at_every_odd_tensor(tmp_path: Path) -> None:
    ended = python(PLANTED / "tensors_without_memory.py", cwd=tmp_path)
    assert ended.stdout == "all looked at\n", ended
