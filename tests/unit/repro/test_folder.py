"""Where repros lie, and under which names."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from minidbg.case import BackendRef, CallPath
from minidbg.failure import Kind, Signature
from minidbg.graphs.specs import Exactness
from minidbg.repro import captures, drafts, file_name, folder_of, keep_capture, read_header, write
from minidbg.repro import publish as publish_draft


def publish(case, folder):
    return publish_draft(case, write(case, drafts(folder) / "draft.py"), folder)


def test_the_file_that_was_verified_is_the_one_that_is_announced(make_case, tmp_path):
    draft = write(
        make_case(inputs=(torch.randn(30, 30),)), drafts(tmp_path) / "draft.py", exactness=Exactness.EXACT
    )
    stamps = [file.stat().st_ino for file in (draft, draft.with_suffix(".safetensors"))]
    path = publish_draft(make_case(), draft, tmp_path)
    assert [file.stat().st_ino for file in (path, path.with_suffix(".safetensors"))] == stamps
    assert not draft.parent.exists()


def test_the_name_says_kind_op_and_digest(make_case):
    kind, op, digest = file_name(make_case()).removesuffix(".py").split("_")
    assert (kind, op) == ("compile", "relu")
    assert len(digest) == 6


def test_the_same_failure_is_one_file(make_case, tmp_path):
    first = publish(make_case(), tmp_path)
    again = publish(make_case(inputs=(torch.randn(9),)), tmp_path)
    assert first == again
    assert [path.name for path in tmp_path.glob("*.py")] == [first.name]


def test_different_failures_never_share_a_file(make_case, tmp_path):
    cases = [
        make_case(),
        make_case(signature=Signature(Kind.COMPILE, message="other")),
        make_case(signature=Signature(Kind.RUNTIME, message="no relu here")),
        make_case(backend=BackendRef("inductor", '"inductor"')),
        make_case(backend=BackendRef("eager", '"eager"', options={"a": 1})),
        make_case(backend=BackendRef("eager", '"eager"', mode="m")),
        make_case(call=CallPath.DIRECT),
        make_case(backward=True),
    ]
    assert len({publish(case, tmp_path) for case in cases}) == len(cases)


def test_a_repro_that_a_person_edited_stays(make_case, tmp_path):
    path = publish(make_case(), tmp_path)
    path.write_text(path.read_text().replace('expect = "reproduces"', 'expect = "gone"'))
    publish(make_case(), tmp_path)
    assert read_header(path).expect == "gone"


def test_a_repro_that_cannot_be_read_is_left_as_it_is_and_the_new_one_lies_beside_it(make_case, tmp_path):
    """Issue 15: somebody was editing it just then."""
    path = publish(make_case(), tmp_path)
    path.write_text("half a sav")
    again = publish(make_case(), tmp_path)
    assert path.read_text() == "half a sav"
    assert again.name == path.stem + "_2.py"
    assert read_header(again).kind is Kind.COMPILE


def test_only_repros_lie_at_the_top(make_case, tmp_path):
    publish(make_case(), tmp_path)
    keep_capture(make_case(), tmp_path)
    drafts(tmp_path)
    names = sorted(os.listdir(tmp_path))
    assert names == [".minidbg", file_name(make_case())]
    assert (tmp_path / ".minidbg" / ".gitignore").read_text() == "*\n"


def test_the_folder_is_found_from_anything_in_it(make_case, tmp_path):
    for path in (
        publish(make_case(), tmp_path),
        keep_capture(make_case(), tmp_path),
        drafts(tmp_path) / "draft.py",
    ):
        assert folder_of(path) == tmp_path
    assert folder_of(captures(tmp_path)) == tmp_path


def test_drafts_of_several_processes_do_not_meet(tmp_path):
    assert drafts(tmp_path) != drafts(tmp_path)


def test_the_digest_does_not_depend_on_quotes_or_names(make_case, relu_graph):
    graph_module = relu_graph()
    next(iter(graph_module.graph.nodes)).name = "l_self_x_"
    one = make_case(graph_module, backend=BackendRef("eager", "'eager'"))
    assert file_name(one) == file_name(make_case())


@pytest.mark.slow
def test_two_processes_publish_into_one_folder(tmp_path):
    """Each writes the same three failures; three whole files are left."""
    program = """
import sys, torch
from torch import fx
from minidbg import repro
from minidbg.case import BackendRef, Case
from minidbg.failure import Kind, Signature
from minidbg.graphs.specs import Exactness
graph = fx.Graph()
graph.output((graph.call_method("relu", (graph.placeholder("x"),)),))
gm = fx.GraphModule(torch.nn.Module(), graph)
for number in range(3):
    signature = Signature(Kind.COMPILE, message=f"number {number}")
    case = Case(gm, (torch.randn(200, 200),), BackendRef("b", '"b"'), signature=signature)
    draft = repro.write(case, repro.drafts(sys.argv[1]) / "draft.py", exactness=repro.Exactness.EXACT)
    print(repro.publish(case, draft, sys.argv[1]))
"""
    run = [sys.executable, "-c", program, str(tmp_path)]
    children = [subprocess.Popen(run, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [child.communicate(timeout=200)[0] for child in children]
    assert said[0] == said[1]
    scripts = [Path(line) for line in said[0].splitlines()]
    assert sorted(tmp_path.glob("*.py")) == sorted(scripts)
    assert all(read_header(path).dependencies[-1] == "numpy" for path in scripts)


def test_the_name_has_the_op_that_the_error_names(make_case):
    from torch import fx

    graph = fx.Graph()
    x = graph.placeholder("x")
    for op in ("cumsum", "add"):
        x = graph.call_method(op, (x, 0))
    graph.output((x,))
    graph_module = fx.GraphModule(torch.nn.Module(), graph)
    signature = Signature(Kind.COMPILE, frames=("torch.passes:pointless_cumsum_replacement",))
    assert file_name(make_case(graph_module, signature=signature)).startswith("compile_cumsum_")
    assert file_name(make_case(graph_module)).startswith("compile_add_")
