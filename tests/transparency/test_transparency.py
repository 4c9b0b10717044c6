"""A wrapped program is the bare one: its results, its exceptions, what it prints, and all that could be noticed of its interpreter.

Each program runs in a fresh interpreter, bare, wrapped and under ``minidbg run``. What differs is held against a second bare run: what differs
there too is chance. The other half of the claim: with a relu that is wrong, or cannot be compiled, no program goes on in silence.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.command_line import python

HERE = Path(__file__).parent
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

BACKENDS = ("aot_eager", "inductor")
PLANTS = {"wrong": "planted:wrong", "refuses": "planted:refuses", "inductor_planted": "inductor!accuracy"}
"""Backends with a bug: relu gives one more; relu does not compile; torch's own plant, deep in inductor's C++."""
OF_RUN = ("/state/environment/PYTHONPATH", "/state/environment/MINIDBG__RUN")
"""``minidbg run`` reaches the processes that the program starts by these."""
WARM_AS_COLD = {
    "TORCHINDUCTOR_FX_GRAPH_CACHE": "0", "TORCHINDUCTOR_AUTOGRAD_CACHE": "0", "TORCHINDUCTOR_COMPILE_THREADS": "1"
}  # fmt: skip
"""The second program finds the kernels of the first, and is to be left in the same state."""
REALLY_WRONG = {"negative_views-inductor": "the bit that says that an input is negated is not seen"}
"""Programs that go wrong in silence without us (torch 2.13 and 2.14): the wrapped program says so."""
FAILS: dict[str, str] = {
    "whole_step-aot_eager": "bare, dynamo counts frames of AOTAutograd's own, which compiles the backward in the compiled step; "
    "wrapped, that has been compiled before and is handed over",
    "whole_step-inductor": "the same",
    "vmap-inductor": "a graph that gives only what depends on numbers drawn within vmap, which inductor draws otherwise, is said "
    "to be not verified; the bare program says nothing",
    "other_generators-inductor": "dynamo passes a number of Python's generator in another dtype than it has declared, which is said to be "
    "not verified",
    "other_generators-wrong": "the same",
    "other_generators-inductor_planted": "the same",
    "threads-inductor_planted": "a setting of torch's is its thread's own: the plant is in none of them",
}
"""What is not yet as it should be, by ``program-backend`` or ``program-plant``, and why."""


def programs() -> Iterator[str]:
    """``module:function`` of each function of ``compile`` alone."""
    for path in sorted((HERE / "programs").glob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and [one.arg for one in node.args.args] == ["compile"]:
                yield f"{path.stem}:{node.name}"


def test_the_table_names_programs() -> None:
    known = {program.partition(":")[2] for program in programs()}
    assert len(known) == len(list(programs()))
    assert {name.partition("-")[0] for name in (*FAILS, *REALLY_WRONG)} <= known


def each(seconds: tuple[str, ...]) -> list[Any]:
    """Programs with each backend or plant, marked as the tables above say."""
    found = []
    for second in seconds:
        for program in programs():
            name = f"{program.partition(':')[2]}-{second}"
            marks = [pytest.mark.xfail(strict=True, reason=FAILS[name])] if name in FAILS else []
            found.append(pytest.param(program, second, marks=marks, id=name))
    return found


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short one: a socket in it, as torch's workers have, may have 107 characters."""
    return tmp_path_factory.mktemp("p")


