"""Autograd Functions that have formulas of their own, counted as wholes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from torchglass.blocks import unbroken
from torchglass.capture.flops.counting import CountingMode
from torchglass.capture.flops.registry import registered_functions
from torchglass.capture.flops.rules import Rule, rule_of_function


@unbroken
def counting_functions(mode: CountingMode) -> Iterator[None]:
    """Count the registered Functions by their formulas, and nothing that runs inside of them."""
    with contextlib.ExitStack() as stack:
        for function, formulas in registered_functions():
            name = function.__name__
            if formulas.forward is not None:
                rule = rule_of_function(name, formulas.forward)
                stack.enter_context(_counted(mode, rule, function, "forward"))
            if formulas.backward is not None:
                rule = rule_of_function(f"{name}Backward", formulas.backward)
                stack.enter_context(_counted(mode, rule, function, "backward"))
        yield


@unbroken
def _counted(mode: CountingMode, rule: Rule, owner: Any, name: str) -> Iterator[None]:
    """Let a Function have a method that is counted until the block ends."""
    run: Callable[..., Any] = getattr(owner, name)
    own = vars(owner).get(name)
    # Autograd hands its context to a backward, and to a forward that saves things itself.
    has_context = name == "backward" or _saves_in_forward(owner)

    def counted(*args: Any) -> Any:
        return mode.count_whole(rule, run, args, args[has_context:])

    setattr(owner, name, staticmethod(counted))
    try:
        yield
    finally:
        if own is None:
            delattr(owner, name)
        else:
            setattr(owner, name, own)


def _saves_in_forward(function: Any) -> bool:
    return bool(function.setup_context is torch.autograd.Function.setup_context)
