"""``pytest -m device`` on the device."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import partial

from acceptance import CHECKOUT, is_here

from parts.context import Context, Failed, Figures, Row, Skipped, need

NONE_LEFT = 5
"""pytest's exit status where all tests are deselected."""


def rows(context: Context) -> Iterator[tuple[str, Row]]:
    yield "pytest -m device", partial(row, context)


def row(context: Context) -> tuple[Figures, str]:
    need("pytest", "pytest_timeout", "hypothesis")
    passed = {
        name for path in context.folder.glob("pytest*/stdout.txt") for name in passed_in(path.read_text())
    }
    folder = context.place("pytest")
    words = [word for name in sorted(passed) for word in ("--deselect", name)]
    if is_here(["xdist"]) is None and (jobs := min(4, (os.cpu_count() or 2) // 2)) > 1:
        words += ["-n", str(jobs)]
    try:
        done = context.python(
            "-m", "pytest", "-m", "device", "--device", context.device, "-v", "-o", f"cache_dir={folder}/cache", "--rootdir", CHECKOUT,
            CHECKOUT / "tests" / "device", "--ignore", CHECKOUT / "tests" / "device" / "test_acceptance.py", *words, cwd=folder,
        )  # fmt: skip
    except Skipped as over:
        out = (folder / "stdout.txt").read_text()
        if failed := re.findall(r"(?:^|\n)\S*::(\S+) (?:FAILED|ERROR)|(?:FAILED|ERROR) \S*::(\S+)", out):
            raise Failed(f"{', '.join(one or other for one, other in failed)}; and {over}") from None
        raise Skipped(f"{over} after {len(passed | passed_in(out))} tests that passed") from None
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (failed|skipped|errors?)\b", done.out)}
    if done.status not in (0, NONE_LEFT if passed else 0):
        failed = re.findall(r"^FAILED \S*::(\S+)", done.out, re.M)
        raise Failed(f"{', '.join(failed) or done.tail}")
    return {"passed": len(passed | passed_in(done.out)), **counts}, ""


def passed_in(text: str) -> set[str]:
    """The tests that passed, as ``-v`` writes them with and without xdist: by the paths that ``--deselect`` takes."""
    found = re.findall(r"(test_\w+\.py::\S+) PASSED|PASSED \S*?(test_\w+\.py::\S+)", text)
    return {f"tests/device/{one or other}" for one, other in found}
