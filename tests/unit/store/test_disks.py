from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.recorded import MODEL, ROOT, RUN, put_step
from torchglass.errors import StoreError, TorchglassWarning
from torchglass.store import schema
from torchglass.store.readers import FileReader
from torchglass.store.schema import deepest, file_system_of, is_over_a_network
from torchglass.store.writer import FileSink

MOUNTS = r"""overlay / overlay rw,relatime 0 0
/dev/sda1 /data ext4 rw 0 0
server:/export/home /home nfs4 rw,vers=4.2 0 0
tmpfs /home/me/scratch tmpfs rw 0 0
server:/b /mnt/two\040words lustre rw 0 0
/dev/sdb1 /mnt/covered ext4 rw 0 0
me@there:/x /mnt/covered fuse.sshfs rw 0 0
server:/l /mnt/l\303\244uft cifs rw 0 0
""".splitlines()

WRITE_UNTIL_KILLED = """
import itertools, sys, warnings
from pathlib import Path
from tests.recorded import MODEL, RUN, put_step
from torchglass.store import writer

warnings.simplefilter("ignore")
writer.FLUSH_SECONDS = 0.001
sink = writer.FileSink(Path(sys.argv[1]), RUN, file_system=lambda path: "nfs4")
sink.put_model(MODEL)
for step in itertools.count():
    put_step(sink, step)
    print(step, flush=True)
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/data/runs/a.glass", "ext4"),
        ("/home/me/a.glass", "nfs4"),
        ("/home/me/scratch/a.glass", "tmpfs"),
        ("/homework/a.glass", "overlay"),
        ("/mnt/two words/a.glass", "lustre"),
        ("/mnt/covered/a.glass", "fuse.sshfs"),
        ("/mnt/läuft/a.glass", "cifs"),
    ],
)
def test_a_path_belongs_to_the_deepest_mount_that_contains_it(path: str, kind: str) -> None:
    assert deepest(Path(path), MOUNTS) == kind


def test_network_file_systems_are_recognized_by_name() -> None:
    shared = ["nfs", "nfs4", "lustre", "cifs", "fuse.sshfs", "beegfs", "ceph", "gpfs"]

    assert all(map(is_over_a_network, shared))
    assert not any(map(is_over_a_network, ["ext4", "xfs", "btrfs", "tmpfs", "overlay", "apfs", ""]))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists its mounts in a file")
def test_the_file_system_of_a_real_path_is_found() -> None:
    assert file_system_of(Path("/proc/self/status")) == "proc"


def over_nfs(path: Path) -> FileSink:
    """A sink that takes the disk for one that is shared by machines."""
    with pytest.warns(TorchglassWarning, match=r"is on a network file system \(nfs4\)"):
        return FileSink(path, RUN, file_system=lambda _: "nfs4")


def test_on_a_network_file_system_no_write_ahead_log_is_used(tmp_path: Path) -> None:
    sink = over_nfs(tmp_path / "run.glass")
    put_step(sink, 0)

    with FileReader(sink.path) as reader:
        while reader.last_step() < 0:
            pass
        assert not list(tmp_path.glob("*-wal")) + list(tmp_path.glob("*-shm"))
        sink.close()
        assert reader.finished()
    assert [file.name for file in tmp_path.iterdir()] == ["run.glass"]


def test_on_a_network_file_system_a_live_run_can_be_read(tmp_path: Path) -> None:
    sink = over_nfs(tmp_path / "run.glass")
    sink.put_model(MODEL)
    stop = threading.Event()

    def train() -> None:
        step = 0
        while not stop.is_set():
            put_step(sink, step)
            step += 1
            stop.wait(0.0005)

    training = threading.Thread(target=train)
    training.start()
    with FileReader(sink.path) as reader:
        while reader.last_step() < 1_000:
            if reader.series():
                steps = reader.points(reader.series()[0].id).steps.tolist()
                assert steps == list(range(len(steps)))
    stop.set()
    training.join()
    sink.close()


@pytest.mark.parametrize("steps", [1, 40, 300, 900])
def test_on_a_network_file_system_a_killed_run_can_be_opened(tmp_path: Path, steps: int) -> None:
    path = tmp_path / "run.glass"
    with subprocess.Popen(
        [sys.executable, "-c", WRITE_UNTIL_KILLED, str(path)], cwd=ROOT, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        for _ in range(steps):
            process.stdout.readline()
        process.kill()

    with FileReader(path) as reader:
        count = reader.last_step() + 1
        if count:
            steps_read = reader.points(reader.series()[0].id).steps.tolist()
            assert steps_read == list(range(count))
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


def test_a_locked_file_is_not_reported_as_corrupt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "_LOCK_SECONDS", 0)
    over_nfs(tmp_path / "run.glass").close()
    with contextlib.closing(sqlite3.connect(tmp_path / "run.glass")) as writer:
        writer.execute("BEGIN EXCLUSIVE")

        with pytest.raises(StoreError, match="locked"):
            FileReader(tmp_path / "run.glass")
