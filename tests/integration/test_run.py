"""``minidbg run``: the program cannot tell that it was not started directly, and what fails in it is told at the end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from support import PLANTED
from support.command_line import python

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def written(folder: Path, text: str, name: str = "train.py") -> str:
    (folder / name).write_text(textwrap.dedent(text))
    return name


def run(
    folder: Path, *arguments: str, directly: bool = False, **more: Any
) -> subprocess.CompletedProcess[str]:
    start = [] if directly else ["-m", "minidbg", "run"]
    env = {**ENVIRONMENT, **more.pop("env", {})}
    return python(*start, *arguments, cwd=folder, env=env, timeout=240, **more)


def started(folder: Path, name: str, **more: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "minidbg", "run", name]
    return subprocess.Popen(command, cwd=folder, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True, **more)


def own_lines(text: str) -> str:
    """What the program itself wrote to stderr."""
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith("minidbg: "))


SEES = """
import os, signal, sys
print(sys.argv, __name__, __file__, sys.path[0], os.getcwd(), sys.stdin.read(), sys.flags, __spec__)
print([path for path in sys.path if "hook" in path], [type(one).__name__ for one in sys.meta_path][-3:])
print(signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGPIPE))
print(sorted(sys.modules["__main__"].__dict__))
"""


@pytest.mark.parametrize(
    ("program", "arguments"),
    [
        (SEES, ["--backend", "x", "-q", "--", "-m"]),
        ("import sys; sys.exit('a message')", []),
        ("def f(): raise KeyError('here')\nf()", []),
        ("import os; os._exit(3)", []),
        ("this is no python", []),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", []),
    ],
)
def test_program_behaves_as_if_run_directly(folder: Path, program: str, arguments: list[str]) -> None:
    name = written(folder, program)
    alone, under = (run(folder, name, *arguments, directly=one, input="typed\n") for one in (True, False))
    assert under.stdout == alone.stdout
    assert own_lines(under.stderr) == alone.stderr
    assert under.returncode == (alone.returncode if alone.returncode >= 0 else 128 - alone.returncode)
    assert under.stderr.splitlines()[-1].startswith("minidbg: no torch.compile in this program")
    assert sorted(path.name for path in folder.iterdir()) == [name]


def test_module_is_run_as_python_does(folder: Path) -> None:
    (folder / "package").mkdir()
    written(folder, "print('package')", "package/__init__.py")
    program = "import sys; print(__name__, __spec__.name, sys.argv[1:], sys.path[0])"
    written(folder, program, "package/train.py")
    alone, under = (run(folder, "-m", "package.train", "-m", "1", directly=one) for one in (True, False))
    assert (under.stdout, under.returncode) == (alone.stdout, 0)


def test_sitecustomize_of_the_user_still_runs(folder: Path) -> None:
    written(folder, "print('the own sitecustomize'); OWN = 1", "sitecustomize.py")
    name = written(folder, "import sitecustomize; print(sitecustomize.OWN)")
    done = run(folder, name, env={"PYTHONPATH": str(folder)})
    assert done.stdout.splitlines()[-2:] == ["the own sitecustomize", "1"]


WAITS = """
import signal, sys, time
try:
    print("ready", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.exit(17)
"""


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 17), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_signal_to_minidbg_reaches_the_program_once(
    folder: Path, number: signal.Signals, status: int
) -> None:
    name = written(folder, WAITS)
    heard = lambda: signal.signal(number, signal.SIG_DFL)  # noqa: E731 - under nohup it is ignored
    with started(folder, name, start_new_session=True, preexec_fn=heard) as child:
        assert child.stdout.readline() == "ready\n"
        child.send_signal(number)
        said, _ = child.communicate(timeout=60)
    assert child.returncode == status
    assert said == ("interrupted\n" if number is signal.SIGINT else "")


def test_program_does_not_outlive_minidbg(folder: Path) -> None:
    import psutil

    name = written(folder, "import os, time; print(os.getpid(), flush=True); time.sleep(60)")
    with started(folder, name) as child:
        pid = int(child.stdout.readline())
        child.kill()
    until = time.monotonic() + 20
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < until
        time.sleep(0.05)


def test_no_program_is_an_error_in_two_lines(folder: Path) -> None:
    done = run(folder)
    assert done.returncode == 125
    assert done.stderr.startswith("minidbg run: no program")


MODEL = """
import sys
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(torch.sin(x)) + 1

"""


@pytest.mark.slow
def test_every_way_to_compile_is_wrapped_in_every_process(folder: Path) -> None:
    program = (
        MODEL
        + """
import multiprocessing, os, subprocess
import planted_backends

def work(number):
    x = torch.randn(3)
    if number == 0:
        compiled = torch.compile(Model(), backend=planted_backends.raises_on_relu)
    elif number == 1:
        compiled = Model()
        compiled.compile(backend=planted_backends.raises_on_relu, fullgraph=True)
    elif number == 2:
        compiled = torch._dynamo.optimize(planted_backends.raises_on_relu)(Model())
    else:
        compiled = torch.compile(backend="eager")(lambda x: torch.relu(x))
    try:
        print(number, tuple(compiled(x).shape), flush=True)
    except Exception as error:
        print(number, type(error).__name__, str(error).splitlines()[0], flush=True)

if __name__ == "__main__":
    torch.set_num_threads(1)
    work(0)
    if os.fork() == 0:
        work(1)
        os._exit(0)
    os.wait()
    process = multiprocessing.get_context("spawn").Process(target=work, args=(2,))
    process.start()
    process.join()
    work(3)
    from torch.export import export
    export(Model(), (torch.randn(3),))
"""
    )
    name = written(folder, program)
    environment = {"PYTHONPATH": str(PLANTED)}
    alone = run(folder, name, directly=True, env=environment)
    under = run(folder, "--later", name, env=environment)
    assert under.returncode == alone.returncode == 0, under.stderr
    strip = lambda text: [line.partition(" at 0x")[0] for line in text.splitlines()]  # noqa: E731 - used twice
    assert strip(under.stdout) == strip(alone.stdout)
    told = [
        line
        for line in under.stderr.splitlines()
        if line.startswith("minidbg: raises_on_relu failed to compile")
    ]
    assert len(told) == 1
    assert told[0].endswith("(3 times)")
    assert len(list((folder / "minidbg_repros/.minidbg/captures").glob("*.py"))) == 1


SERVERS = """
import psutil

def servers(process):
    children = [child for child in process.children(recursive=True) if child.status() != psutil.STATUS_ZOMBIE]
    return [child.pid for child in children if "minidbg.workers.server" in " ".join(child.cmdline())]
"""
FAILS = (
    SERVERS
    + MODEL
    + """
import os, torch._dynamo
os.environ[sys.argv[1]] = "1"
try:
    torch.compile(Model())(torch.ones(3))
except Exception as error:
    print(error.__notes__[-1].partition(",")[0], servers(psutil.Process()) == [])
"""
)


@pytest.mark.slow
@pytest.mark.parametrize(("variable", "lent"), [("RANK", True), ("TORCHINDUCTOR_FREEZING", False)])
def test_a_process_asks_the_server_that_is_lent_unless_torch_has_read_other_variables_there(
    folder: Path, variable: str, lent: bool
) -> None:
    name, env = written(folder, FAILS), {"PYTHONPATH": str(PLANTED)}
    done = run(folder, "--backend", "planted_backends:raises_on_relu", name, variable, env=env)
    assert done.stdout.splitlines() == [f"minidbg: 3 -> 1 nodes {lent}"], done.stderr


IMPORTS = (
    SERVERS
    + """
import signal, sys, time, torch._dynamo
while not (found := servers(psutil.Process().parent())):
    time.sleep(0.01)
print(found[0], flush=True)
sys.stdin.read()
"""
)


@pytest.mark.parametrize(
    ("whom", "number"),
    [
        pytest.param("nobody", 0, marks=pytest.mark.slow),
        ("program", signal.SIGKILL),
        pytest.param("launcher", signal.SIGKILL, marks=pytest.mark.slow),
        pytest.param("launcher", signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param("launcher", signal.SIGINT, marks=pytest.mark.slow),
    ],
)
def test_the_server_that_is_lent_ends_with_the_program(folder: Path, whom: str, number: int) -> None:
    """Also in the midst of its imports."""
    import psutil

    name = written(folder, IMPORTS)
    with started(folder, name, stdin=subprocess.PIPE, start_new_session=True) as child:
        server = psutil.Process(int(child.stdout.readline()))
        values = Path(server.cmdline()[-3])
        assert values.is_dir()
        if whom == "nobody":
            child.stdin.close()
        else:
            (program,) = (one for one in psutil.Process(child.pid).children() if one != server)
            (program if whom == "program" else child).send_signal(number)
        assert child.wait(60) == {"nobody": 0, "program": 137}.get(whom, -number if number != 15 else 143)
    assert psutil.wait_procs([server], timeout=20)[1] == []
    assert not values.exists()


@pytest.mark.slow
def test_death_in_a_backend_is_reduced_and_the_status_is_the_programs(folder: Path) -> None:
    name = written(folder, MODEL + "torch.compile(Model())(torch.randn(3))")
    env = {"PYTHONPATH": str(PLANTED), "MINIDBG_SECONDS": "100"}
    done = run(folder, "--backend", "planted_backends:segfaults_in_run_on_relu", name, env=env)
    assert done.returncode == 128 + signal.SIGSEGV
    last = done.stderr.splitlines()[-1]
    assert "died while running a graph for the first time (the program was ended by SIGSEGV): 3 -> 1" in last
    repro = folder / last.rpartition("python ")[2]
    assert repro.parent == folder / "minidbg_repros"
    assert repro.name.startswith("crash_relu")


@pytest.mark.slow
def test_the_backend_of_the_environment_is_used_and_the_program_goes_on_in_eager(folder: Path) -> None:
    name = written(folder, MODEL + "print(torch.compile(Model())(torch.ones(2)).tolist())")
    environment = {
        "PYTHONPATH": str(PLANTED),
        "MINIDBG_BACKEND": "planted_backends:raises_on_relu",
        "MINIDBG_REDUCE": "later",
    }
    done = run(folder, "--fallback", name, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[1.841")
    assert "raises_on_relu failed to compile a graph: not reduced" in done.stderr.splitlines()[-2]
