"""The verbs that run a model leave a distributed one as it was."""

from __future__ import annotations

import pytest

from tests.distributed.processes import run_ranks

PROGRAM = """
import copy, sys, warnings
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel
from tests.distributed.processes import gather
import torchglass as tg
from torchglass import errors

warnings.simplefilter("ignore")
gather()

def plain():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 4))

def sharded(**options):
    model = plain()
    fully_shard(model[0], **options)
    return fully_shard(model, **options)

KINDS = {
    "fully_shard": sharded,
    "fully_shard that reshards": lambda: sharded(reshard_after_forward=True),
    "fully_shard that stays gathered": lambda: sharded(reshard_after_forward=False),
    "FullyShardedDataParallel": lambda: FullyShardedDataParallel(
        plain(), device_id=torch.device("cpu"), use_orig_params=True
    ),
    "DistributedDataParallel": lambda: DistributedDataParallel(plain()),
}
x, wrong = torch.randn(8, 4), torch.randn(8, 5)
VERBS = {
    "summary": lambda model: tg.summary(model, x),
    "flops": lambda model: tg.flops(model, x),
    "flops of a step": lambda model: tg.flops(model, x, backward=True),
    "memory": lambda model: tg.memory(model, x, backward=False),
    "memory of a step": lambda model: tg.memory(model, x, optimizer="adam"),
    "profile": lambda model: tg.profile(model, x, backward=False, warmup=0, repeats=1),
    "profile of a step": lambda model: tg.profile(model, x, warmup=0, repeats=1),
    "inspect": lambda model: tg.inspect(model, x),
    "inspect of a step": lambda model: tg.inspect(model, x, backward=True),
    "explain": lambda model: tg.explain(model, x),
    "explain of an error": lambda model: tg.explain(model, wrong),
    "summary of an error": lambda model: tg.summary(model, wrong),
    "flops of an error": lambda model: tg.flops(model, wrong, backward=True),
    "fake memory": lambda model: tg.memory(model, x, fake=True),
    "fake summary": lambda model: tg.summary(model, x, fake=True),
}

def whole(tensor):
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().clone()

def training(model, look=lambda model: None):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    seen = []
    for step in range(2):
        look(model)
        output = model(x)
        output.square().sum().backward()
        gradients = (one.grad for one in model.parameters())
        seen += [whole(output), *(whole(one) for one in gradients if one is not None)]
        optimizer.step()
        optimizer.zero_grad()
        seen += [whole(one) for one in (*model.parameters(), *model.buffers())]
    with torch.no_grad():
        seen.append(whole(model.eval()(x)))
        look(model)
        seen.append(whole(model(x)))
    return seen

make = KINDS[sys.argv[1]]
expected = training(make())
for name, verb in VERBS.items():
    def look(model):
        try:
            verb(model)
        except (errors.CaptureError, RuntimeError) as error:
            assert "error" in name or "does not run with fake=True" in str(error), (name, error)
    after = training(make(), look)
    assert len(after) == len(expected), name
    assert all(map(torch.equal, after, expected)), name
print("same")
# A rank that is still at work when the other one leaves may be aborted by gloo.
torch.distributed.barrier()
torch.distributed.destroy_process_group()
"""


@pytest.mark.parametrize(
    "kind",
    [
        "fully_shard",
        pytest.param("fully_shard that reshards", marks=pytest.mark.slow),
        pytest.param("fully_shard that stays gathered", marks=pytest.mark.slow),
        pytest.param("FullyShardedDataParallel", marks=pytest.mark.slow),
        pytest.param("DistributedDataParallel", marks=pytest.mark.slow),
    ],
)
def test_training_after_each_function_is_unchanged(kind: str) -> None:
    (rank,) = run_ranks(1, PROGRAM, kind)

    assert rank.returncode == 0, rank.stderr
    assert rank.stdout.split() == ["same"]


@pytest.mark.slow
def test_weights_on_two_processes_stay_sharded() -> None:
    for rank in run_ranks(2, PROGRAM, "fully_shard"):
        assert rank.returncode == 0, rank.stderr
        assert rank.stdout.split() == ["same"]
