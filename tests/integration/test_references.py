"""Every way to register a backend, found in one process and brought back in a fresh one that has no minidbg."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.command_line import python

pytestmark = pytest.mark.slow

STAND_INS = Path(__file__).parents[1] / "stand_ins"

FIND = """
import json
import torch
from minidbg import backends
from minidbg.core.errors import MinidbgError


def found(backend, **given):
    try:
        return with_graph(backends.find_reference(backend, **given))
    except MinidbgError as error:
        return {"refused": f"{type(error).__name__}: {error}"}


def with_graph(ref, *graph, **given):
    if graph:
        ref = backends.with_operators(ref, *graph, **given)
    again = backends.resolve(ref)
    assert again is not None
    fields = {name: getattr(ref, name) for name in ref.__slots__}
    return {**fields, "assignment": backends.assignment(ref)}


def write(*found):
    with open("found.json", "w") as file:
        json.dump(found, file, default=dict)

"""

RUN = """
import sys
import torch

sys.path += {paths!r}
{above}

{assignment}

class Repro(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x) + {calls}


def main():
    compiled = torch.compile(Repro(), backend=backend, fullgraph=True, **{given!r})
    print("result", compiled(torch.ones(2)).tolist())
    assert not any(name.startswith("minidbg.") for name in sys.modules)


if __name__ == "__main__":
    main()
"""


@dataclass
class World:
    """A folder for a user's program and another for the script; each runs in an interpreter of its own."""

    folder: Path

    def find(self, program: str, *, name: str = "train.py", files: dict[str, str] | None = None) -> list[Any]:
        """What the user's ``program`` has given to ``write``; ``files`` lie beside it."""
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        whole = f"import sys\nsys.path.append({str(STAND_INS)!r})\n{program}"
        for path, text in {**(files or {}), name: whole}.items():
            (home / path).parent.mkdir(parents=True, exist_ok=True)
            (home / path).write_text(text)
        module = name.removesuffix(".py").replace("/", ".")
        output_of(*(["-m", module] if "/" in name else [name]), cwd=home)
        answers: list[Any] = json.loads((home / "found.json").read_text())
        return answers

    def found(self, program: str, *backends: str, **more: Any) -> list[Any]:
        """What references say of each of ``backends``, expressions with what else ``find`` is given, at the end of ``program``."""
        asked = ", ".join(f"found({backend})" for backend in backends)
        return self.find(f"{program}\n{FIND}\nwrite({asked})", **more)

    def run(self, found: dict[str, Any], calls: str = "1", **given: Any) -> str:
        """What the rendered script says, run from another folder."""
        script = self.write(found, calls, **given)
        return output_of(script, cwd=script.parent)

    def write(self, found: dict[str, Any], calls: str = "1", **given: Any) -> Path:
        above = "\n".join([*found["setup"], found["embedded"]])
        given = {"given": given, "paths": found["paths"], "assignment": found["assignment"]}
        text = RUN.format(calls=calls, above=above, **given)
        elsewhere = self.folder / "elsewhere"
        elsewhere.mkdir(exist_ok=True)
        (elsewhere / "repro.py").write_text(text)
        return elsewhere / "repro.py"


def output_of(*words: object, cwd: Path) -> str:
    """What an interpreter that ends well prints."""
    ended = python(*words, cwd=cwd, env={"OMP_NUM_THREADS": "1"})
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


# --- names ---

ROWS = {
    "torch_tensorrt: the second name of its file": ("import tensorrt_like", "aot_tensorrt_like", "import tensorrt_like.dynamo.backend.backends  # registers \"aot_tensorrt_like\""),
    "openvino: entry point": ("", "openvino_like", "import openvino_like.frontend.backend  # entry point \"openvino_like\""),
    "hidet: registered in __init__": ("import hidet_like", "hidet_like", "import hidet_like  # registers \"hidet_like\""),
    "IREE turbine: entry point to an aot_autograd object": ("", "turbine_like_cpu", "import turbine_like.cpu  # entry point \"turbine_like_cpu\""),
    "tenstorrent: needs torch_xla": ("import torch_xla, tt_like", "tt_like", "import tt_like.dynamo  # registers \"tt_like\""),
    "habana: namespace package": ("import habana_frameworks.torch", "hpu_backend", "import habana_frameworks.torch  # registers \"hpu_backend\""),
    "dicp: second entry point": ("", "ascendgraph_like", "import dicp_like.backends  # entry point \"ascendgraph_like\""),
}  # fmt: skip


