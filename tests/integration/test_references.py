"""Every way to register a backend, found in one process and brought back in a fresh one that has no minidbg."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fresh_interpreters import Ended, FreshInterpreters

from minidbg.references import load_by_path

pytestmark = pytest.mark.slow

STAND_INS = Path(__file__).parents[1] / "stand_ins"

FIND = """
import json
import torch
from minidbg import references
from minidbg.errors import MinidbgError


def found(backend, **given):
    try:
        return with_graph(references.find(backend, **given))
    except MinidbgError as error:
        return {"refused": f"{type(error).__name__}: {error}"}


def with_graph(ref, *graph, **given):
    if graph:
        ref = references.with_operators(ref, *graph, **given)
    again = references.resolve(ref)
    assert again is not None
    fields = {name: getattr(ref, name) for name in ref.__slots__}
    return {**fields, "function": references.backend_function(ref)}


def write(*found):
    with open("found.json", "w") as file:
        json.dump(found, file, default=dict)

"""

RUN = """
import sys
import torch

{above}

{function}

class Repro(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x) + {calls}


def main():
    try:
        compiler = backend()
    except ImportError as error:
        print("missing", error.name)
        sys.path += {paths!r}
        compiler = backend()
    compiled = torch.compile(Repro(), backend=compiler, fullgraph=True, **{given!r})
    print("result", compiled(torch.ones(2)).tolist())
    assert not any(name.startswith("minidbg.") for name in sys.modules)


if __name__ == "__main__":
    main()
"""


@dataclass
class World:
    """A folder for a user's program, another for the script, and fresh interpreters for both."""

    users: FreshInterpreters
    fresh: FreshInterpreters
    folder: Path

    def find(self, program: str, *, name: str = "train.py", files: dict[str, str] | None = None) -> list[Any]:
        """What the user's ``program`` has given to ``write``; ``files`` lie beside it."""
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        for path, text in {
            **(files or {}),
            name: f"import sys\nsys.path.append({str(STAND_INS)!r})\n{program}",
        }.items():
            (home / path).parent.mkdir(parents=True, exist_ok=True)
            (home / path).write_text(text)
        module = name.removesuffix(".py").replace("/", ".") if "/" in name else None
        ended = self.users.run(home if module else home / name, cwd=home, module=module)
        assert ended.status == 0, ended.output
        answers: list[Any] = json.loads((home / "found.json").read_text())
        return answers

    def run(self, found: dict[str, Any], calls: str = "1", **given: Any) -> Ended:
        """The rendered script, run from another folder."""
        script = self.write(found, calls, **given)
        return self.fresh.run(script, cwd=script.parent)

    def write(self, found: dict[str, Any], calls: str = "1", **given: Any) -> Path:
        loader = inspect.getsource(load_by_path) if found["files"] else ""
        text = RUN.format(
            above=f"{loader}\n\n{found['embedded']}",
            function=found["function"],
            calls=calls,
            paths=found["paths"],
            given=given,
        )
        elsewhere = self.folder / "elsewhere"
        elsewhere.mkdir(exist_ok=True)
        (elsewhere / "repro.py").write_text(text)
        return elsewhere / "repro.py"


@pytest.fixture(scope="module")
def fresh() -> Iterator[FreshInterpreters]:
    with FreshInterpreters() as interpreters:
        yield interpreters


@pytest.fixture(scope="module")
def users() -> Iterator[FreshInterpreters]:
    with FreshInterpreters("minidbg.references") as interpreters:
        yield interpreters


@pytest.fixture
def world(users: FreshInterpreters, fresh: FreshInterpreters, tmp_path: Path) -> World:
    return World(users, fresh, tmp_path)


# --- names ---

ROWS = {
    "torch_tensorrt, first name": ("import tensorrt_like", "tensorrt_like", "import tensorrt_like  # registers \"tensorrt_like\""),
    "torch_tensorrt, second name": ("import tensorrt_like", "aot_tensorrt_like", "import tensorrt_like  # registers \"aot_tensorrt_like\""),
    "openvino: entry point": ("", "openvino_like", "import openvino_like.frontend.backend  # entry point \"openvino_like\""),
    "hidet: registered in __init__": ("import hidet_like", "hidet_like", "import hidet_like  # registers \"hidet_like\""),
    "IREE turbine: entry point to an aot_autograd object": ("", "turbine_like_cpu", "import turbine_like.cpu  # entry point \"turbine_like_cpu\""),
    "tenstorrent: needs torch_xla": ("import torch_xla, tt_like", "tt_like", "import tt_like  # registers \"tt_like\""),
    "migraphx: a registered partial": ("import migraphx_like", "migraphx_like", "import migraphx_like  # registers \"migraphx_like\""),
    "migraphx: a registered aot_autograd object": ("import migraphx_like", "migraphx_like_aot", "import migraphx_like  # registers \"migraphx_like_aot\""),
    "rebellions: registered by a private module": ("import rbln_like", "rbln_like", "import rbln_like  # registers \"rbln_like\""),
    "neuron: entry point": ("", "neuron_like", "import neuron_like  # entry point \"neuron_like\""),
    "ipex": ("import intel_extension_for_pytorch", "ipex", "import intel_extension_for_pytorch  # registers \"ipex\""),
    "habana: namespace package": ("import habana_frameworks.torch", "hpu_backend", "import habana_frameworks.torch  # registers \"hpu_backend\""),
    "dicp: first entry point": ("", "topsgraph_like", "import dicp_like.backends  # entry point \"topsgraph_like\""),
    "dicp: second entry point": ("", "ascendgraph_like", "import dicp_like.backends  # entry point \"ascendgraph_like\""),
}  # fmt: skip


