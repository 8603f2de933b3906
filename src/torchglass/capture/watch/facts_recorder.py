"""Records the facts about a training that its series do not show.

Most are read at a few of the recorded steps only, which come less and less often: a training of a
million steps is looked at about fifty times.
"""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from torchglass.capture.torch_internals import (
    foreach_norm,
    foreach_sub,
    gradient_shape,
    roots_of_backward,
)
from torchglass.capture.torch_modes import quietly
from torchglass.capture.watch.op_probes import OpProbes
from torchglass.capture.watch.optimizers import Weight
from torchglass.records.trace import TraceRecord
from torchglass.records.training import (
    GradientStop,
    LossFacts,
    ModuleFacts,
    OptimizerFacts,
    ParameterFacts,
    Track,
    TrainingFacts,
)

_GROWTH = 1.4
_FIRST_LOOKS = 5
"""So many of the first recorded steps are looked at, and then each time they are 1.4 times more."""
_SAMPLE = 64
_MOST_POINTS = 256
_MOST_NODES = 400
_MOST_LOSSES = 4
_MOST_STRAYS = 64
_MOST_EQUAL = 8
"""Of more matrices of one size, as in the blocks of a transformer, none are tied."""
_NEAR_LOSS = 6
_LOSS_NODES = (
    *("NllLoss", "MseLoss", "BinaryCrossEntropy", "SmoothL1Loss", "HuberLoss", "KlDiv", "CtcLoss"),
    *("SoftMarginLoss", "MultiMarginLoss", "MultilabelMarginLoss", "PoissonNllLoss", "Abs"),
)


class LookSchedule:
    """Which of many events are looked at: the first ones, and then fewer and fewer."""

    def __init__(self) -> None:
        self._count = 0
        self._next = 0

    def is_due(self) -> bool:
        """Count an event; whether it is looked at."""
        count, self._count = self._count, self._count + 1
        if count < self._next:
            return False
        self._next = count + 1 if count < _FIRST_LOOKS else int(count * _GROWTH) + 1
        return True


