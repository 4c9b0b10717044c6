"""``minidbg watch`` over a backend with compiled parts and data: real compilers, real daemons. No torch (issue 15)."""

from __future__ import annotations

import json
import shutil
import subprocess
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.command_line import python
from support.toy_repros import Checkout, git, script
from support.watch_driver import WatchProcess, steady, watching

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc"),
]

MODULE = """
#include <Python.h>
static PyObject *call(PyObject *self, PyObject *value) {{
    {body}
}}
static PyMethodDef methods[] = {{{{"call", call, METH_O, ""}}, {{NULL}}}};
static struct PyModuleDef module = {{PyModuleDef_HEAD_INIT, "{name}", "", -1, methods}};
PyMODINIT_FUNC PyInit_{name}(void) {{ return PyModule_Create(&module); }}
"""
FAILS = 'PyErr_SetString(PyExc_ValueError, "{op} is broken"); return NULL;'
WORKS = "return PyLong_FromLong(PyLong_AsLong(value) + 1);"
OPS = {"relu": FAILS, "sin": FAILS}
CALLS = "def {op}(value):\n    from toy import _{op}\n\n    return _{op}.call(value)\n"
TABLE = """
import json
from pathlib import Path

def table(value):
    if not json.loads(Path(__file__).with_name("table.json").read_text())["works"]:
        raise ValueError("table is broken")
    return value + 1
"""


class Lab(Checkout):
    """An editable package with C extensions that are built in place and ignored by git, a table, and its repros."""

    def __init__(self, folder: Path) -> None:
        ops = {**dict.fromkeys(OPS, CALLS), "table": TABLE.replace("{", "{{").replace("}", "}}")}
        super().__init__(folder, ops, {op: script(op) for op in ops})
        for op, body in OPS.items():
            self.write(op, body)
        (self.package / "table.json").write_text('{"works": false}')
        (self.source / "build.sh").write_text("set -e\n" + "".join(f"{self.compiler(op)}\n" for op in OPS))
        self.commit(ignored="*.so")
        self.build()

    def write(self, op: str, body: str) -> None:
        name = f"_{op}"
        (self.package / f"{name}.c").write_text(MODULE.format(name=name, body=body.format(op=op)))

    def compiler(self, op: str) -> str:
        include = sysconfig.get_paths()["include"]
        return f"gcc -O0 -shared -fPIC -I{include} toy/_{op}.c -o toy/_{op}.so"

    def build(self) -> None:
        subprocess.run(["sh", "build.sh"], cwd=self.source, check=True)

    @property
    def build_command(self) -> str:
        return f"cd {self.source} && sh build.sh"

    def status_of(self, op: str) -> str:
        """What a person sees who runs the repro."""
        done = python(self.repros / f"{op}.py", env=self.env)
        return str(json.loads(done.stdout.splitlines()[-1])["verdict"])


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


@pytest.fixture
def daemon(lab: Lab) -> Iterator[WatchProcess]:
    with steady(lab.folder, lab.env) as running:
        yield running


def last_verdict(running: WatchProcess, op: str) -> str:
    return str([event for event in running.since(0, "result") if event["repro"] == f"{op}.py"][-1]["verdict"])


def test_an_extension_that_git_ignores_is_seen_when_it_is_built_again(lab: Lab, daemon: WatchProcess) -> None:
    lab.write("relu", WORKS)
    mark = daemon.mark()
    lab.build()
    flip = daemon.wait_for_event("flip", since=mark, seconds=20)
    assert (flip["kind"], flip["repro"]) == ("FIXED", "relu.py")
    assert any(name.endswith("_relu.so") for name in flip["files"])
    daemon.wait_until_quiet()
    assert daemon.flips() == [("FIXED", "relu.py")]


def test_an_extension_that_is_built_while_the_first_sweep_runs_is_seen(lab: Lab) -> None:
    (lab.package / "sin.py").write_text("import time\n\n" + CALLS.format(op="sin") + "\n\ntime.sleep(1.5)\n")
    lab.write("relu", WORKS)
    with watching(lab.folder, "--jobs", "2", env=lab.env) as running:
        running.wait_for_event("result", repro="relu.py")
        lab.build()
        running.wait_for_event("flip", kind="FIXED", seconds=30)
        assert running.stop() == 0


def test_a_table_that_a_run_reads_is_part_of_what_it_is_judged_on(lab: Lab, daemon: WatchProcess) -> None:
    mark = daemon.mark()
    (lab.package / "table.json").write_text('{"works": true}')
    daemon.wait_for_event("flip", repro="table.py", since=mark, seconds=20)
    (result,) = [event for event in daemon.since(mark, "result") if event["repro"] == "table.py"]
    assert result["runs"] == 2, "one fresh run is enough where something it had loaded has changed"


def test_after_a_failed_build_known_code_is_built_too(lab: Lab) -> None:
    """The first of two outputs is already that of the edit when the second cannot be built; then the edit is taken back."""
    with watching(lab.folder, "--build", lab.build_command, env=lab.env) as running:
        running.wait_for_sweep(since=0)
        mark = running.mark()
        lab.write("relu", WORKS)
        lab.write("sin", "this is no C;")
        failed = running.wait_for_event("build_failed", since=mark)
        assert "error:" in failed["error"]
        assert "_sin.c" in failed["error"]
        time.sleep(1.0)
        assert running.since(mark, "sweep_started") == []
        mark = running.mark()
        git(lab.source, "checkout", "-q", ".")
        running.wait_for_event("build_finished", since=mark, seconds=30)
        running.wait_until_quiet()
        assert last_verdict(running, "relu") == lab.status_of("relu") == "reproduces"
        assert running.since(mark, "sweep_started") == [], "the rows are of this very code"
        assert running.flips() == []
        assert running.stop() == 0


def test_each_state_of_the_sources_is_built_once(lab: Lab) -> None:
    command = f"echo built >> {lab.folder}/builds.txt; {lab.build_command}"
    with watching(lab.folder, "--build", command, env=lab.env) as running:
        running.wait_for_sweep(since=0)
        mark = running.mark()
        lab.write("relu", WORKS)
        running.wait_for_event("flip", since=mark)
        running.wait_until_quiet(for_s=3.0)
        assert (lab.folder / "builds.txt").read_text().split() == ["built"] * 2
        assert running.flips() == [("FIXED", "relu.py")]
        assert running.stop() == 0
