"""Calls come back from JSON as they were, and what has no place there is refused."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from torch.nn import functional

from torchglass.capture.guard.op_dump import (
    ArgumentWriter,
    NotWrittenError,
    function_name,
    function_of,
    read,
)
from torchglass.errors import UnsafeFileError


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        3,
        1e-5,
        -math.inf,
        "mean",
        (1, [2, (3,)], {"a": None}),
        slice(1, None, 2),
        ...,
        2 + 3j,
        torch.float16,
        torch.device("cpu"),
        torch.strided,
        torch.channels_last,
    ],
    ids=repr,
)
def test_torch_arguments_round_trip(value: Any) -> None:
    written = json.loads(json.dumps(ArgumentWriter().write(value)))

    assert read(written, []) == value


def test_a_tensor_dumped_twice_is_one_tensor() -> None:
    sheet, x = ArgumentWriter(), torch.ones(2)

    args = read(json.loads(json.dumps(sheet.write((x, [x, 1])))), sheet.tensors)

    assert args[0] is x
    assert args[1][0] is x
    assert len(sheet.tensors) == 1


@pytest.mark.parametrize(
    ("value", "named"), [(torch.Generator(), "Generator"), (print, "builtin_function")]
)
def test_an_unserializable_argument_is_refused_by_name(value: Any, named: str) -> None:
    with pytest.raises(NotWrittenError, match=named):
        ArgumentWriter().write([value])


@pytest.mark.parametrize(
    "function",
    [
        torch.sqrt,
        torch.Tensor.sqrt,
        torch.Tensor.__setitem__,
        functional.softmax,
        functional.linear,
        functional.layer_norm,
        torch.lstm,
        torch.ops.aten.add.Tensor,
    ],
    ids=lambda function: getattr(function, "__qualname__", str(function)),
)
def test_a_torch_function_is_found_by_its_name(function: Any) -> None:
    assert function_of(function_name(function)) is function


@pytest.mark.parametrize(
    "name", ["os.system", "torch.load", "torch.ops.aten.load", "torch.ops.aten.y.z"]
)
def test_no_other_code_can_be_reached_by_a_name(name: str) -> None:
    with pytest.raises(NotWrittenError, match="here"):
        function_of(name)


@pytest.mark.parametrize(
    "name",
    [
        "torch.from_file",
        "torch.Tensor.share_memory_",
        "torch.Tensor.register_hook",
        "torch.Tensor.backward",
        "torch.Tensor.__reduce_ex__",
        "torch._C._set_grad_enabled",
        "torch.ops.aten.from_file.default",
        "torch.ops.aten.from_file.out",
        "torch.ops.aten.save.default",
        "torch.ops.aten._print.default",
        "torch.ops.aten.manual_seed.default",
        "torch.ops.x.y.z",
        "torch.ops.profiler._record_function_enter.default",
    ],
)
def test_functions_with_side_effects_are_not_run(name: str) -> None:
    with pytest.raises((UnsafeFileError, NotWrittenError)):
        function_of(name)


def test_a_user_function_has_no_dump_name() -> None:
    with pytest.raises(NotWrittenError, match="<lambda> is not a named torch function"):
        function_name(lambda x: x)
