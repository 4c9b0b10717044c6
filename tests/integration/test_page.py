"""The page of ``watch --serve``: what it shows, who may read it, and how it keeps up."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPMessage
from pathlib import Path
from typing import Any

import pytest
from support.toy_repros import BROKEN, WORKS, Checkout, script
from support.watch_driver import watching

from minidbg.core.errors import MinidbgError
from minidbg.core.outcome import Verdict
from minidbg.history import HISTORY_FILE, History, State
from minidbg.watch import events
from minidbg.watch.events import Event
from minidbg.watch.repros import hidden_folder
from minidbg.watch.states import Transition

HOSTILE = "<img src=x onerror=alert(1)>\x1b[2J"
CHROMIUM = Path("/usr/bin/chromium")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for op in ("relu", "sin"):
        (tmp_path / f"{op}.py").write_text(script(op))
    History(hidden_folder(tmp_path) / HISTORY_FILE).close()
    return tmp_path


def started(folder: Path, *names: str) -> Event:
    states = [State(name, "cpu", Verdict.REPRODUCES, 0.0, 1.0, "s", "e", "c") for name in names]
    return events.Started(7, str(folder), tuple(names), ("src",), files=3, jobs=2, states=tuple(states))


def result(name: str, verdict: str, device: str = "cpu", message: str = "") -> Event:
    return events.Judged(1, name, device, Transition.NEW, Verdict(verdict), 0.25, 1, "", message, since=1.0)


def flip(name: str) -> Event:
    facts = {"files": ("rules.py",), "last_before": "aaaaaaaaaa", "first_after": "bbbbbbbbbb", "path": name}
    return events.Flipped(name, "cpu", "FIXED", Verdict.REPRODUCES, Verdict.GONE, 2, 1, **facts, at=1.0)


SWEEP = events.SweepStarted(1, 4, 2, ("rules.py",), 1, at=1.0)
ENDED = events.SweepFinished(1, "complete", 1.0, {}, 0, at=2.0)
VERDICTS = ("reproduces", "gone", "changed", "flaky", "crashed", "timeout")
VIEWS: dict[str, tuple[list[Event], str]] = {
    "empty": ([], "No repro is watched yet"),
    "a sweep under way": ([SWEEP, result("relu.py", "gone")], "~reproduces"),
    "flips": ([SWEEP, result("relu.py", "gone"), flip("relu.py"), ENDED], "FIXED relu"),
    "every verdict": ([SWEEP, *(result(f"{one}.py", one, message=HOSTILE) for one in VERDICTS), ENDED], "crashed"),
    "many devices": ([SWEEP, *(result("relu.py", "gone", f"cuda:{n}") for n in range(8)), ENDED], "cuda:7"),
    "nothing can be judged": (
        [
            events.BackendBroken("toy", "cpu", HOSTILE, 2), events.Notice("a notice"),
            events.BuildFailed(2, 1.0, "", "rules.cc:3: error: expected ';'"),
        ],
        "toy is broken on cpu",
    ),
}  # fmt: skip
"""What happened, and a text that the page then shows; the page of a repro is the seventh view."""


@contextmanager
def serving(folder: Path, address: str = "127.0.0.1:0", *happened: Event) -> Iterator[Any]:
    pytest.importorskip("starlette")
    from minidbg.extras.page import PageServer

    told: list[str] = []
    server = PageServer(address, told.append)
    server.address = re.sub(r"//0\.0\.0\.0:", "//127.0.0.1:", told[0].removeprefix("the page: "))
    try:
        for event in happened:
            server.show(event)
        yield server
    finally:
        server.close()


def get(
    address: str, host: str | None = None, cookie: str = "", site: str = ""
) -> tuple[int, str, HTTPMessage]:
    headers = {**({"Cookie": cookie} if cookie else {}), **({"Host": host} if host else {})}
    headers |= {"Sec-Fetch-Site": site} if site else {}
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    try:
        with opener.open(urllib.request.Request(address, headers=headers), timeout=10) as answer:
            return answer.status, answer.read().decode(), answer.headers
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode(), refused.headers


def test_texts_of_others_are_only_texts(folder: Path) -> None:
    happened = started(folder, "relu.py"), SWEEP, result("relu.py", "crashed", message=HOSTILE), ENDED
    with serving(folder) as server:
        assert "No repro is watched yet" in get(server.address)[1]
    with serving(folder, "127.0.0.1:0", *happened) as server:
        text = get(server.address + "part")[1]
    assert ">crashed" in text
    assert "&lt;img src=x onerror=alert(1)&gt;\\x1b[2J" in text
    assert "<img" not in text
    assert "<script" not in text


def test_the_page_its_part_and_the_story_of_a_repro_are_served(folder: Path) -> None:
    with serving(
        folder, "127.0.0.1:0", started(folder, "relu.py"), SWEEP, result("relu.py", "gone")
    ) as server:
        for place, told in (("", "<script>"), ("part", "<h1>"), ("repro?name=relu.py", "toy fails on relu.")):
            status, text, headers = get(server.address + place)
            assert (status, told in text) == (200, True), place
            assert "default-src 'none'" in headers["content-security-policy"]
        for name in ("sin.py", "../x", "%00"):
            assert get(f"{server.address}repro?name={name}")[:2] == (
                404,
                f"no repro {name} is watched".replace("%00", "\\x00"),
            )


def test_of_a_script_the_beginning_is_shown_and_nothing_of_what_is_none(folder: Path) -> None:
    (folder / "sin.py").write_text(script("sin") + "\n# " + "long " * 200_000)
    (folder / "elsewhere").write_text("root:x:0")
    (folder / "link.py").symlink_to(folder / "elsewhere")
    names = ("relu.py", "sin.py", "link.py", "caf\udce9.py")
    (folder / names[-1]).write_text(script("relu"))
    reduced = "nodes = 1\n# provenance = {nodes = 12, reduced = true}\n"
    (folder / "cos.py").write_text(script("cos").replace("nodes = 1\n", reduced))
    with serving(folder, "127.0.0.1:0", started(folder, *names, "cos.py")) as server:
        assert "caf%5Cudce9.py" in get(f"{server.address}part")[1]
        for name, told, most in (
            ("relu.py", "toy fails on relu.", 30_000), ("sin.py", "more characters", 250_000),
            ("link.py", "It cannot be run", 30_000), ("caf%5Cudce9.py", "caf\\udce9.py", 30_000),
            ("relu.py", ">1 node<", 30_000), ("cos.py", ">1 of 12 nodes<", 30_000),
        ):  # fmt: skip
            status, text, _ = get(f"{server.address}repro?name={name}")
            assert (status, told in text, "root:x:0" in text) == (200, True, False), name
            assert len(text) < most


def test_on_the_loopback_a_page_of_elsewhere_that_leads_here_is_refused(folder: Path) -> None:
    with serving(folder) as server:
        for site, status in (("cross-site", 403), ("same-origin", 200), ("none", 200)):
            assert get(server.address, site=site)[0] == status
        assert get(server.address, host="[::1")[0] == 421
        assert get(server.address, host="localhost:80")[0] == 200
        assert get(server.address, host="evil.example")[0] == 421


def test_elsewhere_the_address_with_its_token_is_needed_and_then_a_cookie_is_enough(folder: Path) -> None:
    with serving(folder, "0.0.0.0:0") as server:
        whole = server.address
        bare, _, token = whole.partition("?token=")
        assert len(token) > 16
        assert [get(bare)[0], get(f"{bare}?token={token[:-1]}")[0], get(whole)[0]] == [403, 403, 200]
        cookie = f"minidbg-{server.port}={token}"
        assert [get(bare + "part", cookie=cookie)[0], get(bare + "part", cookie=cookie[:-1])[0]] == [200, 403]


@pytest.mark.parametrize("address", ["127.0.0.1:x", "127.0.0.1:99999", "no.such.host.invalid:80", "[::1"])
def test_an_address_that_cannot_be_served_is_named(folder: Path, address: str) -> None:
    with (
        pytest.raises(MinidbgError, match=r"no page at .*give HOST:PORT") as refused,
        serving(folder, address),
    ):
        pass
    assert repr(address) in str(refused.value)


# In a browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if not CHROMIUM.exists():
        pytest.skip("no Chromium at /usr/bin/chromium")
    playwright = pytest.importorskip("playwright.sync_api")
    options = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=str(CHROMIUM), args=options)
        yield browser
        browser.close()


@pytest.mark.slow
def test_each_view_fits_at_each_width_and_theme_and_says_what_it_is_for(
    folder: Path, browser: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    shots, wrong = tmp_path_factory.mktemp("shots"), []
    for view, (happened, text) in [
        *VIEWS.items(),
        ("a repro", ([SWEEP, result("relu.py", "gone")], "toy fails on relu.")),
    ]:
        first = [started(folder, "relu.py", "sin.py")] if happened else []
        with serving(folder, "127.0.0.1:0", *first, *happened) as server:
            place = "repro?name=relu.py" if view == "a repro" else ""
            for width in (390, 1280):
                for theme in ("light", "dark"):
                    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=theme)
                    errors: list[str] = []
                    page.on("console", lambda message, errors=errors: errors.append(message.text))
                    page.on("pageerror", lambda error, errors=errors: errors.append(str(error)))
                    page.goto(server.address + place)
                    page.wait_for_selector("main h1")
                    page.screenshot(path=shots / f"{view}-{width}-{theme}.png", full_page=True)
                    seen = page.evaluate(STRUCTURE)
                    if (
                        errors
                        or seen["wide"]
                        or seen["contrast"] < 4.5
                        or text.lstrip("~") not in seen["text"]
                    ):
                        wrong.append((view, width, theme, errors, seen))
                    page.close()
    assert wrong == []


STRUCTURE = """() => {
  const light = (text) => {
    const [r, g, b] = text.match(/[\\d.]+/g).slice(0, 3).map(Number).map(one => {
      one /= 255; return one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = light(getComputedStyle(document.body).backgroundColor);
  const contrasts = [...document.querySelectorAll("main *")].filter(one => one.innerText).map(one => {
    const ink = light(getComputedStyle(one).color);
    return (Math.max(ink, ground) + 0.05) / (Math.min(ink, ground) + 0.05);
  });
  return {
    text: document.body.innerText, contrast: Math.min(...contrasts),
    wide: document.documentElement.scrollWidth > window.innerWidth,
  };
}"""


@pytest.mark.slow
def test_a_page_that_is_open_shows_a_flip_and_then_that_watch_has_ended(tmp_path: Path, browser: Any) -> None:
    desk = Checkout(tmp_path, {"relu": BROKEN, "sin": BROKEN}, {op: script(op) for op in ("relu", "sin")})
    desk.commit(ignored="*.log")
    with watching(desk.folder, "--serve", "127.0.0.1:0", env=desk.env) as daemon:
        daemon.wait_for_sweep(since=0)
        notice = next(one["text"] for one in daemon.since(0, "notice") if "the page: " in one["text"])
        page = browser.new_page()
        page.goto(notice.removeprefix("the page: "))
        page.wait_for_selector("td >> text=reproduces")
        (desk.package / "relu.py").write_text(WORKS.format(op="relu"))
        page.wait_for_selector(".flips >> text=FIXED relu", timeout=30_000)
        assert page.locator("tr", has_text="sin.py").locator("td").nth(1).inner_text() == "reproduces"
        page.click("a >> text=relu.py")
        page.wait_for_selector("pre >> text=FIXED relu")
        page.go_back()
        page.wait_for_selector("td >> text=gone")
        assert page.is_hidden("#lost")
        assert daemon.stop() == 0
        page.wait_for_selector("#lost", state="visible", timeout=30_000)
