"""Whatever a target is, views get a reader of it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from tests import make
from torchglass.errors import TargetError
from torchglass.records.run import Frame, RunRecord
from torchglass.store.readers import MemoryStore
from torchglass.store.writer import FileSink
from torchglass.targets.readers import is_live, is_reader, open_reader, read


class Trap(nn.Module):
    """A module with a property that has one of a reader's names, and raises."""

    @property
    def run(self) -> str:
        raise RuntimeError("a property was touched")


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    path = tmp_path / "a.glass"
    sink = FileSink(path, RunRecord(name="a", created_ns=1))
    sink.put_model(make.model(name="Saved"))
    sink.close()
    return path


def test_a_live_model_is_read() -> None:
    assert read(nn.Sequential(nn.ReLU())).name == "Sequential"


def test_a_record_is_returned_unchanged() -> None:
    record = make.model()

    assert read(record) is record


def test_a_run_provides_its_model(run_file: Path) -> None:
    assert read(run_file).name == "Saved"
    assert read(str(run_file)).name == "Saved"


def test_a_checkpoint_is_read_without_its_code(tmp_path: Path) -> None:
    save_file({"body.weight": torch.zeros(3, 2)}, tmp_path / "a.safetensors")

    record = read(tmp_path / "a.safetensors")

    assert record.find("body") is not None


def test_a_target_without_a_model_is_refused() -> None:
    with pytest.raises(TargetError):
        read(object())


def test_a_reader_is_returned_unchanged() -> None:
    store = MemoryStore(RunRecord(name="a", created_ns=1))

    assert open_reader(store) is store


def test_a_reader_of_a_run_reads_its_file(run_file: Path) -> None:
    reader = open_reader(run_file)

    assert reader.run().name == "a"
    reader.close()


def test_a_folder_with_a_file_for_each_rank_is_one_run(tmp_path: Path) -> None:
    for rank in range(2):
        run = RunRecord(name="net", created_ns=1, rank=rank, world_size=2)
        sink = FileSink(tmp_path / f"net-rank{rank}.glass", run)
        sink.put_model(make.model({"children": {"fc": {"class": "torch.nn.Linear"}}}))
        sink.put_frame(Frame(step=0, time_ns=1, points={sink.series("", "loss"): rank}))
        sink.close()

    with closing(open_reader(tmp_path)) as reader:
        (loss,) = reader.series()

        assert reader.points(loss.id).column("value").tolist() == [0.5]
    assert read(tmp_path).modules[1].path == "fc"


def test_a_reader_of_a_model_is_finished() -> None:
    reader = open_reader(make.model(name="Net"))

    assert reader.run().name == "Net"
    assert reader.model().name == "Net"
    assert reader.finished()
    assert reader.series() == ()


def test_detecting_the_kind_of_target_calls_no_property() -> None:
    assert not is_reader(Trap())
    assert is_live(Trap())


@pytest.mark.parametrize(
    "target",
    ["net.py:Net", Path("a.pt"), make.model(), MemoryStore(RunRecord(name="a", created_ns=1))],
)
def test_names_records_and_readers_are_not_live(target: object) -> None:
    assert not is_live(target)
