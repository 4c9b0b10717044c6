"""A script read back is the case it was written from."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save
from support.graphs_to_write import graph_of

from minidbg.codegen.size import call_nodes, targets_of_calls
from minidbg.core.errors import UnreadableRepro
from minidbg.core.outcome import Direction, Kind, Signature
from minidbg.core.run_spec import BackendRef, CallPath, Context, Provenance
from minidbg.repro import Exactness, load, read_header, render, write


def owning_weights():
    """Constants that dynamo does not lift: those of a graph that is called directly, or of an AOT compiler's."""

    def build(graph, x):
        product = graph.call_function(torch.mm, (x, graph.get_attr("weight")))
        return (graph.call_function(torch.index_select, (product, 0, graph.get_attr("table"))),)

    return graph_of(build, root={"weight": torch.randn(30, 30), "table": torch.randint(0, 30, (100,))})


@pytest.mark.parametrize("exactness", Exactness)
@pytest.mark.parametrize("call", CallPath)
def test_weights_of_the_graph_are_read_back(make_case, tmp_path, call, exactness):
    case = make_case(owning_weights(), (torch.randn(30, 30),), call=call)
    path = write(case, tmp_path / "r.py", exactness=exactness)
    one, other = load(path), load(path)
    assert torch.equal(one.graph_module.weight, other.graph_module.weight)
    assert torch.equal(one.graph_module.table, case.graph_module.table)
    assert torch.equal(one.graph_module.weight, case.graph_module.weight) == (exactness is Exactness.EXACT)
    assert render(one, exactness=exactness).text == path.read_text()


CONTEXT = Context(
    grad=False, inference=True, autocast=(("cpu", "torch.bfloat16", False), ("cuda", "torch.float16", True)),
    deterministic=True, deterministic_warn_only=True, default_dtype="torch.float64", default_device="cpu",
    matmul_precision="medium", threads=3, env={"TORCH_LOGS": 'a"b'}, env_matters=True,
    config={"torch._inductor.config": {"max_autotune": True, "cpp.threads": None, "x": ("a", 1.5)}},
)  # fmt: skip


def test_every_field_of_a_case_comes_back(make_case, tmp_path):
    backend = BackendRef(
        name="mine",
        expression="make(2)",
        setup=("import json", "from os import (\n    path,\n    sep,\n)", 'text = """a\n    b"""'),
        embedded="# how it is made\ndef make(level):\n    return lambda gm, example_inputs: gm.forward",
        paths=("/nowhere/at/all",),
        options={"a": (1, None)},
        mode="fast",
        requirements=("mine==1.2",),
        remarks=("mine is not published",),
        modules=("mine",),
    )
    case = make_case(
        backend=backend,
        signature=Signature(
            Kind.RUNTIME, Direction.BACKWARD, ("a.B", "C"), ("m:f", "n:g"), 'said "hi" \\ \n # /// \x1b'
        ),
        context=CONTEXT,
        dynamic=None,
        dynamic_dims=((1,),),
        backward=True,
        tolerances={"any": (0.5, 0.25)},
        provenance=Provenance(
            nodes=812, message="no relu", torch_version="2.13.0+cpu", suspects=("add_2 linear", "relu")
        ),
    )
    path = write(case, tmp_path / "r.py")
    loaded, header = load(path), read_header(path)
    assert (header.dependencies, header.expect) == (("torch==2.13.0", "mine==1.2"), "reproduces")
    assert loaded.backend == backend
    assert replace(loaded.spec, backend=backend) == case.spec
    assert loaded.provenance == case.provenance
    assert callable(loaded.compiler)


def test_loading_leaves_random_streams_and_modes_alone(make_case, tmp_path):
    path = write(make_case(), tmp_path / "r.py")
    torch.manual_seed(3)
    before = torch.get_rng_state()
    with torch.inference_mode():
        loaded = load(path)
    assert torch.equal(torch.get_rng_state(), before)
    assert not loaded.inputs[0].is_inference()


