"""Every public name says what it is; every public function says what it raises, and takes no argument unmentioned."""

from __future__ import annotations

import inspect
import typing

import pytest

import minidbg
from minidbg.words.settings import WrapSettings


@pytest.mark.parametrize("name", minidbg.__all__)
def test_every_public_name_has_a_docstring_of_its_own(name: str) -> None:
    found = getattr(minidbg, name)
    text = found.__doc__ or ""
    assert len(text.split()) >= 6
    assert text.strip().split("\n")[0].endswith((".", ";"))


@pytest.mark.parametrize(
    "name", ["wrap", "wrap_compiler", "minimize", "load", "check", "reduce", "save_repro"]
)
def test_every_public_function_says_what_it_raises(name: str) -> None:
    assert "Raises" in (inspect.getdoc(getattr(minidbg, name)) or "")


def test_wrap_mentions_each_of_its_arguments() -> None:
    text = inspect.getdoc(minidbg.wrap) or ""
    names = ("backend", "options", "mode", *typing.get_type_hints(WrapSettings))
    assert [name for name in names if f"``{name}``" not in text] == []


def test_importing_minidbg_loads_no_torch() -> None:
    import subprocess
    import sys

    code = "import sys, minidbg; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
