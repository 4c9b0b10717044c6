"""The ways that README names, each once as a person goes it: what is started, asked and written, and whether the screen tells the truth.

Processes and questions are counted, since a nest of interpreters passes every test of an exit status: it only takes longer. A number
that changes here is to be explained in the commit that changes it.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from travels import Journey, traveller

from minidbg.commands.run.launch import graph_lines

MOST_LINES = 120
BACKEND = """
import torch

@torch._dynamo.register_backend
def my_backend(gm, example_inputs):
    for node in gm.graph.nodes:
        if node.target is torch.relu:
            raise NotImplementedError("my_backend: no kernel for relu")
    return gm.forward

"""
CALL = "torch.compile(lambda x: torch.relu(x.sin()).cos(), {how})(torch.ones(3))\n"
"""The line that the script quotes names a backend too."""
BARE = BACKEND + CALL.format(how='backend="my_backend"')
RUNS = "[34]"
"""Where a busy machine makes a question take half a second, the one after it is asked beside it, needed or not."""
LINE = re.compile(rf"minidbg: 3 -> 1 nodes, {RUNS} runs, [\d.]+ s; run: python (minidbg_repros/\w+\.py)")


@pytest.fixture
def travel(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Journey]:
    return traveller(tmp_path_factory)


@pytest.fixture(scope="module")
def wrapped(tmp_path_factory: pytest.TempPathFactory) -> Journey:
    """The program with ``minidbg.wrap``: what the other ways are held against."""
    return traveller(tmp_path_factory)("model.py", program=BACKEND + CALL_BY[WRAP][0])


RUN = ("-m", "minidbg", "run")
WRAP = "minidbg.wrap, by name"
CALL_BY: dict[str, tuple[str, tuple[str, ...]]] = {
    way: (more + CALL.format(how=how), words)
    for way, more, how, words in (
        (WRAP, "import minidbg\n", 'backend=minidbg.wrap("my_backend")', ()),
        ("minidbg.wrap", "import minidbg\n", "backend=minidbg.wrap(my_backend)", ()),
        ("options, by name", "", 'backend="minidbg", options={"backend": "my_backend"}', ()),
        ("options", "", 'backend="minidbg", options={"backend": my_backend}', ()),
        ("minidbg run, by name", "", 'backend="my_backend"', RUN),
        ("minidbg run", "", "backend=my_backend", RUN),
    )
}
"""By the way in which the backend is named: the last lines of the program and what stands before its name."""
IN_A_NOTEBOOK = """
import nbclient, nbformat
cells = [nbformat.v4.new_code_cell(open(name).read()) for name in ("toy.py", "call.py")]
notebook = nbformat.v4.new_notebook(cells=cells)
nbclient.NotebookClient(notebook, timeout=190, kernel_name="python3").execute()
"""
TYPED = {"stdin": ("-",), "command": ("-c",)}
"""Programs that are nowhere in a file, so that no source of a backend can be copied."""
FORMS = ("plain", "guarded", "imported", "notebook", *TYPED)
ROWS = [
    (form, way)
    for form in FORMS
    for way, (_, words) in CALL_BY.items()
    if (form, way) != ("plain", WRAP) and not (form in ("notebook", *TYPED) and words)
]


@pytest.mark.slow
@pytest.mark.parametrize(("form", "way"), ROWS)
def test_every_way_to_name_a_backend_is_as_quick_as_wrap_and_gives_its_script(
    form: str, way: str, wrapped: Journey, travel: Callable[..., Journey], tmp_path: Path
) -> None:
    call, words = CALL_BY[way]
    (tmp_path / "toy.py").write_text(BACKEND)
    (tmp_path / "call.py").write_text(call)
    guarded = 'if __name__ == "__main__":\n' + textwrap.indent(call, "    ")
    program = {"guarded": BACKEND + guarded, "imported": f"import torch\nfrom toy import my_backend\n{call}"}
    text = program.get(form, BACKEND + call)
    if form == "notebook":
        pytest.importorskip("ipykernel")
        journey = travel("-W", "ignore", "-c", IN_A_NOTEBOOK, folder=tmp_path)
    elif form in TYPED:
        said = [text] if form == "command" else []
        journey = travel(*TYPED[form], *said, typed=text, folder=tmp_path)
    else:
        journey = travel(*words, "model.py", program=text, folder=tmp_path)
    assert journey.status == 1, journey.stderr
    assert "3 -> 1 nodes" in journey.stderr
    if form in TYPED:
        assert re.search(
            r"whose backend is to be filled in, a function of <\w+>:\d+: edit", journey.last_line()
        )
        assert not journey.scripts
        assert len(journey.started) == len(wrapped.started) + 1, (
            "the script without its backend, which ends with 125"
        )
        return
    if form == "notebook":
        assert len(journey.started) == len(wrapped.started) + 1, "nbclient, which starts the kernel"
        assert "From cell 2:" in journey.script
    else:
        check_screen(journey)
        assert len(journey.started) == len(wrapped.started) + bool(words)
    if form == "imported":
        assert not [line for line in code_of(journey) if line.startswith("# Copied")], (
            "the backend is imported"
        )
    else:
        assert code_of(journey) == code_of(wrapped)


def code_of(journey: Journey) -> list[str]:
    """The script's lines without what they say of the program's: docstring, comments and header."""
    code = journey.script.split('"""', 2)[2].partition("# ///")[0]
    return [line.partition("  # ")[0] for line in code.splitlines()]


