"""Which source registers a backend when it is imported."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from minidbg.references.locations import import_for, registering_module, registers


@pytest.mark.parametrize(
    "text",
    [
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
    ],
)
def test_source_that_registers_the_name(text: str) -> None:
    assert registers(text, "mine")


@pytest.mark.parametrize(
    "text",
    [
        "def go():\n    register_backend(f, name='mine')",
        "go = lambda: register_backend(f, name='mine')",
        "register_backend(f, name='other')",
        "register_backend(mine, name='other')",
        "@register_backend(name='other')\ndef mine(gm, inputs): ...",
        "lookup_backend('mine')",
        "def mine(gm, inputs): ...",
        "this is no Python 'mine'",
    ],
)
def test_source_that_does_not_register_it(text: str) -> None:
    assert not registers(text, "mine")


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
    for name in (
        "some_pkg",
        "some_pkg.deep",
        "some_pkg.deep.public",
        "some_pkg.deep.registers",
        "some_pkg.private",
    ):
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
def test_package_is_imported_where_its_import_reaches_the_module() -> None:
    assert import_for("some_pkg.deep.registers") == "some_pkg"


@pytest.mark.usefixtures("package")
def test_module_is_imported_itself_where_its_package_does_not_bring_it() -> None:
    assert import_for("some_pkg.private") == "some_pkg.private"