@pytest.mark.parametrize(("imports", "name", "line"), ROWS.values(), ids=ROWS)
def test_registered_name_comes_back_with_the_import_that_registers_it(
    world: World, imports: str, name: str, line: str
) -> None:
    (found,) = world.found(imports, repr(name))
    assert found["expression"] == repr(name)
    assert line in found["setup"]
    assert found["modules"][-1] == line.split()[1].partition(".")[0]
    ended = world.run(found)
    assert "result [2.0, 2.0]" in ended, ended
    assert "compiled by" in ended


def test_backend_of_torch_that_is_built_on_a_package_imports_it(world: World) -> None:
    tvm, openxla = world.found("", "'tvm'", "'openxla'")
    assert 'import tvm  # "tvm" is built on it' in tvm["setup"]
    assert 'import torch_xla  # "openxla" is built on it' in openxla["setup"]


def test_options_and_mode_reach_the_backend(world: World) -> None:
    (found,) = world.found("import hidet_like", "'hidet_like', options={'level': 2}")
    assert found["options"] == {"level": 2}
    assert "compiled by hidet_like None {'level': 2}" in world.run(found, options=found["options"])


NO_TOP_LEVEL_REGISTERS = {
    "late_like": ("import late_like\nlate_like.activate()", "late", "compiled by late_like"),
    "rbln_like": ("import rbln_like", "rbln_compile", "compiled by rbln_like"),
    "computed_like": ("import late_like", "'computed_like'", "compiled by computed"),
    "migraphx_like": ("import migraphx_like", "functools.partial(_compile, use_aot=False)", "compiled by migraphx_like False"),
    "migraphx_like_aot": ("import migraphx_like", "aot_autograd(fw_compiler=functools.partial(_compile, use_aot=True))", "compiled by migraphx_like True"),
}  # fmt: skip
"""By its function: where another module registers it, or a function of its own; or by the import of its module, as the last way."""


@pytest.mark.parametrize("name", NO_TOP_LEVEL_REGISTERS)
def test_name_that_no_source_registers_comes_back_all_the_same(world: World, name: str) -> None:
    imports, expression, said = NO_TOP_LEVEL_REGISTERS[name]
    (found,) = world.found(imports, repr(name))
    assert (found["name"], found["expression"]) == (name, expression)
    assert said in world.run(found)


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
    program = """
import functools, torch, shadow_like, thunder_like, late_like, turbine_like.cpu
from openvino_like.frontend.backend import openvino
from torch._dynamo.backends.common import aot_autograd
import torch._inductor.compile_fx
from torch._dynamo.backends.debugging import eager
"""
    for (text, output), found in zip(CALLABLES.items(), world.found(program, *CALLABLES), strict=True):
        assert "refused" not in found, (text, found)
        if "inductor" not in text:  # needs a C++ compiler
            ended = world.run(found)
            assert output in ended, (text, found["assignment"], ended)


def test_aot_autograd_object_that_has_run_comes_back_as_it_was_made(world: World) -> None:
    """Its first call wraps the backward compiler and fills in the inference one."""
    program = """
import torch, turbine_like.cpu
from torch._dynamo.backends.common import aot_autograd
used = [aot_autograd(fw_compiler=turbine_like.cpu._compile)]
torch.compile(lambda x: x + 1, backend=used[0])(torch.ones(1))
"""
    new, used = world.found(program, "aot_autograd(fw_compiler=turbine_like.cpu._compile)", "used[0]")
    assert (used["setup"], used["assignment"]) == (new["setup"], new["assignment"])


