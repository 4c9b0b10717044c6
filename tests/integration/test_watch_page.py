"""The live page in a real browser without a window: what happens is seen at once, at any size, in any light, and by keyboard."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

sync_api = pytest.importorskip(
    "playwright.sync_api", reason="the tests of the page need playwright: pip install playwright"
)
pytest.importorskip("uvicorn", reason="the page needs its server: pip install 'minidbg[serve]'")

# ruff: noqa: E402 - what is missing is said first, aloud
from support.live_pages import filled, serving
from support.lying_repro import lay
from support.toy_repros import BROKEN, WORKS, Checkout, script
from support.watch_driver import WatchProcess, free_port, watching

from minidbg.watch import events
from minidbg.watch.events import Event
from minidbg.watch.page import Live, Page
from minidbg.watch.states import Transition
from minidbg.words.outcome import Verdict

pytestmark = pytest.mark.slow


@contextmanager
def looking(
    browser: Any, address: str, *, width: int = 1280, height: int = 800, dark: bool = False
) -> Iterator[Any]:
    """A page at the address; an error in its script, or something that its policy forbids, is an error of the test."""
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light",
        permissions=["clipboard-read", "clipboard-write"] if address.startswith("http") else [],
    )  # fmt: skip
    page = context.new_page()
    page.set_default_timeout(20_000)
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))

    def heard(said: Any) -> None:
        if said.type == "error" and "ERR_" not in said.text and "status of 4" not in said.text:
            errors.append(said.text)

    page.on("console", heard)
    page.goto(address)
    page.wait_for_selector("#rows tbody tr")
    try:
        yield page
        assert errors == []
    finally:
        context.close()


def flip(repro: str, kind: str = "REGRESSED", after: str = "crashed") -> Event:
    between = {"last_before": "390e29b837", "first_after": "390e29b837+634a8b71"}
    facts = (Verdict.GONE, Verdict(after), 2, 1, ("src/rules.py",))
    return events.Flipped(repro, "cpu", kind, *facts, **between, path=f"/r/{repro}", at=time.time())


def cell(page: Any, repro: str, column: str = "cpu") -> Any:
    return page.locator(f'#rows tr[data-name="{repro}"] td[data-column="{column}"]')


def count_rows(page: Any, count: int) -> None:
    """Wait until the list has so many rows; not all of them need be in the document."""
    sync_api.expect(page.locator("#rows")).to_have_attribute("aria-rowcount", str(count + 1))


@pytest.mark.timeout(200)
def test_a_flip_is_seen_within_a_second_and_again_after_the_daemon_was_killed(
    browser: Any, tmp_path: Path
) -> None:
    scripts = {"relu": script("relu"), "sin": script("sin", expect="gone")}
    desk = Checkout(tmp_path, {"relu": BROKEN, "sin": WORKS}, scripts)
    package, env = desk.package, desk.env
    arguments = ("--serve", f"127.0.0.1:{free_port()}", "--allow-actions", "--jobs", "2")

    def seen_after(daemon: WatchProcess, page: Any, kind: str, repro: str, verdict: str, since: int) -> float:
        """Seconds from the daemon's word to the page's."""
        daemon.wait_for_event("flip", kind=kind, since=since)
        told = time.monotonic()
        sync_api.expect(cell(page, repro)).to_have_text(verdict)
        sync_api.expect(page.locator("#flips li").first).to_contain_text(f"{kind}{repro.removesuffix('.py')}")
        return time.monotonic() - told

    with watching(tmp_path, *arguments, env=env) as daemon:
        address = daemon.wait_for_event("serving")["url"]
        daemon.wait_for_sweep(since=0)
        with looking(browser, address) as page:
            sync_api.expect(page.locator("#link")).to_have_text("live")
            sync_api.expect(cell(page, "relu.py")).to_have_text("reproduces")
            mark = daemon.mark()
            (package / "relu.py").write_text(WORKS.format(op="relu"))
            assert seen_after(daemon, page, "FIXED", "relu.py", "gone", mark) < 1.0
            assert "FIXED relu.py on cpu" in page.locator("#told").inner_text(), "for a screen reader"

            daemon.wait_until_quiet()
            mark = daemon.mark()
            cell(page, "sin.py").locator("a").focus()
            page.keyboard.press("r")
            again = daemon.wait_for_event("result", since=mark)
            assert again["repro"] == "sin.py"

            daemon.process.send_signal(signal.SIGKILL)
            sync_api.expect(page.locator("#link")).to_contain_text("not connected")
            daemon.process.wait()
            (package / "sin.py").write_text(BROKEN.format(op="sin"))
            with watching(tmp_path, *arguments, env=env) as second:
                seen_after(second, page, "REGRESSED", "sin.py", "reproduces", 0)
                sync_api.expect(page.locator("#link")).to_have_text("live")
                assert page.locator("#flips li").count() == 2, "the first one is in the history"
                page.goto(f"{address}#repro=sin.py&column=cpu")
                sync_api.expect(page.locator("#seen")).to_contain_text("sin is broken")
                sync_api.expect(page.locator("#seen tr.chosen")).to_contain_text("reproduces")
                assert second.stop() == 0


MEASURE = """async () => {
  const frame = document.getElementById("frame"), frames = [], tasks = [];
  new PerformanceObserver(list => tasks.push(...list.getEntries().map(one => one.duration))).observe({type: "longtask"});
  let last = performance.now(), going = true;
  const tick = now => { frames.push(now - last); last = now; if (going) requestAnimationFrame(tick); };
  requestAnimationFrame(tick);
  const began = performance.now();
  while (performance.now() - began < 3000) { frame.scrollTop += 160; await new Promise(requestAnimationFrame); }
  going = false;
  const sorted = frames.slice(1).sort((a, b) => a - b), at = part => sorted[Math.floor(part * (sorted.length - 1))];
  return {frames: sorted.length, median: at(.5), p95: at(.95), p99: at(.99), worst: at(1), long_tasks: tasks, scrolled: frame.scrollTop};
}"""


def test_a_thousand_repros_by_eight_columns_are_there_at_once_and_scroll(
    browser: Any, tmp_path: Path
) -> None:
    home = tmp_path / "repros"
    live = filled(home, repros=1000, columns=8)
    with serving(home, live) as address, looking(browser, address) as page:
        count_rows(page, 1000)
        paint, size = page.evaluate(
            "[performance.getEntriesByName('first-contentful-paint')[0].startTime,"
            " [...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')]"
            ".reduce((sum, one) => sum + one.transferSize, 0)]"
        )
        seen = page.evaluate(MEASURE)
        name = page.locator("#rows tbody tr").nth(30).get_attribute("data-name")
        began = time.monotonic()
        live.show(flip(name))
        sync_api.expect(cell(page, name)).to_have_text("crashed")
        live_s = time.monotonic() - began
        print(
            f"\nfirst paint {paint:.0f} ms, {size} bytes, flip after {live_s * 1000:.0f} ms, scrolling {seen}"
        )
        assert size < 200_000
        assert live_s < 1.0
        assert page.locator("#rows tbody tr").count() < 120, "only rows in view are drawn"
        page.evaluate("document.getElementById('frame').scrollTop = 1e6")
        sync_api.expect(page.locator('#rows [aria-rowindex="1001"]')).to_be_visible()
        if os.getloadavg()[0] < 1.5:  # of a browser on a busy machine the time says nothing
            assert paint < 300
            assert seen["median"] < 20
            assert seen["p95"] < 34
            assert max(seen["long_tasks"], default=0) < 100


def test_search_filters_links_and_keys(browser: Any, tmp_path: Path) -> None:
    home = tmp_path / "repros"
    live, asked = filled(home, repros=60, columns=1), list[str]()
    rows = "#rows tbody tr"
    with serving(home, live, asked) as address, looking(browser, address) as page:
        page.keyboard.press("/")
        page.keyboard.type("aten.op9.")
        count_rows(page, 1)
        assert page.url.endswith("#q=aten.op9.")
        page.keyboard.press("Escape")
        count_rows(page, 60)
        page.keyboard.press("f")
        failing = int(page.locator("#counts [aria-pressed=true]").inner_text().split()[1])
        assert 0 < failing < 60
        count_rows(page, failing)
        page.reload()
        count_rows(page, failing)
        row = page.locator(rows).nth(1).get_attribute("data-name")
        page.locator(".skip").press("Enter")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowRight")
        assert page.evaluate("document.activeElement.closest('td').dataset.column") == "cpu"
        page.keyboard.press("c")
        assert page.evaluate("navigator.clipboard.readText()") == f"python {home}/{row}"
        page.keyboard.press("Enter")
        sync_api.expect(page.locator("#repro")).to_be_visible()
        assert page.url.endswith(f"#repro={row}&column=cpu")
        page.keyboard.press("Escape")
        count_rows(page, failing)
        back = f"document.activeElement.closest('tr')?.dataset.name == {row!r}"
        page.wait_for_function(back, timeout=10_000)  # back where one was
        live.show(flip(page.locator(rows).nth(0).get_attribute("data-name"), "FIXED", "gone"))
        sync_api.expect(page.locator("#flips li")).to_have_count(1)
        count_rows(page, failing)  # a row that is mended does not vanish under the eye
        page.locator("#sort").click()
        count_rows(page, failing - 1)
        page.locator("#rerun-all").click()
        sync_api.expect(page.locator("#told")).to_contain_text("run all")
        assert asked == [""]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390], ids=["desktop", "phone"])
def test_a_repro_s_page_has_everything_in_any_light_and_width(
    browser: Any, tmp_path: Path, width: int, dark: bool
) -> None:
    home = tmp_path / "repros"
    repro = lay(home)
    live = filled(home, repros=5, columns=4)
    with serving(home, live) as address, looking(browser, address, width=width, dark=dark) as page:
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        page.goto(f"{address}#repro={repro.name}")
        page.wait_for_selector("#story .nodes", timeout=90_000)
        text = page.locator("#repro").inner_text()
        said = "no_relu fails to compile relu", "no kernel for relu", "1 of 5 nodes", "kept"
        for wanted in (*said, "class Repro", "torch.tanh"):
            assert wanted in text, wanted
        assert "1 kept, 1 became an input, 6 removed" in text
        assert "6 runs: 3 failed the same way" in text
        page.locator("#story summary", has_text="6 removed").click()
        sync_api.expect(page.locator("#story")).to_contain_text("linear_1 = linear(relu, layers_1_weight)")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert background == ("rgb(20, 23, 28)" if dark else "rgb(255, 255, 255)")


def test_on_a_phone_the_last_three_flips_are_in_view_and_names_are_without_their_folders(
    browser: Any, tmp_path: Path
) -> None:
    live, names = Live(), [f"of/the/lab/compile_op_{number}.py" for number in range(5)]
    live.show(events.Started(7, str(tmp_path), tuple(names), (), 1, 2, at=1.0))
    for name in names:
        live.show(flip(name))
    with serving(tmp_path, live) as address, looking(browser, address, width=390) as page:
        shown = [li.inner_text() for li in page.locator("#flips li").all() if li.is_visible()]
        assert [text.split()[-1] for text in shown] == ["compile_op_4", "compile_op_3", "compile_op_2"]
        page.get_by_text("2 earlier").click()
        sync_api.expect(page.locator("#flips li").last).to_be_visible()
        name = page.locator("#rows tbody th a").first
        assert name.inner_text() == "compile_op_0"
        assert name.get_attribute("title") == names[0]


def test_while_the_captured_graph_is_read_the_page_says_so_with_a_clock(browser: Any, tmp_path: Path) -> None:
    home = tmp_path / "repros"
    repro = lay(home)
    with serving(home, filled(home, repros=1, columns=1)) as address, looking(browser, address) as page:
        page.route("**/story*", lambda route: None)  # no answer comes
        page.goto(f"{address}#repro={repro.name}")
        for second in (0, 1, 2):
            words = f"reads the captured graph and the log of its reduction: {second} s"
            sync_api.expect(page.locator("#story")).to_contain_text(words)


UNNAMED = """() => [...document.querySelectorAll("a, button, input, select, main, section, table, progress")]
  .filter(one => one.checkVisibility() && !(one.getAttribute("aria-label") || one.textContent.trim() || one.labels?.length))
  .map(one => one.outerHTML.slice(0, 120))"""


def test_a_screen_reader_finds_names_rows_and_columns(browser: Any, tmp_path: Path) -> None:
    home = tmp_path / "repros"
    with serving(home, filled(home, repros=3, columns=2)) as address, looking(browser, address) as page:
        assert page.evaluate(UNNAMED) == []
        tree = page.locator("#rows").aria_snapshot()
        assert '- columnheader "cuda:0"' in tree
        assert tree.count("- rowheader") == 3
        stops = page.evaluate("[...document.querySelectorAll('#rows [tabindex=\"0\"]')].length")
        assert stops == 1, "one stop for Tab"


def test_hostile_texts_are_texts(browser: Any, tmp_path: Path) -> None:
    home = tmp_path / "repros"
    evil = "<img src=x onerror=document.body.dataset.evil=1></script><script>document.body.dataset.evil=1</script>"
    repro = lay(home)
    repro.write_text(repro.read_text().replace("no kernel for relu", evil).replace("one note", evil))
    live = filled(home, repros=3, columns=1)
    found = (Transition.NEW, Verdict.GONE, 1.0, 1, "", evil)
    live.show(events.Judged(1, f"{evil}.py", evil, *found, at=1.0))
    live.show(events.Notice(evil, at=1.0))
    with serving(home, live) as address, looking(browser, address) as page:
        sync_api.expect(page.locator("#rows")).to_contain_text(evil)
        live.show(flip(f"{evil}.py"))
        sync_api.expect(page.locator("#flips a")).to_have_attribute("title", f"{evil}.py")
        page.goto(f"{address}#repro={repro.name}")
        page.wait_for_selector("#story .nodes", timeout=90_000)
        assert evil in page.locator("#repro").inner_text()
        assert page.evaluate("document.body.dataset.evil") is None
        assert page.locator("img").count() == 0


def test_the_page_as_a_file_needs_no_server(browser: Any, tmp_path: Path) -> None:
    home = tmp_path / "repros"
    view = Page(tmp_path / "matrix.html", filled(home, repros=50, columns=2))
    view.close()
    with looking(browser, view.path.as_uri()) as page:
        count_rows(page, 50)
        sync_api.expect(page.locator("#link")).to_have_text("a copy: it does not change")
        page.locator("#rows tbody th a").first.click()
        sync_api.expect(page.locator("#seen")).to_contain_text("The last run on cpu")
        assert page.evaluate("performance.getEntriesByType('resource').length") == 0
