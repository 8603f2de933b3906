"""The verbs `flops`, `memory` and `profile`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from torchglass.api.argument_checks import expect_at_least
from torchglass.errors import CaptureError

if TYPE_CHECKING:
    from torchglass.analyse.flop_formulas import Formula
    from torchglass.capture.isolated_run import Loss
    from torchglass.capture.measure.optimizer_copy import Making
    from torchglass.results.measurement import Flops, Profile
    from torchglass.results.memory import Memory

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
    from torchglass.capture.measure.flops import count
    from torchglass.results.measurement import Flops

    record, work = count(
        model, inputs, kwargs, backward=backward, loss=loss, fake=fake, timed=timed
    )
    if not timed:
        return Flops(record, work)
    from torchglass.capture.measure.profile import measure

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
    from torchglass.capture.measure.flop_rules import register_flops

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
    from torchglass.capture.measure.flop_rules import unregister_flops

    unregister_flops(op)


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
    from torchglass.capture.measure.memory import measure
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

    from torchglass.capture.measure.optimizer_copy import optimizer_named

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
    from torchglass.capture.measure.profile import measure
    from torchglass.results.measurement import Profile

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
