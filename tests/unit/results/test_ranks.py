from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.recorded import MODEL
from tests.unit.analyse.test_histograms import histogram_of, stats_of
from torchglass.errors import StoreError, TargetError, TorchglassWarning
from torchglass.records.run import Frame, Reader, RunRecord, SeriesId
from torchglass.records.step_points import Point, point_values
from torchglass.records.trace import Graph
from torchglass.results.ranks import LOST_NS, RanksReader
from torchglass.results.run import SavedRun, open_run
from torchglass.store.readers import FileReader
from torchglass.store.writer import FileSink

RANKS = 4
NOW = 1_700_000_000_000_000_000
SECOND = 1_000_000_000


def values_at(step: int, rank: int) -> list[float]:
    return list(np.random.default_rng([step, rank]).normal(rank, 1 + step, 50))


def write_rank(
    path: Path,
    rank: int,
    steps: int,
    *,
    close: bool = True,
    forward_seconds: float = 0.05,
    nan_from: float = math.inf,
) -> FileSink:
    run = RunRecord(
        name="net", created_ns=NOW + rank, host=f"node{rank}", rank=rank, world_size=RANKS
    )
    sink = FileSink(path, run)
    sink.put_model(MODEL)
    loss = sink.series("", "loss")
    forward = sink.series("", "time.forward")
    weight = sink.series("fc", "weight", "stats")
    output = sink.series("fc", "output", "histogram")
    for step in range(steps):
        values = values_at(step, rank)
        if step >= nan_from:
            values[0] = math.nan
        points: dict[SeriesId, Point] = {
            loss: float(rank),
            forward: forward_seconds,
            weight: stats_of(np.array(values)),
            output: histogram_of(values, -2 + rank % 2),
        }
        sink.put_frame(Frame(step=step, time_ns=NOW + step * SECOND, points=points))
    if close:
        sink.close()
    return sink


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for rank in range(RANKS):
        write_rank(tmp_path / f"net-rank{rank}.glass", rank, 5)
    return tmp_path


@pytest.fixture
def run(folder: Path) -> Iterator[SavedRun]:
    with open_run(folder) as run:
        yield run


def test_a_folder_of_ranks_opens_as_one_run(run: SavedRun, folder: Path) -> None:
    assert isinstance(run.reader, Reader)
    assert run.run.rank == 0
    assert run.model == MODEL
    assert run.last_step == 4
    assert run.finished
    assert repr(run) == f"<run net: 4 series, 5 steps, 4 ranks, finished ({folder})>"


def test_each_rank_can_be_read_separately(run: SavedRun) -> None:
    assert list(run.ranks) == [0, 1, 2, 3]
    assert [rank["loss"].values[0] for rank in run.ranks.values()] == [0, 1, 2, 3]
    assert run.ranks[2].run.host == "node2"


def test_scalars_of_several_ranks_become_their_mean(run: SavedRun) -> None:
    assert run["loss"].values.tolist() == [1.5] * 5


def test_statistics_cover_the_values_of_all_ranks(run: SavedRun) -> None:
    weight = run["fc.weight"]

    for step, row in zip(weight.steps.tolist(), weight.values, strict=True):
        values = [value for rank in range(RANKS) for value in values_at(step, rank)]
        np.testing.assert_allclose(row, point_values(stats_of(np.array(values))))


def test_histograms_cover_the_values_of_all_ranks(run: SavedRun) -> None:
    for step, merged in enumerate(run["fc.output"].histograms):
        values = [value for rank in range(RANKS) for value in values_at(step, rank)]
        whole = histogram_of(values, merged.exponent)
        assert (merged.first, merged.counts) == (whole.first, whole.counts)
        assert merged.stats.count == RANKS * 50


def test_histograms_of_several_series_stay_separate(run: SavedRun) -> None:
    loss, output = (run[label].record.id for label in ("loss", "fc.output"))

    of_loss, of_output = run.reader.histograms_of([loss, output], after=2)

    alone = run.reader.histograms(output, after=2)
    assert len(of_loss) == 0
    assert of_output.steps.tolist() == alone.steps.tolist() == [3, 4]
    assert of_output.bins == alone.bins


def test_a_pattern_opens_what_it_matches(folder: Path) -> None:
    with open_run(folder / "*rank[02].glass") as run:
        assert list(run.ranks) == [0, 2]


