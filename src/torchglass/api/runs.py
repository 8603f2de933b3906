"""The verb `runs`: a folder of runs as a table."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchglass.results.runs import RunTable


def runs(folder: str | os.PathLike[str] = "runs") -> RunTable:
    """List the runs in a folder and in its subfolders, the latest first.

    What was read is kept in a small file in the folder, `.torchglass-runs.sqlite`, so that next
    time only new and changed runs are read. The ranks of one run are one row.

    Args:
        folder: The folder.

    Returns:
        A `RunTable`: print it, or use `.where("lr < 1e-3")`, `.sort("loss")`,
        `.group("optimizer")`, `.select("name", "lr", "loss")`, `.open(0)`, `.to_pandas()`.

    Raises:
        TargetError: The folder does not exist.

    Example:
        >>> import torch
        >>> import torchglass as tg
        >>> relu = torch.nn.ReLU()
        >>> for lr in (0.1, 0.01):
        ...     with tg.watch(relu, save=f"tries/{lr}.glass", config={"lr": lr}) as watcher:
        ...         watcher.log("loss", 10 * lr)
        ...         watcher.step()
        >>> found = runs("tries").where("lr < 0.05")
        >>> [run.path for run in found]
        ['0.01.glass']
        >>> found.open(0)["loss"].values
        array([0.1])
    """
    from torchglass.results.runs import RunFolder

    return RunFolder(Path(folder).expanduser()).table()
