from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.recorded import MODEL, ROOT, RUN, put_step, stats, write_run
from torchglass.errors import StoreError, TargetError, ViewError
from torchglass.records.findings import Finding, Findings
from torchglass.records.model import Histogram
from torchglass.records.run import Frame
from torchglass.records.step_points import point_values
from torchglass.results.run import SavedRun, open_run
from torchglass.store.writer import FileSink


@pytest.fixture
def run(tmp_path: Path) -> Iterator[SavedRun]:
    with open_run(write_run(tmp_path / "today.glass", steps=4)) as run:
        yield run


def test_a_run_has_its_metadata(run: SavedRun) -> None:
    assert run.run == RUN
    assert run.model == MODEL
    assert run.last_step == 3
    assert run.finished
    assert run.dropped == 0
    assert repr(run) == f"<run today: 2 series, 4 steps, finished ({run.path})>"


def test_a_printed_run_says_how_it_ended_and_shows_its_curves(run: SavedRun) -> None:
    lines = str(run).splitlines()

    assert lines[0] == f"Healthy: today, finished, 2 series, 4 steps ({run.path})"
    assert lines[1] == "No problems found up to step 3"
    assert lines[2:5] == ["", "Logged", "  loss          1  █▃▂▁  0.25"]
    assert lines[6] == "Largest weights (standard deviation)"
    assert lines[7].split()[0] == "fc.weight"


def test_a_printed_run_names_its_problems_first(tmp_path: Path) -> None:
    found = [Finding(kind="nan", severity="error", message=f"problem {n}") for n in range(7)]
    sink = FileSink(tmp_path / "bad.glass", RUN)
    put_step(sink, 0)
    sink.put_document(Findings(findings=tuple(found)))
    sink.close()
    with open_run(tmp_path / "bad.glass") as run:
        lines = str(run).splitlines()

    assert lines[1:4] == ["7 problems:", "  problem 0", "  problem 1"]
    assert lines[6:8] == ["  problem 4", "  … 2 more"]


def test_series_are_found_by_their_label(run: SavedRun) -> None:
    assert list(run) == list(run.series) == ["loss", "fc.weight"]
    assert len(run) == 2
    assert "fc.weight" in run
    assert "fc.bias" not in run
    assert repr(run["loss"]) == "<series loss: a number at 4 steps>"
    assert (
        repr(run["fc.weight"])
        == "<series fc.weight: count, min, max, mean, std, nan, inf at 2 steps>"
    )


def test_a_scalar_has_one_value_for_each_step(run: SavedRun) -> None:
    loss = run["loss"]

    assert loss.steps.tolist() == [0, 1, 2, 3]
    np.testing.assert_array_equal(loss.values, [1, 1 / 2, 1 / 3, 1 / 4])


def test_statistics_have_a_row_for_each_step_and_columns_by_name(run: SavedRun) -> None:
    weight = run["fc.weight"]

    assert weight.steps.tolist() == [0, 2]
    assert tuple(weight.values[1]) == point_values(stats(2))
    assert weight.column("max").tolist() == [0, 2]
    with pytest.raises(TargetError, match=r"fc\.weight has no field 'median'; its fields are coun"):
        weight.column("median")


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        ("fc.weigth", "no series is called 'fc.weigth'; did you mean fc.weight?"),
        ("xyz", "no series is called 'xyz'; there are loss, fc.weight"),
    ],
)
def test_an_unknown_label_error_lists_the_closest_labels(
    run: SavedRun, asked: str, answer: str
) -> None:
    with pytest.raises(TargetError) as caught:
        run[asked]

    assert str(caught.value) == answer


def test_a_live_run_is_read_up_to_its_last_step(tmp_path: Path) -> None:
    sink = FileSink(tmp_path / "live.glass", RUN)

    with open_run(sink.path) as run:
        before = repr(run)
        with pytest.raises(TargetError, match="the run has none yet"):
            run["loss"]
        put_step(sink, 0)
        sink.close()
        after = repr(run)

    assert "0 series, 0 steps, running" in before
    assert "2 series, 1 step, finished" in after


def test_one_series_is_written_as_csv(run: SavedRun, tmp_path: Path) -> None:
    text = run["loss"].to_csv(tmp_path / "loss.csv")

    assert text.splitlines()[:3] == ["step,value", "0,1.0", "1,0.5"]
    assert (tmp_path / "loss.csv").read_text() == text


def test_a_run_is_exported_as_csv_with_gaps_for_missing_values(run: SavedRun) -> None:
    head, first, second, *_ = run.to_csv().splitlines()

    assert head.startswith("step,loss,fc.weight.count,fc.weight.min,")
    assert first == "0,1.0,6.0,0.0,0.0,0.0,0.0,0.0,1.0"
    assert second == "1,0.5,,,,,,,"


def test_a_run_becomes_a_data_frame(run: SavedRun) -> None:
    frame = run.to_pandas()

    assert isinstance(frame, pd.DataFrame)
    assert frame.index.name == "step"
    assert frame["loss"].tolist() == [1, 1 / 2, 1 / 3, 1 / 4]
    assert frame["fc.weight.max"].dropna().to_dict() == {0: 0.0, 2: 2.0}
    assert list(run["fc.weight"].to_pandas().columns) == list(run["fc.weight"].fields)


def test_a_repeated_step_is_one_table_row(tmp_path: Path) -> None:
    sink = FileSink(tmp_path / "resumed.glass", RUN)
    loss = sink.series("", "loss")
    for step, value in ((0, 3.0), (1, 2.0), (1, 1.5), (2, 1.0)):
        sink.put_frame(Frame(step=step, time_ns=0, points={loss: value}))
    sink.close()

    with open_run(sink.path) as run:
        assert run["loss"].to_csv() == "step,value\n0,3.0\n1,1.5\n2,1.0\n"
        assert run["loss"].steps.tolist() == [0, 1, 1, 2]


