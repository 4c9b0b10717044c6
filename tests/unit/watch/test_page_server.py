"""The page's server as a browser, and as somebody who is not welcome, finds it: real requests on the loopback."""

from __future__ import annotations

import http.client
import json
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

pytest.importorskip("starlette", reason="the page needs its server: pip install 'minidbg[serve]'")
pytest.importorskip("uvicorn")

from minidbg.extras.serve.serving import Guard, WebServer, token_in
from minidbg.history import History, Observation, State
from minidbg.watch import events
from minidbg.watch.events import Event
from minidbg.watch.page import Live
from minidbg.watch.repros import read_repros
from minidbg.watch.states import Transition
from minidbg.words.errors import MinidbgError
from minidbg.words.outcome import Outcome, Verdict

SCRIPT = '''"""toy fails on <script>alert(1)</script>."""
# /// script
# [tool.minidbg]
# schema = 1
# kind = "compile"
# backend = "toy"
# owner = "ann"
# [tool.minidbg.origin]
# message = "no <b>kernel</b>"
# ///
def backend():
    import toy
'''
NOW = 1_700_000_000.0


class Browser:
    """Asks the server, and sends what a test wants it to send."""

    def __init__(self, server: WebServer) -> None:
        self.server, self.port = server, server.socket.getsockname()[1]

    def ask(self, path: str, method: str = "GET", **headers: str) -> tuple[int, str, http.client.HTTPMessage]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            given = {name.replace("_", "-"): text for name, text in headers.items()}
            connection.request(method, path, headers=given)
            answer = connection.getresponse()
            return answer.status, answer.read().decode(), answer.headers
        finally:
            connection.close()

    def json(self, path: str) -> Any:
        status, text, _ = self.ask(path)
        assert status == 200, text
        return json.loads(text)


def result(repro: str, verdict: str, device: str = "cpu", message: str = "") -> Event:
    facts = {"runs": 1, "muted": "", "reason": "", "message": message}
    return events.Judged(1, repro, device, Transition.NEW, Verdict(verdict), 0.2, **facts, at=NOW)


def flip(repro: str, kind: str = "FIXED", after: str = "gone") -> Event:
    between = {"last_before": "aaaaaaaaaa", "first_after": "aaaaaaaaaa+12345678"}
    verdicts = (Verdict.REPRODUCES, Verdict(after))
    return events.Flipped(
        repro, "cpu", kind, *verdicts, 2, 1, ("x.py",), **between, path=f"/r/{repro}", at=NOW
    )


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "repros"
    folder.mkdir()
    (folder / "a.py").write_text(SCRIPT)
    (folder / "b.py").write_text(SCRIPT)
    (folder / ".minidbg").mkdir()
    return folder


@pytest.fixture
def live(home: Path) -> Live:
    found = Live(clock=lambda: NOW)
    found.repros = lambda: read_repros([home], home)
    state = State("a.py", "cpu", Verdict.REPRODUCES, NOW - 60, NOW, "s", "e", "c", reason="bad")
    found.show(events.Started(7, str(home), ("a.py",), (), 1, 2, states=(state,), at=NOW))
    return found


Serve = Callable[..., Browser]


@pytest.fixture
def serve(live: Live, home: Path) -> Iterator[Serve]:
    servers: list[WebServer] = []

    def start(address: str = "127.0.0.1:0", rerun: Callable[[str], None] | None = None) -> Browser:
        servers.append(WebServer(address, live, home, rerun))
        servers[-1].start()
        return Browser(servers[-1])

    yield start
    for server in servers:
        server.close()
        assert not server.thread.is_alive()


def test_the_page_holds_the_matrix_and_runs_no_script_of_others(serve: Serve) -> None:
    browser = serve()
    status, text, headers = browser.ask("/")
    assert status == 200
    state = json.loads(text.partition('id="state">')[2].partition("</script>")[0])
    assert [row[0] for row in state["rows"]] == ["a.py", "b.py"]
    assert state["rows"][0][2]["cpu"][:2] == ["reproduces", NOW - 60]
    assert state["rows"][0][1]["owner"] == "ann"
    assert "script-src 'self'" in headers["content-security-policy"]
    told = browser.json("/repro?repro=a.py")
    assert told["title"].startswith("toy fails on <script>"), "it is JSON: the page shows it as text"
    assert "&lt;script&gt;alert" in told["script"]
    assert "<script" not in told["script"]
    assert told["message"] == "no <b>kernel</b>"


def test_texts_in_the_page_cannot_end_the_state(live: Live, serve: Serve) -> None:
    live.show(result("a.py", "reproduces", message="</script><script>alert(1)</script><!--"))
    _, text, _ = serve().ask("/")
    assert "<script>alert" not in text
    assert json.loads(text.partition('id="state">')[2].partition("</script>")[0])["rows"][0][2]["cpu"][4].startswith(
        "</script>"
    )  # fmt: skip


