"""Which import registers a backend's name, and which one brings a device."""

from __future__ import annotations

import importlib.machinery
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import fx

from minidbg.backends import with_operators
from minidbg.backends.locations import (
    device_types,
    import_for,
    plugins_of_code,
    registering_module,
    registers,
)
from minidbg.words.run_spec import BackendRef

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


def graph_on(device: str) -> fx.GraphModule:
    """``x + 1`` of a value on a device that need not be here."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["example_value"] = SimpleNamespace(device=torch.device(device))
    graph.output(graph.call_function(torch.add, (x, 1)))
    return fx.GraphModule(torch.nn.Module(), graph)


def test_device_types_are_those_of_values_inputs_and_arguments() -> None:
    gm = graph_on("hpu:0")
    (add,) = gm.graph.find_nodes(op="call_function", target=torch.add)
    add.kwargs = {"device": torch.device("mps")}

    assert set(device_types(gm, [torch.empty(1, device="meta"), 3])) == {"hpu", "mps", "meta"}


def test_plugin_of_a_device_in_the_graph_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    load(monkeypatch, "habana_frameworks")
    load(monkeypatch, "habana_frameworks.torch")

    found = with_operators(BackendRef("b", "'b'", setup=("import b",)), graph_on("hpu"))

    assert found.setup == ("import habana_frameworks.torch", "import b")


def test_plugin_of_another_device_stays_out(monkeypatch: pytest.MonkeyPatch) -> None:
    load(monkeypatch, "torch_xla")

    assert with_operators(BackendRef("b", "'b'"), graph_on("cpu")).setup == ()


def test_plugin_of_a_new_device_is_what_gave_torch_its_module(monkeypatch: pytest.MonkeyPatch) -> None:
    load(monkeypatch, "my_plugin")
    monkeypatch.setattr(torch, "maia", load(monkeypatch, "my_plugin.device"), raising=False)

    assert with_operators(BackendRef("b", "'b'"), graph_on("maia")).setup == ("import my_plugin",)


@pytest.mark.parametrize(
    ("text", "loaded", "expected"),
    [
        ("import torch_npu", True, ("torch_npu",)),
        ("def compile():\n    from torch_npu.npu import x", True, ("torch_npu",)),
        ("import torch_npu_other", True, ()),
        ("# import torch_npu", True, ()),
        ("import torch_npu", False, ()),
    ],
)
def test_plugin_counts_when_it_is_loaded_and_the_backends_code_imports_it(
    monkeypatch: pytest.MonkeyPatch, text: str, loaded: bool, expected: tuple[str, ...]
) -> None:
    load(monkeypatch, "torch_npu")
    if not loaded:
        monkeypatch.delitem(sys.modules, "torch_npu")
    load(monkeypatch, "some_backend")
    load(monkeypatch, "some_backend.deep", text)
    assert plugins_of_code(["some_backend"]) == expected
