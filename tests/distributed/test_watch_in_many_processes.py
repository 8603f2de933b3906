"""A training of several processes is watched with the same two lines in its script."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import torchglass as tg
from tests.distributed.processes import run_ranks

pytestmark = pytest.mark.slow


DATA_PARALLEL = """
import os, signal, sys
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from tests.distributed.processes import gather
import torchglass as tg
from torchglass import watch

rank = gather()
folder, reduce, steps, victim, spoiled = sys.argv[1:]
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
options = {"reduce": "all"} if reduce == "all" else {}
watcher = watch(model, sample_n=None, save=f"{folder}/{rank}.glass", **options)
# Without each other's gradients, ranks go on when one of them is lost.
trained = model if int(victim) >= 0 and reduce else DistributedDataParallel(model)
optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
for step in range(int(steps)):
    if rank == int(victim) and step == 3:
        while tg.open(f"{folder}/{0 if reduce else rank}.glass").last_step < 1:
            pass
        os.kill(os.getpid(), signal.SIGKILL)
    inputs = torch.arange(32.0).reshape(8, 4) + 100 * rank
    if rank == int(spoiled):
        inputs[0] = float("nan")
    loss = trained(inputs).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    watcher.log("rank", rank)
watcher.close()
torch.distributed.destroy_process_group()
"""

SHARDED = """
import sys
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from tests.distributed.processes import gather
from torchglass import watch

rank = gather()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 16, bias=False), nn.ReLU(), nn.Linear(16, 4, bias=False))
torch.save([parameter.detach().clone() for parameter in model.parameters()], f"{sys.argv[1]}/w.pt")
for layer in model:
    fully_shard(layer)
