"""Where a script finds the code of its backend: by its place in the tree around it, wherever the script is run or moved."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import fx

from minidbg.core.run_spec import BackendRef, RunSpec
from minidbg.fx.case import Case
from minidbg.repro import read_header, write
from minidbg.repro.folder import captures

BACKEND = "def b(gm, inputs):\n    return gm.forward\n"


def case_of(backend):
    graph_module = fx.symbolic_trace(lambda x: (torch.relu(x),))
    return Case(graph_module, (torch.ones(2),), RunSpec(backend))


def imported(folder, name="my_near_pkg"):
    """A backend in a package that is found in ``folder``."""
    package = folder / name
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(BACKEND)
    return BackendRef("b", "b", setup=(f"from {name} import b",), paths=(str(folder),), modules=(name,))


def top_of(path):
    """What a script runs above its judge, and its backend."""
    return f"{path.read_text().partition('def test_repro')[0]}\nprint(backend.__name__)\n"


def backend_seen_from(path, cwd="/"):
    program = (
        "import sys; p = sys.argv[1]; exec(compile(sys.argv[2], p, 'exec'), {'__file__': p, '__name__': 'r'})"
    )
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", program, str(path), top_of(path)],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip() or done.stderr


@pytest.mark.parametrize("below", ["", "src", "python/src"])
def test_no_absolute_path_is_written_for_what_lies_around_the_repro_folder(below, tmp_path):
    backend = imported(tmp_path / "tree" / below)
    path = write(case_of(backend), tmp_path / "tree" / "minidbg_repros" / "r.py")
    assert str(tmp_path) not in path.read_text()
    assert read_header(path).spec.backend.paths == backend.paths


@pytest.mark.slow
def test_a_script_finds_its_backend_from_a_draft_a_sibling_folder_and_a_moved_tree(tmp_path):
    tree = tmp_path / "tree"
    path = write(case_of(imported(tree / "src")), tree / "minidbg_repros" / "r.py")
    assert backend_seen_from(path) == "b"
    for folder in (captures(path.parent), tree / "elsewhere" / "deeper"):
        folder.mkdir(parents=True, exist_ok=True)
        assert backend_seen_from(Path(shutil.copy(path, folder / "r.py"))) == "b"
    shutil.move(tree, tmp_path / "moved")
    assert backend_seen_from(tmp_path / "moved" / "minidbg_repros" / "r.py") == "b"
    alone = Path(shutil.copy(tmp_path / "moved" / "minidbg_repros" / "r.py", tmp_path / "r.py"))
    said = backend_seen_from(alone)
    assert "No module named 'my_near_pkg'" in said


def test_the_line_above_the_import_says_what_to_do(tmp_path):
    path = write(case_of(imported(tmp_path / "tree")), tmp_path / "tree" / "minidbg_repros" / "r.py")
    assert (
        "  # my_near_pkg; elsewhere: put its folder on PYTHONPATH\nfrom my_near_pkg import b\n"
        in path.read_text()
    )


def test_a_backend_of_another_tree_is_named_by_its_path(tmp_path):
    path = write(
        case_of(imported(tmp_path / "one" / "other")), tmp_path / "two" / "tree" / "minidbg_repros" / "r.py"
    )
    folder = str(tmp_path / "one" / "other")
    assert f"sys.path += [{folder!r}]  # my_near_pkg; elsewhere:" in path.read_text()
    assert read_header(path).spec.backend.paths == (folder,)


def test_one_repository_is_one_tree(tmp_path):
    (tmp_path / ".git").mkdir()
    path = write(case_of(imported(tmp_path / "src")), tmp_path / "out" / "today" / "minidbg_repros" / "r.py")
    assert str(tmp_path) not in path.read_text()
