"""Every page in a real browser, at a desk and on a phone, by day and by night: by structure, not by pixels.

The pages are those of real runs: two failures of planted backends, reduced, one of them accepted although it still fails, and
watched by a daemon. The map is of the records of a hunt, one for each state; the index of many repros has each verdict.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("uvicorn", reason="the page needs its server: pip install 'minidbg[serve]'")


from support.command_line import cli, python
from support.live_pages import filled, serving
from support.watch_driver import free_port, watching

from minidbg.extras.hunt import candidates, states, table
from minidbg.extras.hunt.states import CellState, HuntFolder
from minidbg.words.run_spec import BackendRef

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
]

PLANTED = Path(__file__).parents[1] / "planted"
PROGRAM = """
import torch, minidbg, planted_backends, wrong_results


class Mlp(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x.softmax(-1)


x = torch.randn(3, 8)
for backend in (planted_backends.raises_on_relu, wrong_results.wrong_relu):
    torch._dynamo.reset()
    torch.compile(Mlp(), backend=minidbg.wrap(backend, on_failure="fallback"))(x)
"""
PAGES = ("index", "many", "repro", "wrong", "copy", "shown", "map")
HUNTED = {
    "add": [CellState.OK] * 3, "exp": [CellState.OK] * 3, "round": [CellState.OK, CellState.SKIPPED, CellState.OK],
    "erfinv": [CellState.UNSUPPORTED] * 3, "frac": [CellState.SKIPPED] * 3,
    "hypot": [CellState.WRONG, CellState.OK, CellState.HANDED_BACK],
    "cumsum": [CellState.OK, CellState.FAILS, CellState.SKIPPED],
    "nn.functional.scaled_dot_product_attention": [CellState.UNSUPPORTED, CellState.HANGS, CellState.OK],
    "trunc": [CellState.OK, CellState.OK, CellState.CRASHED],
}  # fmt: skip
"""States in float32, int64 and bfloat16."""


def hunted(folder: Path) -> HuntFolder:
    store = HuntFolder.open(folder, BackendRef("toy", '"toy"'), {"backend": "toy"})
    for op, row in HUNTED.items():
        for dtype, state in zip(table.DTYPES, row, strict=False):
            candidate = {"op": op, "dtype": dtype, "device": "cpu", "number": 0}
            said = f"torch._inductor.exc.LoweringException: {op} of a tensor of shape [3, 4] was not lowered"
            failure = {"key": f"{op} {state}", "message": said, "targets": [op]} if state.is_failure else {}
            record = {"candidate": candidate, "id": candidates.name_of(candidate), "state": state, **failure}
            states.append(store.results_file, record)
    store.read()
    return store


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The address of each page."""
    folder = tmp_path_factory.mktemp("pages")
    env = {"PYTHONPATH": str(PLANTED)}
    (folder / "program.py").write_text(PROGRAM)
    python("program.py", cwd=folder, env=env, check=True)
    (compiles,) = folder.glob("minidbg_repros/compile_*.py")
    (wrong,) = folder.glob("minidbg_repros/accuracy_*.py")
    cli("accept", "--force", wrong, cwd=folder, check=True)
    arguments = ("--serve", f"127.0.0.1:{free_port()}", "--html", str(folder / "copy.html"), "--jobs", "1")
    many = filled(folder / "many", repros=40, columns=4)
    with watching(folder, *arguments, env=env) as daemon, serving(folder / "many", many) as address_of_many:
        address = daemon.wait_for_event("serving")["url"]
        daemon.wait_for_sweep(since=0)
        cli("show", wrong, "--errors", "--html", "shown.html", cwd=folder, env=env, check=True)
        (folder / "map.html").write_text(table.heat_map(hunted(folder / "hunt"), "toy: what works", {}))
        yield {
            "index": address,
            "many": address_of_many,
            "repro": f"{address}#repro={compiles.name}&column=cpu",
            "wrong": f"{address}#repro={wrong.name}&column=cpu",
            **{name: (folder / f"{name}.html").as_uri() for name in ("copy", "shown", "map")},
        }


@pytest.fixture
def look(browser: Any, pages: dict[str, str]) -> Iterator[Any]:
    """A function that opens a page and waits until all of it is there."""
    contexts = []

    def opened(name: str, *, width: int = 1280, dark: bool = False) -> Any:
        size = {"width": width, "height": 800}
        contexts.append(browser.new_context(viewport=size, color_scheme="dark" if dark else "light"))
        page = contexts[-1].new_page()
        page.goto(pages[name])
        if "repro=" in pages[name]:
            page.wait_for_selector("#story .nodes", timeout=120_000)
        return page

    yield opened
    for context in contexts:
        context.close()


FAULTS = """() => {
  const faults = [], shown = one => one.checkVisibility() && !one.closest("option, .unheard, .skip"), named = one => `${one.localName}.${one.className}`;
  const colour = text => { const [red, green, blue, alpha = 1] = text.match(/[\\d.]+/g).map(Number); return [red, green, blue, alpha]; };
  const bright = rgb => { const [r, g, b] = rgb.map(one => one / 255).map(one => one <= .04045 ? one / 12.92 : ((one + .055) / 1.055) ** 2.4); return .2126 * r + .7152 * g + .0722 * b; };
  const behind = one => { for (; one; one = one.parentElement) { const found = colour(getComputedStyle(one).backgroundColor); if (found[3] > 0) return found; } return [255, 255, 255]; };
  if (document.scrollingElement.scrollWidth > innerWidth) faults.push(`the page is ${document.scrollingElement.scrollWidth} wide`);
  for (const one of document.body.querySelectorAll("*")) if (shown(one) && one.scrollWidth > one.clientWidth + 1 && /auto|scroll/.test(getComputedStyle(one).overflowX)) faults.push(`${named(one)} scrolls sideways`);
  const runs = new Map(), texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), range = document.createRange();
  while (texts.nextNode()) {
    const text = texts.currentNode, parent = text.parentElement;
    const code = parent.closest("pre") || text;  // of highlighted code a word goes on in the next span
    if (!shown(parent) || parent.closest("script, style") || (code === text && !text.data.trim())) continue;
    const style = getComputedStyle(parent), [light, dark] = [bright(colour(style.color).slice(0, 3)), bright(behind(parent).slice(0, 3))].sort((a, b) => b - a);
    const contrast = (light + .05) / (dark + .05);
    if (contrast < 4.5) faults.push(`${text.data.trim().slice(0, 30)} in ${named(parent)} has a contrast of ${contrast.toFixed(2)}`);
    if (/vertical/.test(style.writingMode)) continue;
    if (!runs.has(code)) runs.set(code, []);
    runs.get(code).push(text);
  }
  for (const nodes of runs.values()) {
    const ends = nodes.map((sum => text => sum += text.data.length)(0)), at = place => { const index = ends.findIndex(end => place <= end); return [nodes[index], place - (ends[index - 1] || 0)]; };
    for (const word of nodes.map(text => text.data).join("").matchAll(/[^\\s-]+/g)) {
      range.setStart(...at(word.index)); range.setEnd(...at(word.index + word[0].length));
      const parts = [...range.getClientRects()].filter(one => one.width > 0), width = parts.reduce((sum, one) => sum + one.width, 0);
      if (Math.max(...parts.map(one => one.top)) - Math.min(...parts.map(one => one.top)) > 6 && width < innerWidth * 2 / 3) faults.push(`${word[0]} in ${named(nodes[0].parentElement)} is cut`);
    }
  }
  return [...new Set(faults)];
}"""
UNFOLD = "for (const one of document.querySelectorAll('details')) one.open = true"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390], ids=["desk", "phone"])
@pytest.mark.parametrize("name", PAGES)
def test_nothing_is_wider_than_the_window_no_word_is_cut_and_all_text_is_legible(
    look: Any, name: str, width: int, dark: bool
) -> None:
    page = look(name, width=width, dark=dark)
    assert page.evaluate(FAULTS) == []
    page.evaluate(UNFOLD)
    assert page.evaluate(FAULTS) == []


