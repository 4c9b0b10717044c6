"""``minidbg watch --serve``: the page from a web server beside the daemon, with news as server-sent events.

It shows the matrix, and of the repro folder alone: scripts, and what the reduction left beside them. On the loopback whoever
is on this machine may read; elsewhere a token in the address is needed. Nothing can be changed without ``--allow-actions``.
"""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import secrets
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode, urlsplit

from minidbg.watch.announce import View
from minidbg.watch.events import Event
from minidbg.watch.page import Live
from minidbg.watch.repros import hidden_folder
from minidbg.words.errors import MinidbgError
from minidbg.words.files import NOTE_LIMIT_BYTES, read_regular, replace_file

try:
    import uvicorn
    from starlette.datastructures import Headers, QueryParams
    from starlette.requests import cookie_parser
    from starlette.responses import PlainTextResponse, RedirectResponse, Response
except ImportError as missing:
    raise MinidbgError(
        f"--serve needs a web server ({missing}); install it: pip install 'minidbg[serve]'"
    ) from missing

from minidbg.extras.serve.routes import Site

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

TOKEN = "serve.token"
TOKEN_CHARACTERS = 16
"""A shorter one is none: the file was emptied, or cut off by a full disk."""
LAST_PORT = 65535
HEADERS = {
    # all texts are escaped; a mistake in that would still run no script and send nothing anywhere
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:;"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class Guard:
    """Checks Host, Origin and, where there is one, the token of each request."""

    def __init__(self, app: ASGIApp, *, token: str | None, port: int) -> None:
        """Without a ``token`` whoever is on this machine may come in, and nobody else. Raises MinidbgError for an empty one."""
        if token is not None and len(token) < TOKEN_CHARACTERS:
            raise MinidbgError("the page's token is too short to keep anybody out")
        self.app, self.token, self.cookie = app, token, f"minidbg-{port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request, or say why not."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                told = [(name.encode(), text.encode()) for name, text in HEADERS.items()]
                message["headers"] = [*message["headers"], *told]
            await send(message)

        answer: ASGIApp = self.refusal(scope) or self.app
        await answer(scope, receive, send_with_headers)

    def refusal(self, scope: Scope) -> Response | None:
        """The answer to whoever may not come in, or who brings the token in the address; None for the others."""
        headers, query = Headers(scope=scope), QueryParams(scope["query_string"])
        host = headers.get("host", "")
        if self.token is None and not is_loopback(urlsplit(f"//{host}").hostname or ""):
            # a page of elsewhere whose name was made to lead here (DNS rebinding)
            return PlainTextResponse(f"{host!r} is no name of this machine's loopback", 421)
        origin = headers.get("origin")
        if scope["method"] not in ("GET", "HEAD") and (
            (origin and urlsplit(origin).netloc != host) or headers.get("x-minidbg") != "1"
        ):
            return PlainTextResponse("this can be asked for by the page itself only", 403)
        if self.token is None:
            return None
        if "token" in query and self.is_token(query["token"]):
            rest = urlencode([(name, text) for name, text in query.multi_items() if name != "token"])
            # one slash, or a browser takes what follows for another host
            place = "/" + quote(scope["path"].lstrip("/\\"))
            response = RedirectResponse(place + (f"?{rest}" if rest else ""), 303)
            response.set_cookie(self.cookie, self.token, httponly=True, samesite="lax")
            return response
        if self.is_token(cookie_parser(headers.get("cookie", "")).get(self.cookie, "")):
            return None
        return PlainTextResponse("the address lacks its token: 'minidbg watch' says the whole address", 403)

    def is_token(self, text: str) -> bool:
        return hmac.compare_digest(text.encode("utf-8", "backslashreplace"), (self.token or "").encode())


def is_loopback(host: str) -> bool:
    """Whether ``host``, a name or an address, can be nothing but this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost"


class WebServer(View):
    """The server in a thread of its own, from ``start`` to ``close``; a view, so that it is closed with the others."""

    def __init__(self, address: str, live: Live, home: Path, rerun: Callable[[str], None] | None) -> None:
        """Takes the port. Raises MinidbgError when ``address`` is none, or taken."""
        host, _, port = address.rpartition(":")
        host = host.strip("[]") or "127.0.0.1"
        self.socket = listening(host, port)
        token = None if is_loopback(host) else token_in(home)
        self.token = token or ""
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self.socket.getsockname()[1]}/"
        self.site = Site(live, home, rerun)
        app = Guard(self.site.app(), token=token, port=self.socket.getsockname()[1])
        config = uvicorn.Config(
            app, log_config=None, log_level="critical", lifespan="off", access_log=False,
            timeout_graceful_shutdown=1, ws="none",
        )  # fmt: skip
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(
            target=self.server.run, args=([self.socket],), name="minidbg-page", daemon=True
        )

    def start(self) -> None:
        self.thread.start()

    def show(self, event: Event) -> None:
        """``Live`` has heard of it."""

    def close(self) -> None:
        """End the streams, then the server."""
        self.site.close()
        self.server.should_exit = True
        if self.thread.is_alive():
            self.thread.join(timeout=5)
        self.socket.close()


def listening(host: str, port: str) -> socket.socket:
    """A socket that listens. Raises MinidbgError."""
    if not port.isdecimal() or len(port) > 5 or int(port) > LAST_PORT:
        raise MinidbgError(
            f"--serve: {port:.20} is no port; a port is a number from 1 to {LAST_PORT}, or 0 for any free one"
        )
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, kind)
        try:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind(address)
            found.listen(128)
        except BaseException:
            found.close()
            raise
    except (OSError, OverflowError) as error:
        raise MinidbgError(
            f"cannot serve on {host}:{port}: {error}; give another address, such as --serve 127.0.0.1:0 for any free port"
        ) from error
    return found


def token_in(home: Path) -> str:
    """The token of a repro folder, for its owner's eyes: the same after a restart, so that addresses stay good."""
    path = hidden_folder(home) / TOKEN
    with contextlib.suppress(OSError, ValueError):
        token = read_regular(path, NOTE_LIMIT_BYTES).decode("ascii").strip()
        if len(token) >= TOKEN_CHARACTERS:
            return token
    token = secrets.token_urlsafe(24)
    replace_file(path, token.encode(), private=True)
    return token
