from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import hatch_build
from tests import make
from torchglass.errors import ViewError
from torchglass.records.run import Frame, RunRecord
from torchglass.store.readers import MemoryStore
from torchglass.views.web.server import MOST_STREAMS, Server, serve


@pytest.fixture(scope="module", autouse=True)
def _built_page() -> None:
    hatch_build.build_page(Path(hatch_build.__file__).parent)


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore(RunRecord(name="run", created_ns=0))
    store.put_model(make.model())
    return store


@pytest.fixture
def server(store: MemoryStore) -> Iterator[Server]:
    server = serve(store, port=0)
    yield server
    server.close()


@contextlib.contextmanager
def events(url: str, **headers: str) -> Iterator[http.client.HTTPResponse]:
    address = urlsplit(url)
    connection = http.client.HTTPConnection("127.0.0.1", address.port, timeout=60)
    with contextlib.closing(connection):
        connection.request("GET", f"/api/events?{address.query}", headers=headers)
        with connection.getresponse() as stream:
            yield stream


def next_event(stream: http.client.HTTPResponse) -> tuple[str, dict[str, Any]]:
    line = stream.readline()
    while line and not line.startswith(b"id: "):
        line = stream.readline()
    mark = line.decode().removeprefix("id: ").strip()
    (status,) = json.loads(stream.readline().removeprefix(b"data: "))["runs"]
    assert stream.readline() == b"\n"
    return mark, status


def put_step(store: MemoryStore, step: int) -> None:
    store.put_frame(Frame(step=step, time_ns=0, points={store.series("", "loss"): 1.0}))


def test_the_url_is_local_and_contains_a_token(server: Server) -> None:
    address = urlsplit(server.url)

    assert address.hostname == "localhost"
    assert len(address.query.removeprefix("token=")) >= 32


def test_if_a_port_is_taken_the_next_one_is_used(store: MemoryStore, server: Server) -> None:
    taken = urlsplit(server.url).port
    assert taken is not None

    other = serve(store, port=taken)

    port = urlsplit(other.url).port
    other.close()
    assert port is not None
    assert port != taken


def test_new_steps_are_streamed_as_they_arrive(store: MemoryStore, server: Server) -> None:
    with events(server.url) as stream:
        assert next_event(stream)[1]["last_step"] == -1

        put_step(store, 3)

        mark, status = next_event(stream)
        assert mark == "3.0.1.1"
        assert status == {"last_step": 3, "finished": False, "series": 1, "revision": 1}

        store.close()

        assert next_event(stream)[1]["finished"]
        assert stream.read() == b""


def test_a_reconnecting_client_gets_only_new_events(store: MemoryStore, server: Server) -> None:
    put_step(store, 3)
    with events(server.url, **{"Last-Event-ID": "3.0.1.1"}) as stream:
        assert stream.readline() == b": still here\n"

        put_step(store, 4)

        assert next_event(stream)[1]["last_step"] == 4


def test_closing_ends_open_streams(server: Server) -> None:
    with events(server.url) as stream:
        next_event(stream)

        server.close()

        assert stream.read() == b""
    with pytest.raises(ConnectionRefusedError), events(server.url):
        pass


SERVE = """
from tests import make
from torchglass.records.run import RunRecord
from torchglass.store.readers import MemoryStore
from torchglass.views.web.server import serve

store = MemoryStore(RunRecord(name="run", created_ns=0))
store.put_model(make.model())
server = serve(store, port=0)
print(server.url, flush=True)
{ending}
print("ended", flush=True)
"""


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def start_(ending: str = "", program: str = SERVE) -> subprocess.Popen[str]:
        program = program.replace("{ending}", ending)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(["src", "."])}
        root = Path(hatch_build.__file__).parent
        started.append(
            subprocess.Popen(
                [sys.executable, "-c", program],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=root,
                env=environment,
            )
        )
        return started[-1]

    yield start_
    for process in started:
        process.kill()
        process.communicate()


def test_ctrl_c_ends_the_wait_while_a_page_is_open(
    start: Callable[[str], subprocess.Popen[str]],
) -> None:
    process = start("server.wait()")
    assert process.stdout is not None
    with events(process.stdout.readline().strip()) as stream:
        next_event(stream)

        process.send_signal(signal.SIGINT)

        assert process.stdout.readline() == "ended\n"
        assert process.wait(timeout=60) == 0


