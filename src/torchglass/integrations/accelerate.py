"""Watches a training with Accelerate: `Accelerator(log_with=TorchglassTracker(model))`."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any

from accelerate.tracking import GeneralTracker  # type: ignore[import-untyped]
from torch import nn

import torchglass as tg
from torchglass.capture.watch.watcher import Watcher
from torchglass.errors import CaptureError, warn
from torchglass.integrations.trainers import numbers_in, trainer_settings
from torchglass.store.run_file import add_config


class TorchglassTracker(GeneralTracker):  # type: ignore[misc]  # accelerate has no types
    """Watches a model from `accelerator.init_trackers` to `accelerator.end_training`.

    It accepts the options of `torchglass.watch`. The run also has the values passed to
    `accelerator.log`, at the current step of the optimizer, and the settings passed to
    `accelerator.init_trackers(config=…)`.

    Accelerate starts trackers on the main process only. To watch all ranks, call `start`, `log` and
    `finish` of the tracker itself on every rank; `start` and `finish` may be called twice.
    """

    name = "torchglass"
    requires_logging_directory = False
    main_process_only = False

    def __init__(self, model: nn.Module, **options: Any) -> None:
        super().__init__()
        self._model = model
        self._options = options
        self._watcher: Watcher | None = None

    @property
    def tracker(self) -> Watcher:
        """The watcher of the model."""
        if self._watcher is None:
            raise CaptureError("not watching yet: call accelerator.init_trackers(name) first")
        return self._watcher

    def start(self) -> None:
        if self._watcher is None:
            self._watcher = tg.watch(self._model, **self._options)

    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        """Add the settings of `init_trackers(config=…)` to the run, without tokens and keys."""
        path = self.tracker.path
        if path is None:
            return
        try:
            # Accelerate passes them when the run has begun.
            add_config(path, trainer_settings(lambda: values))
        except sqlite3.Error as error:
            warn(f"the settings of init_trackers are missing in {path}: {error}")

    def log(self, values: Mapping[str, Any], step: int | None = None, **others: Any) -> None:
        for name, number in numbers_in(values).items():
            self.tracker.log(name, number)

    def finish(self) -> None:
        if self._watcher is not None:
            self._watcher.close()
            self._watcher = None
