"""Object stores for tests: a real S3 server process, and servers that refuse or do not answer."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import s3fs

BUCKET = "bucket"
_START_SECONDS = 60.0


def credentials(endpoint: str) -> dict[str, str]:
    """The environment in which s3:// is at an endpoint."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "tests",
        "AWS_SECRET_ACCESS_KEY": "tests",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


@contextlib.contextmanager
def s3_server() -> Iterator[Mapping[str, str]]:
    """Moto's server with a bucket; the environment in which s3:// is there."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    endpoint = f"http://127.0.0.1:{port}"
    try:
        _await(f"{endpoint}/moto-api/", server)
        bucket = urllib.request.Request(f"{endpoint}/{BUCKET}", method="PUT")
        urllib.request.urlopen(bucket).close()
        # fsspec would go on using the server of an earlier test.
        s3fs.S3FileSystem.clear_instance_cache()
        yield credentials(endpoint)
    finally:
        server.kill()
        server.wait()


def _await(url: str, server: subprocess.Popen[bytes]) -> None:
    ends = time.monotonic() + _START_SECONDS
    while time.monotonic() < ends and server.poll() is None:
        with contextlib.suppress(urllib.error.URLError, ConnectionError):
            urllib.request.urlopen(url).close()
            return
        time.sleep(0.05)
    raise AssertionError("the S3 server did not start")


@contextlib.contextmanager
def _http_server(answer: Callable[[BaseHTTPRequestHandler], None]) -> Iterator[Mapping[str, str]]:
    class Handler(BaseHTTPRequestHandler):
        def handle_one_request(self) -> None:
            self.raw_requestline = self.rfile.readline(65_537)
            if self.raw_requestline and self.parse_request():
                answer(self)
            self.close_connection = True

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield credentials(f"http://127.0.0.1:{server.server_address[1]}")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def refusing_server() -> contextlib.AbstractContextManager[Mapping[str, str]]:
    """A server that answers 403 to everything."""

    def refuse(request: BaseHTTPRequestHandler) -> None:
        body = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
        request.send_response(403)
        request.send_header("Content-Type", "application/xml")
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    return _http_server(refuse)


@contextlib.contextmanager
def silent_server() -> Iterator[Mapping[str, str]]:
    """A server that takes every request and does not answer as long as it lives."""
    over = threading.Event()

    def wait(_: BaseHTTPRequestHandler) -> None:
        over.wait()

    with _http_server(wait) as environment:
        try:
            yield environment
        finally:
            over.set()


@contextlib.contextmanager
def closed_port() -> Iterator[Mapping[str, str]]:
    """A port at which no server is."""
    with socket.socket() as unused:
        # Bound and not listening: nobody else can take it.
        unused.bind(("127.0.0.1", 0))
        yield credentials(f"http://127.0.0.1:{unused.getsockname()[1]}")


def here(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process that uses a store."""
    return {**os.environ, **environment}
