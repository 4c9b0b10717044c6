"""Which import registers a backend's name, and which one brings a device."""

from __future__ import annotations

import importlib.machinery
import sys
from pathlib import Path
from types import ModuleType

import pytest

from minidbg.backends.locations import (
    import_for,
    registering_module,
    registers,
)

REGISTERS = [
    "@register_backend\ndef mine(gm, inputs): ...",
    "@register_backend(name='mine')\ndef other(gm, inputs): ...",
    "@torch._dynamo.register_backend(name='mine', tags=('debug',))\ndef other(gm, inputs): ...",
    "@register_debug_backend\ndef mine(gm, inputs): ...",
    "register_backend(mine)",
    "register_backend(compiler_fn=mine)",
    "register_backend(other, 'mine')",
    "registry.register_backend(name='mine', compiler_fn=aot_autograd(fw_compiler=f))",
    "if True:\n    try:\n        register_backend(f, name='mine')\n    except ImportError:\n        pass",
    "def go():\n    register_backend(f, name='mine')\ngo()",
    "class C:\n    register_backend(f, name='mine')",
]
REGISTERS_NOTHING = [
    "def go():\n    register_backend(f, name='mine')",
    "go = lambda: register_backend(f, name='mine')",
    "register_backend(f, name='other')",
    "register_backend(mine, name='other')",
    "@register_backend(name='other')\ndef mine(gm, inputs): ...",
    "lookup_backend('mine')",
    "def mine(gm, inputs): ...",
    "this is no Python 'mine'",
]


@pytest.mark.parametrize("text", [*REGISTERS, *REGISTERS_NOTHING])
def test_source_that_registers_the_name_is_told_from_one_that_does_not(text: str) -> None:
    assert registers(text, "mine") is (text in REGISTERS)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An importable package whose ``public`` part is imported by it and whose ``private`` part is not."""
    home = tmp_path / "some_pkg"
    (home / "deep").mkdir(parents=True)
    (home / "__init__.py").write_text(
        "from .deep import public\nif TYPE_CHECKING:\n    import some_pkg.private\ndef load():\n    import some_pkg.private\n"
    )
    (home / "deep" / "__init__.py").write_text("from . import registers as _\n")
    (home / "deep" / "public.py").touch()
    (home / "deep" / "registers.py").write_text(
        "from torch._dynamo import register_backend\nregister_backend(1, name='n')"
    )
    (home / "private.py").write_text("register_backend(1, name='m')")
    monkeypatch.syspath_prepend(tmp_path)
    for part in ("", ".deep", ".deep.public", ".deep.registers", ".private"):
        name = f"some_pkg{part}"
        monkeypatch.setitem(sys.modules, name, module_from(name, tmp_path))
    return home


def module_from(name: str, folder: Path) -> object:
    """A module as an import would make it, but not run: registering is for real packages."""
    import importlib.util

    path = folder.joinpath(*name.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec
    return importlib.util.module_from_spec(spec)


@pytest.mark.usefixtures("package")
def test_registering_module_is_found_among_the_loaded_ones() -> None:
    assert registering_module("n", "some_pkg.deep.public") == "some_pkg.deep.registers"
    assert registering_module("nobody", "some_pkg.deep.public") is None


@pytest.mark.usefixtures("package")
def test_package_is_imported_where_its_import_reaches_the_module_and_else_the_module() -> None:
    assert import_for("some_pkg.deep.registers") == "some_pkg"
    assert import_for("some_pkg.private") == "some_pkg.private"


@pytest.mark.parametrize(
    ("condition", "reaches"),
    [
        ("not SLIM", True),
        ("SLIM", False),
        ("SLIM or WHAT", False),
        ("bool(1)", False),
        ("SLIM.is_off", False),
    ],
)
def test_a_condition_counts_as_the_loaded_package_says(
    package: Path, monkeypatch: pytest.MonkeyPatch, condition: str, reaches: bool
) -> None:
    (package / "__init__.py").write_text(f"if {condition}:\n    from .deep import *\n")
    monkeypatch.setitem(vars(sys.modules["some_pkg"]), "SLIM", False)
    expected = "some_pkg" if reaches else "some_pkg.deep.registers"
    assert import_for("some_pkg.deep.registers") == expected


def load(monkeypatch: pytest.MonkeyPatch, name: str, text: str = "") -> ModuleType:
    """A loaded module with a source."""

    class Loader:
        def get_source(self, _: str) -> str:
            return text

    module = ModuleType(name)
    module.__loader__ = Loader()  # type: ignore[assignment]
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    monkeypatch.setitem(sys.modules, name, module)
    return module