@pytest.mark.parametrize(("imports", "name", "line"), ROWS.values(), ids=ROWS)
def test_registered_name_comes_back_with_the_import_that_registers_it(
    world: World, imports: str, name: str, line: str
) -> None:
    (found,) = world.find(f"{imports}\n{FIND}\nwrite(found({name!r}))")

    assert found["expression"] == repr(name)
    assert line in found["setup"]
    assert found["modules"][-1] == line.split()[1].partition(".")[0]
    ended = world.run(found)
    assert "result [2.0, 2.0]" in ended.output, ended.output
    assert "compiled by" in ended.output


def test_requirements_name_public_versions_only(world: World) -> None:
    openvino, hidet = world.find(
        f"import hidet_like\n{FIND}\nwrite(found('openvino_like'), found('hidet_like'))"
    )

    assert openvino["requirements"] == ["openvino-like==2025.1.0"]
    assert hidet["requirements"] == ["hidet-like==0.3"]
    assert hidet["remarks"] == ["hidet-like was 0.3+cu121 where this failed"]


def test_device_plugin_of_the_backend_is_imported_first(world: World) -> None:
    (found,) = world.find(f"import torch_xla, tt_like\n{FIND}\nwrite(found('tt_like'))")

    assert found["setup"][0] == "import torch_xla"
    output = world.run(found).output
    assert output.index("torch_xla imported") < output.index("compiled by tt_like on xla")


def test_plugin_that_is_loaded_but_not_used_stays_out(world: World) -> None:
    (found,) = world.find(f"import torch_npu, rbln_like\n{FIND}\nwrite(found('rbln_like'))")

    assert not any("torch_npu" in line for line in found["setup"])


def test_backend_of_torch_that_is_built_on_a_package_imports_it(world: World) -> None:
    tvm, openxla = world.find(f"{FIND}\nwrite(found('tvm'), found('openxla'))")

    assert 'import tvm  # "tvm" is built on it' in tvm["setup"]
    assert 'import torch_xla  # "openxla" is built on it' in openxla["setup"]


def test_options_and_mode_reach_the_backend(world: World) -> None:
    program = f"import hidet_like\n{FIND}\nwrite(found('hidet_like', options={{'level': 2}}))"
    (found,) = world.find(program)

    assert found["options"] == {"level": 2}
    assert "compiled by hidet_like None {'level': 2}" in world.run(found, options=found["options"]).output


def test_name_that_no_import_registers_comes_back_as_its_function(world: World) -> None:
    (found,) = world.find(f"import late_like\nlate_like.activate()\n{FIND}\nwrite(found('late_like'))")

    assert found["name"] == "late_like"
    assert found["expression"] == "late"
    assert "compiled by late_like" in world.run(found).output


def test_name_that_is_computed_comes_back_by_the_import_of_its_module(world: World) -> None:
    (found,) = world.find(f"import late_like\n{FIND}\nwrite(found('computed_like'))")

    assert found["expression"] == "'computed_like'"
    assert "compiled by computed" in world.run(found).output


# --- callables ---

CALLABLES = {
    "shadow_like.backend": "compiled by shadow_like",
    "thunder_like.shared": "compiled by thunder_like 4 0",
    "thunder_like.shared.build": "built by thunder_like 4",
    "thunder_like.ThunderCompiler.quick": "quickly compiled by thunder_like",
    "thunder_like.ThunderCompiler.plain": "plainly compiled by thunder_like",
    "thunder_like.COMPILERS['slow']": "compiled by thunder_like 0 0",
    "thunder_like.Presets.best": "compiled by thunder_like 9 0",
    "late_like.late": "compiled by late_like",
    "functools.partial(openvino, options={'n': 1})": "compiled by openvino_like {'n': 1}",
    "functools.partial(functools.partial(openvino), options=[torch.float16])": "openvino_like [torch.float16]",
    "aot_autograd(fw_compiler=turbine_like.cpu._compile)": "compiled by turbine_like",
    "turbine_like.cpu.backend": "compiled by turbine_like",
    "torch._inductor.compile_fx.compile_fx": "result",
    "eager": "result",
}


