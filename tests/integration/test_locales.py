"""A compiler's errors end as short scripts in every locale: g++ quotes names otherwise in each, and speaks its language."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import torch
from compiler_says import COMPILER_SAYS, refuses_relu_in
from support.command_line import python
from support.quick_path import failing_program, take_the_quick_path

MOST_LINES = 120


def program(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x.sin() * 2) + 1


@pytest.mark.parametrize("locale", COMPILER_SAYS)
def test_a_compile_error_in_any_locale_ends_as_a_short_script(
    locale: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_the_quick_path(monkeypatch)
    found = failing_program(program, (torch.randn(4),), refuses_relu_in(locale), tmp_path)
    assert found.ops == ["relu"]
    assert len(found.text.splitlines()) <= MOST_LINES
    assert "asks minidbg" not in found.text


STAND_IN = """\
#!/bin/sh
for word in "$@"; do
    case "$word" in
        *.main.cpp) if grep -q 'sin()' "$word"; then
            echo "$word: In Funktion »void kernel(float*)«:"
            echo "$word:9:8: Warnung: Variable »tmp9« wird nicht verwendet [-Wunused-variable]"
            echo "$word:10:24: Fehler: »tmp5« wurde in diesem Gültigkeitsbereich nicht deklariert; meinten Sie »tmp4«?"
            echo "   10 |     auto tmp1 = tmp5;"
            exit 1
        fi ;;
    esac
done
exec {compiler} "$@"
"""
PROGRAM = """
import torch, minidbg

def program(x):
    return torch.relu(x.sin() * 2) + 1

try:
    torch.compile(program, backend=minidbg.wrap("inductor"))(torch.randn(4))
except Exception as error:
    print(minidbg.report_of(error).path)
"""


@pytest.mark.slow
def test_inductor_with_a_compiler_that_speaks_german(tmp_path: Path) -> None:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++ here")
    stand_in = tmp_path / "g++"
    stand_in.write_text(STAND_IN.replace("{compiler}", compiler))
    stand_in.chmod(0o755)
    (tmp_path / "program.py").write_text(PROGRAM)
    env = {"CXX": str(stand_in), "LC_ALL": "C.UTF-8"}
    done = python("program.py", cwd=tmp_path, env=env)
    path = tmp_path / done.stdout.strip().rpartition("\n")[2]
    assert path.is_file(), done.stderr[-3000:]
    text = path.read_text()
    assert "Fehler: " not in re.sub(r"(?m)^# .*$", "", text), "only what the compiler says of it"
    assert "»tmp5« wurde in diesem Gültigkeitsbereich nicht deklariert" in text
    assert len(text.splitlines()) <= MOST_LINES
