"""Text that a person reads, cut to a line."""

from __future__ import annotations

import pytest

from minidbg.core.foreign import first_line_of


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("no kernel", "ValueError: no kernel"),
        ("no\tkernel\nfor relu", "ValueError: no kernel"),
        ("", "ValueError"),
        ("word " * 100, "ValueError:" + " word" * 57 + " ..."),
        ("x" * 500, "ValueError: " + "x" * 284 + " ..."),
        ("x" * 288, "ValueError: " + "x" * 288),
        ("short " + "x" * 10_000_000, "ValueError: short " + "x" * 278 + " ..."),
    ],
)
def test_first_line_of_a_failure_has_at_most_300_characters_and_never_loses_its_beginning(
    text: str, line: str
) -> None:
    assert first_line_of(ValueError(text)) == line
    assert len(line) <= 300
