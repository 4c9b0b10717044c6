"""Every real case is the same in the child as here; constructs are in test_constructs.py, and what comes of each in the corpus."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import torch
from support.travelled import assert_same_case, case_of_program, travelled

from minidbg.fx.case import Case

CASES = sorted((Path(__file__).parents[1] / "cases").glob("*_*.py"))


@pytest.fixture(autouse=True)
def _cases_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A class of a case is found by its module's name."""
    monkeypatch.syspath_prepend(str(CASES[0].parent))


def case_in(path: Path) -> Case:
    module = importlib.import_module(path.stem)
    with torch.no_grad():
        function, args = module.make()
        return case_of_program(function, args, module.BACKEND, getattr(module, "DYNAMIC", None))


@pytest.mark.parametrize(
    "path",
    [
        # the crash needs 256 MB of inputs
        pytest.param(path, marks=pytest.mark.slow if path.stem.startswith("crash") else (), id=path.stem)
        for path in CASES
    ],
)
def test_a_real_case_is_the_same_in_the_child(path: Path) -> None:
    case = case_in(path)
    assert_same_case(case, travelled(case))
