"""Scripts on disk are whole, and belong to the user."""

import os
import stat

import pytest
import torch
from safetensors.torch import load_file

from minidbg.errors import CannotWrite
from minidbg.repro import Exactness, discard, drafts, write
from minidbg.repro.folder import replace_file


@pytest.fixture
def umask():
    before = os.umask(0o027)
    yield 0o027
    os.umask(before)


def test_files_have_the_mode_of_the_users_umask(make_case, tmp_path, umask):
    path = write(make_case(inputs=(torch.randn(30, 30),)), tmp_path / "a" / "r.py", exactness=Exactness.EXACT)
    for file in (path, path.with_suffix(".safetensors")):
        assert stat.S_IMODE(file.stat().st_mode) == 0o666 & ~umask


def test_each_storage_is_stored_once_as_bytes(make_case, tmp_path):
    from torch import fx

    graph = fx.Graph()
    graph.output(tuple(graph.placeholder(name) for name in "xy"))
    base = torch.randn(20, 20)
    case = make_case(fx.GraphModule(torch.nn.Module(), graph), (base, base.t()))
    path = write(case, tmp_path / "r.py", exactness=Exactness.EXACT)
    stored = load_file(path.with_suffix(".safetensors"))
    assert [(key, value.dtype, value.numel()) for key, value in stored.items()] == [
        ("storage", torch.uint8, 1600)
    ]


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
