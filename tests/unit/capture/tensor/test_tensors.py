"""Any tensor described, and its numbers measured as numpy would in double precision."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.fsdp import fully_shard
from torch.testing._internal import two_tensor

from tests.versions import needs_torch
from torchglass.capture.tensor.description import describe
from torchglass.capture.tensor.moments import measure
from torchglass.records.model import Stats

# Classes of torch that have no annotations.
TwoTensor: Callable[..., torch.Tensor] = two_tensor.TwoTensor
LazyParameter: Any = nn.UninitializedParameter


FOUR_BITS = getattr(torch, "float4_e2m1fn_x2", None)


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        (torch.float32, 4),
        (torch.bfloat16, 2),
        (torch.float8_e4m3fn, 1),
        (torch.complex64, 8),
        (torch.bool, 1),
        (torch.int64, 8),
        pytest.param(FOUR_BITS, 1, marks=needs_torch(2, 8, "four-bit elements")),
    ],
)
def test_bytes_use_the_real_element_size(dtype: torch.dtype, size: int) -> None:
    spec = describe(torch.empty(3, 5, dtype=dtype))

    assert (spec.shape, spec.dtype, spec.bytes) == ((3, 5), str(dtype)[6:], 15 * size)


def test_equal_tensors_have_one_spec_object() -> None:
    assert describe(torch.zeros(3, 4)) is describe(nn.Parameter(torch.ones(3, 4)))


# torch announces that quantized tensors will go, while models that have them stay.
quantized = pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")


@quantized
def test_four_bit_quantized_elements_share_a_byte() -> None:
    scales, zeros = torch.ones(4), torch.zeros(4)
    tensor = torch.quantize_per_channel(torch.zeros(4, 7), scales, zeros, 0, torch.quint4x2)

    assert describe(tensor).bytes == 14


def test_an_expanded_view_takes_the_bytes_of_its_storage() -> None:
    spec = describe(torch.zeros(5, 1).expand(5, 1_000_000))

    assert (spec.elements, spec.bytes) == (5_000_000, 20)


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
@pytest.mark.parametrize(
    ("convert", "layout", "size"),
    [
        (torch.Tensor.to_sparse, "sparse_coo", 4 * (2 * 8 + 4)),
        (torch.Tensor.to_sparse_csr, "sparse_csr", 5 * 8 + 4 * (8 + 4)),
        (torch.Tensor.to_sparse_csc, "sparse_csc", 5 * 8 + 4 * (8 + 4)),
    ],
)
def test_a_sparse_tensor_takes_its_indices_and_values(
    convert: Callable[[torch.Tensor], torch.Tensor], layout: str, size: int
) -> None:
    spec = describe(convert(torch.eye(4)))

    assert (spec.shape, spec.layout, spec.bytes) == ((4, 4), layout, size)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize(
    ("layout", "name", "shape"),
    [(torch.strided, "nested", (18,)), (torch.jagged, "jagged", (6, 3))],
)
def test_a_nested_tensor_shows_its_packed_values(
    layout: torch.layout, name: str, shape: tuple[int, ...]
) -> None:
    rows = [torch.zeros(2, 3), torch.zeros(4, 3)]

    spec = describe(torch.nested.nested_tensor(rows, layout=layout))

    assert (spec.layout, spec.shape, spec.elements) == (name, shape, 18)
    assert spec.bytes >= 18 * 4


def test_a_wrapper_subclass_takes_the_bytes_of_the_wrapped_tensors() -> None:
    spec = describe(nn.Parameter(TwoTensor(torch.zeros(2, 3), torch.zeros(2, 3))))

    assert (spec.shape, spec.layout, spec.bytes) == ((2, 3), "TwoTensor", 48)


def test_tensors_without_values_show_the_size_they_would_have() -> None:
    meta = torch.empty(2, 3, device="meta")
    with FakeTensorMode():
        fake = torch.empty(2, 3)

    assert (describe(meta).bytes, describe(meta).device) == (24, "meta")
    assert (describe(fake).bytes, describe(fake).device) == (24, "cpu")
    assert measure(meta) is None
    assert measure(fake) is None


def test_a_lazy_parameter_has_no_shape_yet() -> None:
    spec = describe(LazyParameter(dtype=torch.float16))

    assert (spec.shape, spec.dtype, spec.elements) == (None, "float16", 0)


def test_a_tensor_class_that_raises_is_still_described() -> None:
    class Broken(torch.Tensor):
        @property
        def shape(self) -> torch.Size:  # type: ignore[override]
            raise RuntimeError("no shape for you")

    assert describe(torch.zeros(2).as_subclass(Broken)).shape is None


def _close(stats: Stats | None, values: torch.Tensor) -> bool:
    exact = values.double().numpy() if values.dtype is not torch.bool else values.int().numpy()
    assert stats is not None
    assert (stats.min, stats.max) == (exact.min(), exact.max())
    assert stats.count == exact.size
    assert stats.mean == pytest.approx(exact.mean(), abs=1e-6 * exact.std())
    assert stats.std == pytest.approx(np.std(exact, ddof=1), rel=1e-4)
    return True


@pytest.mark.parametrize(
    "make",
    [
        lambda normal: normal,
        lambda normal: normal + 1e5,
        lambda normal: normal * 1e-25,
        lambda normal: normal * 1e36,
        lambda normal: (normal * 3 + 7).bfloat16(),
        lambda normal: (normal * 1e4).half(),
        lambda normal: normal.to(torch.float8_e5m2),
        lambda normal: normal.double() + 1e9,
        lambda normal: (normal * 1e15).long(),
        lambda normal: (normal.abs() * 1e4).to(torch.uint16),
        lambda normal: normal > 0,
        lambda normal: normal.view(700, 300).t(),
        lambda normal: normal.view(700, 100, 3)[:, ::3, 1:],
        lambda normal: normal.view(7, 3, 100, 100).to(memory_format=torch.channels_last),
    ],
    ids=[
        "normal",
        "far from zero",
        "tiny",
        "huge",
        "bfloat16",
        "float16",
        "float8",
        "float64",
        "int64",
        "uint16",
        "bool",
        "transposed",
        "sliced",
        "channels last",
    ],
)
def test_statistics_have_double_precision(
    make: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    values = make(torch.randn(210_000, generator=torch.Generator().manual_seed(0)))

    assert _close(measure(values), values)


def test_one_outlier_does_not_affect_precision() -> None:
    values = torch.randn(200_000, generator=torch.Generator().manual_seed(0))
    values[0] = 1e6

    assert _close(measure(values), values)


def test_nan_and_infinities_are_counted_and_excluded() -> None:
    values = torch.tensor([1.0, 2.0, 3.0, math.nan, math.inf, -math.inf])

    assert measure(values) == Stats(count=6, min=1, max=3, mean=2, std=1, nan=1, inf=2)


def test_a_tensor_of_nan_alone_has_no_range() -> None:
    stats = measure(torch.full((3,), math.nan))

    assert stats is not None
    assert (stats.count, stats.nan) == (3, 3)
    assert math.isnan(stats.min)
    assert math.isnan(stats.std)


def test_the_standard_deviation_of_a_single_value_is_zero() -> None:
    assert measure(torch.tensor(4.0)) == Stats(count=1, min=4, max=4, mean=4, std=0)


def test_an_expanded_view_is_measured_without_materializing_it() -> None:
    stats = measure(torch.tensor([[1.0], [3.0]]).expand(2, 10**12))

    assert stats is not None
    assert (stats.count, stats.mean) == (2 * 10**12, 2)
    assert stats.std == pytest.approx(1)


def test_complex_numbers_are_measured_by_magnitude() -> None:
    stats = measure(torch.tensor([3 + 4j, 0j]))

    assert stats is not None
    assert (stats.min, stats.max) == (0, 5)


def test_a_sparse_tensor_is_measured_by_its_stored_values() -> None:
    stats = measure((torch.eye(4) * 2).to_sparse())

    assert stats is not None
    assert (stats.count, stats.min, stats.max) == (4, 2, 2)


@quantized
def test_the_statistics_of_a_quantized_tensor_use_dequantized_values() -> None:
    tensor = torch.quantize_per_tensor(torch.tensor([0.0, 1.0]), 0.5, 0, torch.qint8)

    stats = measure(tensor)

    assert stats is not None
    assert (stats.min, stats.max) == (0, 1)


def test_a_tensor_without_values_has_no_statistics() -> None:
    given_back = torch.ones(4)
    given_back.untyped_storage().resize_(0)

    assert measure(torch.empty(0)) is None
    assert measure(LazyParameter()) is None
    assert FOUR_BITS is None or measure(torch.empty(3, dtype=FOUR_BITS)) is None
    assert measure(given_back) is None
    assert measure(TwoTensor(torch.zeros(2), torch.zeros(2))) is None


def test_measuring_does_not_change_the_tensor_or_global_state() -> None:
    weight = nn.Parameter(torch.randn(100))
    output = weight * 2
    version, random_state = output._version, torch.get_rng_state()

    measure(output)

    assert (output._version, output.requires_grad) == (version, True)
    assert torch.equal(torch.get_rng_state(), random_state)
    assert torch.is_grad_enabled()
    output.untyped_storage().resize_(0)


def test_measuring_is_invisible_to_function_modes_and_subclasses() -> None:
    class Loud(torch.Tensor):
        @classmethod
        def __torch_function__(cls, *_: object, **__: object) -> object:
            raise AssertionError("an operation of the measurement was seen")

    stats = measure(torch.ones(3).as_subclass(Loud))

    assert stats == Stats(count=3, min=1, max=1, mean=1, std=0)


def test_a_tensor_with_the_negative_bit_is_measured() -> None:
    negated = torch.tensor([1 + 2j, 3 - 4j]).conj().imag
    assert negated.is_neg()

    stats = measure(negated)

    assert stats is not None
    assert (stats.min, stats.max, stats.mean) == (-2, 4, 1)


def test_the_statistics_of_a_sharded_tensor_cover_the_local_shard(tmp_path: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    layer = nn.Linear(4, 3)
    fully_shard(layer)
    weight: Any = layer.weight

    assert describe(weight).layout == "DTensor"
    assert measure(weight) == measure(weight.to_local())

    dist.destroy_process_group()
