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
from torchglass.records.series import Frame, numbers
from torchglass.results.run import SavedRun, open_run
from torchglass.store.file import FileSink


@pytest.fixture
def run(tmp_path: Path) -> Iterator[SavedRun]:
    with open_run(write_run(tmp_path / "today.glass", steps=4)) as run:
        yield run


def test_a_run_tells_what_it_is(run: SavedRun) -> None:
    assert run.run == RUN
    assert run.model == MODEL
    assert run.last_step == 3
    assert run.finished
    assert run.dropped == 0
    assert repr(run) == f"<run today: 2 series, 4 steps, finished ({run.path})>"


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
    assert tuple(weight.values[1]) == numbers(stats(2))
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
def test_a_wrong_label_is_answered_with_the_right_ones(
    run: SavedRun, asked: str, answer: str
) -> None:
    with pytest.raises(TargetError) as caught:
        run[asked]

    assert str(caught.value) == answer


def test_a_run_that_goes_on_is_read_as_far_as_it_is(tmp_path: Path) -> None:
    sink = FileSink(tmp_path / "live.glass", RUN)

    with open_run(sink.path) as run:
        before = repr(run)
        with pytest.raises(TargetError, match="the run has none yet"):
            run["loss"]
        put_step(sink, 0)
        sink.close()
        after = repr(run)

    assert "0 series, 0 steps, not finished" in before
    assert "2 series, 1 step, finished" in after


def test_one_series_is_written_as_csv(run: SavedRun, tmp_path: Path) -> None:
    text = run["loss"].to_csv(tmp_path / "loss.csv")

    assert text.splitlines()[:3] == ["step,value", "0,1.0", "1,0.5"]
    assert (tmp_path / "loss.csv").read_text() == text


def test_a_run_is_written_as_csv_with_gaps_where_nothing_was_measured(run: SavedRun) -> None:
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


def test_a_step_that_was_taken_again_counts_once_in_a_table(tmp_path: Path) -> None:
    sink = FileSink(tmp_path / "resumed.glass", RUN)
    loss = sink.series("", "loss")
    for step, value in ((0, 3.0), (1, 2.0), (1, 1.5), (2, 1.0)):
        sink.put_frame(Frame(step=step, time_ns=0, points={loss: value}))
    sink.close()

    with open_run(sink.path) as run:
        assert run["loss"].to_csv() == "step,value\n0,3.0\n1,1.5\n2,1.0\n"
        assert run["loss"].steps.tolist() == [0, 1, 1, 2]


def test_without_pandas_the_error_says_what_to_install(
    run: SavedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)

    with pytest.raises(ViewError, match=r"pip install 'torchglass\[pandas\]'; to_csv works"):
        run.to_pandas()


def test_a_file_that_is_no_run_is_refused(tmp_path: Path) -> None:
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
