"""A client of the language server that speaks JSON-RPC over the pipes of a real process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class LanguageClient:
    """Sends requests and notifications, and keeps what the server sends in between."""

    def __init__(self, process: subprocess.Popen[bytes], root: Path) -> None:
        self._process = process
        self._last_id = 0
        self.notifications: list[dict[str, Any]] = []
        self.capabilities = self.request(
            "initialize",
            {
                "processId": None,
                "rootUri": root.as_uri(),
                "workspaceFolders": [{"uri": root.as_uri(), "name": root.name}],
                "capabilities": {"textDocument": {"inlayHint": {}, "publishDiagnostics": {}}},
            },
        )["capabilities"]
        self.notify("initialized", {})

    def request(self, method: str, params: Any) -> Any:
        """The result of a request."""
        self._last_id += 1
        self._send({"id": self._last_id, "method": method, "params": params})
        while True:
            message = self._receive()
            if message.get("id") == self._last_id and "method" not in message:
                assert "error" not in message, message
                return message["result"]
            self.notifications.append(message)

    def notify(self, method: str, params: Any) -> None:
        self._send({"method": method, "params": params})

    def open(self, file: Path) -> None:
        """Open a file as an editor does."""
        document = {"uri": file.as_uri(), "languageId": "python", "version": 1}
        self.notify(
            "textDocument/didOpen", {"textDocument": {**document, "text": file.read_text()}}
        )

    def change(self, file: Path, text: str) -> None:
        """Replace the text in the editor, without saving it."""
        document = {"uri": file.as_uri(), "version": 2}
        self.notify(
            "textDocument/didChange", {"textDocument": document, "contentChanges": [{"text": text}]}
        )

    def hints(self, file: Path, lines: int = 10_000) -> dict[int, str]:
        """The labels of the hints of a file by line, from 1."""
        found = self.request(
            "textDocument/inlayHint",
            {
                "textDocument": {"uri": file.as_uri()},
                "range": {
                    "start": {"line": 0, "character": 0},
                    "end": {"line": lines, "character": 0},
                },
            },
        )
        return {hint["position"]["line"] + 1: hint["label"] for hint in found}

    def diagnostics(self, file: Path) -> list[dict[str, Any]]:
        """The latest diagnostics that the server sent for a file."""
        # The answer to a request comes after the notifications before it.
        self.hints(file)
        published = [
            one["params"]
            for one in self.notifications
            if one.get("method") == "textDocument/publishDiagnostics"
        ]
        of_file = [one["diagnostics"] for one in published if one["uri"] == file.as_uri()]
        return list(of_file[-1]) if of_file else []

    def _send(self, message: dict[str, Any]) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        assert self._process.stdin is not None
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        self._process.stdin.flush()

    def _receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        length = 0
        while line := self._process.stdout.readline().strip():
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        assert length, "the server has ended"
        message: dict[str, Any] = json.loads(self._process.stdout.read(length))
        return message


@contextmanager
def language_server(root: Path, *words: str) -> Iterator[LanguageClient]:
    """A client of `torchglass lsp` in a process of its own."""
    command = [sys.executable, "-m", "torchglass", "lsp", *words]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, cwd=root) as process:
        try:
            client = LanguageClient(process, root)
            yield client
            client.request("shutdown", None)
            client.notify("exit", None)
        finally:
            if process.stdin is not None:
                process.stdin.close()
            process.wait()
