"""A training that ships its run to S3 is killed, again and again, and loses nothing it shipped."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import s3fs

import torchglass as tg
from tests.stores import s3_server

KILLS = 50
URL = "s3://bucket/killed"

# It imports everything once, and forks a training for each line that it reads: the seconds until
# the kill, and whether the local file is deleted before, as on another machine.
_TRAININGS = """
import os, pathlib, signal, sys, time
import aiobotocore.session, pyarrow.parquet, s3fs, torch, torchglass as tg

def train():
    torch.set_num_threads(1)
    model = torch.nn.Linear(3, 2)
    watcher = tg.watch(model, resume=sys.argv[1], verbose=False)
    ready.write(b"x")
    ready.close()
    step = watcher.step_of_pass
    while True:
        watcher.log("value", VALUE(step))
        watcher.log("nan", float("nan"))
        model(torch.ones(1, 3) * step).sum().backward()
        watcher.step()
        step += 1

for line in sys.stdin:
    seconds, lost = line.split()
    if lost != "-":
        for file in pathlib.Path("runs").glob("*"):
            file.unlink()
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        ready = os.fdopen(write, "wb")
        train()
    os.close(write)
    os.read(read, 1)
    os.close(read)
    time.sleep(float(seconds))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    print("killed", flush=True)
""".replace("VALUE(step)", "step * 0.1 + 1 / (step + 1)")


@pytest.fixture
def trainings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[str]]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with s3_server() as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        trainings = subprocess.Popen(
            [sys.executable, "-c", _TRAININGS, URL],
            cwd=tmp_path,
            env={**os.environ, "TORCHGLASS_SHIP_SECONDS": "0.02"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            yield trainings
        finally:
            trainings.kill()
            trainings.communicate()


def assert_complete(files: s3fs.S3FileSystem) -> Mapping[str, Any]:
    """Everything that the manifest names is there as it was written."""
    manifest: dict[str, Any] = json.loads(files.cat_file(f"{URL}/manifest.json"))
    last = 0
    for segment in manifest["segments"]:
        assert segment["first"] == last + 1
        last = segment["last"]
    series = [manifest["series"]] if manifest["series"] else []
    for named in (*manifest["segments"], *manifest["documents"].values(), *series):
        data = files.cat_file(f"{URL}/{named['file']}")
        assert len(data) == named["bytes"]
        assert hashlib.sha256(data).hexdigest() == named["sha256"]
    return manifest


def values_of(series: Any) -> dict[int, float]:
    return dict(zip(series.steps.tolist(), series.values.tolist(), strict=True))


@pytest.mark.slow
def test_a_training_that_is_killed_fifty_times_loses_nothing_it_shipped(
    trainings: subprocess.Popen[str],
) -> None:
    files = s3fs.S3FileSystem(use_listings_cache=False, skip_instance_cache=True)
    moments = random.Random(0)
    shipped: dict[int, float] = {}
    sessions = 0
    assert trainings.stdin is not None
    assert trainings.stdout is not None
    for kill in range(KILLS):
        is_elsewhere = kill % 5 == 4
        trainings.stdin.write(f"{moments.uniform(0, 1.5)} {'lost' if is_elsewhere else '-'}\n")
        trainings.stdin.flush()
        assert trainings.stdout.readline() == "killed\n"
        if not files.exists(f"{URL}/manifest.json"):
            continue
        sessions = len(assert_complete(files)["sessions"])
        with tg.open(URL) as run:
            found = values_of(run["value"]) if "value" in run else {}
            assert run.status == "killed"
            assert len(run.sessions) == sessions
        assert list(found) == list(range(len(found)))
        assert all(value == step * 0.1 + 1 / (step + 1) for step, value in found.items())
        # Never a shorter prefix than was there before.
        assert shipped.items() <= found.items()
        shipped = found

    assert len(shipped) > KILLS
    assert sessions > KILLS / 2
