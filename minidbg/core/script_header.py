"""The PEP 723 header of a repro script, as tools read it: the standard library only, and nothing of
the script is executed.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Mapping
from typing import Any

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
HANG_LIMIT_S = 120.0  # seconds that a script of the kind hang gets when its header names no limit


def metadata_of(text: str) -> dict[str, Any]:
    starts = len(START.findall(text))  # first: the search for a block takes the square of their number
    if starts > 1:
        raise ValueError(f"{starts} '# /// script' blocks; a script has one")
    block = BLOCK.search(text) if starts else None
    if block is None:
        raise ValueError("no '# /// script' block, so this is no repro script of minidbg")
    if len(block["content"]) > BLOCK_LIMIT:
        raise ValueError(f"the '# /// script' block is longer than {BLOCK_LIMIT >> 20} MiB")
    lines = [line[2:] if line.startswith("# ") else line[1:] for line in block["content"].split("\n")]
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


def table_in(metadata: dict[str, Any]) -> dict[str, Any]:
    """``[tool.minidbg]`` of the header. Raises ValueError when there is none, or one of another schema."""
    tools = metadata.get("tool")
    table = tools.get("minidbg") if isinstance(tools, dict) else None
    if not isinstance(table, dict):
        raise ValueError("the '# /// script' block has no [tool.minidbg] table")
    details = table.pop("details", None)  # what stands on a line of its own was put there by a person
    try:
        told = json.loads(details) if isinstance(details, str) else {}
    except (ValueError, RecursionError) as error:
        raise ValueError(f"its details are not valid JSON: {error}") from error
    table = {**told, **table} if isinstance(told, dict) else table
    if table.get("schema") != HEADER_VERSION:
        raise ValueError(
            f"its header has schema {table.get('schema')!r:.40}, this minidbg reads {HEADER_VERSION}; install a newer minidbg to read it"
        )
    return table


def folder_of_script(path: str) -> str:
    """The repro folder that a repro, a capture or a draft lies in."""
    folder = os.path.dirname(path)
    above, hidden, _ = f"{folder}{os.sep}".rpartition(f"{os.sep}{HIDDEN}{os.sep}")
    return above if hidden else folder


def expected_in(table: Mapping[str, Any]) -> str:
    expect = table.get("expect", "reproduces")
    if expect not in ("reproduces", "gone"):
        raise ValueError(f"expect = {expect!r:.80}: expected 'reproduces' or 'gone'")
    return str(expect)


def node_count_of(table: Mapping[str, Any]) -> int:
    nodes = table.get("nodes", 0)
    if type(nodes) is not int:
        raise ValueError(f"nodes = {nodes!r:.80}: expected an integer")
    return nodes


def text_of(script: bytes) -> str:
    return script.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
