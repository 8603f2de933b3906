"""The verb that tells how much memory a step of a model takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchglass.errors import CaptureError

if TYPE_CHECKING:
    from torchglass.capture.memory.optimizers import Making
    from torchglass.capture.timing.steps import Loss
    from torchglass.results.memory import Memory


def memory(
    model: Any,
    *inputs: Any,
    backward: bool = True,
    optimizer: Making | None = None,
    loss: Loss | None = None,
    fake: bool = False,
    **kwargs: Any,
) -> Memory:
    """Run a step of a model, and tell which memory it takes, who takes it and who holds it.

    The backward starts from `loss(output)`, or from the sum of the outputs; without `backward` no
    gradients are computed at all. An `optimizer` is a name such as "adamw", a class, a function
    that makes one of parameters, or one of yours; it steps on copies. Parameters, gradients,
    buffers and random state are afterwards what they were.

    With `fake=True` nothing is allocated or computed: the same is predicted, for models of any
    size. A model on "meta" or made of fakes is always run so.

    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.ReLU())
    >>> taken = memory(model, torch.ones(3, 4), optimizer="adam")
    >>> taken.parameters_bytes, taken.gradients_bytes, taken.rows["1"].total.activation_bytes
    (40, 40, 24)
    >>> memory(model, torch.ones(3, 4), optimizer="adam", fake=True).peak_bytes == taken.peak_bytes
    True
    """
    from torchglass.capture.memory.measuring import measure
    from torchglass.results.memory import Memory

    if optimizer is not None:
        _expect_optimizer(optimizer)
    return Memory(
        *measure(
            model,
            inputs,
            kwargs,
            backward=backward,
            optimizer=optimizer,
            loss=loss,
            fake=fake,
        )
    )


def _expect_optimizer(optimizer: Any) -> None:
    """Refuse what is no optimizer, and one that cannot step after a backward."""
    from torch.optim import LBFGS, Optimizer

    from torchglass.capture.memory.optimizers import optimizer_named

    made = optimizer_named(optimizer) if isinstance(optimizer, str) else optimizer
    if not callable(made) and not isinstance(made, Optimizer):
        raise CaptureError(
            "optimizer is a name such as 'adamw', a class, a function that makes one of "
            f"parameters, or one of yours, not {optimizer!r}"
        )
    if made is LBFGS or isinstance(made, LBFGS):
        raise CaptureError(
            "LBFGS needs a closure that runs the model again, so a step of it cannot be measured; "
            "try another optimizer"
        )
