"""Facts about a training that its series do not show: optimizers, gradients, modes and the loss.

They are a summary: each version of the record replaces the one before.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchglass.records.trace import SourceLine


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """A few values over steps; a long training keeps only some steps."""

    steps: tuple[int, ...] = ()
    values: tuple[float, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerFacts:
    """An optimizer, and the settings of its parameter groups."""

    name: str
    """Its class: "AdamW"."""
    lr: tuple[float, ...] = ()
    """The latest learning rate of each group."""
    weight_decay: tuple[float, ...] = ()
    foreign_shapes: tuple[str, ...] = ()
    """The shapes of its parameters that are not in the model: "64×10"."""
    steps: int = 0
    """How often it has stepped."""
    is_maximizing: bool = False
    """Whether it raises the loss: it was created with maximize=True."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterFacts:
    """A parameter, who trains it, and what happened to it."""

    name: str
    """Its dotted name."""
    shape: tuple[int, ...] = ()
    dtype: str = "float32"
    requires_grad: bool = True
    optimizer: int | None = None
    """The index of the optimizer that trains it."""
    with_gradient: int = 0
    """The number of recorded updates at which it had a gradient."""
    without_gradient: int = 0
    updates: Track = Track()
    """The size of its updates relative to its own size, from a sample of its values."""
    kept: Track = Track()
    """How far it is from where it was before the update that was last looked at, in sizes of that
    update: about 1 at the next one, 0 if it was put back."""
    moved: Track = Track()
    """For a parameter in half precision: the share of its values that an update changed."""
    has_equal_rows: bool = False
    """Whether all its rows had the same values when it was last examined."""
    same_values_as: str = ""
    """Another parameter that began with the same values, maybe transposed, but is not the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleFacts:
    """What is known about a module beyond its series."""

    path: str
    name: str
    """Its class: "Dropout"."""
    calls: int = 0
    """Calls in recorded forwards that were trained on."""
    eval_calls: int = 0
    """Those of them in eval mode."""
    other_paths: tuple[str, ...] = ()
    """Further paths at which the model holds the same module."""
    has_parameters: bool = False
    dropout: float | None = None
    """The probability of a dropout module."""
    is_registered: bool = True
    """Whether it is part of the model; one in a plain list is not."""
    momentum: float | None = None
    """The share of each batch in the running statistics of a batch norm."""
    frozen_by: str = ""
    """An attribute that says that its parameters are frozen: "frozen_stages=2"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A measurement of one operation in closely examined forwards."""

    path: str
    function: str
    """torch's name: "softmax"."""
    measure: str
    """What was measured: "entropy", "saturated", "dead units"."""
    track: Track
    source: SourceLine | None = None


FLAT_OPERATIONS = ("round", "floor", "ceil", "sign", "trunc")
"""Operations whose gradient is 0 everywhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientStop:
    """An operation through which no gradient flows, or only zeros, although its input needs one."""

    path: str
    function: str
    source: SourceLine | None = None
    is_in_no_grad: bool = False
    """Whether gradients were switched off around it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpSite:
    """An operation of the forward, and where it stands in the code."""

    path: str
    function: str
    source: SourceLine | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFacts:
    """A tensor that the model is given."""

    place: str
    """"0" for the first positional argument, "mask" for a keyword."""
    shape: tuple[int, ...] = ()
    dtype: str = ""


KL_DIV = "KlDiv"
"""The function of a `kl_div`, for which autograd has no node of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossFacts:
    """How the loss is computed from the output of the model."""

    function: str = ""
    """The autograd node of the loss function: "NllLossBackward0"."""
    before: tuple[str, ...] = ()
    """The nodes between the loss function and the parameters, from the loss on."""
    input_shape: tuple[int, ...] = ()
    target_shape: tuple[int, ...] = ()
    is_whole: bool = False
    """Whether the loss has no other term: it is this one, maybe scaled or negated."""
    is_broadcast: bool = False
    """Whether input and target have different shapes and were expanded to a larger one."""
    softmax_dim: int | None = None
    """The dimension of a softmax right before the loss; None if there is none, or it is unknown."""


@dataclass(frozen=True, kw_only=True)
class TrainingFacts:
    """What is known of a training beside its series."""

    optimizers: tuple[OptimizerFacts, ...] = ()
    parameters: tuple[ParameterFacts, ...] = ()
    modules: tuple[ModuleFacts, ...] = ()
    probes: tuple[Probe, ...] = ()
    gradient_stops: tuple[GradientStop, ...] = ()
    losses: tuple[LossFacts, ...] = ()
    idle_optimizers: tuple[OptimizerFacts, ...] = ()
    """Optimizers that step without any gradient, and have no parameter of the model."""
    lr: Track = Track()
    """The largest learning rate of all optimizers."""
    updates: int = 0
    """The number of recorded updates."""
    backwards: int = 0
    """The number of recorded backwards."""
    scales: Track = Track()
    """The scale of a `GradScaler`, by the number of the backward."""
    modes: Track = Track()
    """1 for an update after a forward in training mode, 0 for one in eval mode."""
    upcasts: tuple[OpSite, ...] = ()
    """Operations of a model in half precision that computed in a larger dtype."""
    autocast: str = ""
    """The dtype of the autocast region that the model runs in."""
    islands: tuple[OpSite, ...] = ()
    """Matrix products and convolutions that ran in float32 inside of that region."""
    active_dropouts: tuple[OpSite, ...] = ()
    """Operations of a forward in eval mode that dropped values."""
    eval_step: int = 0
    """The step of the first forward in eval mode that dropped values."""
    stale_gradients: Track = Track()
    """1 at a step whose backward added to gradients that an earlier update had used, else 0."""
    inputs: tuple[InputFacts, ...] = ()
    """The tensors that the model is given."""
    repeats: Track = Track()
    """1 for a step with the same batch as the step before, else 0."""
    batches: int = 0
    """How many different batches there were."""
