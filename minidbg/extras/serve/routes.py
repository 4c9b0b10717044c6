"""What the page of ``minidbg watch --serve`` asks for: the matrix, news of it, and all that is known of one repro."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import json
import tempfile
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pygments
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from minidbg.watch import recorder
from minidbg.watch.events import Json
from minidbg.watch.page import SCRIPT, Live, about, page_html, style_text
from minidbg.watch.repros import Repro, stamp_of
from minidbg.watch.summaries import Summary
from minidbg.words.errors import MinidbgError
from minidbg.words.files import read_regular
from minidbg.words.outcome import contradiction
from minidbg.words.run_spec import DAMAGE, Provenance
from minidbg.words.script_header import DIVIDER, HIDDEN, heading, text_of
from minidbg.words.text import display_path, last_line
from minidbg.workers import Standby

BETWEEN_S = 0.1
"""Seconds between two messages to a browser: what happens in between is one message."""
STILL_HERE_S = 15.0
RUNS_A_COLUMN = 60
SHOWN_BYTES = 1 << 20
"""Of a script, with colours; a browser shows no more of them in bearable time."""
SEQ_DIGITS = 15
"""Of the number of an event, of which a second has ten."""
STORY_SECONDS = 120.0
SPARE_SECONDS = 120.0
"""How long an interpreter waits for the next repro that is looked at; it takes some 300 MB."""
PACKAGE = Path(__file__).parents[2]


class NotHere(MinidbgError):
    """There is no such repro, or it may not be shown."""


class Stories:
    """The middle of ``minidbg show --html``, made in an interpreter with torch, one at a time; made again when the script has changed."""

    def __init__(self) -> None:
        self.at_work, self.hands_on = threading.Lock(), threading.Lock()
        self.made: dict[Path, tuple[tuple[int, ...], str]] = {}
        self.spare: Standby | None = None
        self.timer = threading.Timer(SPARE_SECONDS, self.drop_spare)
        self.closed = False

    def get_ready(self) -> None:
        """Have an interpreter wait for a repro that is likely to be asked for, for a while."""
        with self.hands_on:
            self.timer.cancel()
            if self.spare is None and not self.closed:
                self.spare = Standby(["minidbg.commands.showing", "minidbg.report.page"])
            self.timer = threading.Timer(SPARE_SECONDS, self.drop_spare)
            self.timer.daemon = True
            self.timer.start()

    def take_spare(self) -> Standby | None:
        """The interpreter that waits, for the caller to end."""
        with self.hands_on:
            spare, self.spare = self.spare, None
            return spare

    def drop_spare(self) -> None:
        with self.take_spare() or contextlib.nullcontext():
            pass

    def of(self, path: Path) -> str:
        """The story of the repro at ``path``, as HTML. Raises MinidbgError when there can be none."""
        with self.at_work:
            stamp = stamp_of(path)
            if self.made.get(path, ((), ""))[0] != stamp:
                self.made[path] = stamp, self.tell(path)
            return self.made[path][1]

    def tell(self, path: Path) -> str:
        """``minidbg show`` in a process of its own."""
        self.get_ready()
        spare = self.take_spare()
        if spare is None:
            raise NotHere("the server is being stopped")
        with tempfile.TemporaryDirectory(prefix="minidbg-page-") as folder, spare:
            file = Path(folder, "body.html")
            argv = [str(PACKAGE / "__main__.py"), "show", str(path), "--html", str(file), "--body"]
            ended = spare.run(argv, seconds=STORY_SECONDS, cwd=Path.cwd())
            if not file.exists():
                last = last_line(ended.stderr_tail)
                raise MinidbgError(f"minidbg show ended with status {ended.exit_status}: {last}")
            self.get_ready()
            return file.read_text(encoding="utf-8")

    def close(self) -> None:
        """End what waits; a story under way ends by itself, and nobody sees it."""
        self.closed = True
        self.timer.cancel()
        self.drop_spare()


class Site:
    """The routes. ``rerun`` is None where nobody may ask for runs."""

    def __init__(self, live: Live, home: Path, rerun: Callable[[str], None] | None = None) -> None:
        self.live, self.folder, self.home, self.rerun = live, home.absolute(), home.resolve(), rerun
        self.stories = Stories()
        self.waiting: set[asyncio.Event] = set()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.closing = False
        live.wake = self.wake

    def app(self) -> Starlette:
        """The application without authentication."""
        routes = [
            Route("/", self.page),
            Route("/page.css", lambda request: Response(style_text(), media_type="text/css")),
            Route("/page.js", lambda request: Response(SCRIPT.read_bytes(), media_type="text/javascript")),
            Route("/state", lambda request: JSONResponse(self.state())),
            Route("/events", self.events),
            Route("/repro", self.repro),
            Route("/story", self.story),
            Route("/rerun", self.ask_for_run, methods=["POST"]),
        ]  # fmt: skip
        gzip = Middleware(GZipMiddleware, minimum_size=1000, compresslevel=5)
        return Starlette(routes=routes, middleware=[gzip], exception_handlers={MinidbgError: refusal})

    def state(self) -> Json:
        """All that the page shows at first."""
        return {**self.live.everything(), "actions": self.rerun is not None}

    def page(self, request: Request) -> Response:
        """The page itself, with the matrix in it: one request until something is seen."""
        return HTMLResponse(page_html(self.state(), alone=False))

    # News

    def wake(self) -> None:
        """Called from the daemon's thread: something has happened."""
        if self.loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has just been closed
                self.loop.call_soon_threadsafe(self.wake_all)

    def wake_all(self) -> None:
        """In the loop: let every stream look for news."""
        for woken in self.waiting:
            woken.set()

    async def events(self, request: Request) -> Response:
        """Server-sent events: what has changed since event ``seq`` of the daemon ``boot``; everything if that is another one."""
        self.loop = asyncio.get_running_loop()
        same = request.query_params.get("boot") == self.live.boot
        text = request.query_params.get("seq", "")
        seq = int(text) if same and text.isdecimal() and len(text) <= SEQ_DIGITS else -1
        return StreamingResponse(self.news(seq), media_type="text/event-stream")

    async def news(self, seq: int) -> AsyncIterator[str]:
        """Messages, each with all that is new; a line now and then when there is nothing, so that a dead connection is noticed."""
        woken = asyncio.Event()
        self.waiting.add(woken)
        try:
            yield "retry: 1000\n\n"
            while not self.closing:
                woken.clear()
                whole = seq < self.live.rebuilt
                found = self.state() if whole else self.live.since(seq)
                if found is not None:
                    kind, seq = "state" if whole else "change", found["seq"]
                    yield f"event: {kind}\ndata: {json.dumps(found, separators=(',', ':'))}\n\n"
                    await asyncio.sleep(BETWEEN_S)
                    continue
                try:
                    await asyncio.wait_for(woken.wait(), STILL_HERE_S)
                except TimeoutError:
                    yield "event: here\ndata: 1\n\n"
        finally:
            self.waiting.discard(woken)

    def close(self) -> None:
        self.closing = True
        self.wake()
        self.stories.close()

    # One repro

    def repro(self, request: Request) -> Response:
        """What is known of a repro without running or importing anything."""
        repro = self.named(request)
        with contextlib.suppress(NotHere):
            self.path_of(repro)
            self.stories.get_ready()  # it is asked for next
        return JSONResponse({**self.about(repro), **self.script_of(repro), **self.past_of(repro)})

    def story(self, request: Request) -> Response:
        """The graph, what became of its nodes, and the course of the reduction."""
        path = self.path_of(self.named(request))
        # what 'minidbg show' reads beside a repro
        inside = ("", "/*", "/captures/*", "/neighbours/*", "/reductions/*", "/reductions/*/replay.jsonl")
        beside = (one for pattern in inside for one in self.home.glob(HIDDEN + pattern))
        strays = [one for one in beside if one.is_symlink() and not one.resolve().is_relative_to(self.home)]
        if strays:
            raise NotHere(
                f"{strays[0]} is a link to a file outside the repro folder; nothing beside it is shown"
            )
        return HTMLResponse(self.stories.of(path))

    def ask_for_run(self, request: Request) -> Response:
        """Run one repro again, or all."""
        if self.rerun is None:
            return PlainTextResponse("read-only: minidbg watch --serve --allow-actions", 403)
        self.rerun(self.named(request).name if request.query_params.get("repro") else "")
        return PlainTextResponse("asked for")

    def named(self, request: Request) -> Repro:
        """The repro that the request is about: one of those that are watched, by its name. Raises NotHere."""
        name = request.query_params.get("repro", "")
        repro = self.live.repros().get(name)
        if repro is None:
            raise NotHere(f"no repro named {name!r} is watched here")
        return repro

    def path_of(self, repro: Repro) -> Path:
        """Where its script lies. Raises NotHere for one outside the repro folder, a link out of it included."""
        path = repro.path.resolve()
        if not path.is_relative_to(self.home):
            raise NotHere(f"{repro.name} lies outside the repro folder; its text is not shown")
        return path

    def about(self, repro: Repro) -> Json:
        inside = repro.path.resolve().is_relative_to(self.home)
        story = repro.provenance if inside else Provenance()
        return {
            "repro": repro.name,
            "about": about(repro),
            "path": display_path(repro.path),
            "message": story.message,
        }

    def script_of(self, repro: Repro) -> Json:
        """The script and of it the model, highlighted, without the part by which it judges itself; or why it is not shown."""
        try:
            text = text_of(read_regular(self.path_of(repro), SHOWN_BYTES)).split(DIVIDER)[0].rstrip()
        except (NotHere, OSError, ValueError) as error:
            return {"title": repro.name, "model": "", "script": "", "lines": 0, "refusal": str(error)}
        title, model = "", ""
        with contextlib.suppress(*DAMAGE):
            tree = ast.parse(text)
            title = heading(ast.get_docstring(tree) or "", repro.provenance.message.strip())
            wanted = (node for node in tree.body if getattr(node, "name", "") in ("Repro", "graph"))
            model = "".join(ast.get_source_segment(text, node) or "" for node in wanted)
        return {
            "title": title or repro.name, "model": highlighted(model), "script": highlighted(text),
            "lines": text.count("\n") + 1, "refusal": "",
        }  # fmt: skip

    def past_of(self, repro: Repro) -> Json:
        """Its verdicts, runs and flips, by column, and the last run of each in full."""
        columns: dict[str, Json] = {}
        news = []
        with recorder.history_in(self.folder) as history:
            if history is None:
                return {"columns": {}, "news": [], "flips": []}
            for (name, column), state in sorted(history.states().items()):
                if name == repro.name:
                    row = recorder.row_of(repro.path, Summary.of(repro), state)
                    columns[column] = {"runs": [], "last": None, "state": row}
                    stem = repro.path.stem
                    news.append(contradiction(state.verdict, repro.expect, repro=stem, device=column))
            for result in history.observations(repro.name, limit=RUNS_A_COLUMN * (len(columns) + 1)):
                known = columns.setdefault(result.device, {"runs": [], "last": None, "state": None})
                verdict = "stale" if result.stale else str(result.outcome.verdict)
                known["runs"].append([verdict, result.at, result.outcome.reason])
                if known["last"] is None:
                    told = {"at": result.at, "torch": result.torch}
                    known["last"] = {**told, **result.outcome.to_json()}
            flips = [recorder.flipped(history, flip).page_row() for flip in history.flips(repro.name)]
        return {"columns": columns, "news": list(filter(None, news)), "flips": flips}


def highlighted(source: str) -> str:
    """``source`` as HTML, to stand in ``<pre>``."""
    return str(pygments.highlight(source, PythonLexer(stripnl=False), HtmlFormatter(nowrap=True)))


def refusal(request: Request, error: Exception) -> Response:
    """404 for what is not there, 500 for what could not be done; the reason as text."""
    return PlainTextResponse(str(error), 404 if isinstance(error, NotHere) else 500)
