"""The package does not grow, and no test patches more of our own objects than it did."""

from __future__ import annotations

import ast

from house.ratchets import LINES, counted, patches, recorded


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
