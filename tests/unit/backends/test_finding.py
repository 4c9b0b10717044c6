"""What is found for a backend, by its fields; test_references.py in integration runs it in fresh processes."""

from __future__ import annotations

import functools
import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.compile_fx import compile_fx

from minidbg.backends import assignment, find_reference, resolve
from minidbg.core.errors import BackendUnreachable
from minidbg.core.run_spec import BackendRef


def compiles(gm: Any, inputs: Any, **given: Any) -> Any:
    return gm.forward


class Compiler:
    def __call__(self, gm: Any, inputs: Any) -> Any:
        return gm.forward


HERE = Path(__file__)


@pytest.mark.parametrize("name", ["inductor", "eager", "aot_eager", "cudagraphs", "aot_ts", "ts"])
def test_backend_of_torch_needs_nothing_but_its_name(name: str) -> None:
    found = find_reference(name)

    assert assignment(found) == f'backend = "{name}"'
    assert (found.setup, found.paths, found.requirements, found.remarks) == ((), (), (), ())
    assert found.modules == ("torch",)


def test_function_of_a_module_in_a_folder_brings_the_folder() -> None:
    found = find_reference(compiles)

    assert found.expression == "compiles"
    assert found.setup == (f"from {__name__} import compiles",)
    assert found.paths == (str(HERE.parent),)
    assert found.name == f"{__name__}.compiles"
    assert resolve(found) is compiles


def test_name_is_not_taken_for_an_object_that_only_looks_like_it() -> None:
    twin = functools.wraps(compiles)(lambda gm, inputs: gm)

    with pytest.raises(BackendUnreachable):
        find_reference(twin)


def test_value_that_the_program_put_into_a_module_is_not_found_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """No import would put it there again."""
    current = Compiler()
    monkeypatch.setattr(sys.modules[__name__], "current", current, raising=False)

    with pytest.raises(BackendUnreachable, match="no global name holds"):
        find_reference(current)


def test_partials_are_put_together_anew() -> None:
    inner = functools.partial(compile_fx, config_patches={"max_autotune": False})

    found = find_reference(functools.partial(inner))

    assert found.expression == "functools.partial(compile_fx, config_patches={'max_autotune': False})"
    again = resolve(found)
    assert isinstance(again, functools.partial)
    assert again.func is compile_fx


def test_two_functions_of_one_name_stay_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other_home.py").write_text("def compiles(gm, inputs):\n    return gm.forward\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "other_home", raising=False)
    other = importlib.import_module("other_home").compiles

    found = find_reference(aot_autograd(fw_compiler=compiles, bw_compiler=other))

    assert found.setup[1:] == (
        f"from {__name__} import compiles",
        "from other_home import compiles as compiles_2",
    )
    assert found.expression == "aot_autograd(fw_compiler=compiles, bw_compiler=compiles_2)"
    assert set(found.paths) == {str(HERE.parent), str(tmp_path)}


def test_annotations_of_copied_source_are_text_as_in_its_script() -> None:
    """They may name what the program imports for a type checker alone."""
    backend: Any = resolve(
        BackendRef("b", "mine", setup=("import os",), embedded="def mine(gm: GraphModule): ...")
    )
    assert backend.__annotations__ == {"gm": "GraphModule"}


def test_objects_that_torch_compile_made_are_taken_apart() -> None:
    inductor = find_reference(torch._TorchCompileInductorWrapper(None, {"max_autotune": False}, None))
    other = find_reference(torch._TorchCompileWrapper(compiles, "fast", None, None))

    assert (inductor.expression, inductor.options) == ("'inductor'", {"max_autotune": False})
    assert (other.expression, other.mode) == ("compiles", "fast")


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ({"reference": "no_such_pkg.mod:make()"}, "cannot be imported here"),
        ({"reference": f"{__name__}:no_such_name"}, "cannot be imported here"),
        ({"reference": f"{__name__}:compiles("}, "cannot be read"),
        ({"reference": f"{__name__}:compiles(level=LEVEL)"}, "cannot be read"),
        ({"reference": f"{__name__}:[0]"}, "cannot be read"),
        ({"reference": ""}, "names no backend"),
        ({"reference": "make()"}, "names no backend"),
        ({"setup": "import"}, "is not Python"),
        ({"options": {"pass": compiles}}, r"options\['pass'\] of backend .*compiles is not a literal but a"),
    ],
)
def test_what_cannot_be_right_is_refused_by_its_place(given: dict[str, Any], part: str) -> None:
    with pytest.raises(BackendUnreachable, match=part):
        find_reference(compiles, **given)


def test_reference_that_only_the_setup_makes_importable_is_trusted() -> None:
    found = find_reference(compiles, setup="import sys; sys.path.append('/x')", reference="only_in_x:make(2)")

    assert found.expression == "make(2)"
    assert found.setup == ("import sys; sys.path.append('/x')", "from only_in_x import make")
