"""Recipes of ``on_flip``: what flips within one sweep becomes one message, on the desktop, by a webhook, or as text for an issue."""

from __future__ import annotations

import html
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from minidbg.errors import BadSetting
from minidbg.printable import in_one_line, plural
from minidbg.watch.announce import Event, View, between, flip

Flips: TypeAlias = Sequence[Mapping[str, Any]]

MOST_WAIT_S = 30.0
"""A flip in the midst of a long sweep, or outside of one, waits no longer for others."""
POST_SECONDS = 10.0
TRIES_AFTER_S = (0.0, 1.0, 5.0)
CLOSE_SECONDS = 20.0
MOST_LISTED = 20


class Notifier(View):
    """Gathers flips and sends them when the sweep has ended. What cannot be sent is said by ``tell``, and ends nothing."""

    def __init__(self, recipes: Sequence[str], tell: Callable[[str], None]) -> None:
        """Raises BadSetting for a recipe that can send nothing."""
        self.senders = [(recipe.partition(":")[0], sender(recipe)) for recipe in recipes]
        self.tell = tell
        self.waiting: list[Mapping[str, Any]] = []
        self.lock = threading.Lock()
        self.timer: threading.Timer | None = None
        self.threads: list[threading.Thread] = []
        self.closing = False

    def show(self, event: Event) -> None:
        """A flip waits for others of its sweep."""
        if event.name == "flip" and not event.data.get("muted"):
            with self.lock:
                self.waiting.append({**event.data, "at": event.at})
                if self.timer is None:
                    self.timer = threading.Timer(MOST_WAIT_S, self.send)
                    self.timer.daemon = True
                    self.timer.start()
        elif event.name == "sweep_finished":
            self.send()

    def send(self) -> None:
        """Send what has gathered, in a thread: an address may be slow."""
        with self.lock:
            flips, self.waiting = self.waiting, []
            if self.timer is not None:
                self.timer.cancel()
                self.timer = None
        if flips:
            self.threads = [thread for thread in self.threads if thread.is_alive()]
            self.threads += [
                threading.Thread(target=self.deliver, args=(name, one, flips), name=f"minidbg-{name}", daemon=True)
                for name, one in self.senders
            ]  # fmt: skip
            for thread in self.threads[-len(self.senders) :]:
                thread.start()

    def deliver(self, name: str, one: Callable[[Flips], None], flips: Flips) -> None:
        """Send by one recipe; say so when that fails again and again."""
        trouble = ""
        for wait_s in TRIES_AFTER_S:
            time.sleep(wait_s)
            try:
                one(flips)
                return
            except urllib.error.HTTPError as error:
                with error:
                    trouble = f"HTTP {error.code} {error.reason}"
                if error.code < 500 and error.code != 429:
                    break
            except (OSError, subprocess.SubprocessError) as error:
                trouble = str(getattr(error, "reason", "") or error)
        text = f"{plural(len(flips), 'flip')} could not be told by {name}: {trouble}"
        if self.closing:
            print(f"minidbg: {text}", file=sys.stderr)
        else:
            self.tell(text)

    def close(self) -> None:
        """Send the rest, and give it some time."""
        self.closing = True
        self.send()
        until = time.monotonic() + CLOSE_SECONDS
        for thread in self.threads:
            thread.join(timeout=max(0.0, until - time.monotonic()))


def sender(recipe: str) -> Callable[[Flips], None]:
    """What sends by this recipe. Variables of the environment in it are replaced. Raises BadSetting."""
    name, _, rest = recipe.partition(":")
    rest = os.path.expandvars(rest)
    if name == "desktop":
        if desktop_command("", "") is None:
            raise BadSetting("on_flip 'desktop' needs notify-send (package libnotify-bin), or macOS")
        return to_desktop
    if name == "github":
        return lambda flips: to_file(Path(rest).expanduser(), markdown(flips))
    if urlsplit(rest).scheme not in ("http", "https") or not urlsplit(rest).netloc:
        raise BadSetting(f"on_flip {recipe!r} needs a web address; is the variable set?")
    body = {"slack": slack, "matrix": matrix, "webhook": webhook}[name]
    return lambda flips: post(rest, body(flips))


