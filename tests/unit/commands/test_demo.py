"""What the demo prints: lines that can be copied, and commands that can be typed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from rich.console import Console

from minidbg.commands.demo import show


@pytest.mark.parametrize("is_there", [True, False])
def test_pytest_is_asked_for_where_it_is_missing(
    is_there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    if not is_there:
        monkeypatch.setitem(sys.modules, "pytest", None)
    show.what_next(Console(width=20), tmp_path / "minidbg_repros" / "compile_[red]x.py")
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("pytest "))
    assert line.split("#")[0].rstrip() == "pytest minidbg_repros/compile_[red]x.py"
    assert ("pip install pytest" in line) != is_there


def test_lines_stay_whole_in_a_narrow_console(capsys: pytest.CaptureFixture[str]) -> None:
    """Also those with what rich takes for markup."""
    line = f"def f(): return [{', '.join(['bold'] * 40)}], '[red]'"
    show.print_python(Console(width=40), line)
    assert [one for one in capsys.readouterr().out.splitlines() if one] == [line]
