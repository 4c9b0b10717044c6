"""Device plugins are imported first, and only those that matter."""

from __future__ import annotations

import importlib.machinery
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import fx

from minidbg.case import BackendRef
from minidbg.references import with_operators
from minidbg.references.locations import device_types, plugins_of_code


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


def test_plugin_of_a_new_device_is_the_one_that_gave_torch_its_module(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    load(monkeypatch, "my_plugin")
    monkeypatch.setattr(torch, "maia", load(monkeypatch, "my_plugin.device"), raising=False)

    assert with_operators(BackendRef("b", "'b'"), graph_on("maia")).setup == ("import my_plugin",)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import torch_npu", ("torch_npu",)),
        ("def compile():\n    from torch_npu.npu import x", ("torch_npu",)),
        ("import torch_npu_other", ()),
        ("# import torch_npu", ()),
    ],
)
def test_plugin_counts_when_the_backends_code_imports_it(
    monkeypatch: pytest.MonkeyPatch, text: str, expected: tuple[str, ...]
) -> None:
    load(monkeypatch, "torch_npu")
    load(monkeypatch, "some_backend")
    load(monkeypatch, "some_backend.deep", text)

    assert plugins_of_code(["some_backend"]) == expected


def test_plugin_that_is_not_loaded_is_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    load(monkeypatch, "some_backend", "import torch_npu")
    monkeypatch.delitem(sys.modules, "torch_npu", raising=False)

    assert plugins_of_code(["some_backend"]) == ()
