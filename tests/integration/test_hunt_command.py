"""minidbg hunt as a user runs it: a tutorial backend with planted bugs, one hunt for all of these tests."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from support import PLANTED
from support.command_line import python

OPS = "cumsum,hypot,trunc,frac,erfinv,add,nn.functional.relu"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(PLANTED)}


def hunt(folder: Path, *arguments: str) -> tuple[int, list[dict[str, Any]], str]:
    """Exit status, what was printed on stdout, and stderr."""
    words = ("-m", "minidbg", "hunt", "toy_with_bugs:toy", *arguments, "--samples", "1", "--json")
    done = python(*words, "--expected", "hunt.toml", cwd=folder, env=environment(), timeout=700)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


@pytest.fixture(scope="module")
def hunted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int, list[dict[str, Any]]]:
    """A folder in which the tutorial's backend was hunted."""
    folder = tmp_path_factory.mktemp("hunted")
    status, said, stderr = hunt(
        folder, "--ops", OPS, "--dtypes", "float32,float16,bool", "--call-seconds", "8"
    )
    assert said, stderr
    return folder, status, said


def test_the_planted_bugs_are_in_the_table_each_where_it_is(hunted: Any) -> None:
    found = [one["cell"] for one in hunted[2] if "cell" in one]
    cells = {(cell["op"], cell["dtype"]): cell["state"] for cell in found}
    assert cells["cumsum", "bool"] == "fails" if ("cumsum", "bool") in cells else True
    assert cells["hypot", "float32"] == "wrong"
    assert cells["trunc", "float16"] == "crashed"
    assert cells["trunc", "float32"] == "ok"
    assert cells["frac", "float32"] == "hangs"
    assert cells["erfinv", "float32"] == "unsupported"
    assert {state for (op, _), state in cells.items() if op == "add"} == {"ok"}


def test_each_of_them_ends_as_one_verified_repro(hunted: Any) -> None:
    folder, _, said = hunted
    cases = [one for one in said if "case" in one]
    assert {"wrong", "crashed", "hangs"} <= {one["state"] for one in cases}
    repros = [Path(one["repro"]) for one in cases]
    assert sorted(repros) == sorted((folder / "minidbg_repros").glob("*.py"))
    wrong = next(one for one in cases if one["state"] == "wrong")
    done = python(wrong["repro"], env=environment(), timeout=120)
    assert done.returncode == 1
    assert re.search("reproduces", done.stdout)


def test_what_was_there_before_is_expected(hunted: Any) -> None:
    folder, status, _ = hunted
    assert status == 0, "the file was written"
    status, _, said = hunt(folder, "--ops", "hypot,add", "--dtypes", "float32")
    assert (status, "worse" in said) == (0, False)
    (folder / "hunt.toml").write_text("[ops]\n")
    status, _, said = hunt(folder, "--ops", "hypot,add", "--dtypes", "float32")
    assert (status, "worse: hypot float32 cpu: wrong, was ok" in said) == (3, True)


OPTED = """
def backend(gm, example_inputs, *, options=None, mode=None):
    if (options, mode) not in (({"level": 2, "kind": "fast"}, None), (None, "max")):
        raise KeyError(f"{options}, {mode}")
    return lambda *args: gm(*args)
"""


@pytest.mark.parametrize(
    ("backend", "words", "status", "said"),
    [
        ("opted:backend", (), 3, "fails"),
        ("opted:backend", ("--options", "{'level': 2, 'kind': 'fast'}"), 0, "2 ok"),
        ("opted:backend", ("--mode", "max"), 0, "2 ok"),
        ("opted:backend", ("--options", "level"), 125, "'level' is not a Python dict"),
        (
            "inductor",
            ("--options", "{'epilog_fusion': False}"),
            125,
            "torch.compile refuses these options of",
        ),
        (
            "inductor",
            ("--options", "{'epilogue_fusion': False}", "--mode", "default"),
            125,
            "can be specified",
        ),
    ],
)
def test_options_and_mode_reach_the_backend(
    tmp_path: Path, backend: str, words: tuple[str, ...], status: int, said: str
) -> None:
    (tmp_path / "opted.py").write_text(OPTED)
    only = ("--ops", "add", "--dtypes", "float32,int64", "--samples", "1")
    done = python("-m", "minidbg", "hunt", backend, *only, *words, cwd=tmp_path, timeout=300)
    assert (done.returncode, said in done.stdout + done.stderr) == (status, True), done.stdout + done.stderr
    for repro in (tmp_path / "minidbg_repros").glob("*.py"):
        assert python(repro, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)}).returncode == 1