BLOCKS = """[...document.querySelectorAll("pre.message, #repro h2:not(.title), body > h2, .script")]
  .map(one => [one.localName === "h2" ? one.textContent : one.className, one.getBoundingClientRect().top])"""


@pytest.mark.parametrize("width", [1280, 390], ids=["desk", "phone"])
@pytest.mark.parametrize("name", ["repro", "wrong", "shown"])
def test_what_fails_is_read_first_and_the_script_last_and_folded(look: Any, name: str, width: int) -> None:
    page = look(name, width=width)
    blocks = page.evaluate(BLOCKS)  # at once: what a live page has heard is drawn anew
    assert [text for text, _ in blocks] == [
        "message", "What fails", "Where it was seen", "Facts", "The captured graph", "How it was found", "script",
    ]  # fmt: skip
    assert blocks[1][1] < 700, "the failing lines are on the first screen"
    assert page.locator("details.script[open]").count() == 0
    message = page.locator("pre.message").inner_text().partition("\n")[0]
    assert page.locator("body").inner_text().count(message) == 1


def test_wrong_results_are_a_table_and_a_contradicted_header_is_news_on_top(look: Any) -> None:
    page = look("wrong", width=390)
    cells = page.locator("#seen details table td")
    assert cells.evaluate_all("all => all.map(one => one.dataset.label)") == [
        "where", "got", "wanted", "error", "allowed",
    ]  # fmt: skip
    assert re.fullmatch(r"\S+e[-+]\d+ relative", cells.nth(3).inner_text())
    got, wanted = (float(cells.nth(place).inner_text()) for place in (1, 2))
    assert got != wanted
    assert '"where"' not in page.locator("body").inner_text()
    for name in ("wrong", "shown"):
        page = look(name)
        news = page.locator(".news")
        assert news.inner_text().startswith("cpu: reproduces")
        assert news.bounding_box()["y"] < page.locator("pre.message").bounding_box()["y"]
    assert look("repro").locator(".news").count() == 0


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_map_shows_the_worst_first_and_loudest_and_folds_what_is_alike(look: Any, dark: bool) -> None:
    page = look("map", dark=dark)
    rows = page.locator(".map tbody th").all_inner_texts()
    assert rows == ["trunc", "nn.functional.scaled_dot_product_attention", "hypot", "cumsum"]
    folded = page.locator("details").all_inner_texts()
    assert folded == [
        "u unsupported in each dtype that was judged: 1 operator",
        "· ok in each dtype that was judged: 3 operators",
        "\N{EN DASH} skipped in each dtype: 1 operator",
    ]
    page.evaluate(UNFOLD)
    assert page.get_by_text("add, exp, round").is_visible()
    for state, letter, is_filled in (
        ("crashed", "C", True), ("hangs", "H", True), ("wrong", "W", True), ("fails", "F", False),
        ("unsupported", "u", False), ("ok", "·", False), ("skipped", "\N{EN DASH}", False),
    ):  # fmt: skip
        cell = page.locator(f".map .{state}").first
        assert cell.inner_text() == letter
        background = cell.evaluate("one => getComputedStyle(one).backgroundColor")
        assert (background != "rgba(0, 0, 0, 0)") is is_filled, state
    fills = page.locator(".map .crashed, .map .hangs, .map .wrong")
    assert len(set(fills.evaluate_all("all => all.map(one => getComputedStyle(one).backgroundColor)"))) == 3


