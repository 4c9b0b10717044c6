from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon_world import World

from minidbg.watch import watched


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path / "src"))
    monkeypatch.chdir(tmp_path)
    # Here a run begins in the same millisecond as the save before it; a real one comes after the quiet time.
    monkeypatch.setattr(watched, "CLOCK_GRAIN_S", 0.0)
    yield made
    if made.daemon is not None:
        made.daemon.end()
        assert made.pool.closed
