"""A live model looked into, and left as it was."""

from __future__ import annotations

import doctest
import random
from collections import OrderedDict, deque
from functools import cached_property
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests import models
from torchglass.capture import live_object as live_module
from torchglass.capture.live_object import LiveObject
from torchglass.errors import LookupFailedError
from torchglass.records.model import Attribute, LiveModel


class Odd(nn.Module):
    """Everything that can go wrong when a module is looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 4)
        self.register_buffer("mask", torch.ones(2, 2))
        self.calls = 0
        self.numbers = list(range(100_000))
        self.mixed = {1: "one", "two": 2, None: [], (1, 2): {}, 3.5: object()}
        self.itself = [self]
        self.rude = Rude()
        self.array = np.arange(6.0).reshape(2, 3)
        self._secret = "hidden"

    @property
    def counted(self) -> int:
        self.calls += 1
        return self.calls

    @property
    def broken(self) -> int:
        raise ValueError("[/red] no\nsuch thing")

    @property
    def leaving(self) -> int:
        raise SystemExit(3)

    @property
    def drawn(self) -> float:
        return random.random() + float(torch.rand(()))

    @cached_property
    def heavy(self) -> list[int]:
        self.calls += 1
        return [1, 2]


class Rude:
    """An object that answers no question."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("no attributes")

    def __len__(self) -> int:
        raise RuntimeError("no length")

    def __bool__(self) -> bool:
        raise RuntimeError("neither")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("not comparable")

    __hash__ = None  # type: ignore[assignment]


@pytest.fixture
def odd() -> Odd:
    return Odd()


def parts(live: LiveModel, path: str = "", **options: Any) -> dict[str, Attribute]:
    page = live.open(live.module(path).id, **options)
    return {attribute.name: attribute for attribute in page.attributes}


def test_tensors_and_modules_come_before_other_attributes(odd: Odd) -> None:
    found = parts(LiveObject(odd))

    assert [(name, one.role) for name, one in found.items()][:4] == [
        ("mask", "buffer"),
        ("layer", "module"),
        ("training", "attribute"),
        ("calls", "attribute"),
    ]


def test_a_long_or_multi_line_text_can_be_opened() -> None:
    module = nn.Module()
    module.short, module.long, module.lines = "a", "x" * 201, "a\nb"  # type: ignore[assignment]
    module.endless = "y" * 100_003  # type: ignore[assignment]
    live = LiveObject(module)

    found = parts(live)

    assert {name for name, one in found.items() if one.reads} == {"long", "lines", "endless"}
    assert live.text(found["lines"].id) == "a\nb"
    assert live.text(found["endless"].id).endswith("y\n… and 3 more characters")


def test_no_property_is_called_before_it_is_opened(odd: Odd) -> None:
    live = LiveObject(odd)

    found = parts(live)
    before = odd.calls
    opened = live.call(found["counted"].id)

    assert found["counted"] == Attribute(id=found["counted"].id, name="counted", role="property")
    assert found["heavy"].role == "property"
    assert before == 0
    assert (opened.text, opened.type_name) == ("1", "int")


def test_the_exception_of_a_property_is_shown(odd: Odd) -> None:
    live = LiveObject(odd)
    found = parts(live)

    assert live.call(found["broken"].id).problem == "ValueError: [/red] no such thing"
    assert live.call(found["leaving"].id).problem == "SystemExit: 3"


def test_a_property_that_draws_random_numbers_does_not_change_the_random_state(odd: Odd) -> None:
    live = LiveObject(odd)
    found = parts(live)
    before = random.getstate(), torch.get_rng_state()

    live.call(found["drawn"].id)

    assert random.getstate() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])


def test_an_object_whose_repr_raises_is_one_row(odd: Odd) -> None:
    live = LiveObject(odd)
    rude = parts(live)["rude"]

    assert rude.problem == "its repr raised RuntimeError: no repr"
    assert live.open(rude.id).attributes == ()


def test_a_long_list_is_read_a_page_at_a_time(odd: Odd) -> None:
    live = LiveObject(odd)
    numbers = parts(live)["numbers"]

    page = live.open(numbers.id, start=99_990, most=100)

    assert numbers.text == "100,000 items"
    assert (page.start, page.total) == (99_990, 100_000)
    assert [one.name for one in page.attributes][-1] == "[99999]"
    assert page.attributes[0].text == "99990"


def test_a_dict_may_have_keys_that_cannot_be_sorted(odd: Odd) -> None:
    live = LiveObject(odd)

    page = live.open(parts(live)["mixed"].id)

    names = [one.name for one in page.attributes]
    assert names == ["[1]", "['two']", "[None]", "[(1, 2)]", "[3.5]"]
    assert [one.opens for one in page.attributes] == [False, False, False, False, True]


