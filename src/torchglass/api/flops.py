"""The verbs that count what a model computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from torchglass.analyse.flops.formulas import Formula
    from torchglass.capture.timing.steps import Loss
    from torchglass.results.flops import Flops

F = TypeVar("F", bound="Formula")

_WARMUP = 1
_REPEATS = 3


def flops(
    model: Any,
    *inputs: Any,
    backward: bool = False,
    loss: Loss | None = None,
    fake: bool = False,
    timed: bool = False,
    **kwargs: Any,
) -> Flops:
    """Run a model once, and tell how many floating-point operations each module and op takes.

    A multiplication and the addition of its product count as two. The backward starts from
    `loss(output)`, or from the sum of the outputs. `fake` computes nothing and takes no memory.
    With `timed` the model is run a few times more, to tell how many operations a second it does.
    Gradients, buffers and random state are afterwards what they were.

    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.ReLU())
    >>> counted = flops(model, torch.ones(3, 4), backward=True)
    >>> counted.forward_flops, counted.backward_flops, counted["0"].self_flops
    (48, 48, 96)
    """
    from torchglass.capture.flops.working import count
    from torchglass.results.flops import Flops

    record, work = count(
        model, inputs, kwargs, backward=backward, loss=loss, fake=fake, timed=timed
    )
    if not timed:
        return Flops(record, work)
    from torchglass.capture.timing.measuring import measure

    measured = measure(
        model,
        inputs,
        kwargs,
        backward=backward,
        loss=loss,
        warmup=_WARMUP,
        repeats=_REPEATS,
        ops=False,
    )
    return Flops(record, work, measured.timing)


def register_flops(op: Any, *, backward: bool = False) -> Callable[[F], F]:
    """Count an op of your own by a formula, which stands for all that runs inside of it.

    The op is one of `torch.ops`, its name "mylib::mix", what `torch.library.custom_op` made, or an
    autograd Function, whose backward has a formula of its own, with `backward=True`. The formula is
    called as the op is, with the shape of each tensor in the tensor's stead, and with `out_shape`,
    the shape of the result or a list of those of several.

    >>> import torch
    >>> @torch.library.custom_op("doctest::mix", mutates_args=())
    ... def mix(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    ...     return x @ weight
    >>> @register_flops(mix)
    ... def mix_flops(x, weight, *, out_shape):
    ...     return 2 * x[0] * x[1] * weight[1]
    >>> flops(mix, torch.ones(3, 4), torch.ones(4, 5)).total_flops
    120
    """
    from torchglass.capture.flops.registry import register_flops

    return register_flops(op, backward=backward)


def unregister_flops(op: Any) -> None:
    """Forget the formulas that were registered for an op; without any, nothing happens.

    >>> import torch
    >>> _ = register_flops(torch.ops.aten.exp)(lambda x, *, out_shape: 1000)
    >>> flops(torch.exp, torch.ones(3)).total_flops
    1000
    >>> unregister_flops(torch.ops.aten.exp)
    >>> flops(torch.exp, torch.ones(3)).total_flops
    0
    """
    from torchglass.capture.flops.registry import unregister_flops

    unregister_flops(op)
