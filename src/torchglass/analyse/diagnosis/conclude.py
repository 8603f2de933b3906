"""Draws the conclusion from what the rules found: what is the cause, and what follows from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torchglass.analyse.diagnosis import (  # noqa: F401 - each file adds its rules
    activation_rules,
    data_rules,
    dynamics_rules,
    gradient_rules,
    learning_rate_rules,
    loss_rules,
    optimizer_rules,
    setup_rules,
)
from torchglass.analyse.diagnosis.gradient_rules import with_flat_operation
from torchglass.analyse.diagnosis.rule import RULES, Rule, findings_of
from torchglass.analyse.diagnosis.training_view import TrainingView, is_loss
from torchglass.records.findings import Finding

_SEVERITIES = ("error", "warning", "info")
_NUMBERS = ("nan", "inf")
_LOSS_RANK, _BACKWARD_RANK = 3, 4
_AT_ZERO = (
    "Look in the loss for sqrt, norm, pow or log at 0, where the slope is infinite: add an epsilon "
    "inside, (d**2).sum(-1).add(1e-12).sqrt(). `with torch.autograd.detect_anomaly():` around the "
    "step names the line"
)
_FAMILIES = ("set-up", "optimizer", "gradients", "activations", "dynamics")
"""The order of findings of equal weight."""


def conclude(view: TrainingView) -> tuple[Finding, ...]:
    """All findings of a training, causes first; what follows from a cause is counted with it."""
    at_steps = [with_flat_operation(one, view) for one in view.findings]
    events = _one_event_each([*at_steps, *findings_of(view, RULES.values())])
    causes = _without_consequences(events)
    return tuple(map(_complete, sorted(causes, key=_weight)))


def _complete(one: Finding) -> Finding:
    """A finding with what to do, and what shows more."""
    rule = RULES.get(one.kind)
    usual = rule.remedy if rule is not None else ""
    return replace(one, remedy=one.remedy or usual, see=one.see or _see(one))


def all_rules() -> dict[str, Rule]:
    """Every rule by kind, those of the user included."""
    return RULES


def _weight(one: Finding) -> tuple[int, int, float, int]:
    rule = RULES.get(one.kind)
    order = _FAMILIES.index(rule.family) if rule and rule.family in _FAMILIES else -1
    return (
        _SEVERITIES.index(one.severity),
        0 if one.first_step is None else one.first_step,
        -one.confidence,
        order,
    )


def _family(kind: str) -> str:
    """Kinds that are one event: NaN and Inf spread into each other."""
    return "non-finite" if kind in _NUMBERS else kind


def _one_event_each(found: Sequence[Finding]) -> list[Finding]:
    """One finding for each kind of event: where it began, and how far it spread."""
    events: dict[tuple[str, str], list[Finding]] = {}
    for one in found:
        events.setdefault((_family(one.kind), one.severity), []).append(one)
    merged = []
    for same in events.values():
        begun = _before_any_update(same)
        first = _backward_origin(begun) or _loss_gradient(begun) or min(begun, key=_origin)
        # A guard names the first operation; the later ones that it saw only pass the values on.
        rest = (one for one in same if one is not first)
        others = [one.message for one in rest if not (first.op and one.tensors)]
        if first.kind in _NUMBERS and not first.remedy:
            first = replace(first, remedy=_remedy(first))
        merged.append(
            replace(
                first,
                consequences=(*first.consequences, *others),
                facts={**first.facts, **({"spread to": len(others)} if others else {})},
            )
        )
    return merged


def _before_any_update(same: Sequence[Finding]) -> Sequence[Finding]:
    """Without the forwards of a step that came after its first update, as in a GAN.

    Findings are in the order of measurement: what enters and leaves modules after the gradients of
    parameters was computed with the new weights.
    """
    step = min(one.first_step or 0 for one in same)
    kept, has_gradients = [], False
    for one in same:
        is_first = (one.first_step or 0) == step and one.kind in _NUMBERS
        name = _series_name(one)
        is_flow = name.startswith(("input", "output"))
        has_gradients = has_gradients or (is_first and not is_flow and name.endswith(".grad"))
        if not (is_first and has_gradients and is_flow and one.phase != "backward"):
            kept.append(one)
    return kept


def _series_name(one: Finding) -> str:
    """The name of the series of a finding, without the module, the call and the mode."""
    return one.series.removeprefix(one.path).removeprefix(".").rpartition(":")[2]


_SHOWN_BY = {
    "out-of-memory": "tg.memory(model, batch)",
    "dtype-mix": "tg.trace(model, batch)",
    "loss-broadcast": "tg.trace(model, batch)",
    "no-gradient": "tg.trace(model, batch)",
    "shared-module": "tg.summary(model)",
    "module-never-called": "tg.summary(model, batch)",
    "straggler": "run.compare_ranks()",
}


def _see(one: Finding) -> str:
    """The verb that shows more of a finding; `run` is the opened run."""
    if one.kind in _NUMBERS:
        return "with tg.guard(model): around the step"
    if one.kind in _SHOWN_BY:
        return _SHOWN_BY[one.kind]
    return f'run["{one.series}"]' if one.series else "tg.explore(run)"


def _remedy(one: Finding) -> str:
    """What to do about NaN or Inf that began here."""
    rank = _origin(one)[1]
    if rank == 0:
        return "Look at that batch: the data has NaN or Inf. torch.isfinite(x).all() finds it"
    if rank == _LOSS_RANK:
        return (
            "Look at the loss function: what goes into log, sqrt or a division may be 0. "
            "`with tg.guard(model):` around the loss names the operation"
        )
    if one.series.endswith((".grad", ".grad_norm")):
        return (
            "Run that step in `with tg.guard(model):`, which names the operation. Usual causes: "
            "sqrt or norm at 0, log of 0, division by 0"
        )
    return "Run that batch in `with tg.guard(model):`, which names the operation and its operands"


def _backward_origin(same: Sequence[Finding]) -> Finding | None:
    """Where a gradient became NaN or Inf, if all values before it were finite.

    That is the innermost module to which a finite gradient came and from which a bad one left.
    """
    step = min((one.first_step or 0 for one in same), default=0)
    at_once = [one for one in same if (one.first_step or 0) == step]
    if at_once[0].kind not in _NUMBERS or any(_origin(one)[1] < _BACKWARD_RANK for one in at_once):
        return None
    reached = {one.path for one in at_once if ".output" in f".{one.series}"}
    left = [one for one in at_once if one.path not in reached and one.phase == "backward"]
    return max(left, key=lambda one: one.path.count(".") + bool(one.path), default=None)


def _loss_gradient(same: Sequence[Finding]) -> Finding | None:
    """The gradient that came to the model, if that is already NaN or Inf after a finite forward."""
    step = min((one.first_step or 0 for one in same), default=0)
    at_once = [one for one in same if (one.first_step or 0) == step]
    if at_once[0].kind not in _NUMBERS or any(_origin(one)[1] < _BACKWARD_RANK for one in at_once):
        return None
    came = (one for one in at_once if not one.path and _series_name(one).startswith("output"))
    first = next(came, None)
    return None if first is None else replace(first, message=_of_the_loss(first), remedy=_AT_ZERO)


def _of_the_loss(one: Finding) -> str:
    which = "NaN" if one.kind == "nan" else "Inf"
    return (
        f"The gradient of the loss is {which} at the output of the model since step "
        f"{one.first_step or 0}, although all values before were finite: it began in the loss"
    )


def _origin(one: Finding) -> tuple[int, int]:
    """Sort key by distance to the cause: in a step first inputs, then the forward, then the rest.

    A finding of the same step and place in this order is the first that was measured.
    """
    step = -1 if one.first_step is None else one.first_step
    if one.kind not in _NUMBERS:
        return step, 0
    if one.op:
        # A guard has seen the operation itself.
        return step, -1
    name = _series_name(one)
    is_flow = name.startswith(("input", "output"))
    if one.phase == "backward":
        return step, _BACKWARD_RANK if is_flow else 5
    if not one.path and name.startswith("input"):
        return step, 0
    if is_flow:
        # What enters a module has left another one, or was computed between them.
        return step, 1
    return step, _LOSS_RANK if not one.path and is_loss(name) else 6


def _without_consequences(events: Sequence[Finding]) -> list[Finding]:
    """The findings that no other one explains, with what they explain as consequences."""
    kept = {id(one): one for one in events}
    followed: dict[int, list[Finding]] = {}
    for one in events:
        cause = next(
            (
                other
                for other in events
                if other is not one and _explains(other, one) and not _explains(one, other)
            ),
            None,
        )
        if cause is not None:
            del kept[id(one)]
            followed.setdefault(id(cause), []).append(one)
    return [_with_consequences(one, followed.get(key, [])) for key, one in kept.items()]


def _with_consequences(one: Finding, followed: Sequence[Finding]) -> Finding:
    """A cause, with what followed from it; a cause of NaN or Inf is as severe as they are."""
    severities = [one.severity, *(each.severity for each in followed if each.kind in _NUMBERS)]
    return replace(
        one,
        severity=min(severities, key=_SEVERITIES.index),
        consequences=(*one.consequences, *(each.message for each in followed)),
    )


def _explains(cause: Finding, effect: Finding) -> bool:
    rule: Rule | None = RULES.get(cause.kind)
    if rule is None or effect.kind not in rule.explains or cause.severity == "info":
        return False
    # A plateau is of the whole training, whenever its cause began.
    is_of_all = effect.kind == "loss-plateau"
    return is_of_all or (cause.first_step or 0) <= (effect.first_step or effect.step or 0)
