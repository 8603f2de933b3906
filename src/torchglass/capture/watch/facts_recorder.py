"""Records the facts about a training that its series do not show.

Most are read at a few of the recorded steps only, less and less often: about fifty times in a
training of a million steps.
"""

from __future__ import annotations

import math
import re
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from torchglass.capture.autograd import node_name, nodes_behind
from torchglass.capture.tensor.description import Args, Kwargs
from torchglass.capture.tensor.device_batches import copies_of
from torchglass.capture.tensor.device_reads import Array, DeviceReads, LateNumber
from torchglass.capture.torch_internals import (
    foreach_sub,
    gradient_shape,
    roots_of_backward,
    softmax_dim,
)
from torchglass.capture.torch_modes import quietly
from torchglass.capture.watch.op_probes import (
    HALVES,
    BatchRepeats,
    OpProbes,
    active_dropouts,
    float32_products,
    gradient_stops,
    upcasts,
)
from torchglass.capture.watch.optimizers import Weight
from torchglass.capture.watch.parameter_facts import (
    LookSchedule,
    ParameterState,
    SampledParameters,
    ThinnedTrack,
    are_equal,
    equal_pairs,
    is_shapeless,
    parameter_name,
    sample_of,
    some_rows,
)
from torchglass.records.trace import TraceRecord
from torchglass.records.training import (
    KL_DIV,
    GradientStop,
    InputFacts,
    LossFacts,
    ModuleFacts,
    OpSite,
    OptimizerFacts,
    ParameterFacts,
    TrainingFacts,
)

_MOST_NODES = 400
_MOST_LOSSES = 4
_MOST_STRAYS = 64
_NEAR_LOSS = 6
_DEEPEST = 12
_MOST_EVALS = 2
_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)
_FROZEN = re.compile(r"^(freeze|frozen|is_frozen)(?!.*(bn|norm|epoch|step|after|until|at$|stat))")
"""Names of attributes by which models say what is frozen: `frozen_stages`, `freeze_backbone`."""
_LOSS_NODES = (
    *("NllLoss", "MseLoss", "BinaryCrossEntropy", "SmoothL1Loss", "HuberLoss", "KlDiv", "CtcLoss"),
    *("SoftMarginLoss", "MultiMarginLoss", "MultilabelMarginLoss", "PoissonNllLoss", "Abs"),
)


class _UsedGradient(NamedTuple):
    """A gradient that an optimizer has used."""

    parameter: weakref.ref[torch.Tensor]
    gradient: int


