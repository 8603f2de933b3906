"""Inputs are written as short texts and become tensors."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from torchglass.errors import TargetError
from torchglass.targets.inputs import InputSpec, make_inputs, parse_input


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("1x3x224x224", InputSpec(shape=(1, 3, 224, 224))),
        ("1×3", InputSpec(shape=(1, 3))),
        ("1,3", InputSpec(shape=(1, 3))),
        ("7", InputSpec(shape=(7,))),
        ("scalar", InputSpec(shape=())),
        ("scalar:double", InputSpec(shape=(), dtype="float64")),
        ("2x16:long", InputSpec(shape=(2, 16), dtype="int64")),
        ("2x16:half", InputSpec(shape=(2, 16), dtype="float16")),
        ("2x16:bf16", InputSpec(shape=(2, 16), dtype="bfloat16")),
        ("2:torch.uint8", InputSpec(shape=(2,), dtype="uint8")),
        ("mask=2x16:bool", InputSpec(shape=(2, 16), dtype="bool", name="mask")),
    ],
)
def test_a_string_describes_an_input_tensor(text: str, spec: InputSpec) -> None:
    assert parse_input(text) == spec


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1x3xA", "--input '1x3xA' is not a shape. Use 1x3x224x224"),
        ("", "--input '' is not a shape"),
        ("1x", "--input '1x' is not a shape"),
        ("-1x3", "--input '-1x3' is not a shape"),
        ("1x3:", "--input '1x3:': the dtype after ':' is missing"),
        (
            "1x3:flaot32",
            "--input '1x3:flaot32': torch has no dtype 'flaot32'; did you mean",
        ),
        ("1x3:Tensor", "--input '1x3:Tensor': torch has no dtype 'Tensor'"),
        ("2 masks=1x3", "--input '2 masks=1x3': '2 masks' is not an argument name"),
    ],
)
def test_an_invalid_input_description_is_refused_with_an_example(text: str, message: str) -> None:
    with pytest.raises(TargetError) as caught:
        parse_input(text)

    assert str(caught.value).startswith(message)


def test_inputs_have_the_device_and_dtype_of_the_model() -> None:
    model = nn.Linear(3, 4, dtype=torch.bfloat16, device="meta")

    (tensor,), _ = make_inputs(["2x3"], model)

    assert tensor.dtype is torch.bfloat16
    assert tensor.device.type == "meta"


def test_an_explicit_dtype_is_used() -> None:
    (tensor,), _ = make_inputs(["2x3:half"], nn.Linear(3, 4))

    assert tensor.dtype is torch.float16


def test_a_model_without_parameters_gets_the_default_dtype() -> None:
    (tensor,), _ = make_inputs(["2x3"], nn.ReLU())

    assert tensor.dtype is torch.float32
    assert tensor.device.type == "cpu"


def test_named_inputs_are_separate_from_positional_ones() -> None:
    inputs, named = make_inputs(["1x2", "mask=3:bool", "4"], nn.ReLU())

    assert [tuple(tensor.shape) for tensor in inputs] == [(1, 2), (4,)]
    assert {name: tuple(tensor.shape) for name, tensor in named.items()} == {"mask": (3,)}


def test_creating_inputs_does_not_change_the_random_state() -> None:
    before = torch.random.get_rng_state()

    make_inputs(["4x5"], nn.ReLU())

    assert torch.equal(torch.random.get_rng_state(), before)


def test_fake_inputs_of_any_size_take_no_memory() -> None:
    ((tensor,), _) = make_inputs(["1000000000x1000000"], nn.ReLU(), fake=True)

    assert tensor.is_meta
    assert tensor.shape == (10**9, 10**6)


def test_an_input_too_large_for_memory_is_refused() -> None:
    with pytest.raises(TargetError, match="cannot create an input of 1000000000x1000000"):
        make_inputs(["1000000000x1000000"], nn.ReLU())


def test_an_argument_cannot_have_two_inputs() -> None:
    with pytest.raises(TargetError, match="--input mask=… is given twice"):
        make_inputs(["mask=2", "mask=3"], nn.ReLU())
