"""A Firefox to drive, over the WebDriver BiDi that it speaks itself: no driver is needed."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

NAMES = ("firefox-esr", "firefox")
SECONDS = 60
"""Longer than anything takes on a busy machine."""

_QUIET = {
    "app.normandy.enabled": False,
    "browser.shell.checkDefaultBrowser": False,
    "datareporting.policy.dataSubmissionEnabled": False,
    "network.captive-portal-service.enabled": False,
    "network.connectivity-service.enabled": False,
    "toolkit.telemetry.reportingpolicy.firstRun": False,
}
"""Settings that keep it from asking other hosts for anything."""


def find() -> str | None:
    """The executable: what TORCHGLASS_FIREFOX says, or the system's."""
    named = os.environ.get("TORCHGLASS_FIREFOX")
    return shutil.which(named) if named else next(filter(None, map(shutil.which, NAMES)), None)


class Tab:
    """A page in Firefox, and what it complained of."""

    def __init__(self, socket: ClientConnection) -> None:
        self.complaints: list[str] = []
        self._socket = socket
        self._asked = 0
        self._ask("session.new", capabilities={})
        self._ask("session.subscribe", events=["log.entryAdded"])
        self._context = self._ask("browsingContext.getTree")["contexts"][0]["context"]

    def open(self, address: str, width: int = 1280, height: int = 800) -> None:
        """Go to an address and wait until it is loaded."""
        size = {"width": width, "height": height}
        self._ask("browsingContext.setViewport", context=self._context, viewport=size)
        self._ask("browsingContext.navigate", context=self._context, url=address, wait="complete")

    def evaluate(self, expression: str) -> Any:
        """The value of an expression of the page, as JSON can write it; a promise is awaited."""
        answer = self._ask(
            "script.evaluate",
            expression=f"(async () => JSON.stringify(await ({expression})))()",
            target={"context": self._context},
            awaitPromise=True,
        )
        if answer["type"] == "exception":
            raise AssertionError(answer["exceptionDetails"]["text"])
        return json.loads(answer["result"].get("value", "null"))

    def wait_until(self, condition: str) -> None:
        """Wait for an expression of the page to become true, looking at each frame."""
        self.evaluate(
            "new Promise(done => { const look = () => "
            f"({condition}) ? done(true) : requestAnimationFrame(look); look(); }})"
        )

    def drag(self, source: str, target: str) -> None:
        """Take the middle of one element and let it go over another."""
        start, end = self._middle(source), self._middle(target)
        moves = [{"type": "pointerMove", **end, "duration": 100}]
        self._point(start, [{"type": "pointerDown", "button": 0}, *moves])
        self._point(end, [{"type": "pointerUp", "button": 0}])

    def click(self, selector: str) -> None:
        """Press and let go the mouse over the middle of an element."""
        pressed = [{"type": "pointerDown", "button": 0}, {"type": "pointerUp", "button": 0}]
        self._point(self._middle(selector), pressed)

    def hover(self, selector: str) -> None:
        """Put the mouse over the middle of an element."""
        self._point(self._middle(selector), [])

    def press(self, *keys: str) -> None:
        """Press keys one after the other where the focus is."""
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self._act({"type": "key", "id": "keys", "actions": actions})

    def _middle(self, selector: str) -> dict[str, int]:
        x, y = self.evaluate(
            f"(() => {{ const area = document.querySelector({json.dumps(selector)})"
            ".getBoundingClientRect();"
            " return [area.left + area.width / 2, area.top + area.height / 2]; })()"
        )
        return {"x": round(x), "y": round(y)}

    def _point(self, at: dict[str, int], then: Sequence[dict[str, Any]]) -> None:
        actions = [{"type": "pointerMove", **at}, *then]
        self._act({"type": "pointer", "id": "mouse", "actions": actions})

    def _act(self, source: dict[str, Any]) -> None:
        self._ask("input.performActions", context=self._context, actions=[source])

    def _ask(self, method: str, **parameters: Any) -> Any:
        self._asked += 1
        question = {"id": self._asked, "method": method, "params": parameters}
        self._socket.send(json.dumps(question))
        while True:
            told = json.loads(self._socket.recv(timeout=SECONDS))
            if told.get("method") == "log.entryAdded":
                self.complaints.append(told["params"]["text"])
            elif told.get("id") == self._asked:
                if told["type"] == "error":
                    raise AssertionError(f"{method}: {told['error']}: {told['message']}")
                return told["result"]


@contextlib.contextmanager
def running(executable: str, profile: Path) -> Iterator[Tab]:
    """A Firefox with a profile of its own, and one tab in it."""
    settings = (
        f"user_pref({json.dumps(key)}, {json.dumps(value)});" for key, value in _QUIET.items()
    )
    (profile / "user.js").write_text("\n".join(settings), encoding="utf-8")
    command = [executable, "--headless", "--profile", str(profile), "--remote-debugging-port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        # It goes on writing, and would stop where nobody reads that.
        rest = threading.Thread(target=process.stderr.read, daemon=True)
        try:
            address = next(filter(None, map(_address, process.stderr)))
            rest.start()
            with connect(f"{address}/session", max_size=None, proxy=None) as socket:
                yield Tab(socket)
        finally:
            process.terminate()
            if rest.is_alive():
                rest.join(SECONDS)


def _address(line: str) -> str | None:
    found = re.search(r"BiDi listening on (ws://\S+)", line)
    return found and found[1]
