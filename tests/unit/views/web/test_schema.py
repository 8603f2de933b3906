"""The documented format of the API, held against what the server answers."""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from starlette.testclient import TestClient

from tests import make
from tests.browser.runs import RUN, training, transformer
from torchglass.records.calls import CallTensor, ForwardStats, ModuleStatistics, Statistics
from torchglass.records.calls import Totals as CallTotals
from torchglass.records.model import ClassSource, Model, Stats
from torchglass.store.readers import MemoryStore
from torchglass.views.web import payloads
from torchglass.views.web.payloads import DOCUMENTS
from torchglass.views.web.server import build_app

SCHEMA = json.loads((Path(payloads.__file__).parent / "api.schema.json").read_text("utf-8"))
QUESTIONS = {
    "points": "series=0&series=1",
    "histograms": "series=1&series=2",
    "glance": "series=1&step=3",
    "layers": "statistic=gradient",
    "source": "class=tests.unit.views.web.test_schema.Shown",
}
NAMES = ["runs", "reports", "distances", "run", "series", *QUESTIONS, *DOCUMENTS]


class Shown:
    """A class whose code is asked for."""


@cache
def validator(name: str) -> Draft202012Validator:
    schema = {"$ref": f"#/$defs/{name}", "$defs": SCHEMA["$defs"]}
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def validate(name: str, answer: Any) -> None:
    validator(name).validate(answer)


def statistics() -> Statistics:
    stats = Stats(count=4, min=0.0, max=math.inf, mean=math.nan, std=0.1, nan=1)
    tensor = CallTensor(place="0", spec=make.spec(2, 3), stats=stats)
    call = ForwardStats(path="embed", number=1, forward=1, inputs=(tensor,), total_ns=5)
    module = ModuleStatistics(
        path="embed", class_name="Embedding", calls=(call,), totals=CallTotals(calls=1)
    )
    return Statistics(modules=(module,))


def full_store() -> MemoryStore:
    store = training(5)
    store.put_document(statistics())
    model = transformer()
    classes = {"tests.unit.views.web.test_schema.Shown": ClassSource(file=__file__)}
    store.put_model(Model(name=model.name, modules=model.modules, classes=classes))
    return store


def traced_store() -> MemoryStore:
    store = MemoryStore(RUN)
    store.put_model(make.model({"children": {"a": {"weight": (2, 3)}}}))
    calls = [make.call(0, inputs=[(2, 3)], outputs=[(2, 3)]), make.call(1, "a", parent=0)]
    ops = [make.op(0, call=1, end_ns=9), make.op(1, "add", 0, call=0, settings=(("alpha", "2"),))]
    store.put_document(make.trace(ops, calls))
    return store


def client(store: MemoryStore) -> TestClient:
    client = TestClient(build_app([store], token="t"), base_url="http://localhost")
    client.get("/?token=t")
    return client


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("make_store", [full_store, traced_store, lambda: MemoryStore(RUN)])
def test_a_response_matches_the_schema(name: str, make_store: Any) -> None:
    store = make_store()
    if name in ("points", "histograms", "glance") and not store.series():
        pytest.skip("the run has no series to ask for")

    answer = client(store).get(f"/api/{name}?{QUESTIONS.get(name, '')}")

    assert answer.status_code == 200
    validate(name, answer.json())


def test_the_source_of_a_model_class_is_sent() -> None:
    answer = client(full_store()).get(f"/api/source?{QUESTIONS['source']}").json()

    assert answer["source"]["text"].startswith("class Shown")


def test_requesting_a_class_never_reads_other_files() -> None:
    answer = client(full_store()).get("/api/source?class=../../etc/passwd").json()

    assert answer["source"] is None


def test_an_error_response_matches_the_schema() -> None:
    answer = client(full_store()).get("/api/points?series=999")

    assert answer.status_code == 404
    validate("error", answer.json())


def test_an_event_fits_the_schema() -> None:
    lines = client(full_store()).get("/api/events").text.splitlines()

    validate("events", json.loads(lines[1].removeprefix("data: ")))


def test_a_saved_page_matches_the_schema() -> None:
    snapshot = payloads.snapshot(full_store())

    for name in ("run", "series", "points", "histograms", *DOCUMENTS):
        validate(name, json.loads(payloads.to_json(snapshot[name])))
    assert snapshot["layers"]
    for layers in snapshot["layers"].values():
        validate("layers", json.loads(payloads.to_json(layers)))
