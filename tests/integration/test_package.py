"""What ``pip install`` gets: the files of the wheel and of the sdist, and the packages that come with them.

``.ci/run`` installs the wheel in an environment that has nothing else, and runs the demo there.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from email import message_from_bytes
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import minidbg

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "minidbg"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NEVER_IMPORTED = {"numpy"}  # safetensors imports it
OPTIONAL = {"pytest"}  # in the pytest plugin


def built(source: Path, target: Path, *what: str) -> Path:
    """``source`` built by its own build backend, without the network."""
    pytest.importorskip("hatchling", reason="pip install -e '.[test]' brings hatchling")
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(target), *what]
    subprocess.run(command, cwd=source, check=True, capture_output=True, timeout=120)
    return target


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(ROOT, tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def wheel(dist: Path) -> zipfile.ZipFile:
    return zipfile.ZipFile(next(dist.glob("*.whl")))


def files_below(folder: Path) -> set[str]:
    return {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_holds_the_package_with_its_templates_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    package = {f"minidbg/{name}" for name in files_below(PACKAGE)}
    templates = {f"minidbg/repro_templates/{name}" for name in files_below(ROOT / "repro_templates")}
    assert names == package | templates
    for part in ("py.typed", "ARCHITECTURE.md", "help/changes.md", "repro_templates/script.py.j2"):
        assert f"minidbg/{part}" in names


def test_the_wheel_has_the_version_and_the_entry_points_of_the_source(wheel: zipfile.ZipFile) -> None:
    folder = f"minidbg-{minidbg.__version__}.dist-info"
    metadata = message_from_bytes(wheel.read(f"{folder}/METADATA"))
    assert metadata["Version"] == minidbg.__version__
    assert metadata.get_payload().strip() == (ROOT / "README.md").read_text().strip()
    points = wheel.read(f"{folder}/entry_points.txt").decode()
    assert points.count("\nminidbg = ") == 3  # the command, torch's backend, the pytest plugin


@pytest.mark.slow
def test_the_sdist_builds_the_same_wheel(dist: Path, tmp_path: Path) -> None:
    with tarfile.open(next(dist.glob("*.tar.gz"))) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    assert (source / "tests" / "integration" / Path(__file__).name).is_file()
    (again,) = built(source, tmp_path / "again", "-t", "wheel").iterdir()
    assert again.read_bytes() == (dist / again.name).read_bytes()


TYPED = """
import torch
import minidbg


def f(x: torch.Tensor) -> torch.Tensor:
    return x + 1


torch.compile(f, backend=minidbg.wrap("inductor", verify="never", tolerances={"float16": (1e-2, 1e-3)}))
report: minidbg.Report | None = minidbg.report_of(ValueError())
gone: bool = minidbg.check("repro.py").verdict is minidbg.Verdict.GONE
minidbg.wrap("inductor", verif="never")
minidbg.no_such_name()
"""


@pytest.mark.slow
def test_a_type_checker_knows_the_public_names_and_arguments(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(TYPED)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), "program.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280)
    errors = [line.partition(": error: ")[2] for line in done.stdout.splitlines() if ": error: " in line]
    assert [error.rpartition("[")[2] for error in errors] == ["call-arg]", "attr-defined]"], done.stdout


def imported(path: Path) -> Iterator[str]:
    """The first part of each module's name that a file imports, late imports included."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def distributions_of(files: Iterator[Path]) -> set[str]:
    """The distributions whose modules the files import."""
    modules = {name for path in files for name in imported(path)} - sys.stdlib_module_names - {"minidbg"}
    known = packages_distributions()
    return {canonicalize_name(dist) for module in modules for dist in known.get(module, [module])[:1]}


def names_of(requirements: list[str]) -> set[str]:
    return {canonicalize_name(Requirement(text).name) for text in requirements}


@pytest.mark.slow
def test_a_plain_install_brings_what_is_imported_and_nothing_else() -> None:
    extras = PACKAGE / "extras"
    needed = distributions_of(path for path in PACKAGE.rglob("*.py") if not path.is_relative_to(extras))
    assert (needed - OPTIONAL) | NEVER_IMPORTED == names_of(PROJECT["dependencies"])


@pytest.mark.parametrize("extra", ["hunt"])
def test_an_extra_brings_what_its_folder_imports(extra: str) -> None:
    optional = names_of(PROJECT["optional-dependencies"][extra])
    needed = distributions_of((PACKAGE / "extras" / extra).rglob("*.py"))
    assert needed - names_of(PROJECT["dependencies"]) <= optional
