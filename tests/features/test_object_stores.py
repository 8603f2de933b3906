"""Someone records trainings into an object store, and reads them by their URL."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import duckdb
import pytest
from torch import nn

import torchglass as tg
from tests.command_line import main
from tests.models import train
from tests.stores import closed_port, here, refusing_server, s3_server, silent_server
from torchglass import errors

Environment = Mapping[str, str]


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def server() -> Iterator[Environment]:
    """A real S3 server for all tests of this module."""
    with s3_server() as environment:
        yield environment


@pytest.fixture
def s3(server: Environment, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """The URL of a folder in a real S3 server."""
    for name, value in server.items():
        monkeypatch.setenv(name, value)
    return f"s3://bucket/{tmp_path.name}"


def record(url: str, *, steps: int = 6, lr: float = 0.1, resume: bool = False) -> Path:
    """A training that is shipped to a URL; returns its local file."""
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    save, again = (None, url) if resume else (url, None)
    config = {"lr": lr}
    with tg.watch(model, save=save, resume=again, config=config, verbose=False) as watcher:
        train(model, watcher, steps, lr=lr)
        watcher.log("odd", float("nan"))
    assert watcher.path is not None
    return watcher.path


def assert_same(a: Any, b: Any) -> None:
    """Two runs have the same values, bit for bit, and the same documents."""
    assert list(a) == list(b)
    for label, series in a.series.items():
        assert series.record == b[label].record
        assert series.steps.tobytes() == b[label].steps.tobytes(), label
        assert series.values.tobytes() == b[label].values.tobytes(), label
        assert list(series.histograms) == list(b[label].histograms), label
    assert (a.model, a.findings, a.run, a.sessions) == (b.model, b.findings, b.run, b.sessions)
    assert (str(a.status), a.last_step) == (str(b.status), b.last_step)


def test_a_run_in_an_object_store_has_every_value_of_the_local_file(tmp_path: Path) -> None:
    for url in (f"file://{tmp_path}/store/run", "memory://store/run"):
        with tg.open(record(url)) as local, tg.open(url) as stored:
            assert_same(local, stored)
            assert stored.path.name == "run.glass"


def test_a_run_in_an_object_store_is_resumed_without_its_local_file(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store/run"
    record(url, steps=4).unlink()

    with tg.open(record(url, steps=3, resume=True)) as local, tg.open(url) as stored:
        assert_same(local, stored)
        assert stored["loss"].steps.tolist() == list(range(7))
        assert [session.first_step for session in stored.sessions] == [0, 4]


def test_a_run_continued_elsewhere_keeps_its_unshipped_steps(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store/run"
    here_file = record(url, steps=4)
    before = here_file.read_bytes()
    here_file.unlink()
    record(url, steps=3, resume=True)
    # As on the first machine, where the run went on without the store.
    here_file.write_bytes(before)
    with tg.watch(nn.ReLU(), resume=here_file, verbose=False) as watcher:
        watcher.log("loss", 100.0)
        watcher.step()

    with pytest.warns(tg.TorchglassWarning, match="continued elsewhere"):
        record(url, steps=2, resume=True)

    with tg.open(url) as stored:
        assert stored["loss"].steps.tolist() == list(range(9))
    with tg.open(here_file.with_name(f"{here_file.stem}-aside1.glass")) as aside:
        assert aside["loss"].values[-1] == 100.0


def test_an_existing_run_at_a_url_is_not_overwritten(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store/run"
    record(url).unlink()

    with pytest.raises(
        errors.StoreError, match=r'already has a run; .* continue it with resume="file'
    ):
        record(url)


def test_an_object_store_folder_is_a_table_of_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = f"file://{tmp_path}/store"
    record(f"{folder}/slow", lr=0.01)
    record(f"{folder}/group/fast", lr=0.2)
    (tmp_path / "store" / "foreign.txt").write_text("not a run")
    (tmp_path / "store" / "broken").mkdir()
    (tmp_path / "store" / "broken" / "manifest.json").write_text('{"format": "torchglass-r')

    table = tg.runs(folder)
    assert sorted(run.path for run in table) == ["group/fast", "slow"]
    assert [run.path for run in table.where("lr > 0.1")] == ["group/fast"]
    (broken,) = table.unreadable
    assert "broken/manifest.json is not the manifest of a run" in broken.unreadable
    with table.open("slow") as run:
        assert run.last_step == 5
    assert main(["runs", folder, "--columns", "name,steps,lr"]) == 0
    assert f"2 runs in {folder}" in capsys.readouterr().out
    losses = "SELECT run, count(*) FROM points WHERE name = 'loss' GROUP BY run ORDER BY run"
    assert tg.query(losses, folder).entries == (("group/fast", 6), ("slow", 6))
    assert tg.query(losses, f"{folder}/slow").entries == (("slow", 6),)


def test_a_new_run_in_an_object_store_folder_gets_a_name(tmp_path: Path) -> None:
    folder = f"file://{tmp_path}/store"
    with tg.watch(nn.ReLU(), run_dir=folder, verbose=False) as watcher:
        watcher.log("loss", 1.0)
        watcher.step()

    (run,) = tg.runs(folder)
    assert run.path.endswith("-ReLU")


def test_other_tools_can_read_the_parquet_segments(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store/run"
    with tg.open(record(url)) as run:
        loss = run["loss"]
        found = duckdb.sql(
            "SELECT step, value, session, rank FROM "
            f"read_parquet('{tmp_path}/store/run/segments/*.parquet') "
            "WHERE name = 'loss' ORDER BY step"
        )
        assert found is not None
        rows = found.fetchall()
        assert rows == [
            (step, value, 1, 0)
            for step, value in zip(loss.steps.tolist(), loss.values.tolist(), strict=True)
        ]


def test_ranks_of_one_training_job_are_one_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"file://{tmp_path}/store/run"
    monkeypatch.setenv("WORLD_SIZE", "3")
    for rank in range(3):
        monkeypatch.setenv("RANK", str(rank))
        model = nn.Linear(3, 1)
        with tg.watch(model, save=url, verbose=False) as watcher:
            train(model, watcher, 4 + rank)

    with tg.open("runs") as local, tg.open(url) as stored:
        assert_same(local, stored)
        assert list(stored.ranks) == [0, 1, 2]
        assert str(stored.compare_ranks()) == str(local.compare_ranks())
    (run,) = tg.runs(f"file://{tmp_path}/store")
    assert (run.ranks, run.path) == (3, "run")


def test_a_url_that_is_not_a_run_is_a_one_line_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"file://{tmp_path}/store/run"
    record(url)
    manifest = tmp_path / "store" / "run" / "manifest.json"
    good = manifest.read_text()

    def refused(target: str) -> str:
        assert main(["diagnose", target]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        return line

    manifest.write_text(json.dumps({**json.loads(good), "version": 99}))
    assert "has format 99, and this Torchglass reads up to 1. Upgrade" in refused(url)
    manifest.write_text('{"format": "other", "version": 1}')
    assert "manifest.json is not the manifest of a Torchglass run" in refused(url)
    manifest.write_text(good)
    (segment,) = (tmp_path / "store" / "run" / "segments").iterdir()
    whole = segment.read_bytes()
    segment.write_bytes(whole[:-100])
    assert "is truncated" in refused(url)
    segment.write_bytes(whole[:-100] + bytes(100))
    assert "its checksum differs" in refused(url)
    segment.unlink()
    assert "is missing" in refused(url)
    assert "there is no run at file://" in refused(f"file://{tmp_path}/none")
    assert "Protocol not known: foo" in refused("foo://bucket/run")
    assert "gs:// needs a package: pip install 'torchglass[gcs]'" in refused("gs://bucket/run")


def test_a_password_in_a_url_is_never_written(tmp_path: Path) -> None:
    url = "memory://me:secret@store/run"
    path = record(url)

    with tg.open(path) as run:
        assert run.run.store == "memory://store/run"
    assert not any(b"secret" in file.read_bytes() for file in path.parent.iterdir())


@pytest.mark.slow
def test_a_run_in_s3_is_read_by_every_function(s3: str, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"{s3}/run"
    with tg.open(record(url)) as local, tg.open(url) as stored:
        assert_same(local, stored)
    assert main(["diagnose", url]) == main(["diagnose", str(local.path)])
    assert main(["summary", url]) == 0
    assert main(["report", url, "--out", "page.html"]) == 0
    assert main(["export", url, "--parquet", "exported"]) == 0
    capsys.readouterr()
    assert main(["runs", s3, "--json"]) == 0
    assert '"path": "run"' in capsys.readouterr().out


@pytest.mark.slow
def test_a_run_is_followed_while_it_is_written(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHGLASS_SHIP_SECONDS", "0.1")
    with tg.watch(nn.ReLU(), save=f"{s3}/run", verbose=False) as watcher:
        watcher.log("loss", 2.0)
        watcher.step()
        run = _opened(f"{s3}/run")
        while run.last_step < 0:
            pass
        assert run.status.state == "running"
        watcher.log("loss", 1.0)
        watcher.step()
        while run.last_step < 1:
            pass
        assert run["loss"].values.tolist() == [2.0, 1.0]
    while not run.finished:
        pass


def _opened(url: str) -> Any:
    """A run as soon as it is in the store."""
    while True:
        with contextlib.suppress(errors.StoreError):
            return tg.open(url)


_UNCLOSED = """
import time, torch, torchglass as tg
watcher = tg.watch(torch.nn.ReLU(), save="s3://bucket/unclosed", verbose=False)
watcher.log("loss", 1.0)
watcher.step()
time.sleep(16)  # longer than a connection is kept: its host is looked up again
raise RuntimeError("it stopped")
"""


@pytest.mark.slow
def test_a_program_that_ends_without_closing_its_run_ships_all_of_it(
    s3: str, server: Environment
) -> None:
    endpoint = server["AWS_ENDPOINT_URL"].replace("127.0.0.1", "localhost")
    environment = {**here(server), "AWS_ENDPOINT_URL": endpoint, "TORCHGLASS_SHIP_SECONDS": "99"}
    subprocess.run([sys.executable, "-c", _UNCLOSED], env=environment, check=False)

    with tg.open("s3://bucket/unclosed") as run:
        assert run["loss"].values.tolist() == [1.0]
        assert run.status.message == "it stopped"


_TRAINING = """
import sys, torch, torchglass as tg
model = torch.nn.Linear(3, 1)
watcher = tg.watch(model, save="s3://bucket/" + sys.argv[1])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(200):
    optimizer.zero_grad()
    loss = model(torch.ones(2, 3)).square().mean()
    loss.backward()
    optimizer.step()
    watcher.log("loss", loss)
print("trained")
"""


@pytest.mark.slow
@pytest.mark.parametrize("trouble", [closed_port, refusing_server, silent_server])
def test_an_unreachable_object_store_does_not_stop_training(
    trouble: type, server: Environment, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"{tmp_path.name}/{trouble.__name__}"
    with trouble() as environment:
        ended = subprocess.run(
            [sys.executable, "-c", _TRAINING, name],
            env={**here(environment), "TORCHGLASS_SHIP_SECONDS": "0.2"},
            capture_output=True,
            text=True,
            check=True,
        )
    assert ended.stdout == "trained\n"
    assert ended.stderr.count("The training continues; its run is kept in") <= 1
    assert "Nothing is lost: the run is in" in ended.stderr
    (file,) = Path("runs").glob("*.glass")
    with tg.open(file) as run:
        assert run["loss"].steps.tolist() == list(range(200))

    with pytest.MonkeyPatch.context() as monkeypatch:
        for key, value in server.items():
            monkeypatch.setenv(key, value)
        assert main(["ship", str(file)]) == 0
        assert f"is in s3://bucket/{name}" in capsys.readouterr().err
        with tg.open(file) as local, tg.open(f"s3://bucket/{name}") as stored:
            assert_same(local, stored)
