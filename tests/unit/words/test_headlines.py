"""What stands on top of a repro's page: its title without the message, and what its header did not expect."""

from __future__ import annotations

import pytest

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
