"""Accelerate and Lightning train on two processes: both ranks are one run."""

from __future__ import annotations

from pathlib import Path

import pytest

import torchglass as tg
from tests.distributed.processes import run_ranks

pytestmark = pytest.mark.slow

ACCELERATE = """
import sys, torch
from accelerate import Accelerator
from tests.integrations.trainings import Net
from torchglass.integrations.accelerate import TorchglassTracker

torch.set_num_threads(1)
model = Net()
tracker = TorchglassTracker(model, run_dir=sys.argv[1], verbose=False)
accelerator = Accelerator(cpu=True, log_with=tracker)
assert accelerator.num_processes == 2
accelerator.init_trackers("mine")
tracker.start()  # Accelerate starts trackers on the main process only
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
prepared, optimizer = accelerator.prepare(model, optimizer)
for step in range(4):
    torch.manual_seed(10 * accelerator.process_index + step)
    loss = prepared(torch.randn(3, 4)).square().mean()
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    tracker.log({"loss": loss})
tracker.finish()
accelerator.end_training()
"""

LIGHTNING = """
import os, sys, warnings, torch
os.environ["TORCHELASTIC_RUN_ID"] = "test"
warnings.simplefilter("ignore")
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset
from tests.integrations.trainings import Net
from torchglass.integrations.lightning import TorchglassCallback

class Module(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = Net()

    def training_step(self, batch, index):
        return self.net(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

torch.set_num_threads(1)
torch.manual_seed(0)
data = DataLoader(TensorDataset(torch.randn(16, 4)), batch_size=2)
callback = TorchglassCallback(run_dir=sys.argv[1], verbose=False)
Trainer(
    accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, callbacks=[callback],
    logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False, default_root_dir=sys.argv[1],
).fit(Module(), data)
"""


@pytest.mark.parametrize(
    ("program", "weight"),
    [(ACCELERATE, "hidden.weight"), (LIGHTNING, "net.hidden.weight")],
    ids=["Accelerate", "Lightning"],
)
def test_two_processes_of_a_trainer_are_one_run_with_two_ranks(
    tmp_path: Path, program: str, weight: str
) -> None:
    for done in run_ranks(2, program, str(tmp_path)):
        assert done.returncode == 0, done.stderr

    with tg.open(tmp_path) as run:
        assert run.finished
        assert set(run.ranks) == {0, 1}
        assert run["loss"].steps.tolist() == [0, 1, 2, 3]
        first, second = run.ranks.values()
        assert first["loss"].values.tolist() != second["loss"].values.tolist()
        # Each rank has its own data, and both have the same weights.
        assert (first[weight].column("mean") == second[weight].column("mean")).all()
