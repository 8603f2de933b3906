"""Tensors with shapes but no numbers, so that a forward of any size takes no memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)

from torchglass.errors import CaptureError

_LIMITS = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)


def has_fakes(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether some of the tensors are fake already."""
    return any(isinstance(tensor, FakeTensor) for tensor in tensors)


class Faking:
    """Makes fakes of real tensors, the same fake of the same tensor."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        modes = (tensor.fake_mode for tensor in tensors if isinstance(tensor, FakeTensor))
        self._mode = next(modes, None) or FakeTensorMode(allow_non_fake_inputs=True)
        self._made: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def fake(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor like this one but without numbers; one on "meta" becomes one on the CPU."""
        made = self._made.get(id(tensor))
        if made is None:
            # The original is kept, so that no other tensor gets its id.
            made = self._made[id(tensor)] = tensor, self._make(tensor)
        return made[1]

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """In this block no operation computes anything."""
        try:
            with self._mode:
                yield
        except _LIMITS as error:
            raise CaptureError(
                f"this forward does not run on fake tensors ({type(error).__name__}: {error}): "
                "its way depends on numbers, and they have none; try fake=False"
            ) from error

    def _make(self, tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, FakeTensor):
            return tensor
        if tensor.device.type != "meta":
            try:
                return self._mode.from_tensor(tensor, static_shapes=True)
            except (UnsupportedFakeTensorException, NotImplementedError):
                # The mode takes real tensors as they are, and some kinds have no fakes.
                return tensor
        # Some operations look at numbers only where there could be any: on "meta" they refuse.
        # Memory of its own: FakeTensor forbids the one that it is given to be looked at any more.
        like = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
        fake = FakeTensor(self._mode, like, torch.device("cpu"))
        if isinstance(tensor, torch.nn.Parameter):
            return torch.nn.Parameter(fake, requires_grad=tensor.requires_grad)
        return fake
