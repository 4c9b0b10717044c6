"""The pages in a real browser without a window: they lay out, in light and dark, from 10 to 10,000 nodes, and load nothing."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import pytest
from support.command_line import cli, python
from support.lying_repro import lay, long_capture

from minidbg.report import story_of
from minidbg.report.errors_along import ErrorsAlong
from minidbg.report.page import page

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="no Chromium here: apt install chromium"),
]

LOOK = """<script>
const style = getComputedStyle(document.body), seen = {};
seen.background = style.backgroundColor; seen.text = style.color;
seen.wide = document.documentElement.scrollWidth > innerWidth;
const folded = document.querySelector("details:has(.nodes)"), inside = one => one.getBoundingClientRect();
seen.kept = [...document.querySelectorAll("tr.kept, tr.as_input")].filter(row => row.checkVisibility()).map(row => row.cells[2].textContent);
seen.bars = [...document.querySelectorAll("tr.kept .error i")].map(bar => inside(bar).width);
seen.cut = [...document.querySelectorAll(".nodes td")].slice(0, 200).filter(cell => cell.scrollWidth > cell.clientWidth + 1).length;
folded.open = false; seen.closed = inside(folded).height;
folded.open = true; seen.opened = inside(folded).height; seen.lines = folded.querySelectorAll("tr.removed").length;
seen.wide ||= document.documentElement.scrollWidth > innerWidth;
seen.resources = performance.getEntriesByType("resource").length;
document.body.dataset.seen = JSON.stringify(seen);
</script></body>"""


def looked_at(text: str, folder: Path, *, dark: bool) -> dict[str, object]:
    """What the browser made of the page: a script that is put on it looks around and leaves its answer in the document."""
    file = folder / "page.html"
    file.write_text(text.replace("</body>", LOOK))
    assert BROWSER is not None
    command = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}",
        "--window-size=1100,900", f"--blink-settings=preferredColorScheme={0 if dark else 1}", "--dump-dom",
        file.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    found = re.search(r'data-seen="([^"]*)"', done.stdout)
    assert found, done.stderr[-2000:]
    return dict(json.loads(unescape(found[1])))


def page_of(count: int, folder: Path) -> str:
    """The page of a repro reduced from ``count`` nodes."""
    repro = lay(folder / "repros")
    capture = folder / "repros" / ".minidbg" / "captures" / "compile_relu_bbbbbb.py"
    capture.write_text(long_capture(count))
    errors = ErrorsAlong(
        ("tanh", "relu", *(f"v_{number}" for number in range(count))), (1e-7, 0.1, *[1e-3] * count), 3e-5
    )
    return page(story_of(repro), errors)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("count", [10, 300, 10_000])
def test_a_page_lays_out_at_any_size_in_light_and_dark(count: int, dark: bool, tmp_path: Path) -> None:
    seen = looked_at(page_of(count, tmp_path), tmp_path, dark=dark)
    assert seen["background"] == ("rgb(20, 23, 28)" if dark else "rgb(255, 255, 255)")
    assert seen["text"] == ("rgb(228, 232, 238)" if dark else "rgb(29, 33, 39)")
    assert seen["wide"] is False
    assert seen["kept"] == [
        "tanh = tanh(" + ("v_3" if count == 10 else f"v_{count // 2 - 2}") + ")",
        "relu = relu(tanh)",
    ]
    assert seen["bars"] == [63]
    assert seen["cut"] == 0
    assert seen["resources"] == 0
    assert seen["lines"] == count + 1, "three inputs more, and two nodes that are left"
    assert float(str(seen["closed"])) < 40 < float(str(seen["opened"])) < 800
    assert float(str(seen["opened"])) > 200


def test_hostile_texts_do_not_break_the_page(tmp_path: Path) -> None:
    repro = lay(tmp_path / "repros")
    evil = "</pre><script>document.body.dataset.evil=1</script><img src=x onerror=alert(1)>"
    repro.write_text(repro.read_text().replace("no kernel for relu", evil).replace("one note", evil))
    text = page(story_of(repro))
    seen = looked_at(text, tmp_path, dark=False)
    assert seen["resources"] == 0
    assert "<img" not in text


WRONG = """
import torch, minidbg
from torch import fx


class OnePercentMore(fx.Interpreter):
    def call_function(self, target, args, kwargs):
        value = super().call_function(target, args, kwargs)
        return value * 1.01 if target is torch.sigmoid else value


def off(gm, example_inputs):
    return OnePercentMore(gm).run


def f(x):
    for _ in range(4):
        x = torch.tanh(x + 1)
    x = torch.sigmoid(x)
    return torch.tanh(x * 2)


if __name__ == "__main__":
    torch.compile(f, backend=minidbg.wrap(off, reduce="later"))(torch.linspace(0, 1, 8))
"""


def test_the_first_wrong_value_is_found_along_the_graph(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(WRONG)
    python("program.py", cwd=tmp_path)
    (capture,) = tmp_path.glob("minidbg_repros/.minidbg/captures/*.py")
    cli("show", capture, "--errors", "--html", "page.html", cwd=tmp_path, check=True)
    text = (tmp_path / "page.html").read_text()
    found = re.search(r"The first wrong value, with an error above 3e-05, is that of <b>(\w+)</b>", text)
    assert found
    line = next(line for line in capture.read_text().splitlines() if f" {found[1]} = " in line)
    assert "torch.sigmoid" in line
    assert "sigmoid" in next(row for row in text.split("<tr") if 'class="error wrong"' in row)
