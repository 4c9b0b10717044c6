"""The package does not grow, no test patches more of our own objects than it did, and names and lines do not get worse."""

from __future__ import annotations

import ast
from collections import Counter

from house.ratchets import LINES, counted, patches, recorded, shared_names, vague_names


def test_no_number_has_risen() -> None:
    before = recorded()
    now = counted()
    assert now[LINES] > 1000
    risen = [
        f"{name}: {number}, was {before.get(name, 0)}"
        for name, number in now.items()
        if number > before.get(name, 0)
    ]
    assert risen == []


def test_patches_of_ours_are_told_from_those_of_others() -> None:
    text = """
import os, torch, minidbg
from minidbg.watch import store
from time import time

def test_it(monkeypatch, world):
    monkeypatch.setattr(os, "cpu_count", int)
    monkeypatch.setattr(torch._dynamo.config, "verbose", True)
    monkeypatch.setattr("os.cpu_count", int)
    monkeypatch.setattr(store, "WAIT_S", 0)
    monkeypatch.setattr("minidbg.watch.store.WAIT_S", 0)
    monkeypatch.setattr(type(world.daemon), "begin", int)
    monkeypatch.delattr(minidbg.watch, "store")
"""
    assert len(list(patches(ast.parse(text)))) == 4


def test_a_name_of_two_files_is_counted_and_an_import_is_not() -> None:
    first = "import os\nfrom b import run\nFEW, MANY = 1, 2\ndef main(): few = 3\n"
    second = "import os\nFEW: int = 3\nif True:\n    def main(): pass\nclass Run: run = 4\n"
    assert shared_names([ast.parse(first), ast.parse(second)]) == {"FEW", "main"}


def test_a_vague_name_is_counted_in_code_alone() -> None:
    text = "found = one(given)  # found\nprint(found.told, 'one', f'{one}')\n"
    assert Counter(vague_names(ast.parse(text))) == Counter(found=2, one=2, given=1, told=1)
