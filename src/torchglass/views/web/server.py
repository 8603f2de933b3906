"""Serves the page from a thread of this process, to this machine."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
import threading
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from torchglass.errors import ViewError
from torchglass.records.reader import Reader
from torchglass.views.web import saved_page
from torchglass.views.web.answers import Distances, FindMore
from torchglass.views.web.app import build_app

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
    find_more: FindMore | None = None,
    compared: Sequence[int] = (),
    distances: Distances | None = None,
) -> Server:
    """Serve the page of a run, and of others to compare it with, at `port` or the next free one.

    `allow_hosts` are host names that a browser may use besides localhost; `root_path` is the prefix
    that a proxy adds. `find_more` is called regularly for runs that were started later. The page
    first compares the first run with those at the indices `compared`, and uses `distances` for the
    distances between their weights. The readers stay open when the server closes.
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
        find_more=find_more,
        compared=compared,
        distances=distances,
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
