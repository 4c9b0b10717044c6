"""What stands on top of a repro's page: its title without the message, and what its header did not expect."""

from __future__ import annotations

import pytest

from minidbg.words.outcome import Verdict, contradiction
from minidbg.words.script_header import heading

WRONG = "output 0 differs: relative error 1.0e-02 at [0], allowed 4.0e-05 (float32, cpu)"


@pytest.mark.parametrize(
    ("docstring", "message", "title"),
    [
        (f"toy gives wrong results for sin: {WRONG}\n\n    more", f"{WRONG}\nmore", "toy gives wrong results for sin"),
        (f"toy gives wrong results: {WRONG[:30]}...", WRONG, "toy gives wrong results"),
        ("toy fails to compile sin.", "no kernel", "toy fails to compile sin."),
        ("toy: my own words", "no kernel", "toy: my own words"),
        ("", "no kernel", ""),
    ],
)  # fmt: skip
def test_a_title_does_not_say_the_message_that_stands_below_it(
    docstring: str, message: str, title: str
) -> None:
    assert heading(docstring, message) == title


def test_a_header_is_contradicted_by_what_it_does_not_expect_and_not_by_what_could_not_be_judged() -> None:
    def said(verdict: Verdict, expect: Verdict) -> str:
        return contradiction(verdict, expect, repro="sin", device="cpu")

    fixed = "cpu: gone, but the header expects reproduces; if that is a fix: minidbg accept sin"
    assert said(Verdict.GONE, Verdict.REPRODUCES) == fixed
    assert said(Verdict.CRASHED, Verdict.GONE) == "cpu: crashed, but the header expects gone"
    content = [(Verdict.GONE, Verdict.GONE), (Verdict.FLAKY, Verdict.REPRODUCES)]
    unjudged = [(Verdict.SKIPPED, Verdict.REPRODUCES), (Verdict.INVALID, Verdict.GONE)]
    assert [said(*pair) for pair in content + unjudged] == [""] * 4
