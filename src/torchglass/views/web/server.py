"""Serves the page from a thread of this process: its files, its API, the stream of new steps.

    /api/NAME    the answers of `answers`, read-only
    /api/events  server-sent events: the status of all runs, whenever one changes
    /saved.html  all runs and the page itself as one file

Addresses are relative, so a proxy may serve everything under a prefix.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import hashlib
import json
import logging
import math
import secrets
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from torchglass.errors import LookupFailedError, StoreError, ViewError
from torchglass.records.run import Reader
from torchglass.views.web import payloads, saved_page
from torchglass.views.web.answers import ENDPOINTS, Distances, OpenRuns, Reports, RunsFolder, answer
from torchglass.views.web.saved_page import render_runs

_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' blob:; base-uri 'none'; form-action 'none'; "
        # A notebook on this machine may show the page in a frame.
        "frame-ancestors 'self' http://localhost:* http://127.0.0.1:*; object-src 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_NO_TOKEN = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Torchglass: token needed</title>
<h1>This page needs its token</h1>
<p>Open the full URL that Torchglass printed in the terminal. It looks like this:</p>
<pre>http://localhost:PORT/?token=…</pre>
<p>After that, this browser opens the page without the token.</p>
<p>If the program runs on another machine, forward its port, then open the printed URL here:</p>
<pre>ssh -L PORT:localhost:PORT HOST</pre>
<p>If the program was restarted, its token changed: use the newest URL.</p>
</html>
"""
_GO_ON = '<!doctype html><meta http-equiv="refresh" content="0; url=./"><title>Torchglass</title>'


class SafeHeaders:
    """Adds security headers to every response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        await self._app(scope, receive, send_safely)


class TokenCheck:
    """Requires the token: in the first address, then in a cookie."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token
        # Cookies are shared between ports: two servers on one machine need two names.
        self._cookie = f"torchglass-{hashlib.sha256(token.encode()).hexdigest()[:12]}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        shown = request.query_params.get("token")
        answer: ASGIApp
        if self._is_ours(shown) and request.url.path.endswith("/"):
            answer = self._keep_in_cookie(request)
        elif self._is_ours(shown) or self._is_ours(request.cookies.get(self._cookie)):
            answer = self._app
        else:
            answer = HTMLResponse(_NO_TOKEN, status_code=403)
        await answer(scope, receive, send)

    def _is_ours(self, token: str | None) -> bool:
        return token is not None and secrets.compare_digest(token.encode(), self._token.encode())

    def _keep_in_cookie(self, request: Request) -> Response:
        """Remove the token from the address, where it would stay in the history and in links."""
        answer: Response
        if request.headers.get("sec-fetch-site") == "cross-site":
            # A redirect would still count as cross-site, so the strict cookie would not be sent.
            answer = HTMLResponse(_GO_ON)
        else:
            answer = RedirectResponse("./", status_code=303)
        answer.set_cookie(self._cookie, self._token, httponly=True, samesite="strict")
        answer.headers["Cache-Control"] = "no-store"
        return answer


T = TypeVar("T")

LOCAL_HOSTS = ("127.0.0.1", "localhost", "[::1]")
_POLL_SECONDS = 0.25
_HEARTBEAT_POLLS = 60
_LEAST_COMPRESSED = 500
"""Bytes; smaller bodies are not compressed."""
MOST_STREAMS = 32
"""The limit of open event streams. A page without a stream polls the statuses instead."""


def build_app(
    readers: Sequence[Reader],
    *,
    token: str,
    hosts: Sequence[str] = (),
    root_path: str = "",
    closing: threading.Event | None = None,
    folder: RunsFolder | None = None,
    compared: Sequence[int] = (),
    distances: Distances | None = None,
    reports: Reports | None = None,
) -> Starlette:
    """The application that shows some runs; setting `closing` ends its open streams."""
    runs = OpenRuns(readers, folder, compared=compared, distances=distances, reports=reports)
    routes = _Api(runs, closing or threading.Event()).routes()
    # A proxy may strip the prefix or pass it on; both work.
    prefixed = [Mount(root_path, routes=routes)] if root_path.strip("/") else []
    return Starlette(
        routes=[*prefixed, *routes],
        middleware=[
            Middleware(SafeHeaders),
            Middleware(TrustedHostMiddleware, [*LOCAL_HOSTS, *hosts], www_redirect=False),
            Middleware(TokenCheck, token=token),
        ],
        exception_handlers={
            StoreError: _problem(404),
            LookupFailedError: _problem(404),
            ViewError: _problem(400),
        },
    )