def test_callables_come_back_by_their_place(world: World) -> None:
    """One process for all: each expression, in the user's program and in a script of its own."""
    program = f"""
import functools, torch, shadow_like, thunder_like, late_like, turbine_like.cpu
from openvino_like.frontend.backend import openvino
from torch._dynamo.backends.common import aot_autograd
import torch._inductor.compile_fx
from torch._dynamo.backends.debugging import eager
{FIND}
write({", ".join(f"found({text})" for text in CALLABLES)})
"""
    answers = world.find(program)

    for (text, output), found in zip(CALLABLES.items(), answers, strict=True):
        assert "refused" not in found, (text, found)
        if "inductor" not in text:  # needs a C++ compiler
            ended = world.run(found)
            assert output in ended.output, (text, found["function"], ended.output)
            assert ended.status == 0


def test_aot_autograd_object_that_has_run_comes_back_as_it_was_made(world: World) -> None:
    """Its first call wraps the backward compiler and fills in the inference one."""
    program = f"""
import torch, turbine_like.cpu
from torch._dynamo.backends.common import aot_autograd
{FIND}
backend = aot_autograd(fw_compiler=turbine_like.cpu._compile)
torch.compile(lambda x: x + 1, backend=backend)(torch.ones(1))
write(found(aot_autograd(fw_compiler=turbine_like.cpu._compile)), *map(found, [backend]))
"""
    new, used = world.find(program)

    assert used["function"] == new["function"]


REFUSED = {
    "a closure": ("thunder_like.closure(2, {})", ["closure of thunder_like", "level, table", 'reference="thunder_like:closure(...)"']),
    "a closure of a factory": ("torchair_like.get_npu_backend()", ["closure of torchair_like", 'reference="torchair_like:get_npu_backend(...)"']),
    "a lambda": ("(lambda gm, inputs: gm)", ["it is a lambda of __main__", 'reference="my_pkg.mod:factory"']),
    "an instance": ("thunder_like.ThunderCompiler()", ["no global name holds", 'reference="thunder_like:ThunderCompiler(...)"']),
    "an object in a partial": ("functools.partial(openvino, options=object())", ["argument 'options' is no literal"]),
    "a closure in a partial": ("functools.partial(thunder_like.closure(1, 2), 3)", ["a closure of thunder_like"]),
    "an object among the options": ("'hidet_like', options={'passes': [1, object()]}", ["options['passes'][1] of backend hidet_like", "minidbg.wrap("]),
    "a name that nobody knows": ("'hidet_lik'", ["UnknownBackend", "did you mean 'hidet_like'"]),
}  # fmt: skip


def test_refusals_say_why_and_what_to_pass(world: World) -> None:
    program = f"""
import functools, thunder_like, torchair_like, hidet_like
from openvino_like.frontend.backend import openvino
{FIND}
write({", ".join(f"found({text})" for text, _ in REFUSED.values())})
"""
    answers = world.find(program)

    for (title, (_, parts)), found in zip(REFUSED.items(), answers, strict=True):
        for part in parts:
            assert part in found.get("refused", "nothing refused"), (title, found)


# --- the user's word ---


def test_users_reference_wins_over_what_would_be_found(world: World) -> None:
    program = f"""
import thunder_like
{FIND}
write(
    found(thunder_like.closure(1, 2), reference="thunder_like:make(level=2)"),
    found(thunder_like.closure(1, 2), reference="thunder_like:fast"),
    found(thunder_like.closure(1, 2), reference="thunder_like:shared"),
    found(thunder_like.closure(1, 2), setup="import tensorrt_like", reference="tensorrt_like"),
    found("tensorrt_like", setup=["import functools", "import tensorrt_like"]),
    found("rbln_like", setup="import rbln_like"),
)
"""
    made, factory, shared, named, known, registered = world.find(program)

    assert made["expression"] == "make(level=2)"
    assert "compiled by thunder_like 2 1" in world.run(made).output
    assert "compiled by thunder_like 7 0" in world.run(factory).output
    assert "compiled by thunder_like 4 0" in world.run(shared).output
    assert "compiled by tensorrt_like" in world.run(named).output
    assert known["setup"][:2] == ["import functools", "import tensorrt_like"]
    assert "compiled by rbln_like" in world.run(registered).output
