"""``pytest -m device`` on the device."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import partial

from acceptance import CHECKOUT, is_here

from parts.context import Context, Failed, Figures, Row, Skipped, need


def rows(context: Context) -> Iterator[tuple[str, Row]]:
    yield "pytest -m device", partial(row, context)


def row(context: Context) -> tuple[Figures, str]:
    need("pytest", "pytest_timeout", "hypothesis")
    folder, jobs = context.place("pytest"), min(4, (os.cpu_count() or 2) // 2)
    words = ["-n", jobs] if is_here(["xdist"]) is None and jobs > 1 else []
    try:
        done = context.python(
            "-m", "pytest", "-m", "device", "--device", context.device, "-v", "-o", f"cache_dir={folder}/cache", "--rootdir", CHECKOUT,
            CHECKOUT / "tests" / "device", "--ignore", CHECKOUT / "tests" / "device" / "test_acceptance.py", *words, cwd=folder,
        )  # fmt: skip
    except Skipped as over:
        out = (folder / "stdout.txt").read_text()
        if failed := re.findall(r"(?:^|\n)\S*::(\S+) (?:FAILED|ERROR)|(?:FAILED|ERROR) \S*::(\S+)", out):
            raise Failed(f"{', '.join(one or other for one, other in failed)}; and {over}") from None
        raise Skipped(f"{over} after {out.count('PASSED')} tests that passed") from None
    counts = re.findall(r"(\d+) (passed|failed|skipped|errors?)\b", done.out)
    if done.status:
        failed = re.findall(r"^FAILED \S*::(\S+)", done.out, re.M)
        raise Failed(f"{', '.join(failed) or done.tail}")
    return {word: int(number) for number, word in counts}, ""
