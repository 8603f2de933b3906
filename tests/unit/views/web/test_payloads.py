from __future__ import annotations

import contextlib
import json
import math
from pathlib import Path

import numpy as np
import pytest

from tests import make
from torchglass.analyse.training_overview import HeatMaps
from torchglass.records.model import Stats
from torchglass.records.run import Frame, Points, RunRecord, Series, SeriesId
from torchglass.store.readers import FileReader, MemoryStore
from torchglass.store.writer import FileSink
from torchglass.views.web.decimated_steps import decimate, in_order
from torchglass.views.web.payloads import (
    VERSION,
    document_payload,
    heat_maps,
    layers_payload,
    points_payload,
    run_payload,
    series_payload,
    snapshot,
    status_mark,
    to_json,
)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(RunRecord(name="run", created_ns=5))


def scalars(*values: float, steps: list[int] | None = None) -> Points:
    return Points(
        series=Series(id=SeriesId(0), path="", name="loss"),
        steps=np.array(range(len(values)) if steps is None else steps, np.int64),
        values=np.array(values, np.float64).reshape(-1, 1),
    )


def test_the_run_payload_has_its_progress(store: MemoryStore) -> None:
    store.put_frame(Frame(step=7, time_ns=0, points={store.series("", "loss"): 1.0}))

    payload = run_payload(store)

    assert payload["version"] == VERSION
    assert payload["run"] == {"name": "run", "created_ns": 5}
    assert payload["status"] == {
        "last_step": 7,
        "finished": False,
        "series": 1,
        "revision": 0,
    }


def test_a_changed_state_is_a_new_event() -> None:
    status = {"last_step": 7, "finished": False, "state": "stopped", "how": "stopped by ValueError"}

    assert status_mark([status]) != status_mark([{**status, "state": "finished"}])


def test_each_module_has_its_own_and_its_total_counts(store: MemoryStore) -> None:
    store.put_model(make.model({"scale": (1,), "children": {"a": {"weight": (2, 3)}}}))

    counts = document_payload(store, "model")["counts"]

    at = counts["fields"].index("parameters")
    assert [row[at] for row in counts["own"]] == [1, 6]
    assert [row[at] for row in counts["total"]] == [7, 6]


def test_a_run_without_a_model_says_so(store: MemoryStore) -> None:
    assert snapshot(store)["model"] == {"version": VERSION, "model": None}


def test_series_are_listed_with_the_fields_of_their_points(store: MemoryStore) -> None:
    store.series("", "loss")
    store.series("a", "weight", "stats")

    payload = series_payload(store, HeatMaps(store))

    assert payload["fields"]["scalar"] == ["value"]
    assert payload["series"][1] == {"id": 1, "path": "a", "name": "weight", "kind": "stats"}
    assert payload["loss"] == 0


def test_a_layer_map_has_fewer_columns_for_more_layers(store: MemoryStore) -> None:
    store.put_model(make.model({"children": {str(at): {"weight": (2,)} for at in range(99)}}))
    grads = [store.series(str(at), "weight.grad") for at in range(99)]
    for step in range(200):
        points = {
            grad: math.nan if step == 150 and at == 7 else 0.12345 for at, grad in enumerate(grads)
        }
        store.put_frame(Frame(step=step, time_ns=0, points=points))
    maps = heat_maps(store, cells=5000, most_columns=100)

    sent = layers_payload(maps, "gradient")

    assert len(sent["paths"]) == sent["rows"] == 99
    assert 25 < len(sent["columns"]) == len(sent["starts"]) <= 50
    at = max(at for at, start in enumerate(sent["starts"]) if start <= 150)
    assert [column[7] for column in sent["columns"]].count("NaN") == 1
    assert sent["columns"][at][7] == "NaN"
    assert sent["columns"][at][8] == 0.123


