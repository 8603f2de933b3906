"""Which images a model would take: the sizes along its convolutions and pools, computed anew."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torchglass.analyse.failure.scene import arguments
from torchglass.analyse.failure.sizes import SAME_SHAPE
from torchglass.analyse.trace.signatures import plain_name
from torchglass.records.trace import Op, Operand

_LARGEST = 1024

Step = Callable[[int], int]
"""The height and width of a square image, to that of what an op makes of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Images:
    """An input of the model, and the square sizes with which it would fit."""

    input: Op
    least: int
    most: int
    """No larger one was looked at where it is the largest there is."""

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The smallest and, if it is known, the largest one."""
        before = (self.input.outputs[0].spec.shape or ())[:-2]
        ends = (self.least,) if self.most in (self.least, _LARGEST) else (self.least, self.most)
        return tuple((*before, size, size) for size in ends)


def fitting_images(
    ops: Sequence[Op], operand: Operand, fits: Callable[[int], bool]
) -> Images | None:
    """The inputs for which a tensor N×C×H×W would have a height and width that fit.

    None where the way from the input is not a line of ops whose sizes are known, or no size fits.
    """
    steps: list[Step] = []
    end = operand
    while end.op is not None and ops[end.op].kind != "input":
        op = ops[end.op]
        step = _step(op)
        if step is None:
            return None
        steps.insert(0, step)
        end = op.operands[0]
    if end.op is None or _side(end) is None or _through(steps, _side(end)) != _side(operand):
        return None
    found = [size for size in range(1, _LARGEST + 1) if _fits(_through(steps, size), fits)]
    return Images(input=ops[end.op], least=found[0], most=found[-1]) if found else None


def _fits(side: int | None, fits: Callable[[int], bool]) -> bool:
    return side is not None and fits(side)


def _side(operand: Operand) -> int | None:
    """The height of a square image; None for all else."""
    shape = operand.spec.shape or ()
    return shape[-1] if len(shape) == 4 and shape[-1] == shape[-2] else None


def _through(steps: Sequence[Step], side: int | None) -> int | None:
    for step in steps:
        side = step(side) if side is not None else None
        if side is None or side < 1:
            return None
    return side


def _step(op: Op) -> Step | None:
    """What an op does to the size of an image; None where that is not known."""
    function = plain_name(op.function)
    if sum(operand.op is not None for operand in op.operands) != 1 or op.operands[0].op is None:
        return None
    if function in SAME_SHAPE:
        return _same
    if function not in ("conv2d", "max_pool2d", "avg_pool2d"):
        return None
    given, settings = arguments(op)
    if settings.get("ceil_mode", False):
        return None
    kernel = given[1].shape[2:] if function == "conv2d" else settings.get("kernel_size")
    # A pool moves by its own size unless it is told otherwise.
    stride = settings.get("stride") or (1 if function == "conv2d" else kernel)
    window = _one(kernel), _one(stride), _one(settings.get("padding", 0))
    return _window(*window, _one(settings.get("dilation", 1)))


def _same(side: int) -> int:
    return side


def _window(
    kernel: int | None, stride: int | None, padding: int | None, dilation: int | None
) -> Step | None:
    if kernel is None or stride is None or padding is None or dilation is None:
        return None
    return lambda side: (side + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


def _one(setting: object) -> int | None:
    """A setting that is one number for height and width."""
    values = set(setting) if isinstance(setting, tuple) else {setting}
    value = values.pop()
    return value if not values and isinstance(value, int) else None