def roles(journey: Journey) -> list[str]:
    """What each interpreter was started for: the program or command; the server; one started ahead for a script by itself."""
    known = {
        "minidbg.workers.server": "server",
        "workers/entry.py": "script",
    }
    return [
        next((role for module, role in known.items() if any(module in word for word in words)), "program")
        for words in journey.started
    ]


ONE_REDUCTION = ["program", "script", "server"]
"""The interpreters of a program that fails once, sorted: two import torch at the same time."""


def check_screen(journey: Journey) -> None:
    """The line on the exception names the repro that is there, with its right figures, and nothing more was wrapped than the program."""
    found = [match for match in map(LINE.fullmatch, journey.stderr.splitlines()) if match]
    assert found, journey.stderr
    (path,) = journey.scripts
    assert [match[1] for match in found] == [f"minidbg_repros/{path.name}"]
    assert journey.calls == 1
    assert len(journey.script.splitlines()) <= MOST_LINES
    assert "1 of 3 nodes, 1 of 1 inputs, 1-minimal." in journey.script


@pytest.mark.slow
def test_wrap(wrapped: Journey, travel: Callable[..., Journey]) -> None:
    """Three interpreters; the script does what the line says, from anywhere and without minidbg."""
    assert wrapped.status == 1
    assert "BackendCompilerFailed: backend='my_backend' raised:" in wrapped.stderr
    assert sorted(roles(wrapped)) == ONE_REDUCTION
    check_screen(wrapped)
    assert LINE.fullmatch(wrapped.last_line())
    (path,) = wrapped.scripts
    assert {one.name for one in path.parent.iterdir()} == {path.name, ".minidbg"}
    assert "import minidbg" not in wrapped.script
    alone = travel(path)
    assert (alone.status, alone.stdout.splitlines()[-1]) == (1, "reproduces")
    assert "NotImplementedError: my_backend: no kernel for relu" in alone.stderr
    assert (len(alone.started), alone.calls) == (1, 0)


@pytest.mark.slow
def test_run(wrapped: Journey, travel: Callable[..., Journey]) -> None:
    """The program without a change: one interpreter more than with ``wrap``, and the same script."""
    journey = travel("-m", "minidbg", "run", "model.py", program=BARE)
    assert journey.status == 1
    check_screen(journey)
    *_, failed, graphs = journey.stderr.splitlines()
    assert LINE.fullmatch(failed), "the last of the traceback, and not told again"
    assert graphs == f"minidbg: {graph_lines([ONE_FAILED], ['compile'])[0]}"
    assert len(journey.started) == len(wrapped.started) + 1
    assert code_of(journey) == code_of(wrapped)


ONE_FAILED = {"graphs": 1, "verified": 0, "failed": 1, "not_run": 0, "not_verified": {}, "left_out": {}}


COMPILER = """
import torch, minidbg
from torch._dynamo.backends.common import aot_autograd

def my_compiler(gm, example_inputs):
    for node in gm.graph.nodes:
        if node.target is torch.ops.aten.relu.default:
            raise NotImplementedError("my_compiler: no kernel for relu")
    return gm.forward

def f(x):
    return torch.relu(x.sin()).cos()

torch.compile(f, backend=aot_autograd(fw_compiler=minidbg.wrap_compiler(my_compiler)))(torch.ones(3))
"""