@pytest.fixture
def spread(tmp_path: Path) -> Iterator[SavedRun]:
    """Three steps of histograms, the last one wild."""
    sink = FileSink(tmp_path / "spread.glass", RUN)
    output = sink.series("fc", "output", "histogram")
    for step, (exponent, first, counts) in enumerate(
        [(0, -1, (1, 2)), (0, 0, (3, 4)), (2, -1, (5, 5, 6))]
    ):
        point = Histogram(exponent=exponent, first=first, counts=counts, stats=stats(step + 9))
        sink.put_frame(Frame(step=step, time_ns=0, points={output: point}))
    sink.close()
    with open_run(sink.path) as run:
        yield run


def test_histograms_are_arrays_on_one_grid(spread: SavedRun) -> None:
    found = spread["fc.output"].histograms

    assert found.steps.tolist() == [0, 1, 2]
    assert found.edges.tolist() == [-4, 0, 4, 8]
    assert found.counts.tolist() == [[1, 2, 0], [0, 7, 0], [5, 5, 6]]
    assert repr(found) == "<histograms of fc.output at 3 steps: 3 bins from -4 to 8>"


def test_each_histogram_keeps_its_own_grid_and_statistics(spread: SavedRun) -> None:
    series = spread["fc.output"]

    assert series.histograms[0].counts == (1, 2)
    assert series.histograms[0].stats == stats(9)
    assert tuple(series.values[0]) == point_values(stats(9))
    assert repr(series).endswith("inf and bins at 3 steps>")


def test_an_outlier_step_does_not_coarsen_the_plot_of_the_others(spread: SavedRun) -> None:
    edges, counts = spread["fc.output"].histograms.shown(12)

    assert edges.tolist() == list(range(-4, 9))
    assert counts[1].tolist() == [0, 0, 0, 0, 3, 4, 0, 0, 0, 0, 0, 0]
    assert counts.sum(axis=1).tolist() == [3, 7, 16]


def test_histograms_have_quantiles_and_can_be_merged(spread: SavedRun) -> None:
    found = spread["fc.output"].histograms

    assert found.quantiles(0, 1).tolist() == [[-1, 1], [0, 2], [-4, 8]]
    assert found.merged().counts == (6, 14, 6)


def test_histograms_become_tables(spread: SavedRun, tmp_path: Path) -> None:
    found = spread["fc.output"].histograms

    text = found.to_csv(tmp_path / "bins.csv")
    frame = found.to_pandas()

    assert text.splitlines() == ["step,-4.0,0.0,4.0", "0,1,2,0", "1,0,7,0", "2,5,5,6"]
    assert (tmp_path / "bins.csv").read_text() == text
    assert frame.loc[2].tolist() == [5, 5, 6]
    assert frame.columns[0] == pd.Interval(-4, 0, closed="left")


def test_a_scalar_series_has_no_histograms(run: SavedRun) -> None:
    found = run["loss"].histograms

    assert len(found) == 0
    assert found.counts.shape == (0, 0)
    assert found.shown()[1].shape == (0, 0)
    assert repr(found) == "<histograms of loss: none>"


def test_a_resumed_run_lists_its_branches(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run.glass", steps=6)
    sink = FileSink(path, RUN, resume=True)
    sink.put_frame(Frame(step=3, time_ns=0, points={sink.series("", "loss"): 9.0}))
    sink.close()

    with open_run(path) as run, run.at_session(1) as before:
        assert "4 steps, finished, resumed once (1 from an earlier step)" in repr(run)
        assert run["loss"].values.tolist() == [1, 1 / 2, 1 / 3, 9]
        assert run.sessions[0].abandoned_from == 3
        assert before["loss"].values.tolist() == [1 / (step + 1) for step in range(6)]
        with pytest.raises(TargetError, match="has no session 3"):
            run.at_session(3)


def test_a_thinned_run_says_how_many_steps_were_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchglass.store.writer.FLUSH_FRAMES", 50)
    sink = FileSink(tmp_path / "long.glass", RUN, max_bytes=200_000)
    output = sink.series("fc", "output", "histogram")
    wide = Histogram(exponent=0, first=0, counts=(1,) * 4_000, stats=stats(1))
    for step in range(200):
        sink.put_frame(Frame(step=step, time_ns=0, points={output: wide}))
    sink.close()

    with open_run(sink.path) as run:
        assert run.thinned == 200 - len(run["fc.output"])
        assert f"200 steps, finished, {run.thinned} steps thinned out" in repr(run)


def test_a_file_deleted_while_open_is_read_to_its_end(tmp_path: Path) -> None:
    run = open_run(write_run(tmp_path / "run.glass"))
    for file in tmp_path.iterdir():
        file.unlink()

    # Where a file that is open cannot be deleted this is not reached.
    assert len(run["loss"]) == 10
    run.close()


def test_without_pandas_the_error_says_what_to_install(
    run: SavedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)

    with pytest.raises(ViewError, match=r"pip install 'torchglass\[pandas\]'; to_csv works"):
        run.to_pandas()


def test_a_file_that_is_not_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no run file"):
        open_run(tmp_path / "gone.glass")


def test_reading_a_run_needs_no_torch(run: SavedRun) -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from torchglass.results.run import open_run\n"
        f"print(open_run({str(run.path)!r})['loss'].values[-1])"
    )

    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert done.stdout == "0.25\n", done.stderr
