"""The verb `diagnose`: what is wrong with a training, and what to do."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from torchglass.errors import TargetError

if TYPE_CHECKING:
    import torch
    from torch import nn

    from torchglass.results.diagnosis import Diagnosis


def diagnose(
    target: Any,
    batch: Any = None,
    *,
    loss: Callable[..., Any] | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    steps: int = 12,
) -> Diagnosis:
    """Say what is wrong with a training, where, since when, and what to change.

    A model with a batch is trained for a few steps on a copy: your model, optimizer and random
    state stay as they are. An exception of its forward, loss or backward is part of the diagnosis.

    Args:
        target: A recorded run (a path, an opened run, or a watcher), or a model.
        batch: For a model, what to train it on: `(inputs, targets)`, a tensor, or a dict of
            arguments.
        loss: For a model, a function of the output and the targets. None: the output itself, or
            its `.loss`, if that is a number.
        optimizer: For a model, the optimizer of the training; its settings are used on the copy.
            None: AdamW with lr=1e-3.
        steps: For a model, the number of steps.

    Returns:
        A `Diagnosis`: print it, or read `.verdict` and `.findings`.

    Raises:
        TargetError: The target is neither a run nor a model, or the model has no batch.
        StoreError: The run file cannot be read.

    Example:
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Softmax(-1))
        >>> batch = torch.randn(16, 4), torch.randint(3, (16,))
        >>> print(diagnose(model, batch, loss=torch.nn.functional.cross_entropy).verdict)
        warning
    """
    from torchglass.results.diagnosis import Diagnosis, diagnose_reader
    from torchglass.results.run import SavedRun, open_run

    if isinstance(target, (str, os.PathLike)):
        with open_run(target) as run:
            return diagnose_reader(run.reader)
    if isinstance(target, SavedRun):
        return diagnose_reader(target.reader)
    if hasattr(target, "findings") and hasattr(target, "write_step"):
        return Diagnosis(target.findings, last_step=target.step_of_pass)
    from torch import nn

    if not isinstance(target, nn.Module):
        raise TargetError(
            "diagnose expects a run (a path, an opened run or a watcher) or a model, not "
            f"{type(target).__name__}"
        )
    if batch is None:
        raise TargetError("to diagnose a model, pass a batch: diagnose(model, (inputs, targets))")
    return _diagnose_model(target, batch, loss, optimizer, steps)


def _diagnose_model(
    model: nn.Module,
    batch: Any,
    loss: Callable[..., Any] | None,
    optimizer: torch.optim.Optimizer | None,
    steps: int,
) -> Diagnosis:
    import torch

    from torchglass.api.watch import watch
    from torchglass.records.run import RunStatus
    from torchglass.results.diagnosis import Diagnosis

    step, status = 0, None
    with torch.random.fork_rng(), torch.enable_grad():
        trained = copy.deepcopy(model)
        updater = _copy_optimizer(optimizer, model, trained)
        watcher = watch(trained, run_dir=":memory:", verbose=False)
        try:
            with watcher:
                for step in range(steps):  # noqa: B007 - it is told where the training ended
                    updater.zero_grad()
                    value = _loss(trained, batch, loss)
                    value.backward()
                    updater.step()
                    watcher.log("loss", value.detach())
        except TargetError:
            raise
        except Exception as error:  # noqa: BLE001 - what stops a training is what to find
            message = str(error).strip().partition("\n")[0]
            status = RunStatus("stopped", step=step, error=type(error).__name__, message=message)
    name = type(model).__name__
    return Diagnosis(watcher.findings, name=name, status=status, last_step=step)


def _loss(model: nn.Module, batch: Any, loss: Callable[..., Any] | None) -> Any:
    import torch

    inputs, targets = batch if isinstance(batch, tuple) and len(batch) == 2 else (batch, None)
    if isinstance(inputs, Mapping):
        output = model(**inputs)
    else:
        output = model(*inputs) if isinstance(inputs, (tuple, list)) else model(inputs)
    if loss is not None:
        return loss(output) if targets is None else loss(output, targets)
    value = getattr(output, "loss", output)
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        raise TargetError(
            "the output of the model is not a loss; pass one: "
            "diagnose(model, (inputs, targets), loss=torch.nn.functional.cross_entropy)"
        )
    return value


def _copy_optimizer(
    optimizer: torch.optim.Optimizer | None, model: nn.Module, trained: nn.Module
) -> torch.optim.Optimizer:
    """An optimizer of the same kind and settings for the copy of a model."""
    import torch

    if optimizer is None:
        return torch.optim.AdamW(trained.parameters(), lr=1e-3)
    pairs = zip(model.parameters(), trained.parameters(), strict=True)
    copies = {id(old): new for old, new in pairs}
    groups = [
        {
            **{key: value for key, value in group.items() if key != "params"},
            "params": [copies.get(id(one), one) for one in group["params"]],
        }
        for group in optimizer.param_groups
    ]
    made = copy.copy(optimizer)
    made.__dict__ = dict(optimizer.__dict__)
    made.param_groups = groups
    made.state = type(optimizer.state)(optimizer.state.default_factory)
    return made
