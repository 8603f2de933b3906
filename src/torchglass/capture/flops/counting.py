"""Counts what every kernel computes, as it is dispatched.

tally = Tally(model.named_modules())
with recording(tally), CountingMode(tally):
    model(x).sum().backward()
tally.ops()
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torchglass.capture.flops.rules import Rule, rule_of
from torchglass.capture.flops.tally import Tally
from torchglass.capture.timing.clocks import Clock
from torchglass.capture.trace.dispatch import LookingMode
from torchglass.capture.trace.kernels import is_made_of_others
from torchglass.errors import warn


class CountingMode(LookingMode):  # type: ignore[no-untyped-call]
    """Adds the work of every kernel to a tally, and with a clock the time that it took."""

    def __init__(self, tally: Tally, clock: Clock | None = None) -> None:
        super().__init__()
        self._tally = tally
        self._clock = clock
        self._rules: dict[Any, Rule] = {}
        # Whether what runs is part of something that is counted as a whole.
        self._is_paused = False
        self._warned = False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if types and any(hasattr(kind, "__tensor_flatten__") for kind in types):
            # A tensor made of others: what it does with those comes by next.
            return NotImplemented
        rule = self._rules.get(func)
        if rule is None:
            rule = self._rules[func] = rule_of(func)
        if rule.opens and is_made_of_others(func, args, kwargs):
            with self:
                return func.decompose(*args, **kwargs)
        return self._run(rule, func, args, kwargs, args)

    def count_whole(
        self, rule: Rule, run: Callable[..., Any], args: tuple[Any, ...], given: tuple[Any, ...]
    ) -> Any:
        """Run something that is no kernel, and count it by a rule instead of what it runs."""
        was_paused, self._is_paused = self._is_paused, True
        try:
            return self._run(rule, run, args, {}, given, paused=was_paused)
        finally:
            self._is_paused = was_paused

    def _run(
        self,
        rule: Rule,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        given: tuple[Any, ...],
        *,
        paused: bool | None = None,
    ) -> Any:
        if self._clock is None:
            output = func(*args, **kwargs)
            marks: tuple[Any, ...] = ()
        else:
            start = self._clock.mark()
            output = func(*args, **kwargs)
            marks = start, self._clock.mark()
        if not (self._is_paused if paused is None else paused):
            self._count(rule, given, kwargs, output, marks)
        return output

    def _count(
        self,
        rule: Rule,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        output: Any,
        marks: tuple[Any, ...],
    ) -> None:
        flops: int | None = 0
        moved, nature = 0, rule.nature
        try:
            if rule.moves is not None:
                moved = rule.moves(args, output)
            if rule.flops is not None:
                flops = rule.flops(args, kwargs, output)
        except Exception as problem:  # noqa: BLE001 - no error of ours may stop the user's forward
            flops = None
            self._warn(rule.name, problem)
        if flops is None:
            flops, nature = 0, "uncounted"
        self._tally.add(rule.name, nature, flops=flops, moved=moved, marks=marks)

    def _warn(self, name: str, problem: Exception) -> None:
        if not self._warned:
            self._warned = True
            warn(f"the formula of {name} failed, so it is not counted: {problem!r}")