def _page_file(request: Request) -> Response:
    name = request.path_params.get("name", "index.html")
    if name not in saved_page.MEDIA_TYPES:
        raise HTTPException(404)
    return _answer(request, saved_page.read(name), saved_page.MEDIA_TYPES[name])


class _Api:
    """The endpoints of the page."""

    def __init__(self, runs: OpenRuns, closing: threading.Event) -> None:
        self._runs = runs
        self._closing = closing
        self._news = _EventSource(runs)
        self._streams = 0

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/", _in_thread(_page_file)),
            Route("/saved.html", _in_thread(self._saved)),
            Route("/{name}", _in_thread(_page_file)),
            Route("/api/events", self._events),
            *(Route(f"/api/{name}", _in_thread(self._endpoint(name))) for name in ENDPOINTS),
        ]

    def _endpoint(self, name: str) -> Callable[[Request], Response]:
        def endpoint(request: Request) -> Response:
            asked = request.query_params
            query = {key: asked.getlist(key) for key in asked}
            return _answer(request, answer(self._runs, name, query), "application/json")

        return endpoint

    def _saved(self, request: Request) -> Response:
        return Response(
            render_runs(self._runs).encode("utf-8", errors="replace"),
            media_type="text/html",
            headers={"Content-Disposition": "attachment", "Cache-Control": "no-store"},
        )

    async def _events(self, request: Request) -> Response:
        if self._streams >= MOST_STREAMS:
            return PlainTextResponse(f"{MOST_STREAMS} pages are open already.\n", status_code=503)
        return StreamingResponse(
            self._counted(self._stream(request.headers.get("last-event-id"))),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )

    async def _counted(self, stream: AsyncIterator[str]) -> AsyncIterator[str]:
        self._streams += 1
        try:
            async for event in stream:
                yield event
        finally:
            self._streams -= 1

    async def _stream(self, known: str | None) -> AsyncIterator[str]:
        quiet_polls = 0
        while not self._closing.is_set():
            try:
                latest = await self._news.latest()
            except StoreError:
                return  # The page reconnects automatically, and shows that it is disconnected.
            if latest.mark != known or (latest.ended and not quiet_polls):
                yield latest.event
                quiet_polls = 0
            elif quiet_polls % _HEARTBEAT_POLLS == 0:
                yield ": still here\n\n"
            if latest.ended:
                return
            known = latest.mark
            quiet_polls += 1
            await asyncio.sleep(_POLL_SECONDS)


class _Latest(NamedTuple):
    """The progress of all runs at one time."""

    mark: str
    event: str
    ended: bool
    """Whether all runs have ended."""


class _EventSource:
    """Reads the progress of the runs, once for all open streams."""

    def __init__(self, runs: OpenRuns) -> None:
        self._runs = runs
        self._lock = asyncio.Lock()
        self._read_at = -math.inf
        self._latest = _Latest("", "", ended=False)

    async def latest(self) -> _Latest:
        """The latest status, at most half a poll old."""
        async with self._lock:
            if time.monotonic() - self._read_at >= _POLL_SECONDS / 2:
                self._latest = await _beside(self._look)
                self._read_at = time.monotonic()
            return self._latest

    def _look(self) -> _Latest:
        statuses = self._runs.statuses()
        mark = payloads.status_mark(statuses)
        if mark == self._latest.mark:
            return self._latest
        event = f"id: {mark}\ndata: {json.dumps({'runs': statuses})}\n\n"
        ended = not self._runs.grows and all(status["finished"] for status in statuses)
        return _Latest(mark, event, ended)


