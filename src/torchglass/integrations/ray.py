"""Watches a training with Ray Train: `watch` in each worker, a callback in the controller.

Each worker writes the file of its rank into the folder of the run, `<storage>/<run>/torchglass`.
All of them are one run: `tg.open(folder)`, `torchglass diagnose folder`.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray.train
from ray.train import UserCallback

import torchglass as tg
from torchglass.api.backends import say
from torchglass.errors import TorchglassError, ViewError, warn

if TYPE_CHECKING:
    from torch import nn

    from torchglass.capture.watch.watcher import Watcher

_FOLDER = "torchglass"
_SECONDS_BETWEEN_LOOKS = 30.0


def watch(model: nn.Module, **options: Any) -> Watcher:
    """Watch the model of one worker; the file of its rank is in the folder of Ray's run.

    A worker that Ray starts again continues its file.

    Args:
        model: The model, before or after `ray.train.torch.prepare_model`.
        **options: Options of `torchglass.watch`. With `save`, `resume` or `run_dir` the file is
            there instead.

    Returns:
        The watcher, as of `torchglass.watch`.

    Raises:
        ViewError: This is not a worker of Ray Train.
    """
    if not {"save", "resume", "run_dir"} & options.keys():
        folder = _worker_folder()
        rank = ray.train.get_context().get_world_rank()
        options["resume"] = folder / f"rank{rank}.glass"
    return tg.watch(model, **options)


def _worker_folder() -> Path:
    try:
        storage = ray.train.get_context().get_storage()
    except Exception as error:
        raise ViewError(
            "torchglass.integrations.ray.watch runs in a worker of Ray Train; elsewhere use "
            "torchglass.watch"
        ) from error
    if "local" not in storage.storage_filesystem.type_name:
        here = Path.cwd() / _FOLDER
        warn(f"the storage of this run is not a folder, so its files are in {here}")
        return here
    return Path(storage.experiment_fs_path) / _FOLDER


class TorchglassCallback(UserCallback):
    """Diagnoses the runs of all workers while they train, in Ray's controller.

    New problems are printed once. The latest diagnosis of all ranks is in
    `<storage>/<run>/torchglass/diagnosis.json`, also after a worker has failed.

    Args:
        seconds: How often to look, at most.
    """

    def __init__(self, seconds: float = _SECONDS_BETWEEN_LOOKS) -> None:
        self._seconds = seconds
        self._looked = float("-inf")
        self._told: set[tuple[str, str]] = set()

    def after_report(self, run_context: Any, metrics: list[Any], checkpoint: Any) -> None:
        if time.monotonic() - self._looked >= self._seconds:
            self._looked = time.monotonic()
            self._look(run_context)

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        for rank, error in sorted(worker_exceptions.items())[:1]:
            say(f"rank {rank} failed: {' '.join(str(error).split())[:200]}")
        self._look(run_context)

    def _look(self, run_context: Any) -> None:
        config = run_context.run_config
        folder = Path(config.storage_path) / config.name / _FOLDER
        try:
            if not any(folder.glob("*.glass")):
                return
            found = tg.diagnose(folder)
            found.to_json(folder / "diagnosis.json")
        except (TorchglassError, OSError) as error:
            warn(f"the runs in {folder} could not be diagnosed: {error}")
            return
        for one in found.problems:
            if (one.kind, one.path) not in self._told:
                self._told.add((one.kind, one.path))
                say(f"{one.message} (torchglass diagnose {folder})")
