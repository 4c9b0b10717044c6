"""Repro scripts as pytest tests, in a pytest of its own: expected failures, fixes, crashes, xdist. No torch."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.command_line import python
from support.toy_repros import BROKEN, WORKS, script, toy_package

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

CRASHES = "def {op}(value):\n    import os, signal\n    os.kill(os.getpid(), signal.SIGSEGV)\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    ops = {"relu": BROKEN, "sin": WORKS, "cos": WORKS, "tan": BROKEN, "crash": CRASHES, "dies": CRASHES}
    toy_package(tmp_path / "src", ops)
    repros = tmp_path / "minidbg_repros"
    (repros / ".minidbg" / "captures").mkdir(parents=True)
    for op in ("relu", "sin", "dies"):
        (repros / f"{op}.py").write_text(script(op))
    (repros / "crash.py").write_text(script("crash", kind="crash"))
    (repros / "cos.py").write_text(script("cos", expect="gone"))
    (repros / "tan.py").write_text(script("tan", expect="gone"))
    (repros / ".minidbg" / "captures" / "capture.py").write_text(script("relu"))
    (repros / "no_repro.py").write_text("raise SystemExit('never imported')\n")
    return tmp_path


def run_pytest(folder: Path, *arguments: str, option: str = "--minidbg") -> tuple[int, str]:
    env = {"PYTHONPATH": str(folder / "src"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    words = ["-m", "pytest", "-p", "minidbg.pytest_plugin", "-p", "no:cacheprovider", "-rA"]
    done = python(*words, *filter(None, [option]), *arguments, cwd=folder, env=env, timeout=100)
    return done.returncode, done.stdout + done.stderr


def outcomes(text: str) -> dict[str, str]:
    """What the summary says of each test."""
    found = re.findall(
        r"^(PASSED|FAILED|XFAIL|SKIPPED|ERROR) (?:\[\d+\] )?\S*?(\w+\.py)(?:::\S+)?", text, flags=re.M
    )
    return {name: word for word, name in found}


NO_TESTS = int(pytest.ExitCode.NO_TESTS_COLLECTED)
EXPECTED = {
    "relu.py": "XFAIL", "crash.py": "XFAIL", "sin.py": "FAILED", "cos.py": "PASSED", "tan.py": "FAILED", "dies.py": "FAILED",
}  # fmt: skip


@pytest.mark.parametrize("more", [[], ["-p", "xdist", "-n", "2"]], ids=["alone", "xdist"])
def test_headers_say_what_is_expected_and_anything_else_fails(folder: Path, more: list[str]) -> None:
    status, text = run_pytest(folder, "minidbg_repros", *more)
    assert status == 1
    assert outcomes(text) == EXPECTED
    assert 'fixed: write expect = "gone" into the header' in text
    assert "reproduces" in text
    assert "crashed: died of SIGSEGV" in text
    assert "capture.py" not in text


def test_a_path_named_explicitly_is_collected_once(folder: Path) -> None:
    names = "minidbg_repros/cos.py", "minidbg_repros/cos.py::test_repro"
    status, text = run_pytest(folder, *names, "--collect-only", "-q")
    assert status == 0
    assert text.count("cos.py::test_repro[cpu]") == 1
    (folder / "minidbg_repros" / "test_like.py").write_text(script("cos", expect="gone"))
    _, text = run_pytest(folder, "minidbg_repros", "--collect-only", "-q")
    assert text.count("test_like.py::") == 1


def test_a_repro_folder_is_collected_without_options_where_the_command_line_names_it(folder: Path) -> None:
    """As modules of their own: a failure that is there is a test that fails."""
    for op in ("relu", "cos"):
        with (folder / "minidbg_repros" / f"{op}.py").open("a") as file:
            file.write(f"\n\ndef test_repro():\n    backend().{op}(3)\n")
    status, text = run_pytest(folder, "minidbg_repros", option="")
    assert (status, outcomes(text)) == (1, {"relu.py": "FAILED", "cos.py": "PASSED"})
    for elsewhere in (folder, folder / "minidbg_repros"):
        status, text = run_pytest(elsewhere, option="")
        assert (status, outcomes(text)) == (NO_TESTS, {})


def test_each_device_is_a_test_of_its_own(folder: Path) -> None:
    devices = "--minidbg-devices", "cpu,cuda:1"
    _, text = run_pytest(folder, "minidbg_repros/cos.py", *devices, "--collect-only", "-q")
    names = [line.partition("::")[2] for line in text.splitlines() if "::" in line]
    assert names == ["test_repro[cpu]", "test_repro[cuda:1]"]
    status, text = run_pytest(folder, "minidbg_repros/cos.py", "--minidbg-devices", "cpu;x")
    assert status == 4
    assert "is not a device" in text


def test_a_missing_backend_skips_and_a_damaged_repro_is_an_error(folder: Path) -> None:
    (folder / "src" / "toy").rename(folder / "src" / "moved")
    damaged = folder / "minidbg_repros" / "damaged.py"
    damaged.write_text("# /// script\n# [tool.minidbg]\n# kind = [\n# ///\n")
    status, text = run_pytest(folder, "minidbg_repros/cos.py", "minidbg_repros/damaged.py")
    assert status == 2
    assert "block is not valid TOML" in text
    status, text = run_pytest(folder, "minidbg_repros/cos.py", "minidbg_repros/relu.py")
    assert status == 0
    assert "2 skipped" in text


def test_a_hang_ends_at_the_time_limit(folder: Path) -> None:
    (folder / "src" / "toy" / "cos.py").write_text("def cos(value):\n    while True: pass\n")
    status, text = run_pytest(folder, "minidbg_repros/cos.py", "--minidbg-seconds", "1")
    assert status == 1
    assert "timeout: no answer within 1 s" in text