def test_a_stream_tells_what_is_new_and_a_late_comer_gets_everything(live: Live, serve: Serve) -> None:
    browser = serve()
    connection = http.client.HTTPConnection("127.0.0.1", browser.port, timeout=10)
    connection.request("GET", f"/events?boot={live.boot}&seq={live.seq}")
    stream = connection.getresponse()

    def next_message() -> tuple[str, Any]:
        while not (line := stream.readline()).startswith(b"event: "):
            pass
        return line[7:].strip().decode(), json.loads(stream.readline()[6:])

    began = time.monotonic()
    live.show(flip("a.py"))
    kind, told = next_message()
    assert time.monotonic() - began < 1.0
    assert kind == "change"
    assert [cell[:2] for cell in told["cells"]] == [["a.py", "cpu"]]
    assert told["cells"][0][2][0] == "gone"
    assert [one["kind"] for one in told["flips"]] == ["FIXED"]
    connection.close()

    late = http.client.HTTPConnection("127.0.0.1", browser.port, timeout=10)
    late.request("GET", "/events?boot=another-daemon&seq=99")
    stream = late.getresponse()
    kind, told = next_message()
    assert (kind, len(told["rows"])) == ("state", 2)
    late.close()


def test_what_changes_several_times_is_sent_once(live: Live) -> None:
    start = live.seq
    for verdict in ("gone", "reproduces", "crashed"):
        live.show(result("b.py", verdict))
    told = live.since(start)
    assert [(name, column, cell[0]) for name, column, cell in told["cells"]] == [("b.py", "cpu", "crashed")]
    assert live.since(told["seq"]) is None


def test_a_new_sweep_dims_what_it_has_not_seen(live: Live) -> None:
    live.show(result("a.py", "gone"))
    start = live.seq
    live.show(events.SweepStarted(2, 2, 2, (), 0, at=NOW))
    live.show(result("b.py", "gone"))
    told = live.since(start)
    assert told["dim"] is True
    assert [name for name, _, _ in told["cells"]] == ["b.py"]


def test_a_repro_that_goes_leaves_its_row(live: Live, home: Path) -> None:
    start = live.seq
    (home / "a.py").unlink()
    live.show(events.ReproRemoved("a.py", at=NOW))
    assert live.since(start)["rows"] == [["a.py", None]]


def test_history_and_the_last_run_of_a_repro(serve: Serve, home: Path) -> None:
    with History.open(home / ".minidbg" / "history.sqlite") as opened:
        number = opened.start_sweep(NOW, code="c", files=[])
        verdicts = (Verdict.REPRODUCES, False), (Verdict.GONE, True), (Verdict.GONE, False)
        for at, (verdict, stale) in enumerate(verdicts, 1):
            outcome = Outcome(verdict, message=f"said {at}", seconds=0.5)
            run = Observation("a.py", "cpu", NOW + at, outcome, "run", "s", "e", "2.14", stale, number)
            opened.add_observation(run)
        opened.put_state(State("a.py", "cpu", Verdict.GONE, NOW + 3, NOW + 3, "s", "e", "c", runs=1))
    answer = serve().json("/repro?repro=a.py")
    (news,) = answer["news"]
    assert news.startswith("cpu: gone")
    assert news.endswith("minidbg accept a")
    told = answer["columns"]["cpu"]
    assert [run[0] for run in told["runs"]] == ["gone", "stale", "reproduces"], "newest first"
    assert (told["last"]["message"], told["last"]["torch"]) == ("said 3", "2.14")
    assert told["state"]["verdict"] == "gone"


@pytest.mark.parametrize("name", ["../secret.py", "/etc/passwd", "nope.py", "link.py"])
def test_nothing_outside_the_repro_folder_is_shown(name: str, serve: Serve, home: Path) -> None:
    secret = home.parent / "secret.py"
    secret.write_text(SCRIPT.replace("toy", "hunter2"))
    (home / "link.py").symlink_to(secret)
    browser = serve()
    for path in (f"/repro?repro={name}", f"/story?repro={name}"):
        status, text, _ = browser.ask(path)
        assert "def backend" not in text
        assert "hunter2 fails" not in text
        assert "kernel" not in text
        if "link" in name and path.startswith("/repro"):
            assert "lies outside the repro folder" in json.loads(text)["refusal"]
        else:
            assert status == 404
    assert browser.ask("/../pyproject.toml")[0] == 404
    assert browser.ask("/site/page.js")[0] == 404


def test_a_capture_that_is_a_link_out_is_not_shown(serve: Serve, home: Path) -> None:
    (home / ".minidbg" / "captures").mkdir()
    (home / ".minidbg" / "captures" / "x.py").symlink_to("/etc/passwd")
    status, text, _ = serve().ask("/story?repro=a.py")
    assert status == 404
    assert "link to a file outside" in text


