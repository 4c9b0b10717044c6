"""What a child of minidbg's inherits, and that nobody hands the environment on but the one room that says why."""

from __future__ import annotations

import ast
import os
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from minidbg.judge import harness
from minidbg.words import environment

PACKAGE = Path(__file__).parents[3] / "minidbg"

OF_A_PROGRAM = {
    "MINIDBG__RUN": "{}",
    "TORCH_COMPILE_OVERRIDE_BACKENDS": ">=0:minidbg",
    "TORCH_COMPILE_OVERRIDE_INDUCTOR_CONFIGS": ">=0:max_autotune=True",
    "TORCH_COMPILE_OVERRIDE_DYNAMO_CONFIGS": ">=0:specialize_float=True",
}


@pytest.fixture
def of_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in OF_A_PROGRAM.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(environment.HOOK), "/their/own"]))


@pytest.mark.usefixtures("of_a_program")
@pytest.mark.parametrize("environ", [environment.for_judge, environment.for_tool])
def test_what_has_the_program_wrapped_stays_with_the_program(
    environ: Callable[[], dict[str, str]],
) -> None:
    made = environ()
    assert not OF_A_PROGRAM.keys() & made.keys()
    assert made["PYTHONPATH"] == "/their/own"
    assert made["PATH"] == os.environ["PATH"]


def test_a_path_with_nothing_but_the_hook_is_no_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty PYTHONPATH would be the working directory."""
    monkeypatch.setenv("PYTHONPATH", str(environment.HOOK))
    assert "PYTHONPATH" not in environment.for_judge()


def test_who_judges_is_marked_and_a_tool_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(environment.JUDGING, "1")
    assert environment.JUDGING in environment.for_judge()
    assert environment.JUDGING not in environment.for_tool()
    assert environment.JUDGING not in environment.for_program({})


def test_the_judge_of_a_script_sets_the_same_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    """``oracle.harness`` has its name in text, since it also stands in scripts that import no minidbg."""
    monkeypatch.delenv(environment.JUDGING, raising=False)
    assert not environment.is_judging()
    with harness.wrappers_at_rest():
        assert environment.is_judging()
    assert not environment.is_judging()


def test_given_variables_have_the_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("PYTHONHOME", "/here")
    made = environment.for_judge(environment.ONE_THREAD, given={"OMP_NUM_THREADS": "5", "PYTHONHOME": None})
    assert (made["OMP_NUM_THREADS"], made["MKL_NUM_THREADS"]) == ("5", "1")
    assert "PYTHONHOME" not in made


@pytest.mark.usefixtures("of_a_program")
def test_a_program_has_its_own_variables_and_the_hook_first() -> None:
    made = environment.for_program({"MINIDBG__RUN": "orders"})
    assert made["PYTHONPATH"].split(os.pathsep)[0] == str(environment.HOOK)
    assert made["TORCH_COMPILE_OVERRIDE_BACKENDS"] == OF_A_PROGRAM["TORCH_COMPILE_OVERRIDE_BACKENDS"]
    assert made["MINIDBG__RUN"] == "orders"


@pytest.mark.usefixtures("of_a_program")
def test_a_process_that_judges_for_a_while_is_afterwards_as_it_was() -> None:
    before = dict(os.environ)
    with environment.judging():
        assert environment.is_judging()
        assert "TORCH_COMPILE_OVERRIDE_BACKENDS" not in os.environ
        with environment.judging():
            pass
        assert environment.is_judging()
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    "part", [one for one in vars(environment).values() if isinstance(one, environment.Part)]
)
def test_each_variable_has_its_reason(part: environment.Part) -> None:
    assert len(part.why.split()) >= 4
    assert part.taken_out or part.put_in


# ---- the lint

STARTERS = ("run", "Popen", "call", "check_call", "check_output", "getoutput", "getstatusoutput")
ELSEWHERE_INHERITED = ("system", "popen", "execv", "execl", "execlp", "execvp", "spawnv", "spawnl", "spawnvp")
READERS = {"several_ranks", "from_environment", "eager_fails_too", "allowed_environment"}
"""Functions that read variables of a mapping and start nothing."""

EXCEPTIONS = {
    "words/environment.py": "the one room",
    "workers/server.py": "a run becomes its script, in the environment that the pool has made for it",
}


def inherited(tree: ast.AST) -> Iterator[str]:
    """Each place, with its line, that hands the whole environment on, or starts something that inherits it."""
    parents = {id(child): node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            module, _, name = ast.unparse(node.func).rpartition(".")
            starts = module == "subprocess" and name in STARTERS
            if (starts and all(one.arg != "env" for one in node.keywords)) or (
                module == "os" and name in ELSEWHERE_INHERITED
            ):
                yield f"line {node.lineno}: {ast.unparse(node)[:60]}"
        is_environ = isinstance(node, ast.Attribute) and ast.unparse(node) == "os.environ"
        if is_environ and not is_one_variable(parents[id(node)], parents):
            yield f"line {node.lineno}: {ast.unparse(parents[id(node)])[:60]}"


def is_one_variable(parent: ast.AST, parents: dict[int, ast.AST]) -> bool:
    """Whether ``os.environ`` is read or set there, and not copied or handed to somebody."""
    match parent:
        case ast.Subscript() | ast.Compare():
            return True
        case ast.Attribute(attr="get" | "pop" | "update" | "clear" | "setdefault"):
            return True
        case ast.Call(func=function):
            return ast.unparse(function).rpartition(".")[2] in READERS
        case ast.AugAssign() | ast.arguments():
            return True
    return False


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE))
)
def test_nobody_else_hands_the_environment_on(path: Path) -> None:
    name = str(path.relative_to(PACKAGE))
    found = list(inherited(ast.parse(path.read_text())))
    if name in EXCEPTIONS:
        assert found, "an exception that nobody needs any more"
        return
    assert not found, "minidbg.words.environment makes the environment of children"


@pytest.mark.parametrize(
    "line",
    [
        "subprocess.run(['x'])",
        "subprocess.Popen(['x'], env={**os.environ, 'A': 'b'})",
        "start(env=os.environ)",
        "start(dict(os.environ))",
        "start(os.environ | more)",
        "start({k: v for k, v in os.environ.items()})",
        "start(os.environ.copy())",
        "environ = os.environ",
        "os.execv('x', [])",
    ],
)
def test_the_lint_sees_each_way_to_hand_it_on(line: str) -> None:
    assert list(inherited(ast.parse(textwrap.dedent(line))))


def test_the_mark_goes_with_the_last_of_several_threads_that_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first in, first out: what the second one found was the first one's mark, and it must not stay."""
    monkeypatch.delenv(environment.JUDGING, raising=False)
    first, second = harness.wrappers_at_rest(), harness.wrappers_at_rest()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert os.environ[environment.JUDGING] == "1", "the second one still judges"
    second.__exit__(None, None, None)
    assert environment.JUDGING not in os.environ