class FactsRecorder:
    """Collects facts during the training; `record` has all of them."""

    def __init__(self, model: nn.Module, reads: DeviceReads) -> None:
        self._model = weakref.ref(model)
        self._reads = reads
        self.probes = OpProbes(reads)
        modules = sum(1 for _ in model.modules())
        self._passes = LookSchedule(modules)
        self._updates_looked_at = LookSchedule(modules)
        self._is_looking = False
        self._updates = 0
        self._optimizers: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self._optimizer_facts: list[OptimizerFacts] = []
        self._steps_of: Counter[int] = Counter()
        self._idle: list[OptimizerFacts] = []
        self._parameters: dict[str, ParameterState] = {}
        self._sampled: SampledParameters | None = None
        self._calls: Counter[str] = Counter()
        self._eval_calls: Counter[str] = Counter()
        self._stops: dict[GradientStop, None] = {}
        self._losses: dict[LossFacts, None] = {}
        self._lr = ThinnedTrack()
        self._scales = ThinnedTrack()
        self._modes = ThinnedTrack()
        self._mode = 1.0
        self._backwards = 0
        self._upcasts: dict[OpSite, None] = {}
        self._strays: dict[str, ModuleFacts] = {}
        self._stale = ThinnedTrack()
        self._used: dict[int, _UsedGradient] = {}
        self._was_cleared: dict[int, bool] = {}
        """Whether a backward since the last step of an optimizer found its gradients cleared."""
        self._frozen_attributes: dict[str, str] = {}
        self._is_eval = False
        self._evals_looked_at = 0
        self._step = 0
        self._inputs: tuple[InputFacts, ...] = ()
        self._autocast = ""
        self._islands: dict[OpSite, None] = {}
        self._dropouts: dict[OpSite, None] = {}
        self._eval_step = 0
        self._batches = BatchRepeats(reads)
        self._same_values = dict(equal_pairs(dict(model.named_parameters())))

    def learn(self, optimizers: Iterable[Optimizer]) -> None:
        """These optimizers train the model, even if they have not stepped yet."""
        for optimizer in optimizers:
            self._learn_optimizer(optimizer)

    def learn_other(self, optimizer: Optimizer) -> None:
        """This optimizer steps and has no parameter of the model; note it if it does nothing."""
        theirs = [one for group in optimizer.param_groups for one in group["params"]]
        if all(one.grad is None for one in theirs):
            foreign = tuple("×".join(map(str, one.shape)) for one in theirs)
            self._idle.append(OptimizerFacts(name=type(optimizer).__name__, foreign_shapes=foreign))

    def begin_forward(self, *, training: bool) -> None:
        """A forward begins, recorded or not."""
        self._is_eval = not training
        if torch.is_grad_enabled():
            self._mode = float(training)

    def see_batch(self, args: Args, kwargs: Kwargs, step: int, *, is_recorded: bool) -> None:
        """The model is given a batch in training mode, in any step."""
        self._batches.see(args, kwargs, step, is_recorded=is_recorded)

    def begin_pass(self, inputs: Sequence[tuple[str, torch.Tensor]], step: int) -> bool:
        """A recorded forward begins; returns whether to examine it closely."""
        self._step = step
        # A forward without gradients is an evaluation.
        self._is_looking = torch.is_grad_enabled() and self._passes.is_due()
        if self._is_looking:
            self._inputs = tuple(
                InputFacts(place=place, shape=_shape(one), dtype=_dtype(one))
                for place, one in inputs
            )
            self._autocast = _autocast_dtype(inputs[0][1].device.type) if inputs else ""
        return self._is_looking

    def wants_eval_trace(self) -> bool:
        """Whether the forward that begins is one of the first in eval mode: it is traced."""
        if not self._is_eval or torch.is_grad_enabled() or self._evals_looked_at >= _MOST_EVALS:
            return False
        self._evals_looked_at += 1
        return True

    def called_stray(self, path: str, module: nn.Module) -> None:
        """A module that is not part of the model is called in a recorded forward."""
        if path not in self._strays and len(self._strays) < _MOST_STRAYS:
            is_trained = any(one.requires_grad for one in module.parameters(recurse=False))
            self._strays[path] = ModuleFacts(
                path=path,
                name=type(module).__name__,
                calls=1,
                has_parameters=is_trained,
                is_registered=False,
            )

    def called(self, times: Mapping[str, int]) -> None:
        """A recorded forward has ended: the number of calls of each module, by path."""
        self._calls.update(times)

    def called_in_eval(self, path: str) -> None:
        """A module in eval mode is called in a recorded forward."""
        self._eval_calls[path] += 1

    def see_trace(self, trace: TraceRecord) -> None:
        """A forward was traced: note where gradients stop, and which operations are special."""
        if self._is_eval:
            self._see_dropouts(trace)
        if torch.is_grad_enabled():
            self._stops.update(dict.fromkeys(gradient_stops(trace)))
            self._upcasts.update(dict.fromkeys(upcasts(trace)))
            if self._autocast in HALVES:
                self._islands.update(dict.fromkeys(float32_products(trace)))

    def _see_dropouts(self, trace: TraceRecord) -> None:
        model = self._model()
        modules = dict(model.named_modules()) if model is not None else {}
        for one in active_dropouts(trace):
            # A Dropout that was switched on again is intended, as for an estimate of uncertainty.
            if not isinstance(modules.get(one.path), _DROPOUTS):
                self._eval_step = self._eval_step if self._dropouts else self._step
                self._dropouts.setdefault(one)

    def backward_begun(self, factor: float | LateNumber | None) -> None:
        """A backward of a recorded step has begun: note how its loss is computed.

        Its gradients are unscaled by `factor`, if there is one.
        """
        self._backwards += 1
        if factor is not None:
            number = self._backwards
            self._reads.then(lambda: self._scales.add(number, 1 / float(factor)))
        with quietly():
            for key, used in self._used.items():
                self._ask_if_cleared(key, used)
        if len(self._losses) < _MOST_LOSSES:
            for root in roots_of_backward():
                self._losses.update(dict.fromkeys(losses_of(root)))

    def _ask_if_cleared(self, key: int, used: _UsedGradient) -> None:
        """Note whether a gradient was set to None or to zero since an optimizer used it."""

        def note(nonzero: Array | None = None) -> None:
            is_cleared = nonzero is None or not nonzero.any()
            self._was_cleared[key] = self._was_cleared.get(key, False) or is_cleared

        gradient = getattr(used.parameter(), "grad", None)
        if gradient is None or id(gradient) != used.gradient:
            self._reads.then(note)
        else:
            self._reads.later(gradient.any(), note)

    def _note_stale(self, key: int, step: int) -> None:
        if key in self._was_cleared:
            is_stale = not self._was_cleared[key]
            # With several optimizers in one step, one whose gradients were not cleared is enough.
            self._stale.add(step, max(float(is_stale), self._stale.get(step)))

    def before_update(self, optimizer: Optimizer, weights: Sequence[Weight], step: int) -> None:
        """An optimizer is about to step in a recorded step."""
        self._updates += 1
        number = self._learn_optimizer(optimizer)
        key = id(optimizer)
        self._reads.then(lambda: self._note_stale(key, step))
        if not self._updates_looked_at.is_due():
            return
        with quietly():
            self._look_at_gradients(number, weights)
            self._sampled = sample_of(weights)

    def after_update(self, step: int) -> None:
        """An optimizer has stepped in a recorded step."""
        sampled, self._sampled = self._sampled, None
        if sampled is None or not sampled.views:
            return
        with quietly():
            for which in sampled.alike():
                copies = [sampled.copies[index] for index in which]
                moves = foreach_sub([sampled.views[index] for index in which], copies)
                is_half = copies[0].dtype in (torch.bfloat16, torch.float16)
                see = partial(self._see_moves, [sampled.names[i] for i in which], step, is_half)
                sizes = [copy.numel() for copy in copies]
                # Together, so that they are one copy from a device.
                both = torch.cat([*copies, *moves])
                self._reads.later(both, partial(_split_in_two, sizes, see))

    def _see_moves(
        self,
        names: Sequence[str],
        step: int,
        is_half: bool,
        before: Sequence[Array],
        moves: Sequence[Array],
    ) -> None:
        for name, old, move in zip(names, before, moves, strict=True):
            self._state(name).see_move(step, old, move)
            if is_half:
                self._state(name).moved.add(step, float((move != 0).mean()))

    def note_update(self, optimizer: Optimizer, step: int) -> None:
        """An optimizer has stepped, in any step: note its learning rate and its gradient."""
        self._modes.add(step, self._mode)
        number = self._optimizers.get(optimizer)
        self._steps_of[self._learn_optimizer(optimizer) if number is None else number] += 1
        rates = [group["lr"] for group in optimizer.param_groups if _is_number(group.get("lr"))]
        self._lr.add(step, max(self._lr.get(step), *map(float, rates)) if rates else 0.0)
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                gradient = parameter.grad
                if gradient is not None and not gradient.is_sparse:
                    key = id(optimizer)
                    self._used[key] = _UsedGradient(weakref.ref(parameter), id(gradient))
                    self._reads.then(partial(self._was_cleared.pop, key, None))
                    return

    def _learn_optimizer(self, optimizer: Optimizer) -> int:
        number = self._optimizers.get(optimizer)
        if number is None:
            number = self._optimizers[optimizer] = len(self._optimizer_facts)
            self._optimizer_facts.append(OptimizerFacts(name=type(optimizer).__name__))
        groups = optimizer.param_groups
        lr, decay = (
            tuple(float(group[key]) for group in groups if _is_number(group.get(key)))
            for key in ("lr", "weight_decay")
        )
        known = self._optimizer_facts[number]
        rises = any(group.get("maximize") is True for group in groups)
        self._optimizer_facts[number] = replace(
            known, lr=lr, weight_decay=decay, is_maximizing=rises
        )
        return number

    def _look_at_gradients(self, optimizer: int, weights: Iterable[Weight]) -> None:
        rows: dict[str, torch.Tensor] = {}
        for weight in weights:
            name = parameter_name(weight)
            state = self._state(name)
            state.optimizer = optimizer
            if weight.parameter.grad is None:
                state.without_gradient += 1
            else:
                state.with_gradient += 1
            its_rows = some_rows(weight.parameter)
            if its_rows is not None:
                rows[name] = its_rows
        for name, copy in zip(rows, copies_of([*rows.values()]), strict=True):
            self._reads.later(copy, partial(_see_rows, self._state(name)))

    def _state(self, name: str) -> ParameterState:
        return self._parameters.setdefault(name, ParameterState())

    def record(self) -> TrainingFacts:
        """All that is known."""
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
            self._optimizer_facts[number] = replace(
                known, foreign_shapes=foreign, steps=self._steps_of[number]
            )
            theirs = {id(one) for group in optimizer.param_groups for one in group["params"]}
            for name, parameter in parameters.items():
                known_number = self._state(name).optimizer
                # An earlier optimizer of the same parameters may still be in memory.
                is_taken = known_number is not None and self._steps_of[known_number]
                if id(parameter) in theirs and not is_taken:
                    self._state(name).optimizer = number
        return TrainingFacts(
            optimizers=tuple(self._optimizer_facts),
            parameters=tuple(self._parameter(*each) for each in parameters.items()),
            modules=(*(self._modules(model) if model is not None else ()), *self._strays.values()),
            probes=self.probes.records(),
            idle_optimizers=tuple(self._idle),
            gradient_stops=tuple(self._stops),
            losses=tuple(self._losses),
            lr=self._lr.record(),
            updates=self._updates,
            backwards=self._backwards,
            scales=self._scales.record(),
            modes=self._modes.record(),
            upcasts=tuple(self._upcasts),
            stale_gradients=self._stale.record(),
            autocast=self._autocast,
            islands=tuple(self._islands),
            active_dropouts=tuple(self._dropouts),
            eval_step=self._eval_step,
            inputs=self._inputs,
            repeats=self._batches.track.record(),
            batches=self._batches.count,
        )

    def _parameter(self, name: str, parameter: nn.Parameter) -> ParameterFacts:
        state = self._state(name)
        number = state.optimizer
        if (number is None or not self._steps_of[number]) and parameter.grad is not None:
            state.with_gradient += 1
        return ParameterFacts(
            name=name,
            shape=() if is_shapeless(parameter) else tuple(parameter.shape),
            dtype=str(parameter.dtype).removeprefix("torch."),
            requires_grad=parameter.requires_grad,
            optimizer=state.optimizer,
            with_gradient=state.with_gradient,
            without_gradient=state.without_gradient,
            updates=state.updates.record(),
            kept=state.kept.record(),
            moved=state.moved.record(),
            has_equal_rows=state.has_equal_rows,
            same_values_as=self._same_values.get(name, ""),
        )

    def _frozen_by(self, path: str, module: nn.Module) -> str:
        if path not in self._frozen_attributes:
            self._frozen_attributes[path] = _frozen_attribute(module)
        return self._frozen_attributes[path]

    def _modules(self, model: nn.Module) -> Iterator[ModuleFacts]:
        paths: dict[int, list[str]] = {}
        modules: dict[int, nn.Module] = {}
        for path, module in model.named_modules(remove_duplicate=False):
            paths.setdefault(id(module), []).append(path)
            modules.setdefault(id(module), module)
        for key, module in modules.items():
            first, *others = paths[key]
            yield ModuleFacts(
                path=first,
                name=type(module).__name__,
                calls=self._calls.get(first, 0),
                eval_calls=self._eval_calls.get(first, 0),
                other_paths=tuple(others),
                has_parameters=any(one is not None for one in module._parameters.values()),
                dropout=_number_of(module, "p", "Dropout"),
                momentum=_number_of(module, "momentum", "BatchNorm"),
                frozen_by=self._frozen_by(first, module),
            )


