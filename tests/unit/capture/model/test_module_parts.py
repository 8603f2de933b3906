"""What an object that is no module holds of modules, and what a function uses of them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import torchglass as tg
from torchglass.capture.model.module_parts import module_parts

NET = nn.Linear(4, 2)
STAGES = {"first": nn.ReLU(), "second": nn.Tanh()}
UNUSED = nn.Linear(1000, 1000)


def unused(x: torch.Tensor) -> torch.Tensor:
    return x.sum()


def named(x: torch.Tensor) -> Any:
    return [NET(each) for each in x]


def staged(x: torch.Tensor) -> Any:
    return STAGES["first"](x)


def calling_another(x: torch.Tensor) -> Any:
    return named(x)


def with_such_an_attribute(x: Any) -> Any:
    return x.UNUSED


@torch.no_grad()
def decorated(x: torch.Tensor) -> Any:
    return NET(x)


class Pipeline:
    def __init__(self) -> None:
        self.encoder = nn.Linear(3, 3)

    def run(self, x: torch.Tensor) -> Any:
        return self.encoder(x)


def in_a_closure(net: Any) -> Callable[[torch.Tensor], Any]:
    def run(x: torch.Tensor) -> Any:
        return net(x)

    return run


def names(thing: object) -> list[str]:
    return [name for name, _ in module_parts(thing)]


def test_globals_a_function_does_not_use_are_not_its_modules() -> None:
    assert names(unused) == []
    assert tg.memory(named, torch.randn(3, 4), backward=False).parameters_bytes == 40
    assert "__globals__" not in str(tg.flops(unused, torch.randn(3, 4)))


def test_an_attribute_is_not_confused_with_a_global_of_the_same_name() -> None:
    assert names(with_such_an_attribute) == []


@pytest.mark.parametrize("function", [named, calling_another, decorated])
def test_modules_used_by_a_function_are_found(function: Any) -> None:
    assert module_parts(function) == [("NET", NET)]


def test_containers_of_modules_used_by_a_function_are_found() -> None:
    assert module_parts(staged) == [("STAGES", STAGES)]


def test_modules_in_the_closure_of_a_function_are_found_by_name() -> None:
    net = nn.Linear(2, 2)
    inner = in_a_closure(net)

    assert module_parts(inner) == [("net", net)]
    assert module_parts(in_a_closure(inner)) == [("net", net)]


def test_an_empty_closure_cell_is_skipped() -> None:
    def run(x: torch.Tensor) -> Any:
        return later(x)

    before = names(run)
    later = nn.ReLU()

    assert before == []
    assert names(run) == ["later"]


def test_modules_among_the_attributes_of_a_function_are_found() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        return x

    run.net = nn.ReLU()  # type: ignore[attr-defined]

    assert names(run) == ["net"]


def test_the_object_of_a_bound_method_is_found() -> None:
    assert module_parts(NET.forward) == [("__self__", NET)]
    assert names(Pipeline().run) == ["encoder"]


def test_the_function_and_arguments_of_a_partial_are_found() -> None:
    net = nn.ReLU()
    function: Any = named

    assert module_parts(functools.partial(NET)) == [("func", NET)]
    assert module_parts(functools.partial(NET.forward)) == [("__self__", NET)]
    assert names(functools.partial(function, net, key=net)) == ["NET", "args", "keywords"]
