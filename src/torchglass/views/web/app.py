"""The web application: the files of the page, its API and the stream that tells of new steps.

    /api/run      who recorded this, and how far it is
    /api/model    the structure and its counts; null while there is none
    /api/series   what was measured
    /api/points   ?series=1&series=2&after=100: their points at steps above 100
    /api/events   server-sent events: the status, whenever it changes, with the last step as id

All of it is read-only and in the format of `payloads`. Addresses are relative, so a proxy may put
the whole under a prefix.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from collections.abc import AsyncIterator, Sequence

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route

from torchglass.errors import StoreError
from torchglass.records.flow import Reader
from torchglass.records.model import Model
from torchglass.records.series import SeriesId
from torchglass.views.web import page_files, payloads
from torchglass.views.web.guard import SafeHeaders, TokenCheck

LOCAL_HOSTS = ("127.0.0.1", "localhost", "[::1]")
_POLL_SECONDS = 0.25
_HEARTBEAT_POLLS = 60


def build_app(
    reader: Reader,
    *,
    token: str,
    hosts: Sequence[str] = (),
    root_path: str = "",
    closing: threading.Event | None = None,
) -> Starlette:
    """The application that shows one run; setting `closing` ends its open streams."""
    api = _Api(reader, closing or threading.Event())
    routes: list[BaseRoute] = [
        Route("/", _page_file),
        Route("/{name}", _page_file),
        Route("/api/run", api.run),
        Route("/api/model", api.model),
        Route("/api/series", api.series),
        Route("/api/points", api.points),
        Route("/api/events", api.events),
    ]
    # A proxy may strip the prefix or pass it on: both find their way.
    prefixed = [Mount(root_path, routes=routes)] if root_path.strip("/") else []
    return Starlette(
        routes=[*prefixed, *routes],
        middleware=[
            Middleware(SafeHeaders),
            Middleware(TrustedHostMiddleware, [*LOCAL_HOSTS, *hosts], www_redirect=False),
            Middleware(TokenCheck, token=token),
            Middleware(GZipMiddleware, compresslevel=5),
        ],
        exception_handlers={StoreError: _store_problem},
    )


def _page_file(request: Request) -> Response:
    name = request.path_params.get("name", "index.html")
    if name not in page_files.MEDIA_TYPES:
        raise HTTPException(404)
    return _answer(request, page_files.read(name), page_files.MEDIA_TYPES[name])


class _Api:
    """The endpoints, over one reader."""

    def __init__(self, reader: Reader, closing: threading.Event) -> None:
        self._reader = reader
        self._closing = closing
        self._model: tuple[Model | None, bytes] | None = None

    def run(self, request: Request) -> Response:
        return _json(request, payloads.run_payload(self._reader))

    def model(self, request: Request) -> Response:
        model = payloads.model_of(self._reader)
        if self._model is None or self._model[0] is not model:
            self._model = model, payloads.to_json(payloads.model_payload(model)).encode("ascii")
        return _answer(request, self._model[1], "application/json")

    def series(self, request: Request) -> Response:
        return _json(request, payloads.series_payload(self._reader))

    def points(self, request: Request) -> Response:
        try:
            ids = [SeriesId(int(asked)) for asked in request.query_params.getlist("series")]
            after = int(request.query_params.get("after", -1))
        except ValueError as error:
            raise HTTPException(400, "series and after are whole numbers") from error
        return _json(request, payloads.points_payload(self._reader, ids, after=after))

    def events(self, request: Request) -> Response:
        return StreamingResponse(
            self._stream(request.headers.get("last-event-id")),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )

    async def _stream(self, known_step: str | None) -> AsyncIterator[str]:
        told: payloads.Payload | None = None
        quiet_polls = 0
        while not self._closing.is_set():
            try:
                status = await run_in_threadpool(payloads.status, self._reader)
            except StoreError:
                return  # The page connects again by itself, and says that it cannot meanwhile.
            step = str(status["last_step"])
            if status != told and (told or step != known_step or status["finished"]):
                yield f"id: {step}\ndata: {json.dumps(status)}\n\n"
                quiet_polls = 0
            elif quiet_polls % _HEARTBEAT_POLLS == 0:
                yield ": still here\n\n"
            if status["finished"]:
                return
            told = status
            quiet_polls += 1
            await asyncio.sleep(_POLL_SECONDS)


def _json(request: Request, payload: payloads.Payload) -> Response:
    return _answer(request, payloads.to_json(payload).encode("ascii"), "application/json")


def _answer(request: Request, body: bytes, media_type: str) -> Response:
    """The body, or word that the browser has this very one already."""
    tag = f'W/"{hashlib.sha256(body).hexdigest()[:20]}"'
    headers = {"ETag": tag, "Cache-Control": "private, no-cache"}
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(body, media_type=media_type, headers=headers)


def _store_problem(request: Request, error: Exception) -> Response:
    payload = {"version": payloads.VERSION, "error": str(error)}
    return Response(payloads.to_json(payload), status_code=404, media_type="application/json")
