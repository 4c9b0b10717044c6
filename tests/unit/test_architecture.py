"""ARCHITECTURE.md names files and what is defined in them: all of it is there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "minidbg"
TEXT = (PACKAGE / "ARCHITECTURE.md").read_text(encoding="utf-8")
FILE = re.compile(r"`([a-z_]+(?:/[a-z_]+)*\.py)`")
NAMED = re.compile(r"`([a-z_]+(?:/[a-z_]+)*\.py)`: ((?:`[\w.]+`(?:, )?)+)")
NAMES = [(file, name) for file, names in NAMED.findall(TEXT) for name in re.findall(r"`([\w.]+)`", names)]


@cache
def defined_in(file: str) -> set[str]:
    """Functions, classes and ``Class.method``."""
    found = set()
    for node in ast.parse((PACKAGE / file).read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{one.name}" for one in node.body if isinstance(one, ast.FunctionDef)}
    return found


def test_it_names_enough() -> None:
    assert len(NAMES) > 50
    assert len(TEXT.splitlines()) <= 150


@pytest.mark.parametrize(("file", "name"), NAMES)
def test_each_call_of_the_journeys_is_where_it_says(file: str, name: str) -> None:
    assert name in defined_in(file)


@pytest.mark.parametrize("file", sorted(set(FILE.findall(TEXT))))
def test_each_file_is_there(file: str) -> None:
    assert (PACKAGE / file).is_file() or (PACKAGE.parent / file).is_file()


def test_each_room_stands_on_a_floor() -> None:
    rooms = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    floors = TEXT.partition("## Floors")[2].partition("\n## ")[0]
    assert rooms <= set(re.findall(r"`([a-z_]+)`", floors))
