"""An interpreter that imports ahead, for one script."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from minidbg import workers
from minidbg.workers import Standby

HASHES = "print(hash('a word'), list({'one', 'two', 'three', 'four', 'five', 'six'}))"


def started(*modules: str, **variables: str) -> Standby:
    return workers.start_server().start_standby(modules, {**os.environ, **variables})


@pytest.fixture
def ahead() -> Iterator[Standby]:
    with started() as interpreter:
        yield interpreter


def script(folder: Path, text: str) -> list[str]:
    (folder / "script.py").write_text(text)
    return [str(folder / "script.py")]


def test_it_runs_a_script_as_python_would_with_its_imports_made(tmp_path: Path) -> None:
    (tmp_path / "beside_it.py").write_text("found = 'beside it'")
    text = (
        "import sys, os; print('colorsys' in sys.modules, sys.modules['mimetypes'].inited, sys.argv[1:], __name__, os.listdir('.'))\n"
        "import beside_it; print(beside_it.found, file=sys.stderr); sys.exit(3)"
    )
    with started("colorsys", "colorsys:missing", "mimetypes:init") as ahead:
        ended = ahead.start([*script(tmp_path, text), "--x"], seconds=60)()
    assert ended is not None
    assert (ended.exit_status, ended.stdout) == (3, "True True ['--x'] __main__ []\n")
    assert ended.stderr_tail == "beside it\n"


def test_each_has_a_hash_seed_of_its_own(tmp_path: Path) -> None:
    """What follows from the order of a set is found out: the forks that were asked before have all the same."""
    with started(PYTHONHASHSEED="0") as one, started(PYTHONHASHSEED="0") as other:
        ends = [each.start(script(tmp_path, HASHES), seconds=60) for each in (one, other)]
        said = {ended.stdout for end in ends if (ended := end()) is not None}
    here = subprocess.run(
        [sys.executable, "-c", HASHES], env={**os.environ, "PYTHONHASHSEED": "0"}, capture_output=True, text=True, check=True
    )  # fmt: skip
    assert len(said | {here.stdout}) == 3


def test_a_script_that_ends_late_is_told_so(ahead: Standby, tmp_path: Path) -> None:
    ended = ahead.start(script(tmp_path, "import time; time.sleep(600)"), seconds=0.5)()
    assert ended is not None
    assert ended.timed_out


def test_one_whose_server_has_ended_has_no_result(ahead: Standby, tmp_path: Path) -> None:
    end = ahead.start(script(tmp_path, "import time; time.sleep(600)"), seconds=600)
    workers.end_server()
    assert end() is None


def of_the_reduction(argument: object, note: object) -> str:
    """In a child of the server, as a reduction is: the folder of what was started ahead for it."""
    with workers.start_server().start_standby((), {"STARTED": "late"}) as ahead:
        found = ahead.start([str(argument["script"])], seconds=60)()  # type: ignore[index]
    return found.stdout if found is not None else "ended"


def test_what_the_server_has_started_ahead_is_for_the_next_question_alone(tmp_path: Path) -> None:
    workers.end_server()
    function = f"{__name__}:of_the_reduction"
    workers.start_server().prepare(function, workers.Warmup(), ((), dict(os.environ)))
    (path,) = script(tmp_path, "import os; print(os.environ.get('STARTED', 'ahead'))")
    request = workers.Request(call=function, argument={"script": path}, fork=workers.Warmup(), asks=True)
    answers = [workers.submit(request).result().value for _ in range(2)]
    assert answers == ["ahead\n", "late\n"]
