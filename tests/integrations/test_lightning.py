"""`TorchglassCallback` in Lightning's own Trainer, under both of the library's names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import WandbLogger
from torch.utils.data import DataLoader, TensorDataset

import torchglass as tg
from tests.integrations.trainings import Net
from tests.integrations.wandb_file import read_rows
from torchglass.integrations.lightning import TorchglassCallback

pytestmark = [
    # Advice of Lightning's for larger trainings than these.
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no"),
    # Lightning 2.6 makes tree specs in a way that torch has deprecated since.
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
]


class Fitted(LightningModule):
    def __init__(self, fails_at: int | None = None, width: int = 8, api_key: str = "") -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = Net()
        self.fails_at = fails_at

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        if self.global_step == self.fails_at:
            raise RuntimeError("a batch is broken")
        loss: torch.Tensor = self.net(batch[0]).square().mean()
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        self.log("val_loss", self.net(batch[0]).square().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def batches(number: int) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.ones(number * 2, 4)), batch_size=2)


def trainer(folder: Path, callback: TorchglassCallback, **options: Any) -> Trainer:
    return Trainer(
        accelerator="cpu",
        default_root_dir=folder,
        callbacks=[callback],
        enable_progress_bar=False,
        enable_model_summary=False,
        **{
            "logger": False,
            "enable_checkpointing": False,
            "max_epochs": 1,
            "num_sanity_val_steps": 0,
            **options,
        },
    )


def test_fit_is_recorded_at_the_trainers_steps_with_loss_and_metrics(tmp_path: Path) -> None:
    file = tmp_path / "fit.glass"
    fitting = trainer(tmp_path, TorchglassCallback(save=file, verbose=False))

    fitting.fit(Fitted(width=16, api_key="a secret"), batches(5), batches(2))

    run = tg.open(file)
    assert run.finished
    assert run.config == {"width": 16}
    assert b"a secret" not in file.read_bytes()
    assert run["loss"].steps.tolist() == [0, 1, 2, 3, 4]
    assert run["train_loss"].values.tolist() == pytest.approx(run["loss"].values.tolist())
    assert run["net.hidden.weight.grad"].steps.tolist() == [0, 1, 2, 3, 4]


def test_a_validation_has_separate_series_at_the_preceding_step(tmp_path: Path) -> None:
    file = tmp_path / "fit.glass"
    fitting = trainer(tmp_path, TorchglassCallback(save=file, verbose=False), val_check_interval=2)

    fitting.fit(Fitted(), batches(4), batches(2))

    run = tg.open(file)
    assert run["val_loss"].steps.tolist() == [1, 3]
    assert run["net.hidden.eval:output"].steps.tolist() == [1, 3]
    assert run["net.hidden.output"].steps.tolist() == [0, 1, 2, 3]


def test_accumulated_batches_are_one_step(tmp_path: Path) -> None:
    file = tmp_path / "fit.glass"
    module = Fitted()
    fitting = trainer(
        tmp_path, TorchglassCallback(save=file, verbose=False), accumulate_grad_batches=2
    )

    fitting.fit(module, batches(6))

    run = tg.open(file)
    assert run["loss"].steps.tolist() == [0, 1, 2]
    assert run["net.output"].column("count").tolist() == [4, 4, 4]
    # All batches are alike, so the mean over a step is the loss of its last batch.
    assert run["loss"].values.tolist() == pytest.approx(run["train_loss"].values.tolist())


def test_training_resumed_from_a_checkpoint_continues_in_its_run(tmp_path: Path) -> None:
    file, checkpoint = tmp_path / "fit.glass", tmp_path / "last.ckpt"
    first = trainer(tmp_path, TorchglassCallback(resume=file, verbose=False))
    first.fit(Fitted(), batches(3))
    first.save_checkpoint(checkpoint)

    second = trainer(tmp_path, TorchglassCallback(resume=file, verbose=False), max_epochs=2)
    second.fit(Fitted(), batches(3), ckpt_path=checkpoint)

    assert tg.open(file)["loss"].steps.tolist() == [0, 1, 2, 3, 4, 5]


def test_an_exception_closes_the_run_with_the_data_so_far(tmp_path: Path) -> None:
    file = tmp_path / "fit.glass"
    fitting = trainer(tmp_path, TorchglassCallback(save=file, verbose=False))

    with pytest.raises(RuntimeError, match="a batch is broken"):
        fitting.fit(Fitted(fails_at=2), batches(5))

    run = tg.open(file)
    assert run.status == "stopped by RuntimeError at step 2"
    assert run["loss"].steps.tolist() == [0, 1]


def test_weights_are_the_same_as_without_the_callback(tmp_path: Path) -> None:
    def fitted(callback: TorchglassCallback) -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        module = Fitted()
        trainer(tmp_path, callback).fit(module, batches(5), batches(1))
        return module.state_dict()

    watched = fitted(TorchglassCallback(run_dir=":memory:", verbose=False))
    plain = fitted(_Nothing())

    assert all(torch.equal(watched[name], value) for name, value in plain.items())


@pytest.mark.slow
def test_pytorch_lightning_works_without_the_lightning_package(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", _OLDER], cwd=tmp_path, check=True)

    assert tg.open(tmp_path / "fit.glass")["loss"].steps.tolist() == [0, 1, 2]


class _Nothing(TorchglassCallback):
    def on_fit_start(self, *args: Any) -> None:
        pass


_OLDER = """
import torch, pytorch_lightning
from torch.utils.data import DataLoader, TensorDataset
from torchglass.integrations.lightning import TorchglassCallback

class Fitted(pytorch_lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(4, 1)
    def training_step(self, batch, index):
        return self.net(batch[0]).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

assert issubclass(TorchglassCallback, pytorch_lightning.Callback)
pytorch_lightning.Trainer(
    accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False,
    callbacks=[TorchglassCallback(save="fit.glass", verbose=False)],
).fit(Fitted(), DataLoader(TensorDataset(torch.ones(6, 4)), batch_size=2))
"""


@pytest.mark.slow
def test_in_wandb_each_logger_row_has_the_values_of_its_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_SILENT", "true")
    logger = WandbLogger(offline=True, save_dir=tmp_path, project="glass")
    watched = TorchglassCallback(backend="wandb", save=tmp_path / "fit.glass", verbose=False)
    with logger.experiment:
        trainer(tmp_path, watched, logger=logger, log_every_n_steps=1).fit(Fitted(), batches(4))

    rows = [row for row in read_rows(tmp_path) if "torchglass/net.hidden.weight" in row]
    assert [row["torchglass/step"] for row in rows] == [0, 1, 2, 3]
    assert [row["trainer/global_step"] for row in rows] == [0, 1, 2, 3]
    assert [row["torchglass/loss"] for row in rows] == [row["train_loss"] for row in rows]