class TestEdited:
    """A script that a person has changed."""

    def edited(self, make_case, tmp_path, *changes, **fields):
        path = write(make_case(**fields), tmp_path / "r.py")
        text = path.read_text()
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        path.write_text(text)
        return path

    def test_a_model_beyond_our_form_is_captured(self, make_case, tmp_path):
        forward = "        relu = x.relu()\n        return (relu,)"
        other = "        return tuple(helper(x * n) for n in range(2))"
        helper = "def helper(value):\n    return value.relu()\n\n\nclass Repro"
        loaded = load(self.edited(make_case, tmp_path, (forward, other), ("class Repro", helper)))
        assert targets_of_calls(loaded.graph_module).count(".relu") == 2
        assert "def helper" in loaded.backend.embedded

    def test_an_import_added_at_the_top_is_kept(self, make_case, tmp_path):
        path = self.edited(make_case, tmp_path, ("import torch\n\n", "import torch\nimport colorsys\n\n"))
        loaded = load(path)
        assert loaded.backend.setup == ("import colorsys",)
        assert "colorsys" in sys.modules
        assert "\nimport colorsys\n" in render(loaded).text

    def test_another_backend_is_the_one_that_is_loaded(self, make_case, tmp_path):
        made = 'def pick():\n    return "aot_eager"\n\n\nbackend = pick()'
        own = "def backend(gm, inputs):\n    return gm.forward"
        for text, name in ((made, None), ('backend = "aot_eager"', None), (own, "backend")):
            loaded = load(self.edited(make_case, tmp_path, ('\nbackend = "eager"\n', f"\n{text}\n")))
            again = load(write(loaded, tmp_path / "again.py"))
            for one in (loaded, again):
                assert getattr(one.compiler, "__name__", None) == name
                assert name or one.compiler == "aot_eager"

    def test_text_below_the_judge_does_not_matter(self, make_case, tmp_path):
        path = self.edited(make_case, tmp_path)
        path.write_text(path.read_text() + "\n# that is all\n")
        assert call_nodes(load(path).graph_module) == 1

    @pytest.mark.parametrize(
        ("change", "why"),
        [
            (("class Repro", "class Model"), "defines no Repro"),
            (("def inputs", "def values"), "defines no inputs"),
            (("def inputs", "def inputs("), "not a Python script"),
            (("    return (x,)\n", "    return (x, x)\n"), "inputs.. gives 2 values, the model takes 1"),
        ],
    )
    def test_what_cannot_be_read_is_told(self, make_case, tmp_path, change, why):
        path = self.edited(make_case, tmp_path, change)
        with pytest.raises(UnreadableRepro, match=why):
            load(path)

    def test_a_missing_module_is_told_by_its_name(self, make_case, tmp_path):
        backend = BackendRef("b", '"b"', setup=("import no_such_backend_package",))
        path = write(make_case(backend=backend), tmp_path / "r.py")
        with pytest.raises(ModuleNotFoundError, match="no_such_backend_package"):
            load(path)


def test_an_operator_defined_in_the_script_is_registered_once(make_case, tmp_path):
    source = """\
@torch.library.custom_op("repro_loading::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x):
    return torch.empty_like(x)"""
    exec("import torch\n" + source, {})
    twice = torch.ops.repro_loading.twice.default
    graph_module = graph_of(lambda graph, x: (graph.call_function(twice, (x,)),))
    backend = BackendRef("eager", '"eager"', embedded="import torch\n\n\n" + source)
    path = write(make_case(graph_module, backend=backend), tmp_path / "r.py")
    for _ in range(2):
        loaded = load(path)
        assert render(loaded).text == path.read_text()
        assert torch.equal(loaded.graph_module(torch.ones(2))[0], torch.full((2,), 2.0))


def test_annotations_of_embedded_definitions_need_no_names(make_case, tmp_path):
    """A program with ``from __future__ import annotations`` may annotate with what was only imported for typing."""
    source = "from __future__ import annotations\n\n\ndef mine(gm: NotHere, example_inputs):\n    return gm.forward"
    path = write(make_case(backend=BackendRef("mine", "mine", embedded=source)), tmp_path / "r.py")
    loaded = load(path)
    assert callable(loaded.compiler)
    assert render(loaded).text == path.read_text()


def test_a_script_says_what_is_to_be_filled_in_until_it_is(make_case, tmp_path):
    lacks = BackendRef(
        "make.backend", "...", setup=("import math",), missing_backend="a closure of train.py:4"
    )
    case = make_case(backend=lacks)
    path = write(case, tmp_path / "repro.py", exactness=Exactness.EXACT)

    read = load(path)
    assert read.backend == lacks
    text = path.read_text()
    assert "\nbackend = ...  # fill in: a closure of train.py:4\n" in text
    assert render(read, exactness=Exactness.EXACT).text == text

    path.write_text(text.replace("backend = ...  # fill in: a closure of train.py:4", 'backend = "eager"'))
    assert load(path).backend == replace(lacks, expression='"eager"', missing_backend="")
    assert "to be filled in" not in render(load(path), exactness=Exactness.EXACT).text


def pipe(path):
    path.unlink()
    os.mkfifo(path)


DAMAGE = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-9]),
    "empty": lambda path: path.write_bytes(b""),
    "a header without an end": lambda path: path.write_bytes(b"\xff" * 64),
    "another file's": lambda path: path.write_bytes(save({"other": torch.ones(2)})),
    "gone": Path.unlink,
    "a pipe": pipe,
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=list(DAMAGE))
def test_damaged_tensors_are_named_with_what_to_do(make_case, tmp_path, damage):
    path = tmp_path / "r.py"
    write(make_case(inputs=(torch.randn(100, 100),)), path, exactness=Exactness.EXACT)
    beside = path.with_suffix(".safetensors")
    assert beside.exists()
    load(path)
    damage(beside)
    with pytest.raises(UnreadableRepro, match=r"copy the file anew, together with its script") as refused:
        load(path)
    assert str(refused.value).startswith(f"{beside}: ")
