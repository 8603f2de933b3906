from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from starlette.testclient import TestClient

import hatch_build
from tests import make
from torchglass.records.run import RunRecord
from torchglass.store.readers import MemoryStore
from torchglass.views.web.server import build_app

TOKEN = "the-token"


@pytest.fixture(scope="module", autouse=True)
def _built_page() -> None:
    hatch_build.build_page(Path(hatch_build.__file__).parent)


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore(RunRecord(name="run", created_ns=0))
    store.put_model(make.model({"children": {"a": {"weight": (2, 3)}}}))
    store.close()
    return store


@pytest.fixture
def stranger(store: MemoryStore) -> TestClient:
    return client_for(store)


@pytest.fixture
def client(stranger: TestClient) -> TestClient:
    stranger.get(f"/?token={TOKEN}")
    return stranger


def client_for(store: MemoryStore, root_path: str = "") -> TestClient:
    app = build_app([store], token=TOKEN, root_path=root_path)
    return TestClient(app, base_url="http://localhost:5000", follow_redirects=False)


@pytest.mark.parametrize("path", ["/", "/page.js", "/api/run", "/api/events", "/?token=wrong"])
def test_the_api_requires_the_token(path: str, stranger: TestClient) -> None:
    assert stranger.get(path).status_code == 403


def test_without_a_token_only_login_instructions_are_shown(stranger: TestClient) -> None:
    answer = stranger.get("/")

    assert answer.headers["content-type"].startswith("text/html")
    assert "?token=" in answer.text
    assert "ssh -L" in answer.text
    assert TOKEN not in answer.text
    assert "run" not in answer.text.replace("runs on", "")


def test_the_token_cookie_is_http_only_and_same_site(
    stranger: TestClient,
) -> None:
    answer = stranger.get(f"/?token={TOKEN}")

    assert answer.status_code == 303
    assert answer.headers["location"] == "./"
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie


def test_the_cookie_grants_access_to_everything(client: TestClient) -> None:
    assert client.get("/").text.startswith("<!doctype html>")
    assert client.get("/api/run").json()["run"]["name"] == "run"


def test_a_client_can_pass_the_token_in_the_url(stranger: TestClient) -> None:
    assert stranger.get(f"/api/model?token={TOKEN}").json()["model"]["name"] == "Net"


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "127.0.0.1.nip.io", ""])
def test_a_foreign_host_is_refused(host: str, client: TestClient) -> None:
    assert client.get("/api/run", headers={"Host": host}).status_code == 400


@pytest.mark.parametrize("host", ["127.0.0.1:5000", "[::1]:8080", "LOCALHOST"])
def test_localhost_names_are_allowed_hosts(host: str, client: TestClient) -> None:
    answer = client.get(f"/api/run?token={TOKEN}", headers={"Host": host})

    assert answer.status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_the_api_is_read_only(method: str, client: TestClient) -> None:
    assert client.request(method, "/api/run").status_code == 405


@pytest.mark.parametrize("path", ["/", "/page.js", "/api/run", "/nothing"])
def test_every_response_forbids_inline_scripts_and_sniffing(path: str, client: TestClient) -> None:
    headers = client.get(path).headers

    assert "default-src 'self'" in headers["content-security-policy"]
    assert "unsafe-inline" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert "access-control-allow-origin" not in headers


def test_the_served_page_has_no_inline_script_or_style(client: TestClient) -> None:
    page = client.get("/").text

    assert "<style" not in page
    assert page.count("<script") == page.count("<script src=") == 1


@pytest.mark.parametrize(
    "path", ["/app.py", "/.stamp", "/../app.py", "/%2e%2e/app.py", "/api/../../x", "/a/b/c"]
)
def test_only_the_files_of_the_page_are_served(path: str, client: TestClient) -> None:
    assert client.get(path).status_code == 404


@pytest.mark.parametrize("path", ["/page.js", "/api/model"])
def test_cached_files_are_not_sent_again(path: str, client: TestClient) -> None:
    tag = client.get(path).headers["etag"]

    again = client.get(path, headers={"If-None-Match": tag})

    assert again.status_code == 304
    assert again.content == b""


def test_large_responses_are_compressed(client: TestClient) -> None:
    assert client.get("/page.js").headers["content-encoding"] == "gzip"


def test_a_prefix_works_whether_the_proxy_strips_it_or_not(store: MemoryStore) -> None:
    client = client_for(store, root_path="/user/ada")

    assert client.get(f"/user/ada/api/run?token={TOKEN}").status_code == 200
    assert client.get(f"/api/run?token={TOKEN}").status_code == 200


def test_a_points_request_needs_integers(client: TestClient) -> None:
    assert client.get("/api/points?series=x").status_code == 400


def test_an_unknown_series_is_not_found(client: TestClient) -> None:
    answer = client.get("/api/points?series=99")

    assert answer.status_code == 404
    assert "99" in answer.json()["error"]


@pytest.mark.parametrize("path", ["/", "/api/run", "/saved.html", "/api/events"])
def test_requests_are_answered_during_interpreter_shutdown(
    path: str, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    # As Python 3.12 does once a program has ended.
    def start_others(self: threading.Thread) -> None:
        if "worker" in self.name:
            raise RuntimeError("can't create new thread at interpreter shutdown")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", start_others)

    assert client.get(path).status_code == 200


def test_the_event_stream_of_a_finished_run_says_so_and_ends(client: TestClient) -> None:
    answer = client.get("/api/events")

    assert answer.headers["content-type"].startswith("text/event-stream")
    status = {"last_step": -1, "finished": True, "series": 0, "revision": 1}
    assert answer.text == f"id: -1.1.0.1\ndata: {json.dumps({'runs': [status]})}\n\n"