@pytest.fixture(scope="session")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache of compiled kernels for all programs."""
    return tmp_path_factory.mktemp("kernels")


def observed(program: str, backend: str, way: str, folder: Path, kernels: Path) -> dict[str, Any]:
    """What a fresh interpreter gave, printed and was left as; ``folder`` reads FOLDER in it."""
    home, out = folder / way, folder / way / "out.json"
    for name in ("cwd", "tmp"):
        (home / name).mkdir(parents=True)
    if way == "wrap":
        Path(f"{out}.wrap").touch()
    env = {
        "OMP_NUM_THREADS": "1", "MINIDBG_REDUCE": "later", "MINIDBG_DIR": str(home / "repros"),
        "TORCHINDUCTOR_CACHE_DIR": str(kernels), **WARM_AS_COLD,
    }  # fmt: skip
    if not backend.startswith("inductor"):  # whose precompiled header lies there
        env["TMPDIR"] = str(home / "tmp")
    start = ("-m", "minidbg", "run") if way == "run" else ()
    done = python(*start, HERE / "observe.py", program, backend, out, cwd=home / "cwd", env=env, timeout=280)
    assert out.exists(), f"{way}: ended with {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
    said = json.loads(out.read_text()) | {"printed": done.stdout, "status": done.returncode}
    told = timeless(done.stderr if way != "run" else without_summary(done.stderr))
    draws = r"minidbg: a part of a graph is not verified: .* (draws|random numbers).*\n"
    said["said"] = re.sub(draws, "", told)
    said["captures"] = sorted(path.name for path in home.glob("repros/.minidbg/captures/*.py"))
    return json.loads(json.dumps(said).replace(str(home), "FOLDER"))  # type: ignore[no-any-return]


def timeless(text: str) -> str:
    """Lines of logs without their times and processes."""
    return re.sub(r"(?m)^([VIWE]\d{4} |USDT:|ERROR:)\S+ \S+(?: \d+)?(?= \S+:\d+\])", r"\1", text)


def without_summary(text: str) -> str:
    """What the program wrote to stderr before the last lines, in which ``minidbg run`` says how it went."""
    return re.sub(r"minidbg: (no backend failed |\S+, (compile|runtime)).*\n(minidbg: .*\n)*\Z", "", text)


def differences(one: Any, other: Any, where: str = "") -> dict[str, tuple[Any, Any]]:
    """The values that differ, by their paths."""
    if isinstance(one, dict) and isinstance(other, dict):
        names = sorted({*one, *other})
        found = [differences(one.get(name), other.get(name), f"{where}/{name}") for name in names]
        return {path: pair for each in found for path, pair in each.items()}
    return {} if one == other else {where: (one, other)}


NOT_COMPARED = ("graphs", "notes", "captures")
"""Only wrapped programs have them."""


@pytest.mark.parametrize(("program", "backend"), each(BACKENDS))
def test_wrapped_program_is_the_bare_one(tmp_path: Path, kernels: Path, program: str, backend: str) -> None:
    ways = ("wrap", "run") if backend == "aot_eager" else ("wrap",)
    bare = observed(program, backend, "bare", tmp_path, kernels)
    if f"{program.partition(':')[2]}-{backend}" in REALLY_WRONG:
        assert_is_one_failure(observed(program, backend, "wrap", tmp_path, kernels))
        return
    # an exception of torch's own, which ``run`` tells
    fails = '"text"' in json.dumps(bare.get("results", bare))
    found: dict[str, Any] = {}
    for way in ways:
        under = observed(program, backend, way, tmp_path, kernels)
        told = ("/said",) if fails and under["captures"] else ()
        left_out = (*OF_RUN, *told) if way == "run" else ()
        for path, pair in differences(without(bare), without(under)).items():
            if path not in left_out:
                found.setdefault(path, {})[way] = pair
        assert way == "run" or not under["graphs"]["not_verified"]
        assert fails or not under["captures"]
    if found:
        again = observed(program, backend, "again", tmp_path, kernels)
        by_chance = differences(without(bare), without(again))
        found = {path: pair for path, pair in found.items() if path not in by_chance}
    assert not found, json.dumps(found, indent=1)[:8000]


def without(said: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in said.items() if name not in NOT_COMPARED}


@pytest.mark.parametrize(("program", "plant"), each(tuple(PLANTS)))
def test_planted_failure_is_found(tmp_path: Path, kernels: Path, program: str, plant: str) -> None:
    assert_is_one_failure(observed(program, PLANTS[plant], "wrap", tmp_path, kernels))


def assert_is_one_failure(under: dict[str, Any]) -> None:
    """One failure was captured, and whoever reads the program's last words hears where it lies."""
    assert len(under["captures"]) == 1, (under["captures"], under["said"])
    said = "\n".join([*under["notes"], under["said"], under["raised"]["text"]])
    assert f"minidbg reduce FOLDER/repros/.minidbg/captures/{under['captures'][0]}" in said, said
