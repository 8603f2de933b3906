"""Watches a training with Hugging Face's Trainer: `Trainer(callbacks=[TorchglassCallback()])`."""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from torchglass.integrations.trainers import Followed


class TorchglassCallback(TrainerCallback):  # type: ignore[misc]  # transformers is not checked
    """Watches the model that the trainer trains. Accepts the options of `torchglass.watch`.

    Steps are numbered by `state.global_step`. The run also has everything that the trainer logs,
    and its arguments as settings, without tokens.
    With `resume="runs/mine.glass"`, a training that continues from a checkpoint continues in the
    same run. The trainer does not report exceptions to callbacks: after one, the run stays open
    until the next training, the end of the program, or `close`.
    """

    def __init__(self, **options: Any) -> None:
        self._followed = Followed(options)

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        *,
        model: nn.Module,
        **others: Any,
    ) -> None:
        self._followed.begin(model, args.to_dict)

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any
    ) -> None:
        # The trainer counts a step when it is done.
        self._followed.begin_step(state.global_step + 1)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **others: Any,
    ) -> None:
        self._followed.log(logs or {})

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any
    ) -> None:
        self._followed.end()

    def close(self) -> None:
        """Stop watching after an exception."""
        self._followed.stop()
