"""The corpus asked of one version: what comes of each program, held against what is written down beside it.

    python tests/corpus/running.py                      # every row, by this interpreter
    python tests/corpus/running.py --python OTHER NAME  # rows whose name or group holds NAME, by the minidbg of another one
    MINIDBG_WRITE_CORPUS=1 python tests/corpus/running.py NAME   # what comes of them is what is to come of them

``programs/GROUP.toml`` has the programs, ``programs/GROUP/NAME.txt`` what must come of each: facts, one a line, and texts. The
programs of a group fail in one interpreter, one after the other.
"""

from __future__ import annotations

import argparse
import difflib
import functools
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet

HERE = Path(__file__).parent
PROGRAMS = HERE / "programs"
WRITING = bool(os.environ.get("MINIDBG_WRITE_CORPUS"))
HEAD = """\
import torch
import minidbg
from torch import nn
from torch.nn import functional as F
"""
CONSTRUCT = """\
import torch
import minidbg
from constructs import CONSTRUCTS

(one,) = (one for one in CONSTRUCTS if one.name == {name!r})
with one.around():
    torch.compile(one.function, backend=minidbg.wrap(one.backend), **one.given)(*one.args())
"""


@dataclass(frozen=True)
class Row:
    name: str
    group: str
    program: str
    quick: bool = False
    """Whether it is asked by default."""
    alone: float = 0.0
    """Seconds after which its process is killed, which dies before or never ends; what is left is reduced by ``minidbg reduce``."""
    check: bool = False
    """Whether the script is judged once more by ``minidbg check``, which starts an interpreter."""
    torch: str = ""
    """The versions on which it fails so."""
    cuda: bool = False
    """Whether it needs a GPU."""

    @property
    def sitting(self) -> str:
        """The rows of one fail in one interpreter, one after the other."""
        return "quick" if self.quick else self.group

    @property
    def answers(self) -> Path:
        return PROGRAMS / self.group / f"{self.name}.txt"

    def missing(self, torch_version: str, has_cuda: bool) -> str:
        """Why it cannot be asked of an interpreter; empty where it can."""
        if not SpecifierSet(self.torch).contains(torch_version, prereleases=True):
            return f"fails so on torch{self.torch} only, this is {torch_version}"
        if self.cuda and not has_cuda:
            return "there is no GPU here"
        if not self.answers.exists() and not WRITING:
            return "nothing is written down yet of what must come of it"
        return ""


def rows(*names: str) -> list[Row]:
    """Those whose name, group or sitting is one of ``names``; all of them without."""
    found = []
    for path in sorted(PROGRAMS.glob("*.toml")):
        for name, table in tomllib.loads(path.read_text()).items():
            if "construct" in table:
                table["program"] = CONSTRUCT.format(name=table.pop("construct"))
            else:
                table["program"] = HEAD + table["program"]
            found.append(Row(name, path.stem, **table))
    return [row for row in found if not names or {row.name, row.group, row.sitting} & set(names)]


# ---- asking


def answers(asked: Iterable[Row], python: str = sys.executable) -> Iterator[tuple[Row, str]]:
    """What comes of each row by the minidbg of ``python``, as it is written down."""
    sittings: dict[str, list[Row]] = {}
    for row in asked:
        sittings.setdefault(row.sitting, []).append(row)
    for sitting in sittings.values():
        with tempfile.TemporaryDirectory(prefix="corpus-") as folder:
            yield from in_one_interpreter(sitting, python, Path(folder))


def environ(folder: Path) -> dict[str, str]:
    """What an interpreter of the corpus gets: backends and cases on its path, no setting of the person who asks, caches in ``folder``."""
    tests = HERE.parent
    path = [
        str(tests),
        str(tests / "planted"),
        str(tests / "cases"),
        *filter(None, [os.environ.get("PYTHONPATH")]),
    ]
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(("MINIDBG_", "PYTEST_"))},
        "PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1", "COLUMNS": "110", "MINIDBG_SECONDS": "5000",
        "MINIDBG_TIME_LIMIT_S": "30", "HOME": str(folder), "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
    }  # fmt: skip


