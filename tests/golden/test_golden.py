"""Scripts as they must be written, down to where the judge begins; and run as they are written.

After a change that is meant, write them anew with ``MINIDBG_WRITE_GOLDEN=1 pytest tests/golden`` and read the difference.
"""

import os
from pathlib import Path

import pytest
from golden_cases import GOLDEN

from minidbg.failure import Verdict
from minidbg.repro import load, render, run, write

FOLDER = Path(__file__).parent
END_OF_HEADER = "# ///\n"


def head_of(text):
    """What stands above the judge."""
    return text[: text.rindex(END_OF_HEADER) + len(END_OF_HEADER)]


@pytest.mark.parametrize("name", GOLDEN)
def test_script_is_written_as_it_must_be(name):
    golden = GOLDEN[name]()
    text = head_of(render(golden.case, exactness=golden.exactness).text)
    file = FOLDER / f"{name}.txt"
    if os.environ.get("MINIDBG_WRITE_GOLDEN"):
        file.write_text(text)
    assert text == file.read_text()


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_script_is_read_back(name, tmp_path):
    golden = GOLDEN[name]()
    path = write(golden.case, tmp_path / f"{name}.py", exactness=golden.exactness)
    assert render(load(path), exactness=golden.exactness).text == path.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("name", GOLDEN)
def test_golden_script_shows_its_failure_in_a_clean_interpreter(name, tmp_path):
    golden = GOLDEN[name]()
    outcome = run(write(golden.case, tmp_path / f"{name}.py", exactness=golden.exactness))
    assert outcome.verdict is Verdict.REPRODUCES, outcome
