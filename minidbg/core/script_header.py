"""The PEP 723 header of a repro script, as tools read it. Nothing of the script is executed."""

from __future__ import annotations

import os
import re
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from minidbg.core.metrics import BadJudge, Judge
from minidbg.core.records import record_of
from minidbg.core.run_spec import Provenance, RunSpec

BLOCK = re.compile(
    r"(?m)^# /// script$\s(?P<content>(^#(| .*)$\s)+)^# ///$"
)  # the regular expression of PEP 723
START = re.compile(r"(?m)^# /// script$")
# tomllib takes the square of its length. Only from the beginning of a word: else the search takes
# the square of a word's length
LONG_KEY = re.compile(r"(?<![\w-])(?:[\w-]+\s*\.\s*){100}")
HEADER_VERSION = 1
SCRIPT_LIMIT_BYTES = 16 << 20
"""Of a script. A capture of 20,000 nodes has two megabytes."""
BLOCK_LIMIT = 1 << 20
"""Characters of a header, of which some hundred are usual."""
HIDDEN = ".minidbg"
"""The folder in a repro folder for all that is no verified repro."""


@dataclass(frozen=True, slots=True)
class Header:
    spec: RunSpec
    """How the script runs and what it must show; its backend lacks the code at the script's top."""
    expect: Literal["reproduces", "gone"] = "reproduces"
    """``gone`` once fixed: a regression test from then on."""
    nodes: int = 0
    """Calls of the script's graph as it was written; ``Provenance`` has the first graph's."""
    inputs: int = 0
    provenance: Provenance = Provenance()
    dependencies: tuple[str, ...] = ()
    path: Path = Path()


def metadata_of(text: str) -> dict[str, Any]:
    starts = len(START.findall(text))  # first: the search takes the square of their number
    if starts > 1:
        raise ValueError(f"{starts} '# /// script' blocks; a script has one")
    block = BLOCK.search(text) if starts else None
    if block is None:
        raise ValueError(
            "no '# /// script' block, so this is no repro script of minidbg; "
            "give one that it wrote: 'minidbg list' names those of the repro folder"
        )
    content = block["content"]
    if len(content) > BLOCK_LIMIT:
        raise ValueError(f"the '# /// script' block is longer than {BLOCK_LIMIT >> 20} MiB")
    lines = [line[2:] if line.startswith("# ") else line[1:] for line in content.split("\n")]
    try:
        return parse_toml("\n".join(lines))
    except ValueError as error:
        raise ValueError(f"the '# /// script' block is not valid TOML: {error}") from error


def parse_toml(text: str) -> dict[str, Any]:
    if LONG_KEY.search(text):
        raise ValueError("it has a key of more than 100 parts")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("its values are nested too deeply") from None


def parse_header(text: str, path: str | os.PathLike[str]) -> Header:
    """The header of script ``text`` at ``path``, with absolute paths. Raises one of MALFORMED."""
    metadata = metadata_of(text)
    tools = metadata.get("tool")
    table = tools.get("minidbg") if isinstance(tools, dict) else None
    if not isinstance(table, dict):
        raise ValueError("the '# /// script' block has no [tool.minidbg] table")
    if table.get("schema") != HEADER_VERSION:
        raise ValueError(
            f"its header has schema {table.get('schema')!r:.40}, this minidbg reads "
            f"{HEADER_VERSION}; install a newer minidbg to read it"
        )
    facts = {name: table[name] for name in Header.__dataclass_fields__ if name in table}
    needed = metadata.get("dependencies", ())
    header = record_of({**facts, "spec": table, "dependencies": needed, "path": Path(path)}, Header)
    try:
        Judge.of(header.spec.judge or "equal")
    except BadJudge as refusal:
        raise ValueError(f"judge: {refusal}") from None
    backend, home = header.spec.backend, folder_of_script(os.path.abspath(path))
    paths = tuple(os.path.normpath(os.path.join(home, one)) for one in backend.paths)
    backend = replace(backend, expression="", setup=(), embedded="", paths=paths)
    return replace(header, spec=replace(header.spec, backend=backend))


def folder_of_script(path: str) -> str:
    """The repro folder that a repro, a capture or a draft lies in."""
    folder = os.path.dirname(path)
    above, hidden, _ = f"{folder}{os.sep}".rpartition(f"{os.sep}{HIDDEN}{os.sep}")
    return above if hidden else folder


def text_of(script: bytes) -> str:
    return script.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
