"""The optimizers of a training, their gradient scalers, and the parameters they update.

An optimizer whose `step` calls that of its parent class runs torch's hooks twice per step, because
torch wraps both.
"""

from __future__ import annotations

import gc
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer

from torchglass.capture.histogram_reader import HistogramReader
from torchglass.capture.tensor.device_batches import copies_of
from torchglass.capture.tensor.device_reads import (
    DeviceReads,
    LateNumber,
    is_capturing,
    is_remote,
    wide_dtype,
)
from torchglass.capture.tensor.moments import SAFE_LENGTHS, length, numbers_of
from torchglass.capture.torch_internals import (
    current_scale,
    foreach_norm,
    foreach_sub,
    has_served,
)
from torchglass.capture.trace.op_mode import OPTIMIZER_STEP
from torchglass.capture.watch.options import Options
from torchglass.capture.watch.ranks import speaks_for
from torchglass.capture.watch.step_values import SeriesName, StepValues


class FoundOptimizers(NamedTuple):
    """The optimizers and scalers of a training that were found in memory."""

    optimizers: set[Optimizer]
    scalers: list[torch.amp.GradScaler]


def find_optimizers(is_ours: Callable[[Optimizer], bool]) -> FoundOptimizers:
    """All optimizers that train the model, and all active gradient scalers."""
    found = FoundOptimizers(set(), [])
    for thing in gc.get_objects():
        # Uses `type`: an object's `__class__` may be computed, or wrong.
        kind = type(thing)
        if issubclass(kind, Optimizer):
            if hasattr(thing, "param_groups") and is_ours(thing):
                found.optimizers.add(thing)
        elif issubclass(kind, torch.amp.GradScaler) and thing.is_enabled():
            found.scalers.append(thing)
    return found


class GradientScale:
    """The factor that unscales gradients.

    If the user passed no scaler, one found in the process is assumed to be the training's until an
    optimizer steps: a scaler knows which optimizers it serves.
    """

    def __init__(self, given: Any, reads: DeviceReads) -> None:
        self._reads = reads
        self._is_given = given is not None
        self._scaler = given
        self._living: list[Any] = []

    def learn(self, living: Iterable[Any]) -> None:
        """These scalers are there."""
        self._living = list(living)
        if not self._is_given and self._living:
            self._scaler = self._living[0]

    def factor(self) -> float | LateNumber:
        """The factor that unscales the gradients of the running backward."""
        return self._factor(self._scaler)

    @property
    def is_on(self) -> bool:
        """Whether the gradients of the running backward are scaled, and checked afterwards."""
        return self._scaler is not None and current_scale(self._scaler) is not None

    def settle(self, optimizer: Optimizer, values: StepValues) -> None:
        """An optimizer is about to step: correct the assumption about earlier gradients."""
        own = next((each for each in self._living if has_served(each, optimizer)), None)
        # A scaler that has not scaled anything yet may still belong to the training.
        supposed = own or next((each for each in self._living if current_scale(each) is None), None)
        if not self._is_given and supposed is not self._scaler:
            values.correct_scale(self._factor(own), is_scaled=own is not None)
            self._scaler = supposed

    def _factor(self, scaler: Any) -> float | LateNumber:
        scale = None if scaler is None else current_scale(scaler)
        if scale is None or is_capturing():
            return 1.0
        with torch.no_grad():
            return self._reads.number(torch.where(scale != 0, scale, 1).reciprocal())


def is_within_own(optimizer: Optimizer) -> bool:
    """Whether the running step of an optimizer is part of another step of the same optimizer."""
    return sum(one is optimizer for one in _under_way()) > 1


def is_any_under_way() -> bool:
    """Whether an optimizer of this thread is stepping."""
    return next(_under_way(), None) is not None


def _under_way() -> Iterator[Optimizer]:
    """The optimizers whose steps are running in this thread, innermost first."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code is OPTIMIZER_STEP:
            yield frame.f_locals["args"][0]


def computes_gradients(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether `optimizer.step(closure)` was called: its gradients exist only afterwards."""
    return callable(kwargs.get("closure", args[1] if len(args) > 1 else None))