REFUSED = {
    "a closure": ("thunder_like.closure(2, {})", ["a closure of __init__.py:", 'reference="my_pkg.mod:factory()"']),
    "a closure of a factory": ("torchair_like.get_npu_backend()", ["a closure of __init__.py:", 'reference="my_pkg.mod:factory()"']),
    "a lambda": ("(lambda gm, inputs: gm)", ["a lambda of train.py:", 'reference="my_pkg.mod:factory()"']),
    "an instance": ("thunder_like.ThunderCompiler()", ["no global name holds it, an object of the class ThunderCompiler of __init__.py:", 'reference="my_pkg.mod:factory()"']),
    "an object in a partial": ("functools.partial(openvino, options=object())", ["argument 'options' is not a literal"]),
    "a closure in a partial": ("functools.partial(thunder_like.closure(1, 2), 3)", ["a closure of __init__.py:"]),
    "an object among the options": ("'hidet_like', options={'passes': [1, object()]}", ["options['passes'][1] of backend hidet_like", "minidbg.wrap("]),
    "a name that nobody knows": ("'hidet_lik'", ["UnknownBackend", "did you mean 'hidet_like'"]),
}  # fmt: skip


def test_refusals_say_why_and_what_to_pass(world: World) -> None:
    program = """
import functools, thunder_like, torchair_like, hidet_like
from openvino_like.frontend.backend import openvino
"""
    answers = world.found(program, *(text for text, _ in REFUSED.values()))
    for (title, (_, parts)), found in zip(REFUSED.items(), answers, strict=True):
        for part in parts:
            assert part in found.get("refused", "nothing refused"), (title, found)


# --- the user's word ---


def test_users_reference_wins_over_what_would_be_found(world: World) -> None:
    made, factory, shared, named, known, registered = world.found(
        "import thunder_like",
        'thunder_like.closure(1, 2), reference="thunder_like:make(level=2)"',
        'thunder_like.closure(1, 2), reference="thunder_like:fast()"',
        'thunder_like.closure(1, 2), reference="thunder_like:shared"',
        'thunder_like.closure(1, 2), setup="import tensorrt_like", reference="tensorrt_like"',
        '"tensorrt_like", setup=["import functools", "import tensorrt_like"]',
        '"rbln_like", setup="import rbln_like"',
    )
    assert made["expression"] == "make(level=2)"
    assert "compiled by thunder_like 2 1" in world.run(made)
    assert "compiled by thunder_like 7 0" in world.run(factory)
    assert "compiled by thunder_like 4 0" in world.run(shared)
    assert "compiled by tensorrt_like" in world.run(named)
    assert known["setup"][:2] == ["import functools", "import tensorrt_like"]
    assert "compiled by rbln_like" in world.run(registered)


# --- scripts ---

PROGRAM = '''
"""A user's training program."""
import functools
import os
import torch
from torch import nn
from torch._dynamo import register_backend
from torch._dynamo.backends.common import aot_autograd, fake_tensor_unsupported
from math import *
import sibling
from sibling import shout as cry

LEVEL = 2
WORD = " ".join(["several", "words"])
FROM_OUTSIDE = os.environ.get("NOT_SET_ANYWHERE", "default")
seen = []
seen.append(object())
COUNT = 1
globals()["COUNT"] = 2
MADE = object() if sys.argv else 1
inputs = 3
weights = nn.Linear(2, 2)
for lent in [object()]:
    pass
try:
    import not_there_at_all as quick
except ImportError:
    quick = None


class CompileError(RuntimeError):
    pass


def helper(gm):
    seen.append(gm)
    if len(seen) > 100:
        raise CompileError
    return f"level {LEVEL + floor(0.5)}, {WORD}, {FROM_OUTSIDE} {COUNT} {quick}"


def plain(gm, example_inputs):
    """Two lines
    of docstring."""
    # a comment of the user's
    print("compiled by plain:", helper(gm))
    return gm.forward


def with_sibling(gm, example_inputs):
    print("compiled by", cry("with_sibling"))
    return plain(gm, example_inputs)


def with_late_import(gm, example_inputs):
    import sibling as late

    print("compiled by", late.shout("with_late_import"))
    return gm.forward


def with_relative_import(gm, example_inputs):
    from . import sibling


@register_backend(name="of_the_script")
def registered(gm, example_inputs):
    print("compiled by registered")
    return gm.forward


register_backend(functools.partial(plain), name="partial_of_the_script")


@fake_tensor_unsupported
def decorated(gm, example_inputs):
    print("compiled by decorated")
    return gm.forward


class Compiler:
    def __init__(self, level):
        self.level = level

    def __call__(self, gm, example_inputs):
        print("compiled by Compiler", self.level)
        return gm.forward

    def build(self, gm, example_inputs):
        print("built by Compiler", self.level)
        return gm.forward


def run(gm):
    return gm.forward


def backend(gm, example_inputs):
    """Its name is the script's own."""
    print("compiled by backend")
    return run(gm)


def surroundings():
    def local(gm, example_inputs):
        print("compiled by local", LEVEL)
        return gm.forward

    return local


compiler = Compiler(level=3)
over_aot = aot_autograd(fw_compiler=plain)
named_lambda = lambda gm, example_inputs: (print("compiled by named_lambda"), gm.forward)[1]
'''