def _number_of(module: nn.Module, name: str, kind: str) -> float | None:
    """An attribute of the modules of one kind, if it is a number."""
    value = getattr(module, name, None) if kind in type(module).__name__ else None
    return float(value) if isinstance(value, float | int) else None


def _shape(tensor: torch.Tensor) -> tuple[int, ...]:
    return () if tensor.is_nested else tuple(tensor.shape)


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _autocast_dtype(device: str) -> str:
    """The dtype of the autocast region that runs now; "" outside of one."""
    if not torch.is_autocast_enabled(device):
        return ""
    return str(torch.get_autocast_dtype(device)).removeprefix("torch.")


def _frozen_attribute(module: nn.Module) -> str:
    """An attribute of a module that says that parts of it are frozen, with its value."""
    for name, value in vars(module).items():
        if _FROZEN.search(name) and isinstance(value, bool | int) and value > 0:
            return f"{name}={value}"
    return ""


def _see_rows(state: ParameterState, rows: Array) -> None:
    state.has_equal_rows = are_equal(rows)


def _split_in_two(
    sizes: Sequence[int],
    see: Callable[[Sequence[Array], Sequence[Array]], None],
    both: Array,
) -> None:
    """Take apart arrays of these sizes, twice, that came as one."""
    parts = np.split(both.astype(np.float64), np.cumsum([*sizes, *sizes])[:-1])
    see(parts[: len(sizes)], parts[len(sizes) :])


