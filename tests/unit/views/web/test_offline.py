from __future__ import annotations

import base64
import gzip
import json
import re
import string
from pathlib import Path
from typing import Any

import pytest

import hatch_build
from tests import make
from torchglass.records.run import RunRecord
from torchglass.store.readers import MemoryStore
from torchglass.views.web.payloads import snapshot
from torchglass.views.web.saved_page import render_page, write_page


@pytest.fixture(scope="module", autouse=True)
def _built_page() -> None:
    hatch_build.build_page(Path(hatch_build.__file__).parent)


MOST_BYTES = 300_000


def store_for(name: str) -> MemoryStore:
    store = MemoryStore(RunRecord(name=name, created_ns=0))
    store.put_model(make.model({"children": {name: {"weight": (2, 3)}}}))
    return store


def data_in(page: str) -> str:
    found = re.search(r'id="torchglass-data">(.*?)</script>', page)
    assert found
    return found[1]


def read_data(page: str) -> Any:
    return json.loads(gzip.decompress(base64.b64decode(data_in(page))))


def test_a_saved_page_contains_the_server_responses() -> None:
    store = store_for("a")

    read = read_data(render_page(store))

    assert read["runs"] == [json.loads(json.dumps(snapshot(store)))]
    assert (read["compare"], read["distances"]) == ([], {})


def test_no_name_can_escape_the_embedded_data() -> None:
    store = store_for("</script><!--<script>")

    page = render_page(store)

    assert set(data_in(page)) <= set(string.ascii_letters + string.digits + "+/=")
    assert "<title>&lt;/script&gt;" in page


def test_a_saved_page_makes_no_network_requests() -> None:
    page = render_page(store_for("a"))

    assert "default-src 'none'" in page
    assert not re.search(r'(?:src|href)="(?!data:)', page)


def test_the_page_without_its_data_is_small() -> None:
    page = render_page(store_for("a"))

    assert len(page) - len(data_in(page)) < MOST_BYTES


def test_a_name_with_surrogates_can_be_written(tmp_path: Path) -> None:
    write_page(store_for("\ud800"), tmp_path / "page.html")

    assert (tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!doctype html>")
