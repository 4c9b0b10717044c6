from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon_world import World


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path / "src"))
    monkeypatch.chdir(tmp_path)
    yield made
    if made.daemon is not None:
        made.daemon.end()
        assert made.pool.closed
