"""Recipes of ``on_flip``: a burst is one message, and what cannot be sent is said."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from minidbg.errors import BadSetting
from minidbg.watch import notices
from minidbg.watch.announce import Event
from minidbg.watch.notices import Notifier, markdown
from minidbg.watch.settings import is_recipe


def flip(name: str, kind: str = "FIXED", muted: str = "") -> Event:
    after = "gone" if kind == "FIXED" else "reproduces"
    data = {
        "repro": f"{name}.py", "path": f"/r/{name}.py", "device": "cpu", "kind": kind, "before": "x", "after": after,
        "last_before": "aaaaaaaaaa", "first_after": "aaaaaaaaaa+12345678", "files": [], "muted": muted,
    }  # fmt: skip
    return Event("flip", data, 1.0)


FINISHED = Event("sweep_finished", {"sweep": 1}, 2.0)


class Hooks(HTTPServer):
    """Takes POSTs, and answers the next ones as it is told."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.bodies: list[Any] = []
        self.answers: list[int] = []
        self.url = f"http://127.0.0.1:{self.server_port}/secret-path"


class Handler(BaseHTTPRequestHandler):
    server: Hooks

    def do_POST(self) -> None:
        self.server.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(self.server.answers.pop(0) if self.server.answers else 200)
        self.send_header("Location", "/elsewhere")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hooks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hooks]:
    monkeypatch.setattr(notices, "TRIES_AFTER_S", (0.0, 0.0, 0.0))
    server = Hooks()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def send(recipe: str, *events: Event) -> list[str]:
    """Give the events to a notifier, and wait; what it said."""
    said: list[str] = []
    notifier = Notifier([recipe], said.append)
    for event in events:
        notifier.show(event)
    for thread in notifier.threads:
        thread.join(10)
    notifier.close()
    return said


def test_a_burst_is_one_message_with_regressions_first(hooks: Hooks) -> None:
    burst = [flip("sin"), flip("cos"), flip("<tan>", "REGRESSED"), flip("quiet", muted="waits")]
    assert send(f"slack:{hooks.url}", *burst, FINISHED, FINISHED) == []
    (body,) = hooks.bodies
    lines = body["text"].splitlines()
    assert lines[0] == "*minidbg: 1 regression, 2 fixes*"
    assert lines[1].startswith("REGRESSED &lt;tan&gt; [cpu]  aaaaaaaaaa -&gt; +12345678")
    assert len(lines) == 4


def test_flips_outside_of_a_sweep_do_not_wait_for_ever(hooks: Hooks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "MOST_WAIT_S", 0.05)
    notifier = Notifier([f"matrix:{hooks.url}"], print)
    notifier.show(flip("sin"))
    until = time.monotonic() + 10
    while not hooks.bodies and time.monotonic() < until:
        time.sleep(0.01)
    notifier.close()
    assert "<li>FIXED sin [cpu]" in hooks.bodies[0]["html"]


def test_what_waits_is_sent_at_the_end(hooks: Hooks) -> None:
    notifier = Notifier([f"webhook:{hooks.url}"], print)
    notifier.show(flip("sin"))
    notifier.close()
    assert [one["repro"] for one in hooks.bodies[0]["flips"]] == ["sin.py"]


@pytest.mark.parametrize(
    ("answers", "tries", "said"),
    [([503, 200], 2, ""), ([500, 500, 500], 3, "HTTP 500"), ([404], 1, "HTTP 404"), ([302], 1, "HTTP 302")],
)
def test_a_server_in_trouble_is_asked_again_and_then_told_of(
    hooks: Hooks, answers: list[int], tries: int, said: str
) -> None:
    hooks.answers = list(answers)
    told = send(f"slack:{hooks.url}", flip("sin"), FINISHED)
    assert len(hooks.bodies) == tries
    assert [said in text for text in told] == ([True] if said else [])
    assert "secret-path" not in "".join(told), "an address of a webhook is a password"


def test_the_text_for_an_issue_is_appended_and_mentions_nobody(tmp_path: Path) -> None:
    for name in ("@ann|x", "b`c"):
        send(f"github:{tmp_path / 'new' / 'flips.md'}", flip(name), FINISHED)
    text = (tmp_path / "new" / "flips.md").read_text()
    assert text.count("### minidbg: 1 fix\n") == 2
    assert "| **FIXED** | `@ann\\|x` | `cpu` | x → gone | `aaaaaaaaaa -> +12345678` |" in text
    assert "`b'c`" in text


def test_many_flips_are_listed_in_part() -> None:
    flips = [flip(f"op{number}").data for number in range(50)]
    assert notices.slack(flips)["text"].splitlines()[-1] == "... and 30 more"
    assert markdown(flips).count("| **FIXED**") == 50


def test_the_desktop_is_told_by_the_system_s_own_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "notify-send"
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path / "told"}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert send("desktop", flip("<b>"), FINISHED) == []
    told = (tmp_path / "told").read_text().splitlines()
    assert told[1:3] == ["--", "minidbg: 1 fix"]
    assert told[3].startswith("FIXED &lt;b&gt; [cpu]"), "the desktop would read it as markup"


def test_what_is_a_recipe_and_what_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [is_recipe(text) for text in ("desktop", "slack:$URL", "cat >> flips.jsonl", "desktop-notify x", "echo a:b")] == [
        True, True, False, False, False
    ]  # fmt: skip
    with pytest.raises(BadSetting, match="no recipe 'discord'"):
        is_recipe("discord:https://example.com/x")
    with pytest.raises(BadSetting, match="is the variable set"):
        Notifier(["slack:$MINIDBG_NO_SUCH"], print)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(BadSetting, match="notify-send"):
        Notifier(["desktop"], print)