def _answer(request: Request, body: bytes, media_type: str) -> Response:
    """The body, or status 304 if the browser has it already."""
    tag = f'W/"{hashlib.sha256(body).hexdigest()[:20]}"'
    headers = {"ETag": tag, "Cache-Control": "private, no-cache"}
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(body, media_type=media_type, headers=headers)


def _problem(status_code: int) -> Callable[[Request, Exception], Response]:
    def tell(request: Request, error: Exception) -> Response:
        body = payloads.to_json({"version": payloads.VERSION, "error": str(error)})
        return Response(body, status_code=status_code, media_type="application/json")

    return tell


def _in_thread(endpoint: Callable[[Request], Response]) -> Callable[[Request], Awaitable[Response]]:
    """An endpoint that runs in another thread, with its response compressed."""

    def answer(request: Request) -> Response:
        return _compressed(endpoint(request), request)

    async def run(request: Request) -> Response:
        return await _beside(answer, request)

    return run


def _compressed(response: Response, request: Request) -> Response:
    response.headers.add_vary_header("Accept-Encoding")
    is_understood = "gzip" in request.headers.get("accept-encoding", "")
    if is_understood and len(response.body) >= _LEAST_COMPRESSED:
        response.body = gzip.compress(response.body, 5, mtime=0)
        response.headers["Content-Encoding"] = "gzip"
        response.headers["Content-Length"] = str(len(response.body))
    return response


async def _beside(function: Callable[..., T], *arguments: object) -> T:
    """Run a function in another thread than the server's.

    Python 3.12 starts no threads after the main thread has ended, but the page may stay: then the
    function runs in the server's thread.
    """
    has_begun = False

    def run() -> T:
        nonlocal has_begun
        has_begun = True
        return function(*arguments)

    try:
        return await run_in_threadpool(run)
    except RuntimeError:
        if has_begun:
            raise
        return function(*arguments)


_PORTS_TO_TRY = 50
_LAST_PORT = 65535
_EVERYWHERE = ("0.0.0.0", "::", "")
_MOST_CONNECTIONS = 256
_FEWEST_CONNECTIONS = 8
_REQUEST_SECONDS = 5.0
"""A connection that sends no complete request for this long is closed."""
_log = logging.getLogger("torchglass.server")
_log.setLevel(logging.ERROR)


class Server:
    """A page that is being served."""

    url: str
    """Its address, which contains the token, so do not share it."""

    def __init__(
        self, url: str, listener: socket.socket, server: uvicorn.Server, closing: threading.Event
    ) -> None:
        self.url = url
        self._server = server
        self._closing = closing
        self._thread = threading.Thread(
            target=server.run, args=([listener],), name="torchglass-page", daemon=True
        )
        self._thread.start()

    def wait(self) -> None:
        """Serve until Ctrl-C, or until someone calls `close`."""
        with contextlib.suppress(KeyboardInterrupt):
            while self._thread.is_alive():
                # Without a timeout, Ctrl-C would not work on Windows.
                self._thread.join(timeout=0.5)
        self.close()

    def close(self) -> None:
        """Stop serving, open event streams included."""
        self._closing.set()
        self._server.should_exit = True
        self._thread.join(timeout=2)

    def __repr__(self) -> str:
        state = f"at {self.url}" if self._thread.is_alive() else "closed"
        return f"<Server {state}>"


