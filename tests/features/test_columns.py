"""Someone reads runs with DuckDB, polars and pandas, and asks them in SQL."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pytest
from torch import nn

import torchglass as tg
from tests.command_line import main
from tests.models import train


def record(path: Path, steps: int = 5, lr: float = 0.1) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    log = ("io", "params", "stats")
    with tg.watch(model, log, save=path, config={"lr": lr}, verbose=False) as watcher:
        train(model, watcher, steps, lr=lr)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs."""
    where = tmp_path_factory.mktemp("runs")
    record(where / "slow.glass", lr=0.01)
    record(where / "inner" / "fast.glass", lr=0.2)
    return where


@pytest.fixture
def damaged(folder: Path, tmp_path: Path) -> Path:
    """Two runs, half a run, and one whose steps are corrupt although its summary is there."""
    where = tmp_path / "damaged"
    shutil.copytree(folder, where)
    good = (folder / "slow.glass").read_bytes()
    (where / "half.glass").write_bytes(good[: len(good) // 2])
    corrupt = good[: 2 * 8192] + bytes(len(good) - 2 * 8192)
    (where / "corrupt.glass").write_bytes(corrupt)
    return where


def test_a_query_leaves_out_what_is_corrupt_and_says_so(damaged: Path) -> None:
    sql = "SELECT run, count(*) FROM points WHERE name = 'loss' GROUP BY run ORDER BY run"

    with pytest.warns(tg.TorchglassWarning) as told:
        found = tg.query(sql, damaged)

    assert list(found.entries) == [("inner/fast", 5), ("slow", 5)]
    half, corrupt = (str(one.message) for one in told)
    assert re.match(r"left out 1 file\. The first: .*half\.glass", half)
    assert re.match(r"left out: .*corrupt\.glass", corrupt)


@pytest.mark.slow
def test_an_export_leaves_out_what_is_corrupt_and_says_so(damaged: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"

    done = subprocess.run(
        [sys.executable, "-m", "torchglass", "export", damaged, "--parquet", out],
        capture_output=True,
        text=True,
        check=True,
    )

    told = [line for line in done.stderr.splitlines() if "left out" in line]
    assert re.match(r"torchglass: left out 1 file\. The first: .*half\.glass", told[0])
    assert re.match(r"torchglass: left out: .*corrupt\.glass", told[1])
    files = {file.stem for file in (out / "points").rglob("*.parquet")}
    assert files == {"fast", "slow"}


@pytest.mark.slow
def test_more_runs_than_a_process_may_open_are_asked(folder: Path, tmp_path: Path) -> None:
    for number in range(150):
        shutil.copyfile(folder / "slow.glass", tmp_path / f"{number}.glass")
    sql = "SELECT count(*) FROM points"
    ask = [sys.executable, "-m", "torchglass", "query", sql, str(tmp_path)]

    done = subprocess.run(
        ["sh", "-c", 'ulimit -n 120; exec "$@"', "sh", *ask],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr


def test_an_arrow_table_has_every_value_of_a_run(folder: Path) -> None:
    with tg.open(folder / "slow.glass") as run:
        frame = run.to_arrow().to_pandas()
        assert len(frame) == sum(len(series) for series in run.series.values())
        for label, series in run.series.items():
            kind, path, name = series.record.kind, series.record.path, series.record.name
            rows = frame[(frame.path == path) & (frame.name == name) & (frame.kind == kind)]
            assert rows.step.tolist() == series.steps.tolist(), label
            for field in series.fields:
                np.testing.assert_array_equal(rows[field], series.column(field), label)
            bins = list(series.histograms)
            assert rows.bin_counts.dropna().map(tuple).tolist() == [one.counts for one in bins]
            assert rows.bin_exponent.dropna().tolist() == [one.exponent for one in bins]
            assert rows.bin_first.dropna().tolist() == [one.first for one in bins]


def test_merged_ranks_have_the_same_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        model = nn.Linear(3, 1)
        with tg.watch(model, "params", run_dir=tmp_path, verbose=False) as watcher:
            train(model, watcher, 3)

    with tg.open(tmp_path) as run:
        frame = run.to_arrow().to_pandas()

    weights = frame[frame.name == "weight"]
    assert weights["count"].tolist() == [6, 6, 6]
    assert [sum(counts) for counts in weights.bin_counts] == [6, 6, 6]


def test_a_parquet_file_is_readable_without_torchglass(folder: Path, tmp_path: Path) -> None:
    with tg.open(folder / "slow.glass") as run:
        path = run.to_parquet(tmp_path / "new" / "run.parquet")
        loss = run["loss"].values.tolist()

    wanted = f"SELECT value FROM '{path}' WHERE name = 'loss' ORDER BY step"
    assert [value for (value,) in duckdb.execute(wanted).fetchall()] == loss
    assert pl.read_parquet(path).filter(pl.col("name") == "loss")["value"].to_list() == loss
    frame = pd.read_parquet(path)
    assert frame[frame.name == "loss"].value.tolist() == loss
    assert [file.name for file in path.parent.iterdir()] == ["run.parquet"]


def test_other_tools_accept_a_run_directly(folder: Path) -> None:
    with tg.open(folder / "slow.glass") as run:
        frame: Any = pl.DataFrame(run)
        found = duckdb.execute("SELECT count(*) FROM run").fetchall()

    assert found == [(len(frame),)]
    assert set(frame["name"]) >= {"loss", "weight", "output"}


def test_a_run_without_steps_has_no_rows(tmp_path: Path) -> None:
    with tg.watch(nn.Linear(2, 1), save=tmp_path / "run.glass", verbose=False):
        pass

    with tg.open(tmp_path / "run.glass") as run:
        assert run.to_arrow().num_rows == 0


QUERIES = [
    "SELECT run, step, value FROM points WHERE name = 'loss' AND path = '' ORDER BY run, step",
    "SELECT run, avg(std) FROM points WHERE name IN ('weight', 'bias') GROUP BY run ORDER BY run",
    "SELECT count(*) FROM points",
    "SELECT count(*) FROM points WHERE name = 'loss' OR path = '0'",
    (
        "SELECT path || '.' || name AS label, max(max) FROM points WHERE name LIKE 'w%' "
        "GROUP BY label ORDER BY label"
    ),
    (
        "SELECT a.step, a.value, b.std FROM points a JOIN points b USING (run, step) "
        "WHERE a.name = 'loss' AND b.path = '0' AND b.name = 'weight' AND run = 'slow' ORDER BY 1"
    ),
    (
        "SELECT step, bin_counts FROM points WHERE path = '2' AND name = 'weight' AND step > 2 "
        "AND run <> 'slow' ORDER BY step"
    ),
    (
        "WITH losses AS (SELECT * FROM points WHERE name = 'loss') "
        "SELECT run, min(value) FROM losses GROUP BY run ORDER BY run"
    ),
    "SELECT name FROM points WHERE name = 'it''s (not AND here)'",
    'SELECT name, steps, "config.lr" FROM runs ORDER BY name',
    (
        'SELECT r."config.lr", min(p.value) FROM points p JOIN runs r ON p.run = r.name '
        "WHERE p.name = 'loss' GROUP BY ALL ORDER BY ALL"
    ),
]


@pytest.fixture(scope="module")
def exported(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("exported")
    assert main(["export", str(folder), "--parquet", str(where)]) == 0
    return where


@pytest.mark.parametrize("sql", QUERIES)
def test_runs_and_parquet_files_give_the_same_query_results(
    folder: Path, exported: Path, sql: str
) -> None:
    answer = tg.query(sql, folder).entries

    assert tg.query(sql, exported).entries == answer
    assert answer or "it''s" in sql


def test_a_query_on_a_run_matches_a_query_on_its_arrow_table(folder: Path) -> None:
    with tg.open(folder / "slow.glass") as run:
        points = run.to_arrow()  # noqa: F841 - DuckDB finds it by its name
        for sql in QUERIES[1:5]:
            answer = tg.query(sql, folder / "slow.glass").entries
            assert list(answer) == duckdb.execute(sql).fetchall()


def test_an_export_can_be_read_as_one_table(exported: Path) -> None:
    frame = pl.read_parquet(exported / "points" / "**" / "*.parquet")

    assert set(frame["run"]) == {"slow", "inner/fast"}
    assert pl.read_parquet(exported / "runs.parquet")["config.lr"].to_list() == [0.2, 0.01]


@pytest.mark.parametrize(
    ("sql", "told"),
    [
        ("DROP TABLE points", "a query only reads: DROP is not allowed"),
        ("COPY (SELECT 1) TO 'out.csv'", "a query only reads: COPY is not allowed"),
        ("ATTACH 'other.db'", "ATTACH is not allowed"),
        ("SELECT 1; SELECT 2", "a query is one SELECT, not 2 statements"),
        ("SELECT nothing FROM points", "the query failed: Binder Error"),
        ("SELEC 1", "the query is wrong: Parser Error"),
        ("SELECT * FROM read_csv('/etc/hosts')", "the query failed: Permission Error"),
        ("", "a query is one SELECT, not 0 statements"),
    ],
)
def test_an_invalid_or_writing_query_is_a_one_line_error(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    sql: str,
    told: str,
) -> None:
    monkeypatch.chdir(tmp_path)

    assert main(["query", sql, str(folder)]) == 2

    (line,) = capsys.readouterr().err.splitlines()
    assert told in line
    assert not list(tmp_path.iterdir())


def test_a_missing_target_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["query", "SELECT 1 FROM points", "nowhere"]) == 2

    assert "no run file, folder or Parquet file nowhere" in capsys.readouterr().err


def test_the_answer_is_printed_and_written(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sql = "SELECT run, count(*) AS n FROM points WHERE name = 'loss' GROUP BY run ORDER BY run"

    assert main(["query", sql, str(folder)]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()[4:6]] == [
        ["inner/fast", "5"],
        ["slow", "5"],
    ]
    assert main(["query", sql, str(folder), "--csv", "-"]) == 0
    assert capsys.readouterr().out.splitlines() == ["run,n", "inner/fast,5", "slow,5"]


MISSING = """
import runpy, sys
sys.modules[{module!r}] = None
sys.argv = ["torchglass", *{words!r}]
runpy.run_module("torchglass", run_name="__main__")
"""


@pytest.mark.parametrize(
    ("module", "words", "told"),
    [
        ("duckdb", ["query", "SELECT 1"], "pip install 'torchglass[query]'"),
        ("pyarrow", ["export", ".", "--parquet", "out"], "pip install 'torchglass[arrow]'"),
    ],
)
def test_a_missing_package_error_names_the_install_command(
    folder: Path, module: str, words: list[str], told: str
) -> None:
    code = MISSING.format(module=module, words=words)

    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False
    )

    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert told in line