def test_an_open_page_does_not_prevent_the_program_from_exiting(
    start: Callable[[str], subprocess.Popen[str]],
) -> None:
    process = start("input()")
    assert process.stdin is not None
    assert process.stdout is not None
    with events(process.stdout.readline().strip()) as stream:
        next_event(stream)

        process.stdin.write("\n")
        process.stdin.flush()

        assert process.stdout.readline() == "ended\n"
        assert process.wait(timeout=60) == 0


TRAIN = """
import resource

import torch
from torch import nn

import torchglass as tg

resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
model = nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
path = input()
with tg.watch(model, save=path) as watcher:
    server = tg.view(path, port=0)
    print(server.url, flush=True)
    while input() == "step":
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        watcher.log("loss", 1.0)
        with open("/dev/null") as first, open("/dev/null") as second:
            print("stepped", flush=True)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limit of open files")
@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: loc", b"POST / HTTP/1.1\r\n"])
def test_connections_do_not_leak_file_handles_of_a_training_process(
    sent: bytes, tmp_path: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    process = start(program=TRAIN)
    assert process.stdin is not None
    assert process.stdout is not None

    def tell(line: str) -> str:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{line}\n")
        process.stdin.flush()
        return process.stdout.readline().strip()

    url = tell(str(tmp_path / "run.glass"))
    with contextlib.ExitStack() as stack:
        for at in range(400):
            half_open = socket.create_connection(("127.0.0.1", urlsplit(url).port or 0), timeout=60)
            stack.enter_context(half_open)
            with contextlib.suppress(ConnectionError):
                half_open.sendall(sent)
            if at % 40 == 0:
                assert tell("step") == "stepped"
        assert tell("step") == "stepped"
        # Who has the token still gets in.
        assert status_of(url) == 303
    process.stdin.write("end\n")
    process.stdin.flush()
    assert process.wait(timeout=60) == 0


def status_of(url: str, path: str = "/") -> int:
    address = urlsplit(url)
    connection = http.client.HTTPConnection("127.0.0.1", address.port, timeout=60)
    with contextlib.closing(connection):
        connection.request("GET", f"{path}?{address.query}")
        return connection.getresponse().status


@pytest.mark.slow
def test_a_connection_without_a_complete_request_is_closed(server: Server) -> None:
    port = urlsplit(server.url).port or 0
    requests = [b"", b"GET / HTTP/1.1\r\n", b"GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\nGET"]
    connections = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in requests]
    for connection, sent in zip(connections, requests, strict=True):
        connection.sendall(sent)

    for connection in connections:
        with contextlib.closing(connection), contextlib.suppress(ConnectionError):
            while connection.recv(4096):
                pass


def test_invalid_requests_are_not_logged_to_the_training_output(
    server: Server, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    port = urlsplit(server.url).port or 0
    with socket.create_connection(("127.0.0.1", port), timeout=60) as one:
        one.sendall(b"\x16\x03\x01 this is not HTTP\r\n\r\n")
        assert b"400" in one.recv(1000)

    assert capfd.readouterr().err == ""
    assert caplog.records == []


def test_event_streams_are_limited_and_free_their_slot(server: Server) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(MOST_STREAMS):
            next_event(stack.enter_context(events(server.url)))

        assert status_of(server.url, "/api/events") == 503
        assert status_of(server.url, "/api/statuses") == 200

    for _ in range(100):  # The server hears of a closed stream when it next writes to it.
        with events(server.url) as stream:
            if stream.status == 200:
                break
    assert stream.status == 200


def test_all_streams_share_one_poll_of_the_runs(store: MemoryStore) -> None:
    looks: list[float] = []

    class Counting(MemoryStore):
        def last_step(self) -> int:
            looks.append(time.monotonic())
            return super().last_step()

    counting = Counting(RunRecord(name="run", created_ns=0))
    server = serve(counting, port=0)
    with contextlib.closing(server), contextlib.ExitStack() as stack:
        streams = [stack.enter_context(events(server.url)) for _ in range(8)]
        for stream in streams:
            next_event(stream)
        put_step(counting, 1)
        for stream in streams:
            next_event(stream)

    assert min(later - one for one, later in itertools.pairwise(looks)) > 0.1


@pytest.mark.parametrize("port", [-5, 65536, 99999, "5000"])
def test_an_invalid_server_port_is_refused(store: MemoryStore, port: Any) -> None:
    with pytest.raises(ViewError, match=f"port must be from 0 .* to 65535, not {port!r}"):
        serve(store, port=port)