def is_still(optimizer: Optimizer) -> bool:
    """Whether an optimizer steps at a learning rate of 0, so that nothing moves."""
    rates = [group["lr"] for group in optimizer.param_groups if "lr" in group]
    # A learning rate may be a tensor on a device, which is not waited for.
    return bool(rates) and all(isinstance(rate, float | int) and not rate for rate in rates)


class Weight(NamedTuple):
    """A parameter, under its first name in the model."""

    parameter: nn.Parameter
    place: SeriesName
    gradient: SeriesName
    update: SeriesName


class Weights:
    """Reads parameters into step values; `clear` releases all of them."""

    def __init__(self, model: nn.Module, reader: HistogramReader, options: Options) -> None:
        self._reader = reader
        self._log = options.log
        self._is_ours = speaks_for if options.adds_up_ranks else _always
        self._by_id: dict[int, Weight] = {}
        self._are_still_read = False
        """Whether those that no optimizer trains were read."""
        self._before: dict[int, torch.Tensor] = {}
        self.refresh(model)

    def are_of(self, model: nn.Module) -> bool:
        """Whether these are still the parameters of the model."""
        modules = model.modules()
        now = [each for one in modules for each in one._parameters.values() if each is not None]
        if {id(each) for each in now} == self._by_id.keys():
            return True
        # During a call, `functional_call` puts other tensors in their place.
        return not all(isinstance(each, nn.Parameter) for each in now)

    def refresh(self, model: nn.Module) -> None:
        """Update the list of parameters."""
        self._by_id = {id(weight.parameter): weight for weight in _weights(model)}
        self._are_still_read = False

    def clear(self) -> None:
        """Release all parameters."""
        self._by_id.clear()
        self._before.clear()

    def are_in(self, optimizer: Optimizer) -> bool:
        """Whether an optimizer trains any of them."""
        return any(id(parameter) in self._by_id for parameter in _given_to(optimizer))

    def are_all_of(self, optimizer: Optimizer) -> bool:
        """Whether an optimizer trains nothing else."""
        return all(id(parameter) in self._by_id for parameter in _given_to(optimizer))

    def of(self, optimizer: Optimizer) -> list[Weight]:
        """The parameters that an optimizer trains."""
        return [
            self._by_id[id(parameter)]
            for parameter in _given_to(optimizer)
            if parameter.requires_grad and id(parameter) in self._by_id
        ]

    @property
    def all(self) -> list[Weight]:
        """Every one, once."""
        return list(self._by_id.values())

    def read_gradients(
        self,
        weights: Iterable[Weight],
        values: StepValues,
        factor: float | LateNumber = 1,
        *,
        is_scaled: bool = False,
    ) -> None:
        """The gradients as they are now."""
        if "params_grad" not in self._log:
            return
        trained = [
            (weight, gradient)
            for weight in weights
            if (gradient := weight.parameter.grad) is not None and self._is_ours(weight.parameter)
        ]
        readings = self._reader.read_all([gradient for _, gradient in trained])
        for (weight, _), reading in zip(trained, readings, strict=True):
            if reading is not None:
                reading.factor, reading.is_scaled = factor, is_scaled
                reading.dims = weight.parameter.dim()
            values.put(weight.gradient, reading)

    def read_still(self, optimizers: Iterable[Optimizer], values: StepValues) -> None:
        """The parameters that no optimizer trains; they do not change, so they are read once."""
        if not self._are_still_read:
            self._are_still_read = True
            trained = {id(one.parameter) for optimizer in optimizers for one in self.of(optimizer)}
            still = [one for key, one in self._by_id.items() if key not in trained]
            self.read_values(still, values)

    def read_values(self, weights: Iterable[Weight], values: StepValues) -> None:
        """The parameters as they are now."""
        if "params" not in self._log:
            return
        weights = [weight for weight in weights if self._is_ours(weight.parameter)]
        readings = self._reader.read_all([weight.parameter for weight in weights])
        for weight, reading in zip(weights, readings, strict=True):
            values.put(weight.place, reading)

    def before_update(self, weights: Iterable[Weight]) -> None:
        """Remember the parameters that are about to change."""
        if "updates" in self._log:
            found = [(id(one.parameter), numbers_of(one.parameter)) for one in weights]
            there = [(key, numbers) for key, numbers in found if numbers is not None]
            copies = copies_of([numbers for _, numbers in there])
            self._before.update(zip((key for key, _ in there), copies, strict=True))

    def after_update(self, weights: Iterable[Weight], values: StepValues) -> None:
        """The size of each update, relative to the norm of the parameter before."""
        pairs = [(weight, *both) for weight in weights if (both := self._moved(weight))]
        self._before.clear()
        for device in {old.device for _, old, _ in pairs}:
            here = [pair for pair in pairs if pair[1].device == device]
            before = [old for _, old, _ in here]
            moves = foreach_sub([new for _, _, new in here], before)
            places = [weight.update for weight, _, _ in here]
            if is_remote(before[0]):
                wide = wide_dtype(device)
                norms = [*foreach_norm(moves, 2, wide), *foreach_norm(before, 2, wide)]
                self._reader.reads.later(torch.stack(norms), partial(_put_shares, places, values))
            else:
                _put_shares(places, values, [*_lengths(moves), *_lengths(before)])

    def read_state(self, optimizer: Optimizer, values: StepValues) -> None:
        """The optimizer's state of each parameter, and its learning rates."""
        if "optimizer" not in self._log:
            return
        state = [
            (SeriesName(path, f"{name}.{key}"), value)
            for parameter, (path, name), *_ in self.of(optimizer)
            if self._is_ours(parameter)
            for key, value in optimizer.state.get(parameter, {}).items()
            if isinstance(value, torch.Tensor) and value.numel() == parameter.numel() > 1
        ]
        readings = self._reader.read_all([value for _, value in state])
        for (place, _), reading in zip(state, readings, strict=True):
            values.put(place, reading)
        rates = (group["lr"] for group in optimizer.param_groups if "lr" in group)
        number = self._reader.reads.number
        values.rates[id(optimizer)] = [
            number(rate) if isinstance(rate, torch.Tensor) else float(rate) for rate in rates
        ]

    def _moved(self, weight: Weight) -> tuple[torch.Tensor, torch.Tensor] | None:
        before = self._before.get(id(weight.parameter))
        now = numbers_of(weight.parameter) if before is not None else None
        if before is None or now is None or before.shape != now.shape:
            return None
        return before, now.detach()


