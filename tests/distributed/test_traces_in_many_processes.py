"""Models that are spread over processes are traced in each of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.distributed.processes import run_ranks

SHARDED = """
import copy, sys
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from tests.distributed.processes import gather
import torchglass as tg

rank = gather()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
whole, x = copy.deepcopy(model), torch.randn(8, 16)
for layer in model:
    fully_shard(layer)
fully_shard(model)
trace = tg.trace(model, x)
print([str(op) for op in trace] and "printed")
print("valid" if trace.validate() else trace.validate())
trace.save(f"{sys.argv[1]}/{rank}.glass")
assert torch.equal(trace["relu"].tensor, tg.trace(whole, x)["relu"].tensor)
assert torch.equal(tg.load(f"{sys.argv[1]}/{rank}.glass")["relu"].tensor, trace["relu"].tensor)
del model
torch.distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_a_sharded_model_that_frees_gathered_weights_is_traced(
    tmp_path: Path,
) -> None:
    for rank in run_ranks(2, SHARDED, str(tmp_path)):
        assert rank.returncode == 0, rank.stderr
        assert rank.stdout.split() == ["printed", "valid"]
