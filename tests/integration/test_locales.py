"""A compiler's errors end as short scripts in every locale: g++ quotes names otherwise in each."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from compiler_says import COMPILER_SAYS, refuses_relu_in
from support.quick_path import failing_program, take_the_quick_path

MOST_LINES = 120


def program(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x.sin() * 2) + 1


@pytest.mark.slow
@pytest.mark.parametrize("locale", COMPILER_SAYS)
def test_a_compile_error_in_any_locale_ends_as_a_short_script(
    locale: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_the_quick_path(monkeypatch)
    found = failing_program(program, (torch.randn(4),), refuses_relu_in(locale), tmp_path)
    assert found.ops == ["relu"]
    assert len(found.text.splitlines()) <= MOST_LINES
    assert "only shows it" not in found.text
