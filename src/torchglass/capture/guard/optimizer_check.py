"""Checks what optimizer steps leave in the parameters."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from torchglass.blocks import unbroken
from torchglass.capture.guard.evidence import Exhibit, Spot, blame, user_source
from torchglass.capture.guard.finding_report import Desk
from torchglass.capture.guard.op_check import OpCheck
from torchglass.capture.guard.tensor_health import Health, look_again
from torchglass.capture.hidden_from_modes import quietly
from torchglass.records.findings import Finding


@unbroken
def watching_updates(op_check: OpCheck, desk: Desk) -> Iterator[None]:
    """Look at the parameters of a model after each step that an optimizer takes with them."""

    def before(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if threading.get_ident() != op_check.thread:
            return
        try:
            if desk.has_unchecked and not is_held_back(optimizer):
                with quietly():
                    are_finite = not any(spoiled_gradients(optimizer, desk))
                desk.gradients_used(are_finite=are_finite)
        except Exception as problem:  # noqa: BLE001 - see Desk.miss
            desk.miss(problem)
        op_check.is_updating = True

    def after(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if threading.get_ident() != op_check.thread:
            return
        op_check.is_updating = False
        try:
            with quietly():
                finding = _judge(optimizer, desk)
            if finding is not None:
                desk.report(finding)
        except Exception as problem:  # noqa: BLE001 - see Desk.miss
            desk.miss(problem)

    with contextlib.ExitStack() as stack:
        stack.callback(register_optimizer_step_pre_hook(before).remove)
        stack.callback(register_optimizer_step_post_hook(after).remove)
        yield


def trained_by(optimizer: Optimizer, desk: Desk) -> Iterator[tuple[str, torch.Tensor]]:
    """The parameters of the model that an optimizer changes, by name."""
    names = desk.held.parameters
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if id(parameter) in names:
                yield names[id(parameter)], parameter


def spoiled_gradients(optimizer: Optimizer, desk: Desk) -> Iterator[tuple[str, torch.Tensor]]:
    """The gradients with NaN or Inf that an optimizer is about to use, by parameter."""
    for name, parameter in trained_by(optimizer, desk):
        gradient = parameter.grad
        if gradient is not None and look_again(gradient) > Health.NEAR:
            yield name, gradient


def is_held_back(optimizer: Optimizer) -> bool:
    """Whether a `GradScaler` has told an optimizer itself that it is to skip its step."""
    found: torch.Tensor | None = getattr(optimizer, "found_inf", None)
    return found is not None and bool(found.item())


def _judge(optimizer: Optimizer, desk: Desk) -> Finding | None:
    """The first parameter that a step spoiled although its gradient was finite."""
    for name, parameter in trained_by(optimizer, desk):
        health = look_again(parameter)
        if health <= Health.NEAR:
            continue
        gradient = parameter.grad
        is_old = gradient is not None and look_again(gradient) > Health.NEAR
        path = name.rpartition(".")[0]
        spot = Spot(f"{type(optimizer).__name__}.step", path, 0, user_source(), "optimizer")
        if is_old or not desk.is_news(health, spot._replace(path=name)):
            continue
        exhibits = [] if gradient is None else [Exhibit("gradient", "gradient", gradient)]
        result = Exhibit(name.rpartition(".")[2], "argument", parameter)
        return blame(spot, health, result, exhibits, desk.held)
    return None
