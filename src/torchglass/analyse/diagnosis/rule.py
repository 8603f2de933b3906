"""What a rule is, and the list of all rules.

A rule is a function from a recorded training to findings:

    @rule("lr-zero", family="optimizer", title="The learning rate is 0", explains=("loss-plateau",))
    def lr_zero(view: TrainingView) -> Iterator[Finding]:
        '''Every optimizer steps at a learning rate of 0, so nothing moves.'''
        if ...:
            yield finding("lr-zero", "The learning rate is 0 since step 40", first_step=40)

`explains` names the kinds that follow from this one: they are counted as its consequences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torchglass.analyse.diagnosis.training_view import TrainingView
from torchglass.records.findings import Finding, Severity

Check = Callable[[TrainingView], Iterable[Finding]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A kind of problem, and the function that finds it."""

    kinds: tuple[str, ...]
    """Stable names of what it finds, in kebab case: "lr-zero"."""
    family: str
    """What it is about: "gradients", "optimizer", "activations", "set-up" or "dynamics"."""
    title: str
    """The problem in a few words."""
    check: Check
    remedy: str = ""
    """What to change, for findings that do not say it themselves."""
    explains: tuple[str, ...] = ()
    """The kinds of findings that follow from this one."""

    @property
    def text(self) -> str:
        """The text for the documentation."""
        return (self.check.__doc__ or self.title).strip()


DAMAGE = (
    *("nan", "inf", "loss-diverges", "loss-spike", "loss-plateau", "exploding-gradient"),
    *("dead-units", "saturated", "attention-collapse"),
    *("attention-logit-growth", "growing-activations", "constant-output"),
    *("output-logit-growth", "update-growth"),
    *("representation-collapse", "vanishing-gradient", "no-gradient"),
)
"""What updates that are far too large may do to a model."""

RULES: dict[str, Rule] = {}
"""All rules by kind, in the order in which findings of equal weight are reported."""


def rule(
    *kinds: str,
    family: str = "own",
    title: str = "",
    remedy: str = "",
    explains: tuple[str, ...] = (),
) -> Callable[[Check], Check]:
    """Add a rule to the diagnosis.

    Args:
        kinds: The kinds of findings that it yields, in kebab case.
        family: What it is about; your own rules have "own".
        title: The problem in a few words.
        remedy: What to change, for findings that do not say it themselves.
        explains: Kinds of findings that follow from this one and are counted with it.

    Returns:
        A decorator for a function that is given a recorded training and yields findings.

    Example:
        >>> @rule("lr-above-one", title="The learning rate is above 1")
        ... def lr_above_one(training):
        ...     if max(training.facts.lr.values, default=0) > 1:
        ...         yield finding("lr-above-one", "The learning rate is above 1")
    """

    def add(check: Check) -> Check:
        made = Rule(
            kinds=kinds,
            family=family,
            title=title or kinds[0].replace("-", " "),
            check=check,
            remedy=remedy,
            explains=explains,
        )
        RULES.update(dict.fromkeys(kinds, made))
        return check

    return add


def finding(
    kind: str,
    message: str,
    *,
    severity: Severity = "warning",
    path: str = "",
    evidence: dict[str, Any] | None = None,
    **more: Any,
) -> Finding:
    """A finding of a rule; `more` are fields of `Finding`."""
    first = more.get("first_step")
    return Finding(
        severity=severity,
        kind=kind,
        message=message,
        path=path,
        facts=evidence or {},
        step=more.pop("step", first),
        **more,
    )


def findings_of(view: TrainingView, rules: Iterable[Rule]) -> Iterator[Finding]:
    """What rules find; a rule that fails finds nothing, and the others still do."""
    for one in dict.fromkeys(rules):
        yield from _checked(one, view)


def _checked(one: Rule, view: TrainingView) -> list[Finding]:
    try:
        return list(one.check(view))
    except Exception as error:  # noqa: BLE001 - one broken rule must not hide what others find
        message = f"The rule {one.kinds[0]} failed: {type(error).__name__}: {error}"
        return [finding("rule-failed", message, severity="info")]


def named(path: str) -> str:
    """A module or parameter in a sentence."""
    return f"`{path}`" if path else "the model"


def code_of(path: str) -> str:
    """A module or parameter as it is written in code: `model.blocks[3].fc`."""
    parts = path.split(".") if path else []
    return "model" + "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in parts)


def share(value: float) -> str:
    """A share in percent."""
    return f"{value:.0%}"


def short(value: float) -> str:
    """A number with two digits."""
    return f"{value:.2g}"
