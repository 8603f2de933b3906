"""What is worked out for heat maps and gradient flow, over runs that go on."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tests.browser.runs import RUN, bell, put_training, transformer
from torchglass.analyse.training_overview import HeatMaps
from torchglass.records.model import Stats
from torchglass.records.run import Frame, SeriesId
from torchglass.store.readers import MemoryStore
from torchglass.views.web.decimated_steps import HistogramColumns
from torchglass.views.web.payloads import (
    histograms_payload,
    latest_histograms_payload,
    layers_payload,
)


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore(RUN)
    store.put_model(transformer())
    return store


def put(store: MemoryStore, steps: range) -> SeriesId:
    series = store.series("embed", "weight", "histogram")
    for step in steps:
        points = {series: bell(0.0, exponent=-3)}
        store.put_frame(Frame(step=step, time_ns=0, points=points))
    return series


def test_a_long_run_is_sent_in_few_columns_without_losing_counts(store: MemoryStore) -> None:
    series = put(store, range(300))

    (sent,) = histograms_payload(HistogramColumns(store, most_columns=50), [series])["histograms"]

    assert sent["width"] == 8
    assert len(sent["columns"]) == 38
    first_step, last_step, exponent, _, counts, _ = sent["columns"][0]
    assert (first_step, last_step, exponent) == (0, 7, -3)
    assert sum(counts) == 8 * sum(bell(0.0, exponent=-3).counts)


def test_non_finite_values_are_counted(store: MemoryStore) -> None:
    series = store.series("embed", "weight", "histogram")
    healthy = bell(0.0, exponent=-3)
    ill = replace(healthy, stats=replace(healthy.stats, nan=2, inf=1))
    for step, bins in enumerate((healthy, ill)):
        store.put_frame(Frame(step=step, time_ns=0, points={series: bins}))

    (sent,) = histograms_payload(HistogramColumns(store), [series])["histograms"]
    (joined,) = histograms_payload(HistogramColumns(store, most_columns=1), [series])["histograms"]

    assert [column[-1] for column in sent["columns"]] == [0, 3]
    assert [column[-1] for column in joined["columns"]] == [3]


def test_only_new_and_grown_columns_are_sent(store: MemoryStore) -> None:
    series = put(store, range(9))
    heat = HistogramColumns(store, most_columns=5)
    histograms_payload(heat, [series])

    put(store, range(9, 10))
    (sent,) = histograms_payload(heat, [series], after=8)["histograms"]

    assert [column[:2] for column in sent["columns"]] == [[8, 9]]


def test_each_series_has_its_histogram_at_one_step(store: MemoryStore) -> None:
    series = put(store, range(5, 9))
    heat = HistogramColumns(store)

    before, at = (
        latest_histograms_payload(heat, [series], step=step)["glances"][0] for step in (2, 6)
    )

    assert before["column"] is None
    assert at["column"][:2] == [6, 6]


def test_histograms_on_different_grids_are_merged(store: MemoryStore) -> None:
    series = store.series("embed", "weight", "histogram")
    for step, exponent in enumerate((-3, -1)):
        points = {series: bell(0.0, exponent=exponent)}
        store.put_frame(Frame(step=step, time_ns=0, points=points))

    (sent,) = histograms_payload(HistogramColumns(store, most_columns=1), [series])["histograms"]

    ((_, last_step, exponent, _, counts, _),) = sent["columns"]
    assert (last_step, exponent) == (1, -1)
    assert sum(counts) == 2 * sum(bell(0.0, exponent=-3).counts)


def test_gradients_are_listed_by_layer_in_model_order(store: MemoryStore) -> None:
    put_training(store, range(3))

    sent = layers_payload(HeatMaps(store), "gradient")

    assert sent["paths"][:2] == ["embed", "blocks.0.attention"]
    assert sent["starts"] == sent["ends"] == [0, 1, 2]


def test_a_gradient_norm_covers_all_values(store: MemoryStore) -> None:
    series = store.series("embed", "weight.grad", "stats")
    stats = Stats(count=4, min=0.0, max=2.0, mean=1.0, std=1.0)
    store.put_frame(Frame(step=0, time_ns=0, points={series: stats}))

    ((norm,),) = layers_payload(HeatMaps(store), "gradient")["columns"]

    assert math.isclose(norm, math.sqrt(8), rel_tol=0.2)


def test_a_run_without_a_model_has_no_gradients() -> None:
    assert layers_payload(HeatMaps(MemoryStore(RUN)), "gradient")["paths"] == []