def serve(
    *readers: Reader,
    host: str = "127.0.0.1",
    port: int = 5000,
    token: str | None = None,
    root_path: str = "",
    allow_hosts: Sequence[str] = (),
    folder: RunsFolder | None = None,
    compared: Sequence[int] = (),
    distances: Distances | None = None,
    reports: Reports | None = None,
) -> Server:
    """Serve the page of a run, and of others to compare it with, at `port` or the next free one.

    `allow_hosts` are host names that a browser may use besides localhost; `root_path` is the prefix
    that a proxy adds. `folder` has further runs, also those that are started later. The page
    first compares the first run with those at the indices `compared`, and uses `distances` for the
    distances between their weights; `reports` are about the first one. The readers
    stay open when the server closes.
    """
    _check_port(port)
    saved_page.read("index.html")
    listener = _listen(host, port)
    token = token or secrets.token_urlsafe(24)
    closing = threading.Event()
    named_host = () if host in _EVERYWHERE else (host, f"[{host}]")
    app = build_app(
        readers,
        token=token,
        hosts=[*allow_hosts, *named_host],
        root_path=root_path,
        closing=closing,
        folder=folder,
        compared=compared,
        distances=distances,
        reports=reports,
    )
    config = uvicorn.Config(
        app,
        # An open event stream would otherwise keep the process from ending.
        timeout_graceful_shutdown=1,
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="off",
        loop="asyncio",
        ws="none",
        http=_BoundedProtocol,
        # asyncio accepts connections up to the backlog before we can refuse the first.
        backlog=connection_limit() // 4,
    )
    url = f"http://{_shown(host)}:{listener.getsockname()[1]}{root_path}/?token={quote(token)}"
    return Server(url, listener, uvicorn.Server(config), closing)


class _BoundedProtocol(H11Protocol):
    """HTTP in a process whose file handles belong to someone else's training.

    There are few connections at a time: a new one takes the place of the one that has been idle
    longest. A connection without a complete request is closed after `_REQUEST_SECONDS`.
    """

    _accepted_at = 0.0
    _deadline: asyncio.TimerHandle | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Without handlers Python would print bad requests into the training's output.
        self.logger = _log

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._accepted_at = self.loop.time()
        self._expect_request()
        if len(self.connections) > connection_limit():
            self._make_room()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._expect_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_deadline()
        super().connection_lost(exc)

    @property
    def _is_idle(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is None or cycle.response_complete

    def _expect_request(self) -> None:
        if not self._is_idle:
            self._forget_deadline()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(_REQUEST_SECONDS, self._drop)

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _make_room(self) -> None:
        """Close the least useful connection, which is the new one if all others are busy.

        A connection without any request goes before one that a browser keeps open for reuse.
        """
        others = [each for each in self.connections if isinstance(each, _BoundedProtocol)]
        idle = [each for each in others if each is not self and each._is_idle]
        least = min(idle, key=lambda one: (one.cycle is not None, one._accepted_at), default=self)
        least._drop()

    def _drop(self) -> None:
        # The transport reports its end only in the next iteration of the loop.
        self.connections.discard(self)
        self._forget_deadline()
        self.transport.abort()


def connection_limit() -> int:
    """How many connections may be open: at most a quarter of the process's file handles."""
    try:
        import resource
    except ImportError:  # Windows has no such limit.
        return _MOST_CONNECTIONS
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _MOST_CONNECTIONS
    return max(_FEWEST_CONNECTIONS, min(_MOST_CONNECTIONS, soft // 4))


def _check_port(port: object) -> None:
    if not isinstance(port, int) or not 0 <= port <= _LAST_PORT:
        raise ViewError(f"port must be from 0 (any free port) to {_LAST_PORT}, not {port!r}")


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    problem: OSError | None = None
    for candidate in (*range(port, min(port + _PORTS_TO_TRY, _LAST_PORT + 1)), 0):
        if candidate and _answers(candidate):
            continue
        try:
            return socket.create_server((host, candidate), family=family)
        except OSError as error:
            problem = error
    raise ViewError(f"cannot serve the page at {host}, port {port}: {problem}") from problem


def _answers(port: int) -> bool:
    """Whether another server already answers at localhost.

    A bind can still succeed: macOS uses port 5000 at another of localhost's addresses.
    """
    try:
        socket.create_connection(("localhost", port), timeout=0.2).close()
    except OSError:
        return False
    return True


def _shown(host: str) -> str:
    if host in (*_EVERYWHERE, "127.0.0.1"):
        return "localhost"
    return f"[{host}]" if ":" in host else host
