"""A training watched from its optimizers' steps, with nothing put on the model.

    with Watcher(model, sink) as watcher:
        for inputs, targets in batches:
            loss = criterion(model(inputs), targets)
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)

Gradients are read right before the update, as the optimizer gets them; weights right after it.
"""

from __future__ import annotations

import atexit
import contextlib
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, final

import torch
from torch import nn
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from torchglass.capture.model.structure import read_model
from torchglass.capture.tensor.describing import measure
from torchglass.errors import warn
from torchglass.records.flow import Sink
from torchglass.records.series import Frame, Point, SeriesId


class _Weight(NamedTuple):
    """A parameter, at the first place where the model holds it."""

    path: str
    name: str
    parameter: nn.Parameter


@final
class Watcher:
    """Records weights, gradients and what is logged, step by step, until it is closed.

    A step ends when an optimizer that took part in it steps again, so several optimizers of one
    model share their steps. Weights that none of them trains are measured in the first step only.
    """

    def __init__(self, model: nn.Module, sink: Sink, *, every: int = 1) -> None:
        if every < 1:
            raise ValueError(f"every must be 1 or more, not {every}")
        self._sink = sink
        self._every = every
        self._weights = {id(weight.parameter): weight for weight in _weights(model)}
        self._number = 0
        self._steps_taken = 0
        self._steps_by_hand = False
        self._logs_before_steps: bool | None = None
        self._stepped: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._points: dict[SeriesId, Point] = {}
        self._logged: dict[SeriesId, float | torch.Tensor] = {}
        self._warned = False
        self._undo = contextlib.ExitStack()
        sink.put_model(read_model(model))
        self._attach(model)

    def log(self, name: str, value: float | torch.Tensor) -> None:
        """Keep a number of this step, such as the loss; one on another device is fetched later.

        Where the first one is logged before the first step of an optimizer, later ones belong to
        the step that follows them, too; otherwise to the step before them.
        """
        with self._harmless():
            if self._logs_before_steps is None:
                self._logs_before_steps = not self._steps_taken and not self._stepped
            if self._logs_before_steps and self._stepped and not self._steps_by_hand:
                self._finish_step()
            self._logged[self._sink.series("", name)] = _one_number(name, value)

    def step(self, number: int | None = None) -> None:
        """End the current step, in loops that know better when that is; `number` is the step's own.

        From then on optimizers no longer end steps. Without one, this is when weights are measured.
        """
        with self._harmless():
            self._steps_by_hand = True
            if number is not None:
                self._number = number
            if self._is_recorded() and not self._stepped:
                self._read_gradients(self._weights.values())
                self._read_weights(self._weights.values())
            self._finish_step()

    def close(self) -> None:
        """Take everything off again, and close the sink with what was seen until now."""
        self._detach()
        self._sink.close()

    def __enter__(self) -> Watcher:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _attach(self, model: nn.Module) -> None:
        self._undo.callback(self._weights.clear)
        self._undo.callback(register_optimizer_step_pre_hook(self._before_update).remove)
        self._undo.callback(register_optimizer_step_post_hook(self._after_update).remove)
        # The global hooks keep the watcher alive, and it the weights: not beyond the model's life.
        self._undo.callback(weakref.finalize(model, self._detach).detach)
        atexit.register(self.close)
        self._undo.callback(atexit.unregister, self.close)

    def _detach(self) -> None:
        with self._harmless():
            if self._points or self._logged:
                self._finish_step()
        self._undo.close()

    def _before_update(
        self, optimizer: Optimizer, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        if torch.compiler.is_compiling():
            return
        with self._harmless():
            if not self._holds_ours(optimizer):
                return
            if optimizer in self._stepped and not self._steps_by_hand:
                self._finish_step()
            self._stepped.add(optimizer)
            if self._is_recorded() and not _computes_gradients(args, kwargs):
                self._read_gradients(self._trained_by(optimizer))

    def _after_update(
        self, optimizer: Optimizer, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        if torch.compiler.is_compiling():
            return
        with self._harmless():
            if optimizer not in self._stepped or not self._is_recorded():
                return
            trained = self._trained_by(optimizer)
            if _computes_gradients(args, kwargs):
                self._read_gradients(trained)
            self._read_weights(trained if self._steps_taken else self._weights.values())

    def _holds_ours(self, optimizer: Optimizer) -> bool:
        return optimizer in self._stepped or any(
            id(parameter) in self._weights
            for group in optimizer.param_groups
            for parameter in group["params"]
        )

    def _trained_by(self, optimizer: Optimizer) -> list[_Weight]:
        return [
            self._weights[id(parameter)]
            for group in optimizer.param_groups
            for parameter in group["params"]
            if parameter.requires_grad and id(parameter) in self._weights
        ]

    def _is_recorded(self) -> bool:
        return self._steps_taken % self._every == 0

    def _read_gradients(self, weights: Iterable[_Weight]) -> None:
        for path, name, parameter in weights:
            if parameter.grad is not None:
                self._read(path, f"{name}.grad", parameter.grad)

    def _read_weights(self, weights: Iterable[_Weight]) -> None:
        for path, name, parameter in weights:
            self._read(path, name, parameter)

    def _read(self, path: str, name: str, tensor: torch.Tensor) -> None:
        stats = measure(tensor)
        if stats is not None:
            self._points[self._sink.series(path, name, "stats")] = stats

    def _finish_step(self) -> None:
        points, logged, number = self._points, self._logged, self._number
        self._points, self._logged = {}, {}
        self._stepped.clear()
        self._steps_taken += 1
        self._number += 1
        points.update((series, float(value)) for series, value in logged.items())
        if points:
            self._sink.put_frame(Frame(step=number, time_ns=time.time_ns(), points=points))

    @contextlib.contextmanager
    def _harmless(self) -> Iterator[None]:
        """An error of ours in here becomes a warning, the first time; the training goes on."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - inside someone's training
            if not self._warned:
                self._warned = True
                warn(f"watching went wrong, the training goes on: {type(error).__name__}: {error}")


def _weights(model: nn.Module) -> Iterator[_Weight]:
    """Each parameter once, however many modules hold it."""
    seen: set[int] = set()
    for path, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield _Weight(path, name, parameter)


def _computes_gradients(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether `optimizer.step(closure)` was called: its gradients are there only afterwards."""
    return callable(kwargs.get("closure", args[1] if len(args) > 1 else None))


def _one_number(name: str, value: float | torch.Tensor) -> float | torch.Tensor:
    if not isinstance(value, torch.Tensor):
        return float(value)
    if value.numel() != 1:
        raise ValueError(f"log({name!r}, …) takes one number, not {tuple(value.shape)} of them")
    # A copy, as the training may change the tensor before it is read. Reading a number that is
    # still being computed on a GPU would make the training wait for it.
    return value.detach().clone() if value.device.type != "cpu" else float(value.detach())