SIBLING = {"sibling.py": "def shout(word):\n    return word.upper()\n"}

OF_A_SCRIPT = {
    "plain": "compiled by plain: level 2, several words, default 2 None",
    "with_sibling": "compiled by WITH_SIBLING",
    "with_late_import": "compiled by WITH_LATE_IMPORT",
    "registered": "compiled by registered",
    "'of_the_script'": "compiled by registered",
    "'partial_of_the_script'": "compiled by plain",
    "decorated": "compiled by decorated",
    "backend": "compiled by backend",
    "compiler": "compiled by Compiler 3",
    "compiler.build": "built by Compiler 3",
    "over_aot": "compiled by plain",
    "aot_autograd(fw_compiler=plain, bw_compiler=with_sibling)": "compiled by plain",
    "functools.partial(plain)": "compiled by plain",
    "named_lambda": "compiled by named_lambda",
    "surroundings()": "compiled by local 2",
    "guarded": "compiled by guarded",
}


def test_backends_of_a_script_come_back_without_it(world: World) -> None:
    """By their source; its ``__main__`` block never runs again."""
    program = f"""{PROGRAM}

if __name__ == "__main__":
    print("the main block ran")

    def guarded(gm, example_inputs):
        print("compiled by guarded")
        return plain(gm, example_inputs)
{FIND.replace(chr(10), chr(10) + "    ")}
    write({", ".join(f"found({text})" for text in OF_A_SCRIPT)})
"""
    answers = world.find(program, files=SIBLING)
    for (text, output), found in zip(OF_A_SCRIPT.items(), answers, strict=True):
        assert "refused" not in found, (text, found)
        ended = world.run(found)
        assert output in ended, (text, ended)
        assert "the main block ran" not in ended


def test_copied_source_keeps_comments_and_takes_only_what_is_used(world: World) -> None:
    (found,) = world.found(PROGRAM, "plain", files=SIBLING)
    assert "# a comment of the user's" in found["embedded"]
    for line in (
        "from math import floor",
        "WORD = 'several words'  # its value when this failed",
        "FROM_OUTSIDE = 'default'  # its value when this failed",
        "COUNT = 2  # its value when this failed",
        "seen = []",
        "quick = None  # its value when this failed",
    ):
        assert line in found["embedded"].splitlines(), line
    for unused in ("sibling", "weights", "nn", "register_backend", "os", "inputs"):
        assert unused not in found["embedded"].replace("os", "os ").split(), unused
    assert found["paths"] == []


NOT_COPIED = {
    "lambda gm, inputs: weights": "weights is a Linear",
    "lambda gm, inputs: MADE": "MADE was made with sys",
    "lambda gm, inputs: __file__": "it uses __file__",
    "lambda gm, inputs: backends": "it uses minidbg itself",
    "lambda gm, inputs: lent": "lent has no single definition that could be copied",
    "lambda gm, given: inputs": "a script has a inputs of its own",
    "lambda gm, inputs: backend": "a script has a backend of its own",
    "with_relative_import": "relative to its package",
}


