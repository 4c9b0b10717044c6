"""minidbg hunt as a user runs it: a tutorial backend with planted bugs, an end by SIGKILL, a baseline, torch's own aot_eager."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support import PLANTED
from support.command_line import python
from support.signalled import Signalled

OPS = "cumsum,hypot,trunc,frac,erfinv,add,nn.functional.relu"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "minidbg", "hunt", *arguments, "--samples", "1", "--json"]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(PLANTED)}


def hunt(folder: Path, *arguments: str) -> tuple[int, list[dict[str, Any]], str]:
    """Exit status, what was printed on stdout, and stderr."""
    done = python(*command(*arguments)[1:], cwd=folder, env=environment(), timeout=700)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


@pytest.fixture(scope="module")
def hunted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int, list[dict[str, Any]]]:
    """A folder in which the tutorial's backend was hunted to the end."""
    folder = tmp_path_factory.mktemp("hunted")
    arguments = ("toy_with_bugs:toy", "--ops", OPS, "--dtypes", "float32,float16,bool", "--no-graphs")
    more = ("--call-seconds", "8")
    status, said, stderr = hunt(folder, *arguments, *more, "--baseline", "hunt.toml")
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
    assert wrong["count"] > 1
    done = python(wrong["repro"], env=environment(), timeout=120)
    assert done.returncode == 1
    assert re.search("reproduces", done.stdout)


def test_the_same_backend_again_is_nothing_new(hunted: Any) -> None:
    folder, status, _ = hunted
    assert status == 0  # the baseline was written
    arguments = ("toy_with_bugs:toy", "--ops", "hypot,add", "--dtypes", "float32", "--no-graphs")
    status, _, said = hunt(folder, *arguments, "--baseline", "hunt.toml")
    assert (status, "0 new or worse" in said) == (0, True)
    assert hunt(folder, *arguments)[0] == 1


def test_a_hunt_that_is_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    dtypes = "float32,float16,float64,int64,bool"
    ops = "add,mul,sub,hypot,cos,sin,tan,exp"
    arguments = f"toy_with_bugs:toy --ops {ops} --dtypes {dtypes} --no-graphs --jobs 1".split()
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command(*arguments), cwd=tmp_path, env=environment(), **silent)
    results = tmp_path / "minidbg_repros/.minidbg/hunt"
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline and not any(
        "hypot" in file.read_text() for file in results.rglob("results.jsonl")
    ):
        time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.wait()
    (file,) = results.rglob("results.jsonl")
    before = [json.loads(line)["id"] for line in file.read_text().splitlines()]
    status, said, stderr = hunt(tmp_path, *arguments)
    assert (status, "going on with a hunt" in stderr) == (1, True)
    after = [json.loads(line)["id"] for line in file.read_text().splitlines()]
    assert after[: len(before)] == before
    assert len(after) == len(set(after))
    (repro,) = (tmp_path / "minidbg_repros").glob("*.py")
    assert [one["repro"] for one in said if "case" in one] == [str(repro)]


def test_ctrl_c_says_how_far_a_hunt_is_and_leaves_no_process(tmp_path: Path) -> None:
    words = "hunt toy_with_bugs:toy --ops add,hypot,frac --dtypes float32 --no-graphs --jobs 2"
    running = Signalled(*words.split(), cwd=tmp_path, env={"PYTHONPATH": str(PLANTED)})

    def is_at_the_hang() -> bool:
        with contextlib.suppress(FileNotFoundError):  # a batch has just ended
            return any("frac" in path.read_text() for path in tmp_path.rglob("doing_*.json"))
        return False

    running.wait_until(is_at_the_hang)
    running.send()
    status, _, said = running.end()
    assert status == 130
    assert re.search(r"^minidbg: interrupted: .* of 3 .*; the same command goes on from here$", said, re.M), (
        said
    )


def test_aot_eager_is_silent_over_a_slice_of_torchs_samples(tmp_path: Path) -> None:
    """Each alarm would be a bug of torch, or one of minidbg; the whole table takes minutes."""
    words = "aot_eager --ops a*,m[ae]* --dtypes float32,int64 --no-graphs"
    status, said, stderr = hunt(tmp_path, *words.split())
    assert [one for one in said if "case" in one] == [], stderr
    assert status == 0
    assert sum(one["cell"]["state"] == "ok" for one in said if "cell" in one) > 40