def test_a_series_of_only_one_rank_is_included(folder: Path) -> None:
    with FileReader(folder / "net-rank1.glass") as reader:
        one = FileSink(reader.path, reader.run(), resume=True)
    one.put_frame(Frame(step=5, time_ns=NOW, points={one.series("", "only here"): 7.0}))
    one.put_document(Graph(passes=3))
    one.close()

    with open_run(folder) as run:
        assert run["only here"].values.tolist() == [7.0]
        assert run.reader.document(Graph) == Graph(passes=3)


def test_a_nan_on_one_rank_and_a_straggler_are_found(tmp_path: Path) -> None:
    write_rank(tmp_path / "rank0.glass", 0, 20)
    write_rank(tmp_path / "rank1.glass", 1, 20, forward_seconds=0.12)
    write_rank(tmp_path / "rank2.glass", 2, 20)
    write_rank(tmp_path / "rank3.glass", 3, 20, nan_from=7)

    with open_run(tmp_path) as run:
        report = run.compare_ranks()

    assert [finding.message for finding in report.findings] == [
        "rank 3 has NaN or Inf since step 7, first in fc.output; all other ranks are finite",
        "rank 1 takes 2.4 times as long as the others in time.forward",
    ]
    text = str(report)
    assert text.splitlines()[2] == (
        "1     node1  19         1.0000s  120.00ms      none               none"
    )
    assert "step 7, fc.output" in text


def test_masks_and_logged_nan_do_not_mark_a_rank_as_different(tmp_path: Path) -> None:
    for rank in range(2):
        sink = write_rank(tmp_path / f"rank{rank}.glass", rank, 5, close=False)
        accuracy, mask = sink.series("", "accuracy"), sink.series("fc", "input.mask", "stats")
        masked = stats_of(np.array([0.0, -math.inf]))
        points: dict[SeriesId, Point] = {accuracy: math.nan, mask: masked}
        sink.put_frame(Frame(step=5, time_ns=NOW, points=points))
        sink.close()

    with open_run(tmp_path) as run:
        assert run.compare_ranks().findings == ()


def test_a_killed_rank_is_reported_and_not_waited_for(tmp_path: Path) -> None:
    for rank in range(RANKS - 1):
        write_rank(tmp_path / f"rank{rank}.glass", rank, 200)
    gone = write_rank(tmp_path / "rank3.glass", 3, 30, close=False)
    with FileReader(gone.path) as reader:
        while reader.last_step() < 29:
            pass

    with open_run(tmp_path) as run:
        assert 170 * SECOND > LOST_NS
        assert run.last_step == 199
        assert not run.finished
        (finding,) = run.compare_ranks().findings
    assert finding.message == "rank 3 stopped at step 29, but others reached 199"
    gone.close()


def test_a_step_is_available_once_all_live_ranks_have_it(tmp_path: Path) -> None:
    sinks = [
        write_rank(tmp_path / f"rank{rank}.glass", rank, 5 - rank, close=False)
        for rank in range(RANKS)
    ]
    with open_run(tmp_path) as run:
        assert isinstance(run.reader, RanksReader)
        for rank, reader in run.reader.ranks.items():
            while reader.last_step() < 4 - rank:
                pass

        assert run.last_step == 1
        assert run["fc.weight"].steps.tolist() == [0, 1]
        assert run["fc.output"].histograms.steps.tolist() == [0, 1]
    for sink in sinks:
        sink.close()


def test_ranks_reduced_to_rank_0_are_not_separate_ranks(tmp_path: Path) -> None:
    write_rank(tmp_path / "rank0.glass", 0, 3)
    FileSink(tmp_path / "rank1.glass", RunRecord(name="net", created_ns=NOW, rank=1)).close()

    with open_run(tmp_path) as run:
        assert list(run.ranks) == [0]
        assert run.path == tmp_path / "rank0.glass"


def test_a_folder_of_different_runs_asks_which(folder: Path) -> None:
    write_rank(folder / "again-rank0.glass", 0, 1)

    with pytest.raises(TargetError, match=r"more than one run: again-rank0\.glass, net-rank0"):
        open_run(folder)


def test_an_empty_folder_says_so(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no run file in"):
        open_run(tmp_path)


def test_a_rank_with_an_unreadable_file_is_skipped_and_named(folder: Path) -> None:
    (folder / "net-rank3.glass").write_bytes(b"")

    with pytest.warns(TorchglassWarning, match=r"left out: .*net-rank3\.glass is empty"):
        run = open_run(folder)

    assert list(run.ranks) == [0, 1, 2]
    run.close()


def test_a_run_of_one_file_is_its_only_rank(folder: Path) -> None:
    with open_run(folder / "net-rank2.glass") as run:
        assert run.ranks == {2: run}
        assert str(run.compare_ranks()).endswith("No rank differs from the others.")