@pytest.mark.slow
def test_wrap_compiler(wrapped: Journey, travel: Callable[..., Journey]) -> None:
    """One level lower: the script calls the compiler with an ATen graph."""
    journey = travel("model.py", program=COMPILER)
    assert journey.status == 1
    assert len(journey.started) == len(wrapped.started)
    assert journey.questions in (4, 5)
    assert len(journey.script.splitlines()) <= MOST_LINES
    assert "torch.ops.aten.relu.default" in journey.script
    assert f"run: python minidbg_repros/{journey.scripts[0].name}" in journey.stderr


@pytest.mark.slow
def test_reduce_of_a_capture(wrapped: Journey, travel: Callable[..., Journey]) -> None:
    """What ``reduce="later"`` leaves to do: the same repro as at once."""
    (capture,) = (wrapped.folder / "minidbg_repros" / ".minidbg" / "captures").glob("*.py")
    folder = wrapped.folder / "again"
    folder.mkdir()
    journey = travel("-m", "minidbg", "reduce", "-v", capture, "--dir", "minidbg_repros", folder=folder)
    assert journey.status == 0
    assert journey.stdout.strip() == f"minidbg_repros/{journey.scripts[0].name}"
    assert sorted(roles(journey)) == ONE_REDUCTION
    assert journey.calls == 0
    seconds = re.search(r"([\d.]+) s: imports (.*), warm-up (.*), questions (.*), proof (.*)", journey.stderr)
    whole, *parts = map(float, seconds.groups())
    assert min(parts) > 0
    assert sum(parts) < whole + 1
    # nobody has seen the whole case fail here, and the last question may have been asked with one that was not needed
    assert journey.questions <= wrapped.questions + 2
    assert journey.script.partition("# ///")[0] == wrapped.script.partition("# ///")[0]


DIES = """
import os, torch, minidbg

def my_backend(gm, example_inputs):
    if any(node.target is torch.relu for node in gm.graph.nodes):
        os.abort()
    return gm.forward

def f(x):
    return torch.relu(x.sin()).cos()

if __name__ == "__main__":
    torch.compile(f, backend=minidbg.wrap(my_backend))(torch.ones(3))
"""


@pytest.mark.slow
def test_last_crash(travel: Callable[..., Journey]) -> None:
    """A process that died in a backend has left its graph, which becomes a repro in another one."""
    dead = travel("model.py", program=DIES)
    assert dead.status == -6
    assert (len(dead.started), dead.calls, dead.scripts) == (1, 1, [])
    journey = travel("-m", "minidbg", "reduce", folder=dead.folder)
    assert journey.status == 0, journey.stderr
    assert journey.calls == 0
    # the judge of a crash, and the script by itself, run what may die in a child of their own
    assert sorted(set(roles(journey))) == ONE_REDUCTION
    assert roles(journey).count("server") == roles(journey).count("script") == 1
    assert len(journey.script.splitlines()) <= MOST_LINES
    assert journey.script.startswith('"""The process dies in my_backend with relu: SIGABRT')
    again = travel("-m", "minidbg", "reduce", folder=dead.folder)
    assert (again.status, again.stdout) == (0, ""), again.stderr
    assert len(again.started) == 1, "nothing is asked"


@pytest.mark.slow
def test_pytest(wrapped: Journey, travel: Callable[..., Journey]) -> None:
    """A repro is a test, which fails while the bug is there."""
    journey = travel(
        "-m", "pytest", "-q", "-p", "no:cacheprovider", wrapped.scripts[0], folder=wrapped.folder
    )
    assert journey.status == 1
    assert re.search(r"(?m)^1 failed in ", journey.stdout)
    assert "NotImplementedError: my_backend: no kernel for relu" in journey.stdout
    assert (len(journey.started), journey.calls) == (1, 0)


@pytest.mark.slow
def test_watch(wrapped: Journey, travel: Callable[..., Journey]) -> None:
    """One sweep over the folder: the daemon and the interpreter whose forks judge; the verdict is on the screen."""
    journey = travel("-m", "minidbg", "watch", "--once", "minidbg_repros", folder=wrapped.folder)
    assert journey.status == 1
    name = wrapped.scripts[0].name
    assert re.search(rf"new +{name} \[cpu\] \(reproduces\)", journey.stdout + journey.stderr), journey.stderr
    assert roles(journey) == ["program", "server"]
    assert journey.calls == 0
