from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.recorded import MODEL, RUN, histogram, put_step, stats
from torchglass.errors import StoreError
from torchglass.records.findings import Findings
from torchglass.records.measures import Measures
from torchglass.records.run import Frame, Reader, Series, SeriesId, Sink
from torchglass.records.step_points import point_values
from torchglass.records.trace import Graph, Node, NodeId
from torchglass.store.readers import FileReader, MemoryStore
from torchglass.store.writer import FileSink


@pytest.fixture(params=["memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Sink, Reader]]:
    """Whatever the store is, it must tell the same."""
    if request.param == "memory":
        memory = MemoryStore(RUN)
        yield memory, memory
    else:
        sink = FileSink(tmp_path / "run.glass", RUN)
        reader = FileReader(sink.path)
        yield sink, reader
        reader.close()
        sink.close()


def test_stored_data_is_read_back_unchanged(store: tuple[Sink, Reader]) -> None:
    sink, reader = store

    sink.put_model(MODEL)
    for step in range(5):
        put_step(sink, step)
    sink.close()

    loss, weight = reader.series()
    assert (loss.label, weight.label) == ("loss", "fc.weight")
    assert reader.run() == RUN
    assert reader.model() == MODEL
    assert reader.points(loss.id).steps.tolist() == [0, 1, 2, 3, 4]
    assert reader.points(loss.id).column("value").tolist() == [1, 1 / 2, 1 / 3, 1 / 4, 1 / 5]
    assert reader.points(weight.id).steps.tolist() == [0, 2, 4]
    assert tuple(reader.points(weight.id).values[2]) == point_values(stats(4))
    assert reader.last_step() == 4
    assert reader.finished()


def test_a_new_run_is_empty(store: tuple[Sink, Reader]) -> None:
    _, reader = store

    assert reader.series() in ((), [])
    assert reader.last_step() == -1
    assert not reader.finished()
    with pytest.raises(StoreError, match="has no model yet"):
        reader.model()


def test_points_can_be_read_after_a_step(store: tuple[Sink, Reader]) -> None:
    sink, reader = store
    for step in range(10):
        put_step(sink, step)
    sink.close()
    loss, weight = reader.series()

    assert reader.points(loss.id, after=7).steps.tolist() == [8, 9]
    assert reader.points(weight.id, after=8).values.shape == (0, 7)


def test_path_name_and_kind_identify_a_series(store: tuple[Sink, Reader]) -> None:
    sink, _ = store

    first = sink.series("fc", "weight", "stats")

    assert sink.series("fc", "weight", "stats") == first
    assert sink.series("fc", "weight", "scalar") != first
    assert sink.series("", "fc.weight", "stats") != first


def test_a_later_model_replaces_the_first(store: tuple[Sink, Reader]) -> None:
    sink, reader = store

    sink.put_model(MODEL)
    sink.put_model(type(MODEL)(name="Later", modules=MODEL.modules))
    sink.close()

    assert reader.model().name == "Later"


def test_an_unknown_series_raises_a_clear_error(store: tuple[Sink, Reader]) -> None:
    sink, reader = store
    put_step(sink, 0)
    sink.close()

    with pytest.raises(StoreError, match="no series with the id 99"):
        reader.points(SeriesId(99))


def test_the_memory_store_lists_its_series_as_records() -> None:
    store = MemoryStore(RUN)

    weight = store.series("fc", "weight", "stats")

    assert store.series() == (Series(id=weight, path="fc", name="weight", kind="stats"),)


def test_histograms_are_stored_with_exact_statistics(store: tuple[Sink, Reader]) -> None:
    sink, reader = store
    output = sink.series("fc", "output", "histogram")
    for step in range(4):
        put_step(sink, step)
        sink.put_frame(Frame(step=step, time_ns=step, points={output: histogram(step)}))
    sink.close()

    found = reader.histograms(output, after=0)

    assert found.series.label == "fc.output"
    assert found.steps.tolist() == [1, 2, 3]
    assert tuple(found.bins) == tuple(map(histogram, (1, 2, 3)))
    assert tuple(reader.points(output).values[3]) == point_values(stats(3))
    assert len(reader.histograms(sink.series("", "loss"))) == 0


def test_replacing_a_document_increments_the_revision(
    store: tuple[Sink, Reader],
) -> None:
    sink, reader = store
    before = reader.revision()
    sink.put_document(Graph(passes=1))
    sink.put_document(Measures(notes=("on a quiet machine",)))
    sink.put_document(Graph(nodes=(Node(id=NodeId(0), kind="call", path="fc"),), passes=7))
    sink.close()

    graph = reader.document(Graph)

    assert graph is not None
    assert (graph.passes, graph.nodes[0].path) == (7, "fc")
    assert reader.document(Measures) == Measures(notes=("on a quiet machine",))
    assert reader.document(Findings) is None
    assert reader.revision() > before