# Texts


def subject(flips: Flips) -> str:
    """``1 regression, 2 fixes``."""
    counts = Counter(one["kind"] for one in flips)
    words = {"REGRESSED": ("regression", "regressions"), "FIXED": ("fix", "fixes")}
    ranked = sorted(counts.items(), key=lambda item: (item[0] != "REGRESSED", item[0]))
    return ", ".join(f"{count} {words.get(kind, (kind, kind))[count != 1]}" for kind, count in ranked)


def lines(flips: Flips) -> list[str]:
    """Each flip in a line, regressions first."""
    ranked = sorted(flips, key=lambda one: one["kind"] != "REGRESSED")
    rest = [f"... and {len(flips) - MOST_LISTED} more"] if len(flips) > MOST_LISTED else []
    return [in_one_line(flip(one)) for one in ranked[:MOST_LISTED]] + rest


def slack(flips: Flips) -> Mapping[str, Any]:
    """For an incoming webhook of Slack, or what understands the same (Mattermost, Rocket.Chat)."""
    text = "\n".join([f"*minidbg: {subject(flips)}*", *lines(flips)])
    return {"text": text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")}


def matrix(flips: Flips) -> Mapping[str, Any]:
    """For a generic webhook of matrix-hookshot."""
    items = "".join(f"<li>{html.escape(line)}</li>" for line in lines(flips))
    text = "\n".join([f"minidbg: {subject(flips)}", *lines(flips)])
    return {"text": text, "html": f"<b>minidbg: {html.escape(subject(flips))}</b><ul>{items}</ul>"}


def webhook(flips: Flips) -> Mapping[str, Any]:
    """For a program: all that is known of each flip."""
    return {"text": f"minidbg: {subject(flips)}", "flips": list(flips)}


def markdown(flips: Flips) -> str:
    """For a comment of an issue, or the summary of a GitHub job."""
    rows = [
        f"| **{one['kind']}** | {code(Path(one['path']).stem)} | {code(one['device'])} | {one['before']} → {one['after']} | {code(between(one).strip())} |"
        for one in sorted(flips, key=lambda one: one["kind"] != "REGRESSED")
    ]
    head = "| | repro | column | verdict | between |\n|---|---|---|---|---|"
    return "\n".join([f"### minidbg: {subject(flips)}", "", head, *rows, "", ""])


def code(text: str) -> str:
    """``text`` as code in a cell of a table: nobody is mentioned, and nothing is a link."""
    clean = in_one_line(text).replace("`", "'").replace("|", "\\|")
    return f"`{clean}`" if clean else ""


# Ways


class NoRedirects(urllib.request.HTTPRedirectHandler):
    """A POST that is led elsewhere would become a GET, and look as if it had been taken."""

    def redirect_request(self, *_: Any) -> None:
        """Lead nowhere: the answer is an error."""


def post(url: str, body: Mapping[str, Any]) -> None:
    """Send JSON. Raises OSError."""
    data = json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method="POST")
    with urllib.request.build_opener(NoRedirects).open(request, timeout=POST_SECONDS):
        pass


def to_file(path: Path, text: str) -> None:
    """Append. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


def desktop_command(title: str, text: str) -> list[str] | None:
    """The command that shows a message; None where there is none."""
    if shutil.which("notify-send"):
        return ["notify-send", "--app-name=minidbg", "--", title, html.escape(text, quote=False)]
    if sys.platform == "darwin":
        script = "on run argv\ndisplay notification (item 2 of argv) with title (item 1 of argv)\nend run"
        return ["osascript", "-e", script, title, text]
    return None


def to_desktop(flips: Flips) -> None:
    """Show a message. Raises OSError or SubprocessError."""
    command = desktop_command(f"minidbg: {subject(flips)}", "\n".join(lines(flips)[:6]))
    if command is not None:
        subprocess.run(command, check=True, capture_output=True, timeout=POST_SECONDS)