fully_shard(model)
watcher = watch(model, sample_n=None, save=f"{sys.argv[1]}/{rank}.glass", reduce="all")
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
for step in range(2):
    model(torch.randn(8, 16)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
watcher.close()
torch.distributed.destroy_process_group()
"""


LOGGED_ON_ONE = """
import sys
import torch
from torch import nn
from tests.distributed.processes import gather
from torchglass import watch

rank = gather()
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
options = {"save": f"{sys.argv[1]}/0.glass"} if rank == 0 else {}
with watch(model, reduce="all", log_freq=3, **options) as watcher:
    for step in range(8):
        model(torch.full((2, 4), float(step))).sum().backward()
        optimizer.step()
        if rank == 0:
            watcher.log("loss", step)
torch.distributed.destroy_process_group()
"""


TOGETHER = """
import sys
import torch
from torch import nn
from tests.distributed.processes import gather
from torchglass import watch

rank = gather()
folder, *reduce = sys.argv[1:]
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with watch(model, run_dir=folder, **({"reduce": "all"} if reduce else {})):
    for step in range(2):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
torch.distributed.destroy_process_group()
"""


def train(
    folder: Path,
    ranks: int,
    *,
    reduce: str = "",
    steps: int = 3,
    victim: int = -1,
    spoiled: int = -1,
) -> list[int]:
    arguments = (str(folder), reduce, str(steps), str(victim), str(spoiled))
    done = run_ranks(ranks, DATA_PARALLEL, *arguments)
    survivors = [each for rank, each in enumerate(done) if rank != victim]
    if victim < 0:
        assert all(each.returncode == 0 for each in survivors), survivors[0].stderr
    return [each.returncode for each in done]


def bins(run: Any, label: str) -> np.ndarray:
    return np.array([[*each.counts] for each in run.reader.histograms(run[label].record.id).bins])


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a training on two ranks, each of which has written its own."""
    folder = tmp_path_factory.mktemp("two")
    train(folder, 2)
    return folder


def test_each_rank_writes_its_own_file(two_ranks: Path) -> None:
    for rank in range(2):
        with tg.open(two_ranks / f"{rank}.glass") as run:
            assert (run.run.rank, run.run.world_size) == (rank, 2)
            assert run["input.0"].column("max").tolist() == [31.0 + 100 * rank] * 3
            assert run["0.weight.grad"].steps.tolist() == [0, 1, 2]


def test_parameter_gradients_are_recorded_after_the_all_reduce(two_ranks: Path) -> None:
    with tg.open(two_ranks / "0.glass") as one, tg.open(two_ranks / "1.glass") as other:
        for label in ("0.weight.grad", "2.weight"):
            assert one[label].values == pytest.approx(other[label].values, rel=1e-5), label


@pytest.mark.parametrize("ranks", [2, 4])
def test_rank_0_has_the_statistics_of_all_ranks(tmp_path: Path, ranks: int) -> None:
    train(tmp_path, ranks, reduce="all")

    everything = np.concatenate([np.arange(32.0) + 100 * rank for rank in range(ranks)])
    with tg.open(tmp_path / "0.glass") as run:
        inputs = run["input.0"]
        assert inputs.column("count").tolist() == [32.0 * ranks] * 3
        assert inputs.column("min").tolist() == [0.0] * 3
        assert inputs.column("max").tolist() == [everything.max()] * 3
        assert inputs.column("mean") == pytest.approx([everything.mean()] * 3)
        assert inputs.column("std") == pytest.approx([everything.std(ddof=1)] * 3)
        assert bins(run, "input.0").sum(axis=1).tolist() == [32 * ranks] * 3
        # All ranks hold the same parameters: they are counted once.
        assert run["0.weight"].column("count").tolist() == [32.0] * 3
        assert run["rank"].values.tolist() == [(ranks - 1) / 2] * 3
        assert set(run["ranks.slowest"].values.tolist()) <= set(range(ranks))


def test_values_logged_on_one_rank_do_not_shift_steps_of_the_others(tmp_path: Path) -> None:
    for rank in run_ranks(2, LOGGED_ON_ONE, str(tmp_path)):
        assert rank.returncode == 0, rank.stderr
        assert "records" not in rank.stderr

    with tg.open(tmp_path / "0.glass") as run:
        assert run["loss"].steps.tolist() == run["loss"].values.tolist() == list(range(8))
        inputs = run["input.0"]
        assert inputs.steps.tolist() == inputs.column("mean").tolist() == [0, 3, 6]
        assert inputs.column("count").tolist() == [16, 16, 16]


def test_a_nan_on_one_rank_is_found_with_the_rank(tmp_path: Path) -> None:
    train(tmp_path, 4, reduce="all", spoiled=3, steps=1)

    with tg.open(tmp_path / "0.glass") as run:
        found = run.findings
    (of_input,) = (one for one in found if one.facts["series"] == "input.0")
    assert of_input.facts["ranks"] == [3]
    assert of_input.message == "`input.0` has NaN or Inf on rank 3 of 4 (since step 0)"


def test_shards_are_measured_locally_and_merge_to_the_whole(tmp_path: Path) -> None:
    import torch

    done = run_ranks(2, SHARDED, str(tmp_path))

    assert all(each.returncode == 0 for each in done), done[0].stderr
    weights = torch.load(tmp_path / "w.pt")
    with tg.open(tmp_path / "0.glass") as run:
        for label, weight in zip(("0.weight", "2.weight"), weights, strict=True):
            series = run[label]
            assert series.column("count").tolist() == [weight.numel()] * 2
            assert series.column("min").tolist() == [weight.min().item()] * 2
            assert series.column("max").tolist() == [weight.max().item()] * 2
            assert series.column("std") == pytest.approx([weight.std().item()] * 2, rel=1e-5)
        assert run["0.weight.grad"].column("count").tolist() == [256.0] * 2


def test_the_data_of_each_rank_is_kept_when_one_is_killed(tmp_path: Path) -> None:
    codes = train(tmp_path, 2, victim=1, steps=6)

    assert codes[1] == -9
    with tg.open(tmp_path / "0.glass") as run:
        assert run["0.weight"].steps.tolist() == [0, 1, 2]
    with tg.open(tmp_path / "1.glass") as run:
        assert run["0.weight"].steps.tolist()[:2] == [0, 1]
        assert not run.finished


def test_rank_0_continues_alone_when_another_rank_is_killed(tmp_path: Path) -> None:
    codes = train(tmp_path, 2, reduce="all", victim=1, steps=6)

    assert codes == [0, -9]
    with tg.open(tmp_path / "0.glass") as run:
        counts = run["input.0"].column("count").tolist()
        assert run.finished
    assert len(counts) == 6
    assert counts[0] == 64.0
    assert counts[-1] == 32.0


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that two ranks have written their files into."""
    folder = tmp_path_factory.mktemp("together")
    done = run_ranks(2, TOGETHER, str(folder))
    assert [each.returncode for each in done] == [0, 0], done[0].stderr
    return folder


def test_the_ranks_of_a_run_share_a_group_id(together: Path) -> None:
    files = sorted(together.glob("*.glass"))
    assert [file.name[15:] for file in files] == ["-Linear-rank0.glass", "-Linear-rank1.glass"]
    assert files[0].name[:15] == files[1].name[:15]
    with tg.open(files[0]) as one, tg.open(files[1]) as other:
        assert one.run.group == other.run.group != ""


def test_ranks_record_their_forward_times(together: Path) -> None:
    for file in together.glob("*.glass"):
        with tg.open(file) as run:
            forward, step = (run[name].values.ravel() for name in ("time.forward", "time.step"))
            assert (forward > 0).all()
            assert (forward < step).all()


def test_ranks_reduced_to_rank_0_write_no_file(tmp_path: Path) -> None:
    done = run_ranks(2, TOGETHER, str(tmp_path), "reduce")

    assert [each.returncode for each in done] == [0, 0], done[0].stderr
    (file,) = tmp_path.glob("*.glass")
    assert file.name.endswith("-rank0.glass")