def _is_number(value: Any) -> bool:
    # Reading a learning rate that is a tensor on a device would wait for the device.
    if isinstance(value, torch.Tensor):
        return value.device.type == "cpu" and value.numel() == 1
    return isinstance(value, float | int)


def losses_of(root: Any) -> Iterator[LossFacts]:
    """The loss functions in the graph of a loss, near its root."""
    steps: dict[Any, tuple[int, bool]] = {None: (0, True)}
    """For each node, how far the nodes before it are from the root, and if they are all of it."""
    for node, user in islice(nodes_behind(roots=[root], nearest_first=True), _MOST_NODES):
        depth, is_whole = steps[user]
        if depth > _DEEPEST:
            return
        shapes = _broadcast_shapes(node) if depth < _NEAR_LOSS else None
        name = node_name(node)
        terms = [one for one, _ in node.next_functions if one is not None]
        is_kl_div = shapes is None and _is_kl_div(node)
        if name.startswith(_LOSS_NODES) or shapes is not None or is_kl_div:
            first = next(iter(terms), None)
            yield LossFacts(
                function=KL_DIV if is_kl_div else name,
                before=tuple(_names_before(node))[is_kl_div:],
                input_shape=shapes[0] if shapes else gradient_shape(first) or (),
                target_shape=shapes[1] if shapes else (),
                is_whole=is_whole,
                is_broadcast=shapes is not None,
                softmax_dim=_softmax_before(first),
            )
        steps[node] = depth + 1, is_whole and len(terms) == 1


def _softmax_before(node: Any) -> int | None:
    """The dimension of a log_softmax, or of a softmax and a logarithm, that ends in a node."""
    if node is not None and node.name().startswith("LogBackward"):
        node = node.next_functions[0][0]
    return softmax_dim(node)


def _is_kl_div(node: Any) -> bool:
    """Whether a node computes target * log(target) - target * input; target has no gradient."""
    following = [one for one, _ in node.next_functions]
    if not node.name().startswith("Sub") or len(following) != 2 or following[0] is not None:
        return False
    product = following[1]
    terms = [one for one, _ in product.next_functions] if product is not None else []
    is_product = bool(terms) and product.name().startswith("Mul") and terms.count(None) == 1
    return is_product and gradient_shape(product) == gradient_shape(node)


def _names_before(node: Any) -> Iterator[str]:
    """The nodes of the operations before one, always following the first with a gradient."""
    for _ in range(8):
        node = next((one for one, _ in node.next_functions if one is not None), None)
        if node is None:
            return
        yield node_name(node)


def _broadcast_shapes(node: Any) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The shapes of an output and of its difference from the target, if it was expanded.

    A column of N values and a row of N values make a square of N × N. The target has no gradient;
    if both have one, as in a distance matrix, the square is intended.
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