class ThinnedTrack:
    """Values over steps; every other one is dropped whenever there are too many."""

    def __init__(self) -> None:
        self._points: dict[int, float] = {}

    def add(self, step: int, value: float) -> None:
        """Keep a value."""
        self._points[step] = value
        if len(self._points) > _MOST_POINTS:
            points = list(self._points.items())
            self._points = dict([*points[: _MOST_POINTS // 2 : 2], *points[_MOST_POINTS // 2 :]])

    def get(self, step: int) -> float:
        """The value of a step, 0 if it has none."""
        return self._points.get(step, 0.0)

    def record(self) -> Track:
        """What was kept."""
        return Track(steps=tuple(self._points), values=tuple(self._points.values()))


class _ParameterState:
    """What is known of one parameter."""

    def __init__(self) -> None:
        self.optimizer: int | None = None
        self.with_gradient = 0
        self.without_gradient = 0
        self.updates = ThinnedTrack()
        self.moved = ThinnedTrack()
        self.has_equal_rows = False


class _Sampled(NamedTuple):
    """Samples of parameters, as they were before an update."""

    names: list[str]
    views: list[torch.Tensor]
    copies: list[torch.Tensor]


class _UsedGradient(NamedTuple):
    """A gradient that an optimizer has used."""

    parameter: weakref.ref[torch.Tensor]
    gradient: int


class FactsRecorder:
    """Collects facts as the training goes on; `record` has all that is known."""

    def __init__(self, model: nn.Module) -> None:
        self._model = weakref.ref(model)
        self.probes = OpProbes()
        self.is_new = False
        """Whether anything was learned since the last record."""
        self._passes = LookSchedule()
        self._updates_looked_at = LookSchedule()
        self._is_looking = False
        self._updates = 0
        self._optimizers: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self._optimizer_facts: list[OptimizerFacts] = []
        self._parameters: dict[str, _ParameterState] = {}
        self._sampled: _Sampled | None = None
        self._calls: dict[str, int] = {}
        self._eval_calls: dict[str, int] = {}
        self._stops: dict[GradientStop, None] = {}
        self._losses: dict[LossFacts, None] = {}
        self._lr = ThinnedTrack()
        self._scales = ThinnedTrack()
        self._modes = ThinnedTrack()
        self._mode = 1.0
        self._backwards = 0
        self._upcasts: dict[GradientStop, None] = {}
        self._strays: dict[str, ModuleFacts] = {}
        self._stale = ThinnedTrack()
        self._used: dict[int, _UsedGradient] = {}
        self._was_cleared: dict[int, bool] = {}
        """Whether a backward since the last step of an optimizer found its gradients cleared."""
        self._input_dtypes: tuple[str, ...] = ()
        self._batch_size = 0
        self._same_values = dict(_equal_pairs(dict(model.named_parameters())))

    def learn(self, optimizers: Iterable[Optimizer]) -> None:
        """These optimizers train the model, whether they have stepped yet or not."""
        for optimizer in optimizers:
            self._learn_optimizer(optimizer)

    def begin_forward(self, *, training: bool) -> None:
        """A forward begins, recorded or not."""
        if torch.is_grad_enabled():
            self._mode = float(training)

    def begin_pass(self, inputs: Sequence[torch.Tensor]) -> bool:
        """A recorded forward begins; whether it is to be looked at closely."""
        # What runs without gradients is an evaluation.
        self._is_looking = torch.is_grad_enabled() and self._passes.is_due()
        if self._is_looking:
            self.is_new = True
            self._input_dtypes = tuple(str(one.dtype).removeprefix("torch.") for one in inputs)
            first = next((one for one in inputs if one.dim() and not one.is_nested), None)
            self._batch_size = 0 if first is None else first.shape[0]
        return self._is_looking

    def called_stray(self, path: str, module: nn.Module) -> None:
        """A module that the model does not have is called in a recorded forward."""
        if path not in self._strays and len(self._strays) < _MOST_STRAYS:
            is_trained = any(one.requires_grad for one in module.parameters(recurse=False))
            self._strays[path] = ModuleFacts(
                path=path,
                name=type(module).__name__,
                calls=1,
                has_parameters=is_trained,
                is_registered=False,
            )

    def called(self, path: str, *, training: bool) -> None:
        """A module is called in a recorded forward."""
        self._calls[path] = self._calls.get(path, 0) + 1
        if not training:
            self._eval_calls[path] = self._eval_calls.get(path, 0) + 1

    def see_trace(self, trace: TraceRecord) -> None:
        """A forward was traced: note where gradients stop."""
        self._stops.update(dict.fromkeys(gradient_stops(trace)))
        self._upcasts.update(dict.fromkeys(upcasts(trace)))

    def backward_begun(self, scale: float | None) -> None:
        """A backward of a recorded step has begun: note how its loss is computed."""
        self._backwards += 1
        if scale is not None:
            self._scales.add(self._backwards, scale)
        with quietly():
            for key, used in self._used.items():
                self._was_cleared[key] = self._was_cleared.get(key, False) or _is_cleared(used)
        if len(self._losses) < _MOST_LOSSES:
            for root in roots_of_backward():
                self._losses.update(dict.fromkeys(losses_of(root)))

    def before_update(self, optimizer: Optimizer, weights: Sequence[Weight], step: int) -> None:
        """An optimizer is about to step in a recorded step."""
        self._updates += 1
        self._modes.add(step, self._mode)
        number = self._learn_optimizer(optimizer)
        if id(optimizer) in self._was_cleared:
            is_stale = not self._was_cleared[id(optimizer)]
            # Of several optimizers in one step, one that was not cleared counts.
            self._stale.add(step, max(float(is_stale), self._stale.get(step)))
        if not self._updates_looked_at.is_due():
            return
        self.is_new = True
        with quietly():
            self._look_at_gradients(number, weights)
            self._sampled = _sample(weights)

    def after_update(self, step: int) -> None:
        """An optimizer has stepped in a recorded step."""
        sampled, self._sampled = self._sampled, None
        if sampled is None or not sampled.views:
            return
        with quietly():
            before = torch.stack(list(foreach_norm(sampled.copies)))
            moves = foreach_sub(sampled.views, sampled.copies)
            moved = torch.stack(list(foreach_norm(moves)))
            shares = zip(sampled.names, moved.tolist(), before.tolist(), strict=True)
            for name, far, size in shares:
                if size > 0:
                    self._state(name).updates.add(step, far / size)
            for name, move in zip(sampled.names, moves, strict=True):
                if move.dtype in (torch.bfloat16, torch.float16):
                    self._state(name).moved.add(step, float((move != 0).float().mean()))

    def note_update(self, optimizer: Optimizer, step: int) -> None:
        """An optimizer has stepped, in any step: note its rate and which gradient it used."""
        rates = [group["lr"] for group in optimizer.param_groups if _is_number(group.get("lr"))]
        self._lr.add(step, max(self._lr.get(step), *map(float, rates)) if rates else 0.0)
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                gradient = parameter.grad
                if gradient is not None and not gradient.is_sparse:
                    key = id(optimizer)
                    self._used[key] = _UsedGradient(weakref.ref(parameter), id(gradient))
                    self._was_cleared.pop(key, None)
                    return

    def _learn_optimizer(self, optimizer: Optimizer) -> int:
        number = self._optimizers.get(optimizer)
        if number is None:
            number = self._optimizers[optimizer] = len(self._optimizer_facts)
            self._optimizer_facts.append(OptimizerFacts(name=type(optimizer).__name__))
            self.is_new = True
        groups = optimizer.param_groups
        lr, decay = (
            tuple(float(group[key]) for group in groups if _is_number(group.get(key)))
            for key in ("lr", "weight_decay")
        )
        known = self._optimizer_facts[number]
        self._optimizer_facts[number] = replace(known, lr=lr, weight_decay=decay)
        return number

    def _look_at_gradients(self, optimizer: int, weights: Iterable[Weight]) -> None:
        for weight in weights:
            state = self._state(_name(weight))
            state.optimizer = optimizer
            if weight.parameter.grad is None:
                state.without_gradient += 1
            else:
                state.with_gradient += 1
            state.has_equal_rows = _has_equal_rows(weight.parameter)

    def _state(self, name: str) -> _ParameterState:
        return self._parameters.setdefault(name, _ParameterState())

    def record(self) -> TrainingFacts:
        """All that is known."""
        self.is_new = False
        model = self._model()
        parameters = dict(model.named_parameters()) if model is not None else {}
        ours = {id(parameter) for parameter in parameters.values()}
        for optimizer, number in self._optimizers.items():
            foreign = tuple(
                "×".join(map(str, parameter.shape))
                for group in optimizer.param_groups
                for parameter in group["params"]
                if id(parameter) not in ours
            )
            known = self._optimizer_facts[number]
            self._optimizer_facts[number] = replace(known, foreign_shapes=foreign)
            theirs = {id(one) for group in optimizer.param_groups for one in group["params"]}
            for name, parameter in parameters.items():
                if id(parameter) in theirs:
                    self._state(name).optimizer = number
        return TrainingFacts(
            optimizers=tuple(self._optimizer_facts),
            parameters=tuple(self._parameter(*each) for each in parameters.items()),
            modules=(*(self._modules(model) if model is not None else ()), *self._strays.values()),
            probes=self.probes.records(),
            gradient_stops=tuple(self._stops),
            losses=tuple(self._losses),
            lr=self._lr.record(),
            updates=self._updates,
            backwards=self._backwards,
            scales=self._scales.record(),
            modes=self._modes.record(),
            upcasts=tuple(self._upcasts),
            stale_gradients=self._stale.record(),
            input_dtypes=self._input_dtypes,
            batch_size=self._batch_size,
        )

    def _parameter(self, name: str, parameter: nn.Parameter) -> ParameterFacts:
        state = self._state(name)
        if state.optimizer is None and parameter.grad is not None:
            state.with_gradient += 1
        return ParameterFacts(
            name=name,
            shape=() if _is_shapeless(parameter) else tuple(parameter.shape),
            dtype=str(parameter.dtype).removeprefix("torch."),
            requires_grad=parameter.requires_grad,
            optimizer=state.optimizer,
            with_gradient=state.with_gradient,
            without_gradient=state.without_gradient,
            updates=state.updates.record(),
            moved=state.moved.record(),
            has_equal_rows=state.has_equal_rows,
            same_values_as=self._same_values.get(name, ""),
        )

    def _modules(self, model: nn.Module) -> Iterator[ModuleFacts]:
        paths: dict[int, list[str]] = {}
        modules: dict[int, nn.Module] = {}
        for path, module in model.named_modules(remove_duplicate=False):
            paths.setdefault(id(module), []).append(path)
            modules.setdefault(id(module), module)
        for key, module in modules.items():
            first, *others = paths[key]
            probability = getattr(module, "p", None)
            yield ModuleFacts(
                path=first,
                name=type(module).__name__,
                calls=self._calls.get(first, 0),
                eval_calls=self._eval_calls.get(first, 0),
                other_paths=tuple(others),
                has_parameters=next(module.parameters(recurse=False), None) is not None,
                dropout=float(probability)
                if "Dropout" in type(module).__name__ and isinstance(probability, float | int)
                else None,
            )


def _is_cleared(used: _UsedGradient) -> bool:
    """Whether a gradient was set to None or to zero since an optimizer used it."""
    gradient = getattr(used.parameter(), "grad", None)
    if gradient is None or id(gradient) != used.gradient:
        return True
    return not bool(gradient.any())


def _is_shapeless(parameter: Any) -> bool:
    """Whether a parameter of a lazy module has not been given its shape yet."""
    return bool(is_lazy(parameter))


def _name(weight: Weight) -> str:
    path, name = weight.place
    return f"{path}.{name}" if path else name


def _is_number(value: Any) -> bool:
    # A rate that is a tensor on a device would be waited for.
    if isinstance(value, torch.Tensor):
        return value.device.type == "cpu" and value.numel() == 1
    return isinstance(value, float | int)


def _sample(weights: Iterable[Weight]) -> _Sampled:
    names, views = [], []
    for weight in weights:
        parameter = weight.parameter.detach()
        if type(parameter) is not torch.Tensor or not parameter.is_floating_point():
            continue
        if parameter.layout == torch.strided and parameter.is_contiguous() and parameter.numel():
            flat = parameter.view(-1)
            names.append(_name(weight))
            views.append(flat[:: max(1, len(flat) // _SAMPLE)])
    return _Sampled(names, views, [view.clone() for view in views])


def _has_equal_rows(parameter: torch.Tensor) -> bool:
    """Whether units that should differ are the same, judged by some of the rows."""
    if (
        is_lazy(parameter)
        or parameter.dim() < 2
        or parameter.shape[0] < 2
        or type(parameter.data) is not torch.Tensor
    ):
        return False
    rows = parameter.detach()[:8].flatten(1)[:, :_SAMPLE]
    return bool((rows == rows[:1]).all()) and bool(rows.any())


def _equal_pairs(parameters: Mapping[str, nn.Parameter]) -> Iterator[tuple[str, str]]:
    """Matrices that have the same values, maybe transposed, but are not the same parameter."""
    by_size: dict[tuple[int, ...], list[str]] = {}
    for name, parameter in parameters.items():
        if _is_shapeless(parameter):
            continue
        is_plain = type(parameter.data) is torch.Tensor and not parameter.is_meta
        if parameter.dim() == 2 and parameter.numel() >= _SAMPLE and is_plain:
            by_size.setdefault(tuple(sorted(parameter.shape)), []).append(name)
    for names in by_size.values():
        known: dict[tuple[float, float], str] = {}
        for name in names if 1 < len(names) <= _MOST_EQUAL else ():
            values = parameters[name].detach().double()
            # Random matrices never agree in both to the last digits.
            key = round(float(values.sum()), 6), round(float(values.norm()), 6)
            first = known.setdefault(key, name)
            if first != name and float(values.std()) > 0:
                yield name, first


def losses_of(root: Any) -> Iterator[LossFacts]:
    """The loss functions in the graph of a loss, near its root."""
    waiting = deque([(root, 0)])
    seen: set[int] = set()
    while waiting and len(seen) < _MOST_NODES:
        node, depth = waiting.popleft()
        if node is None or id(node) in seen:
            continue
        seen.add(id(node))
        name = node.name().removeprefix("torch::autograd::")
        shapes = _broadcast_shapes(node) if depth < _NEAR_LOSS else None
        if name.startswith(_LOSS_NODES) or shapes is not None:
            first = next((one for one, _ in node.next_functions if one is not None), None)
            yield LossFacts(
                function=name,
                before=tuple(_names_before(node)),
                input_shape=shapes[0] if shapes else gradient_shape(first) or (),
                target_shape=shapes[1] if shapes else (),
                is_broadcast=shapes is not None,
            )
        if depth < 12:
            waiting += [(following, depth + 1) for following, _ in node.next_functions]


def _names_before(node: Any) -> Iterator[str]:
    """The nodes of the operations before one, along the first that has a gradient."""
    for _ in range(8):
        node = next((one for one, _ in node.next_functions if one is not None), None)
        if node is None:
            return
        yield node.name().removeprefix("torch::autograd::")


def _broadcast_shapes(node: Any) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The shapes of an output and of its difference from the target, if it was expanded.

    A column of N values and a row of N values make a square of N × N. The target has no gradient;
    where both have one, as in a matrix of distances, the square is meant.
    """
    following = [one for one, _ in node.next_functions]
    if len(following) < 2 or sum(one is not None for one in following) != 1:
        return None
    inner = next(one for one in following if one is not None)
    large = gradient_shape(node)
    if inner.name().startswith("Expand"):
        large = gradient_shape(inner)
        inner = next((one for one, _ in inner.next_functions if one is not None), None)
    small = gradient_shape(inner) if inner is not None else None
    if large is None or small is None or len(large) != 2 or small == large:
        return None
    is_square = large[0] == large[1] > 1
    return (small, large) if is_square and math.prod(small) == large[0] else None


def gradient_stops(trace: TraceRecord) -> Iterator[GradientStop]:
    """The operations whose input needs a gradient and whose output does not."""
    paths = {call.id: call.path for call in trace.calls}
    needs = {op.id for op in trace.ops if op.grad_fn}
    for op in trace.ops:
        if op.kind != "op" or op.grad_fn or not op.outputs:
            continue
        has_weight = any(operand.parameter for operand in op.operands)
        if has_weight or any(parent in needs for parent in op.parents):
            yield GradientStop(
                path=paths.get(op.call, "") if op.call is not None else "",
                function=op.function,
                source=op.source,
                is_in_no_grad=has_weight,
            )


_HALVES = ("bfloat16", "float16")


def upcasts(trace: TraceRecord) -> Iterator[GradientStop]:
    """The operations of a model in half precision that computed in a larger dtype by accident."""
    paths = {call.id: call.path for call in trace.calls}
    for op in trace.ops:
        dtypes = {one.spec.dtype for one in op.operands if one.spec.elements > 1}
        is_wider = any(value.spec.dtype in ("float32", "float64") for value in op.outputs)
        if is_wider and dtypes & {*_HALVES} and dtypes & {"float32", "float64"}:
            path = paths.get(op.call, "") if op.call is not None else ""
            yield GradientStop(path=path, function=op.function, source=op.source)
