"""Two models as one text: what only one of them has, marked as in a diff."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

COMMENT = re.compile(r"\s+#.*$")


def difference(fails: str, passes: str) -> Iterator[str]:
    """The lines of both, ``-`` before what only the failing one has, ``+`` before what only the passing one has.

    Comments do not count: they tell where a line came from.
    """
    first, second = uncommented(fails), uncommented(passes)
    for line in difflib.ndiff(first, second):
        if not line.startswith("?"):
            yield line.rstrip()


def uncommented(text: str) -> list[str]:
    """The lines of ``text`` without comments."""
    return [plain for line in text.split("\n") if (plain := COMMENT.sub("", line)).strip()]