def test_on_a_phone_the_first_repro_is_near_the_top_and_one_button_has_the_rest(look: Any) -> None:
    page = look("index", width=390)
    first = page.locator("#rows tbody tr").first
    assert first.bounding_box()["y"] < 200
    controls = "#filters input, #filters select, #filters button"
    visible = "all => all.filter(one => one.checkVisibility()).map(one => one.id)"
    assert page.locator(controls).evaluate_all(visible) == ["search", "fold"]
    assert page.locator("#fold").inner_text() == "2 of 2 fail"
    page.locator("#fold").click()
    assert "order" in page.locator(controls).evaluate_all(visible)
    assert not page.locator("#column").is_visible(), "of one column there is no choice"


@pytest.mark.parametrize("width", [1280, 390], ids=["desk", "phone"])
def test_the_index_shows_messages_whole(look: Any, width: int) -> None:
    page = look("index", width=width)
    for note in page.locator("#rows td.note").all():
        assert note.inner_text()
        assert note.evaluate(
            "one => one.scrollWidth <= one.clientWidth && one.scrollHeight <= one.clientHeight"
        )


def test_in_the_index_a_crash_is_filled_and_marked_and_what_is_gone_is_quiet(look: Any) -> None:
    page = look("many", dark=True)
    weight = """one => [getComputedStyle(one).backgroundColor, getComputedStyle(one, "::before").content]"""
    crashed = page.locator("#rows .crashed a").first.evaluate(weight)
    assert crashed == ["rgb(255, 138, 128)", '"✕ "']
    for verdict in ("gone", "reproduces", "timeout", "skipped"):
        quiet = page.locator(f"#rows .{verdict} a").first.evaluate(weight)
        assert quiet == ["rgba(0, 0, 0, 0)", "none"], verdict