def test_what_only_the_whole_program_makes_is_not_copied(world: World) -> None:
    functions = [f"def of_{number}(*a): return ({text})(*a)" for number, text in enumerate(NOT_COPIED)]
    program = "\n".join([PROGRAM, *functions])
    asked = (f"of_{number}" for number in range(len(functions)))
    for why, found in zip(NOT_COPIED.values(), world.found(program, *asked, files=SIBLING), strict=True):
        assert why in found["refused"], (why, found)


def test_module_of_the_scripts_folder_is_found_there_where_no_other_folder_has_it(world: World) -> None:
    files = {
        "mine/__init__.py": "",
        "mine/compiler.py": "def compile(gm, inputs):\n    print('mine')\n    return gm.forward\n",
    }
    (found,) = world.found("import mine.compiler", "mine.compiler.compile", files=files)
    assert found["paths"] == [str(world.folder / "home")]
    assert found["setup"] == ["from mine.compiler import compile"]
    assert found["remarks"] == ["mine is on no index: it was imported from the folder home"]
    assert "mine\nresult" in world.run(found)

    other = world.folder / "elsewhere" / "mine"
    other.mkdir()
    (other / "__init__.py").touch()
    (other / "compiler.py").write_text(files["mine/compiler.py"].replace("mine", "other"))
    assert "other\nresult" in world.run(found)


def test_program_run_by_python_m_keeps_its_relative_imports(world: World) -> None:
    files = {"pkg/__init__.py": "", "pkg/near.py": SIBLING["sibling.py"]}
    program = f"""
import torch
from .near import shout
{FIND}

def compiler(gm, inputs):
    print("compiled by", shout("compiler"))
    return gm.forward

if __name__ == "__main__":
    print("the main block ran")
    write(found(compiler))
"""
    (found,) = world.find(program, name="pkg/train.py", files=files)

    ended = world.run(found)
    assert "compiled by COMPILER" in ended, ended
    assert "the main block ran" not in ended


def test_functions_of_a_notebook_come_back_by_the_source_of_their_cells(world: World) -> None:
    program = f"""
import linecache, sys
{FIND}
cells = [
    "import torch\\nimport functools\\nLEVEL = 1",
    "LEVEL = 2\\ndef helper():\\n    return LEVEL",
    "%matplotlib inline",
    "def compiler(gm, inputs):\\n    print('old')",
    "def compiler(gm, inputs):\\n    print('compiled in a cell', helper())\\n    return gm.forward",
]
main = sys.modules["__main__"]
path, _ = main.__file__, main.__dict__.pop("__file__")
for number, text in enumerate(cells):
    name = f"<ipython-input-{{number}}-0123456789ab>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    if not text.startswith("%"):
        exec(compile(text, name, "exec"), main.__dict__)
answer = found(compiler), found(lambda gm, inputs: gm)
write(*answer)
"""
    compiler, refused = world.find(program)

    assert compiler["embedded"].startswith("LEVEL = 2")
    assert "compiled in a cell 2" in world.run(compiler)
    assert "NothingLeadsThere" in refused["refused"]


def test_script_runs_under_isolated_python(world: World) -> None:
    """The real interpreter once: no environment, no user folder, another working directory."""
    (found,) = world.found(PROGRAM, "with_sibling", files=SIBLING)
    ended = python("-I", world.write(found), cwd="/", check=True)
    assert "compiled by WITH_SIBLING" in ended.stdout
    assert "result [2.0, 2.0]" in ended.stdout


# --- operators ---

OPERATORS = """
import torch
from torch import Tensor

SCALE = 3.0


def scale(x):
    return x * SCALE


@torch.library.custom_op("of_script::scaled", mutates_args=())
def scaled(x: Tensor) -> Tensor:
    return scale(x).clone()


@scaled.register_fake
def _(x):
    return torch.empty_like(x)


def backward(ctx, grad):
    return scale(grad)


torch.library.register_autograd("of_script::scaled", backward)

library = torch.library.Library("of_script_library", "DEF")
library.define("twice(Tensor x) -> Tensor")


@torch.library.impl(library, "twice", "CompositeExplicitAutograd")
def twice(x):
    return x * 2


@torch.library.register_fake("of_script_library::twice")
def _(x):
    return torch.empty_like(x)


@torch._dynamo.allow_in_graph
def allowed(x):
    return scale(x)


def model(x):
    return allowed(torch.ops.of_script.scaled(x) + torch.ops.of_script_library.twice(x))
"""

