"""Tensors are found in whatever a forward takes or returns."""

from __future__ import annotations

from collections import OrderedDict, UserDict, deque
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch

from torchglass.capture.places import tensors_in, tensors_of_call

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
def test_each_tensor_has_its_place(nest: Any, places: list[str]) -> None:
    assert [place for place, _ in tensors_in(nest)] == places


def test_arguments_are_numbered_or_named() -> None:
    places = [place for place, _ in tensors_of_call((A, [B]), {"mask": A, "extra": {"x": B}})]

    assert places == ["0", "1.0", "mask", "extra.x"]


def test_a_container_that_holds_itself_is_read_once() -> None:
    nest: list[Any] = [A]
    nest.append(nest)

    assert [place for place, _ in tensors_in(nest)] == ["0"]


def test_an_iterator_is_not_used_up() -> None:
    source = iter([A, B])

    assert list(tensors_in((source,))) == []
    assert next(source) is A


def test_a_nest_ten_thousand_deep_does_not_exhaust_the_stack() -> None:
    nest: Any = A
    for _ in range(10_000):
        nest = [nest]

    ((_, tensor),) = tensors_in(nest)

    assert tensor is A