def test_a_circular_reference_is_marked_and_can_be_followed(odd: Odd) -> None:
    live = LiveObject(odd)

    (again,) = live.open(parts(live)["itself"].id).attributes

    assert again.encloses
    assert "layer" in {one.name for one in live.open(again.id).attributes}


def test_a_tensor_is_described_and_not_printed(odd: Odd) -> None:
    weight = parts(LiveObject(odd), "layer")["weight"]

    assert weight.role == "parameter"
    assert weight.spec is not None
    assert weight.spec.shape == (4, 3)
    assert weight.text == ""


def test_a_numpy_array_is_shown_as_a_tensor(odd: Odd) -> None:
    live = LiveObject(odd)
    array = parts(live)["array"]

    assert array.spec is not None
    assert live.values(array.id, (None, None), range(2), range(3)).tolist() == [
        [0, 1, 2],
        [3, 4, 5],
    ]


def test_an_array_that_torch_does_not_support_is_not_a_tensor() -> None:
    net = nn.Identity()
    net.words = np.array(["a", "b"])  # type: ignore[assignment]

    words = parts(LiveObject(net))["words"]

    assert words.spec is None


def test_private_names_and_methods_are_shown_on_request(odd: Odd) -> None:
    live = LiveObject(odd)

    shown, everything = parts(live), parts(live, everything=True, most=1000)

    assert "_secret" not in shown
    assert "forward" not in shown
    assert everything["_secret"].text == "'hidden'"
    assert everything["state_dict"].role == "method"
    assert not everything["state_dict"].opens


def test_recorded_tensors_come_first(odd: Odd) -> None:
    output = torch.zeros(2, 4)
    live = LiveObject(odd, {"layer": {"output": output}})

    names = list(parts(live, "layer"))
    second = live.open(live.module("layer").id, start=1, most=2)

    assert names[:2] == ["output", "weight"]
    assert [one.name for one in second.attributes] == ["weight", "bias"]
    assert second.total == len(names)


def test_opening_another_module_releases_the_previous_one(odd: Odd) -> None:
    live = LiveObject(odd)
    before = parts(live)["numbers"]
    live.module("layer")

    with pytest.raises(LookupFailedError, match="reload this one"):
        live.open(before.id)


def test_values_of_a_non_tensor_are_refused(odd: Odd) -> None:
    live = LiveObject(odd)

    with pytest.raises(LookupFailedError, match="numbers is not a tensor"):
        live.facts(parts(live)["numbers"].id)


def test_a_missing_module_is_named(odd: Odd) -> None:
    with pytest.raises(LookupFailedError, match=r"no longer has a module 'layer\.2'"):
        LiveObject(odd).module("layer.2")


def test_a_pipeline_is_opened_by_the_paths_of_its_record() -> None:
    pipeline = {"a.b": [nn.Linear(1, 2)], "a": nn.Linear(3, 3)}

    found = parts(LiveObject(pipeline), "a.b.0")

    assert found["out_features"].text == "2"


def test_a_module_that_references_its_parent_is_found() -> None:
    found = parts(LiveObject(models.ContainsItself()), "child.parent")

    assert set(found) >= {"layer", "child"}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ((3, 3), "(3, 3)"),
        ([], "empty"),
        ([object()], "1 item"),
        ({1, 2}, "2 items"),
        (OrderedDict(a=1), "1 item"),
        (deque([1, 2, 3]), "3 items"),
        ("x" * 1000, repr("x" * 200) + "… 1,000 in total"),
        (torch.float16, "torch.float16"),
        (nn.Linear, "torch.nn.modules.linear.Linear"),
        (object(), ""),
        (None, "None"),
    ],
)
def test_a_value_is_shown_in_one_line(value: object, text: str) -> None:
    net = nn.Identity()
    net.value = value  # type: ignore[assignment]

    assert parts(LiveObject(net))["value"].text == text


def test_attributes_in_slots_are_read() -> None:
    class Slotted:
        __slots__ = ("empty", "filled")

        def __init__(self) -> None:
            self.filled = 3

    net = nn.Identity()
    net.slotted = Slotted()  # type: ignore[assignment]
    live = LiveObject(net)

    page = live.open(parts(live)["slotted"].id)

    assert [(one.name, one.text) for one in page.attributes] == [("filled", "3")]


def test_the_example_prints_what_it_says() -> None:
    assert doctest.testmod(live_module).failed == 0
