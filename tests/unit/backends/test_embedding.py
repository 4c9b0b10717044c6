"""What is copied out of a module that no import finds, and what refuses to be."""

from __future__ import annotations

import linecache
import sys
from types import ModuleType

import pytest

from minidbg.backends.definitions import Copy, NotSelfContained

MODULE = "a_notebook"


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType(MODULE)
    monkeypatch.setitem(sys.modules, MODULE, module)
    return module


def copied(text: str, *names: str, after: str = "") -> Copy:
    """What is copied for ``names`` of a module that ran ``text`` and then, from no source, ``after``."""
    linecache.cache["<cell>"] = (len(text), None, text.splitlines(keepends=True), "<cell>")
    space = vars(sys.modules[MODULE])
    exec(compile(text, "<cell>", "exec"), space)
    exec(after, space)
    copy = Copy(MODULE, "<cell>")
    for name in names:
        copy.add_name(name)
    return copy


pytestmark = pytest.mark.usefixtures("notebook")


def lines(copy: Copy) -> list[str]:
    return [line for line in copy.text().splitlines() if line]


def test_everything_that_is_used_comes_along_and_nothing_else() -> None:
    text = "import os, re\nA = 1\nB = 2\ndef g(): return A\ndef f(): return g(), re.I\ndef h(): return B"
    used = ["import re", "A = 1", "def g(): return A", "def f(): return g(), re.I"]
    assert lines(copied(text, "f")) == used


@pytest.mark.parametrize(
    ("text", "after", "first"),
    [
        ("A = 1\ndef f(): return A", "A = 2", "A = 2  # its value when this failed"),
        (
            "import os\nA = len(os.getcwd()) * 0 + 5\ndef f(): return A",
            "",
            "A = 5  # its value when this failed",
        ),
        ("seen = []\ndef f(): seen.append(1)", "seen += [1, object()]", "seen = []"),
        ("table = list(range(5000))\ndef f(): return table", "", "table = list(range(5000))"),
        ("def f(): return 1\ndef f(): return 2", "", "def f(): return 2"),
        ("def f(): return later()", "", "def f(): return later()"),
    ],
    ids=["changed", "computed", "a list as written", "a long one", "the last definition", "no value yet"],
)
def test_the_first_line_of_a_copy(text: str, after: str, first: str) -> None:
    assert lines(copied(text, "f", after=after))[0] == first


def test_functions_that_call_each_other_come_once() -> None:
    assert len(lines(copied("def f(n): return g(n)\ndef g(n): return n and f(n - 1)", "f", "g"))) == 2


def test_call_of_a_copied_class_is_copied() -> None:
    text = "class C:\n    def __init__(self, n): self.n = n\nc = C(3)\ndef f(): return c"
    assert "c = C(3)" in lines(copied(text, "f"))


def test_fallback_import_is_copied_whole() -> None:
    text = "try:\n    import not_there_at_all as quick\nexcept ImportError:\n    quick = None\ndef f(): return quick"
    assert "except ImportError:" in lines(copied(text, "f"))


def test_star_import_becomes_the_names_that_are_used() -> None:
    found = lines(copied("from math import *\ndef f(): return floor(sin(1))", "f"))
    assert found[:2] == ["from math import floor", "from math import sin"]


def test_registration_is_left_out() -> None:
    """Two scripts with the same backend may be loaded in one process."""
    text = "def register_backend(f): return f\n@register_backend\n@staticmethod\ndef f(): return 1"

    assert lines(copied(text, "f")) == ["@staticmethod", "def f(): return 1"]


def test_imports_of_the_program_stand_above_and_those_of_functions_are_named() -> None:
    copy = copied("import packaging.version\ndef f():\n    import colorsys\n    return packaging", "f")
    assert lines(copy)[0] == "import packaging.version"
    assert (copy.imported(by_imports=True), copy.imported(by_imports=False)) == (
        {"packaging.version"},
        {"colorsys"},
    )


def test_relative_import_of_a_program_run_by_its_module_names_the_package() -> None:
    sys.modules[MODULE].__package__ = "collections"
    assert lines(copied("from .abc import Sized\ndef f(): return Sized", "f"))[0] == (
        "from collections.abc import Sized"
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("import torch\nw = torch.ones(2)\ndef f(): return w", "w is a Tensor"),
        ("import torch\nw = [torch.nn.Linear(1, 1)]\ndef f(): return w", "w is a list"),
        ("import sys\na = object() if sys.argv else 1\ndef f(): return a", "a was made with sys"),
        ("def f(): return __file__", "it uses __file__"),
        ("import minidbg\ndef f(): return minidbg", "it uses minidbg itself"),
        ("def f():\n    from . import x", "relative to its package"),
        ("for a in [object()]: pass\ndef f(): return a", "no single definition"),
        ("a, b = object(), 1\ndef f(): return a", "no single definition"),
        ("def f(): return 1\nold = f\ndef f(): return 2\nf = old\ndel old", "no single definition"),
        ("with open('/dev/null') as a: pass\ndef f(): return a", "no single definition"),
        ("inputs = 3\ndef f(): return inputs", "a script has a inputs of its own"),
        ("def f(): return backend\nbackend = f", "a script has a backend of its own"),
    ],
)
def test_what_belongs_to_the_whole_program_refuses_to_be_copied(text: str, why: str) -> None:
    sys.modules[MODULE].__dict__["__file__"] = "x"

    with pytest.raises(NotSelfContained, match=why):
        copied(text, "f")


def test_refused_addition_leaves_the_copy_as_it_was() -> None:
    copied("import torch\nw = torch.ones(2)\ndef f(): return w\ndef g(): return 1", "g")
    copy = Copy(MODULE, "<cell>")
    copy.add_name("g")
    before = dict(copy.pieces)

    with pytest.raises(NotSelfContained):
        copy.add_name("f")

    assert copy.pieces == before


def test_name_without_a_statement_is_copied_by_its_value() -> None:
    found = lines(copied("def f(): return A, join", "f", after="A = (1, 2); from os.path import join"))
    assert {"A = (1, 2)  # its value when this failed", "from posixpath import join"} <= set(found)
