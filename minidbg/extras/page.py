"""``minidbg watch --serve``: the state of watch as a page, and a page of each repro, from a web
server beside the daemon. They can be read, and nothing can be done with them; their templates are
given values only, and escape all of them.

A server-sent event says that something changed, and the page fetches its part again. On the
loopback whoever is on this machine may read; elsewhere a token in the address is needed.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import ipaddress
import secrets
import socket
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from minidbg.core import templates
from minidbg.core.errors import MinidbgError
from minidbg.core.files import read_regular
from minidbg.core.script_header import SCRIPT_LIMIT_BYTES, parse_header, text_of
from minidbg.core.text import display_path, moment, plural, printable
from minidbg.watch import queries
from minidbg.watch.events import Event, Matrix
from minidbg.watch.repros import read_repro, repro_name
from minidbg.watch.views import View

try:
    import uvicorn
    from starlette import responses
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, PlainTextResponse, Response
    from starlette.routing import Route
except ImportError as missing:
    raise MinidbgError(
        f"--serve needs a web server ({missing}); install it: pip install 'minidbg[serve]'"
    ) from missing

REFRESH_S = 0.25
"""A page hears of changes no more often."""
CLOSE_SECONDS = 5.0
PAGE_HISTORY_ENTRIES = 50
SHOWN_CHARACTERS = 200_000
"""Of a script."""
PAGE_STYLE, PAGE_SCRIPT = (templates.fill(name, {}) for name in ("page.css", "page.js"))


def content_digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


HEADERS = {
    # all texts are escaped; a mistake in that would still run no script and send nothing anywhere
    "content-security-policy": f"default-src 'none'; style-src {content_digest(PAGE_STYLE)}; "
    f"script-src {content_digest(PAGE_SCRIPT)}; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}


class PageServer(View):
    """The server, in a thread of its own until it is closed."""

    def __init__(self, address: str, tell: Callable[[str], None]) -> None:
        """``address``: ``HOST:PORT``, ``HOST``, ``:PORT``; no port: any. Raises MinidbgError."""
        self.matrix, self.changes, self.lock = Matrix(), 0, threading.Lock()
        host, self.socket = bound(address)
        self.port = self.socket.getsockname()[1]
        self.token = "" if is_loopback(host) else secrets.token_urlsafe(16)
        self.closing = False
        routes = [
            Route("/", lambda request: HTMLResponse(self.html())),
            Route("/part", lambda request: HTMLResponse(self.html("part.html.j2"))),
            Route("/repro", self.repro),
            Route("/news", self.news),
        ]
        guard = Middleware(BaseHTTPMiddleware, dispatch=self.guarded)
        app = Starlette(routes=routes, middleware=[guard])
        config = uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=1)
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, args=([self.socket],), daemon=True)
        self.thread.start()
        named = f"[{host}]" if ":" in host else host
        tell(f"the page: http://{named}:{self.port}/{f'?token={self.token}' if self.token else ''}")

    def close(self) -> None:
        self.closing = self.server.should_exit = True
        self.thread.join(CLOSE_SECONDS)
        self.socket.close()

    def show(self, event: Event) -> None:
        with self.lock:
            event.update(self.matrix)
            self.changes += 1

    def html(self, template: str = "page.html.j2") -> str:
        with self.lock:
            home = display_path(self.matrix.home) if self.matrix.home else ""
            return filled(template, matrix=self.matrix, home=home)

    def details_page(self, name: str) -> str:
        """Its failure, what was seen of it, its script. Raises MinidbgError for an unknown name."""
        with self.lock:
            # an address has the name as it is shown: a file's need not be UTF-8
            name = {printable(repro): repro for repro, _ in self.matrix.cells}.get(name, name)
            cells, home = self.matrix.of_repro(name), Path(self.matrix.home)
        path = home / name
        if not cells or (repro := read_repro(path, repro_name(path, home))) is None:
            raise MinidbgError(f"no repro {printable(name)} is watched")
        script, header = "", None
        try:
            if not repro.damage:  # else it is nobody's to read, such as what a link leads to
                script = text_of(read_regular(path, SCRIPT_LIMIT_BYTES))
                header = parse_header(script, path)
            if (rest := len(script) - SHOWN_CHARACTERS) > 0:
                script = f"{script[:SHOWN_CHARACTERS]}\n# ... and {plural(rest, 'more character')}"
        except (OSError, ValueError) as error:
            script = f"# cannot be read: {error}"
        past = queries.history_text(*queries.history_of(path, PAGE_HISTORY_ENTRIES))
        values = {"cells": cells, "repro": repro, "header": header, "script": script, "past": past}
        return filled("details.html.j2", **values)

    def repro(self, request: Request) -> Response:
        """Starlette calls what is not ``async`` in a thread."""
        try:
            return HTMLResponse(self.details_page(request.query_params.get("name", "")))
        except MinidbgError as error:
            return PlainTextResponse(str(error), 404)

    async def news(self, request: Request) -> Response:
        return responses.StreamingResponse(self.told(), media_type="text/event-stream")

    async def told(self) -> AsyncIterator[str]:
        """``changed``, at once and after each change."""
        seen = -1
        while not self.closing:
            if self.changes != seen:
                seen = self.changes
                yield "data: changed\n\n"
            await asyncio.sleep(REFRESH_S)

    # Who may read

    async def guarded(self, request: Request, call: RequestResponseEndpoint) -> Response:
        response = self.refusal(request) or await call(request)
        response.headers.update(HEADERS)
        return response

    def refusal(self, request: Request) -> Response | None:
        """The answer to who may not read, or brings the token in the address; None for others."""
        host, cookie = request.headers.get("host", ""), f"minidbg-{self.port}"
        if not self.token:
            # a page of elsewhere whose name was made to lead here (DNS rebinding)
            name = ""
            with contextlib.suppress(ValueError):
                name = urlsplit(f"//{host}").hostname or ""
            if not is_loopback(name):
                return PlainTextResponse(f"{host!r} is no name of this machine's loopback", 421)
            is_foreign = request.headers.get("sec-fetch-site") == "cross-site"
            return PlainTextResponse("a page of elsewhere asks", 403) if is_foreign else None
        if self.is_token(request.query_params.get("token", "")):
            response = responses.RedirectResponse("/", 303)
            response.set_cookie(cookie, self.token, httponly=True, samesite="lax")
            return response
        if self.is_token(request.cookies.get(cookie, "")):
            return None
        why = "the address lacks its token: 'minidbg watch' says the whole address"
        return PlainTextResponse(why, 403)

    def is_token(self, text: str) -> bool:
        return hmac.compare_digest(text.encode("utf-8", "backslashreplace"), self.token.encode())


def filled(template: str, **values: Any) -> str:
    return templates.fill(template, {
        **values, "style": PAGE_STYLE, "script_of_page": PAGE_SCRIPT, "moment": moment,
        "printable": printable,
    })  # fmt: skip


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost"


def bound(address: str) -> tuple[str, socket.socket]:
    """The host that is meant, and a socket that listens there. Raises MinidbgError."""
    try:
        parts = urlsplit(f"//{address}")
        host, port = parts.hostname or "127.0.0.1", parts.port or 0
        return host, socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET
        )
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise MinidbgError(
            f"no page at {address!r}: {why}; give HOST:PORT, for example 127.0.0.1:8437"
        ) from error
