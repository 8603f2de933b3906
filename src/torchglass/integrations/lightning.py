"""Watches a training with Lightning: `Trainer(callbacks=[TorchglassCallback()])`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from torchglass.integrations.trainers import Followed

if TYPE_CHECKING:
    from lightning.pytorch import Callback, LightningModule, Trainer
elif "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
    # The same library under its older name; importing both would take seconds.
    from pytorch_lightning import Callback
else:
    from lightning.pytorch import Callback


class TorchglassCallback(Callback):
    """Watches the model that the trainer fits. Accepts the options of `torchglass.watch`.

    Steps are numbered by `trainer.global_step`. The run also has the loss, everything that is
    logged with `self.log`, and the `hparams` of model and data module as its settings. With
    `resume="runs/mine.glass"`, a training that continues from a checkpoint continues in the same
    run.
    """

    def __init__(self, **options: Any) -> None:
        self._followed = Followed(options)
        self._loss: float | torch.Tensor = 0.0
        self._seen: dict[str, Any] = {}

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._seen = {}
        self._followed.begin(pl_module, lambda: _settings(trainer, pl_module))

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        # With gradient accumulation a step has several batches.
        if trainer.global_step != self._followed.number:
            self._loss = 0.0
        self._followed.begin_step(trainer.global_step)

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if isinstance(loss, torch.Tensor) and loss.numel() == 1:
            # Lightning divides each loss by the number of batches per step.
            self._loss = loss.detach() + self._loss
            self._followed.log({"loss": self._loss})
        self._log_metrics(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._log_metrics(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.sanity_checking:
            self._log_metrics(trainer)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._log_metrics(trainer)
        self._followed.end()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        self._followed.stop()

    def _log_metrics(self, trainer: Trainer) -> None:
        """Log new values: Lightning returns the last value of everything that was ever logged."""
        now = dict(trainer.callback_metrics)
        new = {name: value for name, value in now.items() if value is not self._seen.get(name)}
        self._seen = now
        self._followed.log(new)


def _settings(trainer: Trainer, model: LightningModule) -> dict[str, Any]:
    """What `save_hyperparameters` kept of the data module, and of the model."""
    data = getattr(trainer, "datamodule", None)
    return {**getattr(data, "hparams", {}), **getattr(model, "hparams", {})}