def test_only_layer_map_columns_with_newer_steps_are_sent(store: MemoryStore) -> None:
    store.put_model(make.model({"children": {"a": {"weight": (2,)}}}))
    grad = store.series("a", "weight.grad")
    for step in range(5):
        store.put_frame(Frame(step=step, time_ns=0, points={grad: 1.0 + step}))

    sent = layers_payload(HeatMaps(store), "gradient", after=2)

    assert sent["starts"] == [0, 1, 2, 3, 4]
    assert sent["columns"] == [[4], [5]]
    assert "paths" not in sent


def test_points_are_sent_as_columns(store: MemoryStore) -> None:
    weight = store.series("a", "weight", "stats")
    for step in (0, 5):
        stats = Stats(count=4, min=-1.0, max=step, mean=1 / 3, std=0.5)
        store.put_frame(Frame(step=step, time_ns=0, points={weight: stats}))

    (sent,) = points_payload(store, [weight])["points"]

    assert sent["steps"] == [0, 5]
    assert sent["columns"]["max"] == [0, 5]
    assert sent["columns"]["mean"] == [0.3333333, 0.3333333]


def test_only_newer_points_are_sent(store: MemoryStore) -> None:
    loss = store.series("", "loss")
    for step in range(5):
        store.put_frame(Frame(step=step, time_ns=0, points={loss: float(step)}))

    (sent,) = points_payload(store, [loss], after=2)["points"]

    assert sent["steps"] == [3, 4]


def test_nan_and_infinity_are_strings_in_json(store: MemoryStore) -> None:
    loss = store.series("", "loss")
    for step, value in enumerate((math.nan, math.inf, -math.inf, 0.5)):
        store.put_frame(Frame(step=step, time_ns=0, points={loss: value}))

    read = json.loads(to_json(points_payload(store, [loss])))

    assert read["points"][0]["columns"]["value"] == ["NaN", "Infinity", "-Infinity", 0.5]


def test_few_points_are_not_decimated() -> None:
    points = scalars(1, 2, 3)

    assert decimate(points, 3) is points


def test_decimated_points_keep_the_ends_and_every_peak() -> None:
    values = np.sin(np.arange(100_000) / 500)
    values[31_234], values[77_777] = 50.0, -50.0

    fewer = decimate(scalars(*values), 2000)

    kept = fewer.column("value")
    assert 1000 < len(fewer) <= 2000
    assert (kept.max(), kept.min()) == (50.0, -50.0)
    assert (fewer.steps[0], fewer.steps[-1]) == (0, 99_999)
    assert np.array_equal(kept, values[fewer.steps])


def test_decimated_points_keep_nan() -> None:
    values = np.zeros(10_000)
    values[4321] = np.nan

    fewer = decimate(scalars(*values), 100)

    assert 4321 in fewer.steps


def test_decimated_statistics_keep_the_extremes_of_the_band() -> None:
    rows = np.zeros((9_000, 7))
    rows[100, 1], rows[8_000, 2] = -9.0, 9.0
    series = Series(id=SeriesId(0), path="a", name="weight", kind="stats")

    fewer = decimate(Points(series=series, steps=np.arange(9_000), values=rows), 500)

    assert len(fewer) <= 500
    assert (fewer.column("min").min(), fewer.column("max").max()) == (-9.0, 9.0)


def test_a_repeated_step_keeps_its_last_value() -> None:
    points = in_order(scalars(0, 1, 2, 10, 20, steps=[0, 1, 2, 1, 2]))

    assert points.steps.tolist() == [0, 1, 2]
    assert points.column("value").tolist() == [0, 10, 20]


def test_a_run_has_its_file_name_and_a_stable_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "runs" / "a.glass"
    path.parent.mkdir()
    FileSink(path, RunRecord(name="Net", created_ns=255)).close()

    with contextlib.closing(FileReader(path)) as reader:
        first = run_payload(reader)["run"]
    path.rename(tmp_path / "runs" / "b.glass")
    monkeypatch.chdir("/")
    with contextlib.closing(FileReader(tmp_path / "runs" / "b.glass")) as reader:
        later = run_payload(reader)["run"]

    assert (first["file"], first["id"]) == ("runs/a.glass", "ff-0")
    assert later["id"] == first["id"]
