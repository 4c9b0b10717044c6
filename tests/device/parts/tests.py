"""``pytest -m device`` on the device."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

from acceptance import CHECKOUT

from parts.context import Context, Failed, Figures, Row, need


def rows(context: Context) -> Iterator[tuple[str, Row]]:
    yield "pytest -m device", partial(row, context)


def row(context: Context) -> tuple[Figures, str]:
    need("pytest", "pytest_timeout", "hypothesis")
    folder = context.place("pytest")
    done = context.python(
        "-m", "pytest", "-m", "device", "--device", context.device, "-q", "-o", f"cache_dir={folder}/cache", CHECKOUT / "tests" / "device",
        "--ignore", CHECKOUT / "tests" / "device" / "test_acceptance.py", cwd=folder,
    )  # fmt: skip
    counts = {
        word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|skipped|errors?)", done.out)
    }
    if done.status != 0:
        failed = re.findall(r"^FAILED \S*::(\S+)", done.out, re.M)
        raise Failed(f"{', '.join(failed) or done.tail}")
    return counts, ""