def _put_shares(places: Sequence[SeriesName], values: StepValues, norms: Sequence[float]) -> None:
    """Add the size of each update; `norms` has those of the updates, then those of the weights."""
    for place, far, long in zip(places, norms, norms[len(places) :], strict=False):
        share = _share(float(far), float(long))
        if share is not None:
            values.numbers[place] = share


def _share(far: float, long: float) -> float | None:
    """The size of an update relative to its weight; None if the weight is zero."""
    # A weight below this is lost when the step is added to it.
    return None if long <= far * torch.finfo(torch.float32).eps else far / long


def _lengths(tensors: list[torch.Tensor] | tuple[torch.Tensor, ...]) -> Iterator[float]:
    """The norms of tensors; the few that overflow in their own dtype are computed again."""
    for tensor, norm in zip(tensors, foreach_norm(tensors), strict=True):
        smallest, largest = SAFE_LENGTHS.get(tensor.dtype, (math.inf, 0.0))
        quick = float(norm)
        yield quick if smallest < quick < largest else length([tensor])


def _always(tensor: torch.Tensor) -> bool:
    return True


def _given_to(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    return chain.from_iterable(group["params"] for group in optimizer.param_groups)


def _weights(model: nn.Module) -> Iterator[Weight]:
    """Each parameter once, however many modules hold it."""
    seen: set[int] = set()
    for path, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                places = (SeriesName(path, name + of) for of in ("", ".grad", ".update"))
                yield Weight(parameter, *places)
