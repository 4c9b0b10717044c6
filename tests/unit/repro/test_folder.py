"""Where scripts go: the repro folder, and files that are written whole or not at all."""

import os
import stat
import time

import pytest
import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import load_file
from torch import fx

from minidbg.core.errors import CannotWrite
from minidbg.core.files import replace_file
from minidbg.core.outcome import Kind, Signature
from minidbg.core.run_spec import BackendRef, CallPath
from minidbg.repro import (
    Exactness,
    captures,
    discard,
    drafts,
    file_name,
    folder_of,
    keep_capture,
    read_header,
    write,
)
from minidbg.repro import publish as publish_draft
from minidbg.repro.folder import as_safetensors
from minidbg.watch.queries import status_rows
from minidbg.workers.leftovers import this_place


def publish(case, folder):
    return publish_draft(case, write(case, drafts(folder) / "draft.py"), folder)


def test_the_file_that_was_verified_is_the_one_that_is_announced(make_case, tmp_path):
    case = make_case(inputs=(torch.randn(30, 30),))
    draft = write(case, drafts(tmp_path) / "draft.py", exactness=Exactness.EXACT)
    stamps = [file.stat().st_ino for file in (draft, draft.with_suffix(".safetensors"))]
    path = publish_draft(make_case(), draft, tmp_path)
    assert [file.stat().st_ino for file in (path, path.with_suffix(".safetensors"))] == stamps
    assert not draft.parent.exists()


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


def test_what_nothing_has_run_since_is_listed_with_the_time_it_was_written(make_case, tmp_path):
    publish(make_case(), tmp_path)
    (row,) = status_rows(tmp_path)
    assert row["verdict"] is None
    assert abs(row["written"] - time.time()) < 100


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
    assert read_header(again).spec.expected.kind is Kind.COMPILE


def test_the_folder_is_found_from_anything_in_it(make_case, tmp_path):
    kept = publish(make_case(), tmp_path), keep_capture(make_case(), tmp_path)
    for path in (*kept, drafts(tmp_path) / "draft.py"):
        assert folder_of(path) == tmp_path
    assert folder_of(captures(tmp_path)) == tmp_path


def test_drafts_of_several_processes_do_not_meet_and_those_of_a_killed_one_go(tmp_path):
    own = drafts(tmp_path)
    killed = own.with_name(f"minidbg-draft-{this_place()}-{2**22 + 5}-1000-abc")
    killed.mkdir()
    (killed / "draft.py").touch()
    other = drafts(tmp_path)
    assert sorted(own.parent.iterdir()) == sorted({own, other})


def test_the_digest_does_not_depend_on_quotes_or_names(make_case, relu_graph):
    graph_module = relu_graph()
    next(iter(graph_module.graph.nodes)).name = "l_self_x_"
    one = make_case(graph_module, backend=BackendRef("eager", "'eager'"))
    assert file_name(one) == file_name(make_case())


def test_the_name_has_the_op_that_the_error_names(make_case):
    graph_module = fx.symbolic_trace(lambda x: (x.cumsum(0).add(0),))
    signature = Signature(Kind.COMPILE, frames=("torch.passes:pointless_cumsum_replacement",))
    assert file_name(make_case(graph_module, signature=signature)).startswith("compile_cumsum_")
    assert file_name(make_case(graph_module)).startswith("compile_add_")


@pytest.mark.parametrize("mask", [0, 0o022, 0o077])
def test_a_capture_and_the_folders_around_it_are_for_their_owner_alone(make_case, tmp_path, mask):
    before = os.umask(mask)
    try:
        path = keep_capture(make_case(inputs=(torch.randint(900, (30, 30)),)), tmp_path / "r")
        repro = publish_draft(
            make_case(), write(make_case(), drafts(tmp_path / "r") / "d.py"), tmp_path / "r"
        )
    finally:
        os.umask(before)
    modes = {one: stat.S_IMODE(one.stat().st_mode) for one in (tmp_path / "r" / ".minidbg").rglob("*")}
    assert modes[path] == modes[path.with_suffix(".safetensors")] == 0o600
    assert {mode for one, mode in modes.items() if one.is_dir()} == {0o700}
    assert stat.S_IMODE((tmp_path / "r" / ".minidbg").stat().st_mode) == 0o700
    assert stat.S_IMODE(repro.stat().st_mode) == 0o664 & ~mask, "a repro is made to be shared"


def test_each_storage_is_stored_once_as_bytes(make_case, tmp_path):
    base = torch.randn(20, 20)
    case = make_case(fx.symbolic_trace(lambda x, y: (x, y)), (base, base.t()))
    path = write(case, tmp_path / "r.py", exactness=Exactness.EXACT)
    stored = load_file(path.with_suffix(".safetensors"))
    found = [(key, value.dtype, value.numel()) for key, value in stored.items()]
    assert found == [("storage", torch.uint8, 1600)]


def test_a_failed_write_leaves_what_was_there(make_case, tmp_path):
    path = write(make_case(), tmp_path / "r.py")
    before = path.read_bytes()
    with pytest.raises(CannotWrite):
        write(make_case(inputs=(torch.eye(4).to_sparse(),)), path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["r.py"]


def test_a_write_that_is_cut_off_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "r.py"
    path.write_text("old")

    def full_disk(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space"):
        replace_file(path, b"new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["r.py"]


def test_tensors_that_are_no_longer_needed_go(make_case, tmp_path):
    case = make_case(inputs=(torch.randn(30, 30),))
    path = write(case, tmp_path / "r.py", exactness=Exactness.EXACT)
    write(case, path)
    assert os.listdir(tmp_path) == ["r.py"]


def test_discarded_drafts_leave_nothing(make_case, tmp_path):
    place = drafts(tmp_path)
    path = write(make_case(inputs=(torch.randn(30, 30),)), place / "draft.py", exactness=Exactness.EXACT)
    (place / "__pycache__").mkdir()
    (place / "__pycache__" / "draft.pyc").touch()
    discard(path)
    assert os.listdir(place.parent) == []
    discard(path)


def test_tensors_that_share_their_memory_are_stored_each():
    base = torch.arange(8, dtype=torch.uint8)
    found = load_tensors(as_safetensors({"all": base, "end": base[2:]}))
    assert torch.equal(found["all"], base)
    assert torch.equal(found["end"], base[2:])
