"""Tensors are found in whatever a forward takes or returns."""

from __future__ import annotations

import weakref
from collections import ChainMap, OrderedDict, UserDict, deque
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch

from torchglass.capture.tensor.description import named_tensors, tensors_of_call

A, B = torch.zeros(1), torch.zeros(2)


@dataclass
class Output:
    logits: torch.Tensor
    hidden: tuple[torch.Tensor, ...]


class Pair(NamedTuple):
    left: Any
    right: Any


@pytest.mark.parametrize(
    ("nest", "places"),
    [
        (A, [""]),
        (None, []),
        ("text", []),
        ((A, None, B), ["0", "2"]),
        ([A, [B]], ["0", "1.0"]),
        ({"a": A, 3: {"b": B}}, ["a", "3.b"]),
        (OrderedDict(a=A), ["a"]),
        (UserDict({"a": A}), ["a"]),
        (deque([A, B]), ["0", "1"]),
        (Pair(A, [B]), ["left", "right.0"]),
        (Output(A, (A, B)), ["logits", "hidden.0", "hidden.1"]),
        (torch.max(torch.zeros(2, 2), 0), ["0", "1"]),
    ],
)
def test_each_tensor_has_its_path_in_the_container(nest: Any, places: list[str]) -> None:
    assert [place for place, _ in named_tensors(nest)] == places


def test_arguments_are_numbered_or_named() -> None:
    places = [place for place, _ in tensors_of_call((A, [B]), {"mask": A, "extra": {"x": B}})]

    assert places == ["0", "1.0", "mask", "extra.x"]


def test_a_container_that_contains_itself_is_read_once() -> None:
    nest: list[Any] = [A]
    nest.append(nest)

    assert [place for place, _ in named_tensors(nest)] == ["0"]


def test_an_iterator_is_not_used_up() -> None:
    source = iter([A, B])

    assert list(named_tensors((source,))) == []
    assert next(source) is A


def test_ten_thousand_nested_containers_do_not_overflow_the_stack() -> None:
    nest: Any = A
    for _ in range(10_000):
        nest = [nest]

    ((_, tensor),) = named_tensors(nest)

    assert tensor is A


class Plain:
    def __init__(self, value: Any) -> None:
        self.value = value
        self.aux = {"loss": [B]}
        self.itself = self
        self.again = value


class Slotted:
    __slots__ = ("empty", "value")

    def __init__(self, value: Any) -> None:
        self.value = value


class MoreSlots(Slotted):
    __slots__ = ("more",)

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self.more = B


@dataclass(slots=True)
class SlottedOutput:
    logits: torch.Tensor


class Holder:
    def __init__(self) -> None:
        self.module = torch.nn.Linear(1, 1)
        self.optimizer = torch.optim.SGD(self.module.parameters())
        self.function = lambda: A
        self.kind = Plain


@pytest.mark.parametrize(
    ("nest", "places"),
    [
        (Plain(A), ["value", "aux.loss.0"]),
        ({"deep": [Plain(A)]}, ["deep.0.value", "deep.0.aux.loss.0"]),
        (Slotted(A), ["value"]),
        (MoreSlots(A), ["more", "value"]),
        (SlottedOutput(A), ["logits"]),
        (SimpleNamespace(a=A, b=(B,)), ["a", "b.0"]),
        (torch.distributions.Normal(A, 1.0), ["loc", "scale"]),
        (torch.distributions.Categorical(logits=torch.zeros(3)), ["logits"]),
        (
            torch.distributions.Independent(torch.distributions.Normal(A, torch.ones(1)), 0),
            ["base_dist.loc", "base_dist.scale"],
        ),
        (ChainMap({"a": A}), ["maps.0.a"]),
        (Holder(), []),
        ((A for _ in range(3)), []),
    ],
)
def test_a_tensor_is_found_in_the_attributes_of_an_object(nest: Any, places: list[str]) -> None:
    assert [place for place, _ in named_tensors(nest)] == places


def test_no_code_of_an_object_runs() -> None:
    class Asked:
        def __init__(self) -> None:
            self.value = A

        @property
        def computed(self) -> torch.Tensor:
            raise AssertionError("a property is not called")

        def __getattr__(self, name: str) -> Any:
            raise AssertionError("nothing is asked for by name")

        def __getattribute__(self, name: str) -> Any:
            raise AssertionError("nothing is asked for by name")

    assert [place for place, _ in named_tensors(Asked())] == ["value"]


def test_a_weak_reference_is_not_followed_whether_its_object_lives_or_not() -> None:
    living, gone = Plain(A), Plain(B)
    nest = [weakref.proxy(living), weakref.proxy(gone), B]
    del gone

    assert [place for place, _ in named_tensors(nest)] == ["2"]


def test_the_depth_of_object_chains_is_limited() -> None:
    first = Slotted(A)
    for _ in range(100_000):
        first = Slotted(first)

    assert list(named_tensors(first)) == []


def test_objects_among_arguments_are_not_searched() -> None:
    assert list(tensors_of_call((Plain(A),), {})) == []
