"""Long scripts of earlier versions, which carried the whole judge: judged from their headers, run as they are, and written anew short."""

import gzip
from pathlib import Path

import pytest

from minidbg import repro
from minidbg.report import forms, story_of
from minidbg.words.outcome import Verdict

EARLIER = sorted((Path(__file__).parent / "earlier").glob("*.py.gz"))


@pytest.fixture(params=EARLIER, ids=lambda path: path.name.partition(".")[0])
def script(request, tmp_path):
    path = tmp_path / request.param.name.removesuffix(".gz")
    path.write_bytes(gzip.decompress(request.param.read_bytes()))
    return path


def test_it_is_written_anew_in_a_few_lines(script):
    assert len(script.read_text().splitlines()) > 1000
    form = forms.rewritten(story_of(script), run=False)
    assert form.complaint == ""
    assert len(form.text.splitlines()) < 110
    script.write_text(form.text)
    assert repro.render(repro.load(script)).text == form.text


@pytest.mark.slow
def test_it_is_judged_from_its_header(script):
    outcome = repro.run(script)
    assert outcome.verdict is Verdict.REPRODUCES, outcome


@pytest.mark.slow
def test_it_runs_by_itself_as_it_is(script):
    assert repro.run_alone(script, seconds=100).exit_status == 1
