"""Who may read the page: only those with its address, and only from this server."""

from __future__ import annotations

import hashlib
import secrets

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
    """Adds to every answer what keeps a browser from doing more with it than showing it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        await self._app(scope, receive, send_safely)


class TokenCheck:
    """Lets through who has the token: once in the address, from then on in a cookie."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token
        # Cookies do not know ports: two servers on one machine need two names.
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
        """Take the token out of the address, where it would stay in the history and in links."""
        answer: Response
        if request.headers.get("sec-fetch-site") == "cross-site":
            # A redirect would still count as the other site's, and get no strict cookie.
            answer = HTMLResponse(_GO_ON)
        else:
            answer = RedirectResponse("./", status_code=303)
        answer.set_cookie(self._cookie, self._token, httponly=True, samesite="strict")
        answer.headers["Cache-Control"] = "no-store"
        return answer
