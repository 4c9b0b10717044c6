"""Scripts as they must be written; and run as they are written, judged by the judge and by themselves.

After a change that is meant, write them anew with ``MINIDBG_WRITE_GOLDEN=1 pytest tests/golden`` and read the difference.
"""

import os
from pathlib import Path

import pytest
from golden_cases import GOLDEN

from minidbg.core.outcome import Verdict
from minidbg.repro import render, run, run_alone, write

FOLDER = Path(__file__).parent


@pytest.mark.parametrize("name", GOLDEN)
def test_script_is_written_as_it_must_be(name):
    golden = GOLDEN[name]()
    text = render(golden.case, exactness=golden.exactness).text
    file = FOLDER / f"{name}.txt"
    if os.environ.get("MINIDBG_WRITE_GOLDEN"):
        file.write_text(text)
    assert text == file.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("name", GOLDEN)
def test_golden_script_shows_its_failure_in_a_clean_interpreter(name, tmp_path):
    golden = GOLDEN[name]()
    path = write(golden.case, tmp_path / f"{name}.py", exactness=golden.exactness)
    outcome = run(path)
    assert outcome.verdict is Verdict.REPRODUCES, outcome
    assert run_alone(path, seconds=100).exit_status == 1