CAPTURED = """
graphs = []
torch.compile(model, backend=lambda gm, inputs: graphs.append(gm) or gm.forward, fullgraph=True)(torch.ones(2))
write(with_graph(backends.find_reference("eager"), *graphs))
"""


def test_operators_of_a_script_come_back_by_their_source(world: World) -> None:
    (found,) = world.find(f"{OPERATORS}\n{FIND}\n{CAPTURED}")

    calls = "allowed(torch.ops.of_script.scaled(x) + torch.ops.of_script_library.twice(x))"
    assert "result [16.0, 16.0]" in world.run(found, calls)
    # a second script of the same operators in one process, as pytest loads them
    script, twice = world.write(found, calls), world.folder / "elsewhere" / "both.py"
    run = f"runpy.run_path({str(script)!r}, run_name='__main__')"
    twice.write_text(f"import runpy\nfor _ in range(2):\n    {run}\n")
    assert output_of(twice, cwd=twice.parent).count("result [16.0, 16.0]") == 2


ADDED = """
import ops_like
import torch
from torch._higher_order_ops.effects import _EffectType, _register_effectful_op


def backward(ctx, grad):
    return grad * 2


def by_rows(info, in_dims, x):
    return x * 2, in_dims[0]


double = torch.ops.ops_like.double.default
torch.library.register_autograd("ops_like_library::triple", backward)
torch.library.register_vmap(double, by_rows)
torch.library.register_autocast(torch.ops.ops_like.quadruple.default, "cpu", torch.bfloat16)
_register_effectful_op(torch.ops.ops_like.double.default, _EffectType.ORDERED)
"""


@pytest.mark.parametrize("elsewhere", [False, True])
def test_operators_of_a_module_come_with_all_that_add_to_them_and_what_the_program_registers(
    world: World, elsewhere: bool
) -> None:
    calls = "torch.ops.ops_like.double(x) + torch.ops.ops_like_library.triple(x) + torch.ops.ops_like.quadruple(x)"
    above = "import adds_to_it\nimport torch" if elsewhere else ADDED
    program = f"{above}\n{FIND}\ndef model(x):\n    return {calls}\n{CAPTURED}"
    (found,) = world.find(program, files={"adds_to_it.py": ADDED})

    text = world.write(found, calls).read_text()
    parts = [line for line in ADDED.splitlines() if line.startswith(("torch.library", "_register"))]
    assert "import adds_to_it" in text if elsewhere else all(line in text for line in parts), text
    assert "import ops_like.schema  # adds to ops_like::double" in text
    assert "import ops_like.kernels" in text
    assert "result [10.0, 10.0]" in world.run(found, calls)


def test_operator_without_a_definition_is_refused_unless_the_user_says_how(world: World) -> None:
    program = f"""
import torch
{FIND}
space = {{}}
exec('lib = torch.library.Library("from_nowhere", "DEF")', {{"torch": torch}}, space)
space["lib"].define("op(Tensor x) -> Tensor")
space["lib"].impl("op", lambda x: x + 1, "CompositeImplicitAutograd")
graph = torch.fx.Graph()
x = graph.placeholder("x")
graph.output(graph.call_function(torch.ops.from_nowhere.op.default, (x,)))
gm = torch.fx.GraphModule(torch.nn.Module(), graph)
ref = backends.find_reference("eager")
try:
    backends.with_operators(ref, gm)
except MinidbgError as error:
    refused = {{"refused": str(error)}}
write(refused, with_graph(ref, gm, setup="import functools"))
"""
    refused, trusted = world.find(program)

    assert "the operator from_nowhere::op in the failing graph" in refused["refused"]
    assert 'setup="import my_ops"' in refused["refused"]
    assert trusted["expression"] == "'eager'"