def test_other_names_for_the_loopback_are_refused(serve: Serve) -> None:
    browser = serve()
    for host in ("evil.example", "evil.example:80", "192.168.1.7", "localhost.evil.example", ""):
        assert browser.ask("/", Host=host)[0] == 421, host
    for host in ("localhost:9999", "127.0.0.1", "[::1]:80", "LOCALHOST"):
        assert browser.ask("/", Host=host)[0] == 200, host


def test_runs_can_be_asked_for_only_where_allowed_and_only_by_the_page(serve: Serve) -> None:
    ours = {"x_minidbg": "1"}
    assert serve().ask("/rerun?repro=a.py", "POST", **ours)[0] == 403
    asked: list[str] = []
    browser = serve(rerun=asked.append)
    assert browser.ask("/rerun?repro=a.py", "POST")[0] == 403, "a form of another page sends no header"
    assert browser.ask("/rerun?repro=a.py", "POST", **ours, Origin="http://evil.example")[0] == 403
    assert browser.ask("/rerun?repro=a.py", "GET", **ours)[0] == 405
    assert browser.ask("/rerun?repro=nope.py", "POST", **ours)[0] == 404
    assert asked == []
    origin = f"http://127.0.0.1:{browser.port}"
    assert browser.ask("/rerun?repro=a.py", "POST", **ours, Origin=origin)[0] == 200
    assert browser.ask("/rerun", "POST", **ours)[0] == 200
    assert asked == ["a.py", ""]


def test_elsewhere_a_token_is_needed_and_it_becomes_a_cookie(serve: Serve, home: Path) -> None:
    browser = serve("0.0.0.0:0")
    token = browser.server.token
    assert (home / ".minidbg" / "serve.token").stat().st_mode & 0o777 == 0o600
    for path in ("/", "/page.js", "/state", "/events", "/repro?repro=a.py", "/?token=wrong", "/?token="):
        status, text, _ = browser.ask(path)
        assert (status, "a.py" in text) == (403, False), path
    status, _, headers = browser.ask(f"/?q=x&token={token}")
    assert (status, headers["location"]) == (303, "/?q=x"), "the address that stays has no token"
    cookie = headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert browser.ask("/state", Cookie=cookie.partition(";")[0], Host="any.example")[0] == 200
    again = serve("0.0.0.0:0")
    assert again.server.token == token, "an address is good after a restart"


def test_a_port_that_is_taken_is_said(serve: Serve, live: Live, home: Path) -> None:
    port = serve().port
    with pytest.raises(MinidbgError, match=f"cannot serve on 127.0.0.1:{port}: .*in use"):
        WebServer(f"127.0.0.1:{port}", live, home, None)


def test_without_the_extra_the_message_has_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "minidbg.extras.serve.serving")
    with pytest.raises(MinidbgError, match=r"pip install 'minidbg\[serve\]'"):
        import minidbg.extras.serve.serving  # noqa: F401


@pytest.mark.parametrize("seq", ["9" * 5000, "-1", "x"])
def test_a_number_of_an_event_that_is_none_asks_for_everything(serve: Serve, live: Live, seq: str) -> None:
    browser = serve()
    with socket.create_connection(("127.0.0.1", browser.port), timeout=10) as stream:
        ask = f"GET /events?boot={live.boot}&seq={quote(seq)} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        stream.sendall(ask.encode())
        said = b""
        while b"event: state" not in said:
            more = stream.recv(1 << 16)
            assert more, said
            said += more
    assert said.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "kept", ["", "\n", "short", "\xff" * 40], ids=["empty", "a line", "short", "no ASCII"]
)
def test_a_token_that_keeps_nobody_out_is_made_anew(home: Path, kept: str) -> None:
    (home / ".minidbg" / "serve.token").write_bytes(kept.encode("latin-1"))
    token = token_in(home)
    assert len(token) >= 32
    assert token_in(home) == token, "it stays from then on"
    assert (home / ".minidbg" / "serve.token").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("token", ["", "short"])
def test_no_empty_token_switches_the_protection_off(token: str) -> None:
    with pytest.raises(MinidbgError, match="too short"):
        Guard(lambda *_: None, token=token, port=1)


@pytest.mark.parametrize(
    "path", ["//evil.example/x", "/\\evil.example/x", "///evil.example/x", "/%5c/evil.example/x"]
)
def test_the_address_with_a_token_leads_to_this_host_only(serve: Serve, path: str) -> None:
    browser = serve("0.0.0.0:0")
    status, _, headers = browser.ask(f"{path}?token={browser.server.token}")
    assert status == 303
    assert headers["location"] == "/evil.example/x"


@pytest.mark.parametrize(
    "address", ["127.0.0.1:99999", "127.0.0.1:65536", f"127.0.0.1:{'9' * 5000}", "127.0.0.1:x"]
)
def test_a_port_that_is_none_is_refused_with_those_there_are(serve: Serve, address: str) -> None:
    with pytest.raises(MinidbgError, match=r"is no port; a port is a number from 1 to 65535, or 0"):
        serve(address)
