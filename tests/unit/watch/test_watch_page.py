"""``minidbg watch --html``: the matrix as a page, written as events come, whole at each moment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from minidbg.watch.announce import Event
from minidbg.watch.page import Page


def result(repro: str, verdict: str, reason: str = "", at: float = 10.0) -> Event:
    data = {
        "repro": repro,
        "device": "cpu",
        "verdict": verdict,
        "standing": None,
        "seconds": 1.0,
        "reason": reason,
    }
    return Event("result", data, at)


def test_the_page_follows_the_events_and_at_the_end_reloads_no_more(tmp_path: Path) -> None:
    now = [100.0]
    view = Page(tmp_path / "matrix.html", clock=lambda: now[0])
    view.show(Event("started", {"home": "/repros", "states": []}, 1.0))
    text = view.path.read_text()
    assert 'http-equiv="refresh"' in text
    assert "No repro has been run yet" in text
    view.show(result("a.py", "reproduces", "<b>no kernel</b>"))
    assert "a.py" not in view.path.read_text(), "not more often than once a second"
    now[0] += 1.5
    view.show(result("b.py", "gone"))
    text = view.path.read_text()
    assert text.index("a.py") < text.index("b.py"), "what fails comes first"
    assert "&lt;b&gt;no kernel" in text
    assert "1 gone, 1 reproduces" in text
    view.close()
    text = view.path.read_text()
    assert "refresh" not in text
    assert "not watched any more" in text
    assert list(tmp_path.iterdir()) == [view.path]


def test_a_flip_is_on_the_page_at_once(tmp_path: Path) -> None:
    view = Page(tmp_path / "matrix.html", clock=lambda: 50.0)
    data = {
        "repro": "a.py", "device": "cpu", "kind": "FIXED", "before": "reproduces", "after": "gone", "path": "a.py",
        "last_before": "", "first_after": "", "files": [], "sweep": 2,
    }  # fmt: skip
    view.show(Event("flip", data, 40.0))
    assert "FIXED" in view.path.read_text()


def test_a_folder_that_is_gone_does_not_end_the_daemon(tmp_path: Path) -> None:
    view = Page(tmp_path / "gone" / "matrix.html")
    view.show(Event("started", {"home": "/repros", "states": []}, 1.0))
    view.close()


def test_the_page_loads_no_torch() -> None:
    code = "import sys, minidbg.watch.page; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
