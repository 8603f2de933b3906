"""The verb that takes the time of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchglass.api.expecting import expect_at_least

if TYPE_CHECKING:
    from torchglass.capture.timing.steps import Loss
    from torchglass.results.profile import Profile


def profile(
    model: Any,
    *inputs: Any,
    backward: bool = True,
    warmup: int = 3,
    repeats: int = 10,
    loss: Loss | None = None,
    ops: bool = True,
    **kwargs: Any,
) -> Profile:
    """Time each module and op of a model, forward and backward.

    Backward starts from `loss(output)`, or from the sum of the outputs; without `backward` no
    gradients are computed. Every run gets the same random values. Gradients, buffers and random
    state are restored afterwards. `ops=False` times modules only and has less overhead.

    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.ReLU())
    >>> taken = profile(model, torch.ones(3, 4), warmup=1, repeats=2)
    >>> list(taken.rows), [op.op for op in taken.ops if op.path == "1" and op.op]
    (['', '0', '1'], ['relu'])
    >>> every = [*taken.rows.values(), taken.unattributed]
    >>> sum(row.self_ns for row in every) == taken.root.total_ns
    True
    """
    from torchglass.capture.timing.measuring import measure
    from torchglass.results.profile import Profile

    expect_at_least(0, "warmup", warmup)
    expect_at_least(1, "repeats", repeats)
    return Profile(
        *measure(
            model,
            inputs,
            kwargs,
            backward=backward,
            warmup=warmup,
            repeats=repeats,
            loss=loss,
            ops=ops,
        )
    )