def in_one_interpreter(asked: Iterable[Row], python: str, folder: Path) -> Iterator[tuple[Row, str]]:
    with subprocess.Popen(
        [python, str(HERE / "sitting.py"), str(folder)], env=environ(folder), text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdin
        assert process.stdout
        for row in asked:
            told = {name: getattr(row, name) for name in ("group", "name", "program", "alone", "check")}
            print(json.dumps(told), file=process.stdin, flush=True)
            line = process.stdout.readline()
            assert line, f"the interpreter died of {row.name}: {process.wait()}"
            yield row, as_text(json.loads(line), folder)
        process.stdin.close()


# ---- what is written down

VARIABLE: tuple[tuple[str, str], ...] = (
    (r"\bprocess \d+\b", "process #"),
    (r"\b\d+ runs?\b", "# runs"),
    (r"\b\d+(\.\d+)? (s|ms|min)\b", "# s"),
    (r"\b0x[0-9a-f]+\b", "0x#"),
    (r"(?m)^[CEW]\d{4} [\d:.]+ \d+ ", "LOG "),
    (r"_[0-9a-f]{6,}\b", "_#"),
    (r"(constructs\.py|wrapper\.py):\d+", r"\1:#"),
    (r"\b\d+\.\d+\.\d+(\.dev\d*)?(\+\w+)?\b", "#.#.#"),
    (r"-?0\.0 at \[[\d, ]+\], eager gives nan \(\d+ of \d+", "0.0 at [#], eager gives nan (# of #"),  # chance
    (r"\ballowed [\de.+-]+", "allowed #"),  # by the roundings of this machine's arithmetic
    (r"(RMSE against float64: backend [^,\s]+, eager) [\de.+-]+", r"\1 #"),
    (r", PCC \S+, ratio [\w.+-]+", ""),
    (r"\b20\d\d-\d\d-\d\d([T ]\d\d:\d\d(:\d\d)?)?\S*", "DATE"),
    (r"\bminidbg\.[\w.]*\.(?=[A-Z])", "minidbg."),
    (r"(?m)[ \t]+$", ""),
    (r"(?m)(^ *\S+\.(h|cpp):\d+:\d+: .*\n)+", "What a C++ compiler says.\n"),
)
"""What differs from run to run, from machine to machine and from torch to torch, and what stands for it."""


def as_text(answer: Mapping[str, Any], folder: Path) -> str:
    facts = [f"{name} = {json.dumps(value)}" for name, value in answer["facts"].items()]
    parts = ["\n".join(facts), *(f"---- {name}\n{text}" for name, text in answer["texts"].items())]
    text = "\n".join(part.rstrip("\n") for part in parts) + "\n"
    text = re.sub(rf"{re.escape(str(folder))}(/\w+)?", "FOLDER", text)
    text = text.replace(str(HERE.parent), "TESTS")
    facts_of_text, _, texts = text.partition("\n---- ")
    for pattern, mark in VARIABLE:
        texts = re.sub(pattern, mark, texts)
    return f"{facts_of_text}\n---- {texts}"


AT_MOST = {"questions": 2, "lines": 3}
"""Figures that may be smaller, or larger by so many: a question is asked beside a slow one, a version of torch wraps a line."""


SCRIPT = re.compile(r"(?ms)^---- script\n(.*?)(?=^---- |\Z)")


def comparable(text: str) -> str:
    """Without the figures that are compared by their size, and with a sentence in one line that the version of torch wraps."""
    for name in AT_MOST:
        text = re.sub(rf"(?m)^{name} = \d+\n", "", text)
    return text.replace(", torch\n#.#.#", ", torch #.#.#")


def as_far_as_both(*texts: str) -> list[str]:
    """Where a sentence of one script was wrapped, its first lines reach less far."""
    scripts = [found[1].splitlines(keepends=True) if (found := SCRIPT.search(one)) else [] for one in texts]
    both = min(map(len, scripts))
    return [
        SCRIPT.sub(lambda found: "---- script\n" + "".join(found[1].splitlines(keepends=True)[:both]), one)
        for one in texts
    ]


def difference(row: Row, text: str) -> str:
    """What differs from what is written down, as lines for a person; empty where nothing does. Written down, where that is asked for."""
    if WRITING:
        row.answers.parent.mkdir(exist_ok=True)
        row.answers.write_text(text)
        return ""
    expected = row.answers.read_text()
    lines = [one.splitlines() for one in as_far_as_both(comparable(expected), comparable(text))]
    changes = list(difflib.unified_diff(*lines, "written down", "now", lineterm="", n=2))[2:]
    for name, more in AT_MOST.items():
        most, now = (int((re.findall(rf"(?m)^{name} = (\d+)$", one) or ["0"])[0]) for one in (expected, text))
        if now > most + more:
            changes.insert(0, f"{now} {name}, where {most} were enough")
    return "\n".join([f"== {row.group}/{row.name}", *changes]) if changes else ""


@functools.cache
def torch_of(python: str) -> tuple[str, bool]:
    """The version of torch of an interpreter, and whether it has a GPU."""
    if python == sys.executable and not os.path.exists("/dev/nvidia0"):
        return importlib.metadata.version("torch"), False
    asks = "import torch; print(torch.__version__, torch.cuda.is_available())"
    version, gpu = subprocess.run(
        [python, "-c", asks], capture_output=True, text=True, check=True
    ).stdout.split()
    return version, gpu == "True"


def not_asked(asked: Iterable[Row], python: str = sys.executable) -> dict[str, list[str]]:
    """The rows of which an interpreter cannot be asked, by the reason."""
    found: dict[str, list[str]] = {}
    for row in asked:
        if why := row.missing(*torch_of(python)):
            found.setdefault(why, []).append(f"{row.group}/{row.name}")
    return found


def failing(asked: Iterable[Row], python: str = sys.executable) -> list[str]:
    """What differs of each row that differs, as lines for a person."""
    done = answers((row for row in asked if not row.missing(*torch_of(python))), python)
    return [found for row, text in done if (found := difference(row, text))]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--quick", action="store_true", help="only what is asked by default")
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    asked = [row for row in rows(*given.names) if row.quick or not given.quick]
    differences = failing(asked, given.python)
    left_out = not_asked(asked, given.python)
    print(
        *differences, *(f"not asked, {why}: {' '.join(names)}" for why, names in left_out.items()), sep="\n"
    )
    sys.exit(bool(differences))


if __name__ == "__main__":
    main()
