from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from torchglass.capture.watch.tensor_reader import Gauge, Reading
from torchglass.records.tensors import Histogram


def read(tensor: torch.Tensor, **options: int | None) -> Histogram:
    gauge = Gauge(**options)  # type: ignore[arg-type]
    reading = gauge.read(tensor)
    gauge.finish()
    assert reading is not None
    assert reading.histogram is not None
    return reading.histogram


@pytest.mark.parametrize("size", [3, 100, 5_000, 100_000])
def test_statistics_are_exact_for_small_and_large_tensors(size: int) -> None:
    tensor = torch.randn(size) + 100

    stats = read(tensor).stats

    exact = tensor.double()
    assert (stats.count, stats.nan, stats.inf) == (size, 0, 0)
    assert (stats.min, stats.max) == (exact.min().item(), exact.max().item())
    assert stats.mean == pytest.approx(exact.mean().item(), rel=1e-6)
    assert stats.std == pytest.approx(exact.std().item(), rel=1e-4)


@pytest.mark.parametrize("size", [50, 200, 100_000])
def test_a_histogram_is_of_a_sample_no_larger_than_asked_for(size: int) -> None:
    histogram = read(torch.rand(size), sample_n=100)

    assert sum(histogram.counts) == min(size, 100)


def test_a_sample_comes_from_everywhere() -> None:
    rows = torch.arange(64.0).repeat_interleave(64)
    columns = torch.arange(64.0).repeat(64)

    for tensor in (rows, columns):
        histogram = read(tensor, sample_n=512, bins=64)

        assert len([count for count in histogram.counts if count]) > 60


def test_sampling_leaves_all_random_states_alone() -> None:
    before = torch.get_rng_state()

    read(torch.rand(100_000, generator=torch.Generator().manual_seed(1)))

    assert torch.equal(torch.get_rng_state(), before)


def test_a_tensor_met_again_has_the_same_reading_until_it_is_written_to() -> None:
    gauge, tensor = Gauge(), torch.zeros(3)

    first, again = gauge.read(tensor), gauge.read(tensor)
    tensor += 1
    written = gauge.read(tensor)

    assert first is again
    assert written is not first


def test_a_small_tensor_is_read_as_it_was_then() -> None:
    gauge, tensor = Gauge(), torch.zeros(3)
    reading = gauge.read(tensor)

    tensor += 1
    gauge.finish()

    assert reading is not None
    assert reading.stats is not None
    assert reading.stats.max == 0


def test_norms_are_the_lengths_of_the_samples_of_a_batch() -> None:
    for shape in ((5, 4), (3, 2, 2), (7,), (64, 3, 32, 32)):
        gauge, tensor = Gauge(), torch.randn(shape)
        reading = gauge.read_once(tensor, norms=True)
        gauge.finish()

        lengths = tensor.reshape(shape[0], -1).norm(dim=1)
        norms = norms_of(reading)
        assert norms.stats.count == shape[0]
        assert norms.stats.max == pytest.approx(lengths.max().item(), rel=1e-5)


def norms_of(reading: Reading | None) -> Histogram:
    assert reading is not None
    assert reading.norms is not None
    assert reading.norms.histogram is not None
    return reading.norms.histogram


def test_a_factor_is_on_the_numbers_and_on_the_bins() -> None:
    gauge = Gauge()
    plain, scaled = (gauge.read_once(torch.tensor([1.0, 2.0, 4.0])) for _ in range(2))
    assert plain is not None
    assert scaled is not None
    scaled.factor = 0.25

    gauge.finish()

    assert plain.histogram is not None
    assert scaled.histogram is not None
    assert scaled.histogram.stats.max == 1.0
    assert scaled.histogram.counts == plain.histogram.counts
    assert scaled.histogram.exponent == plain.histogram.exponent - 2


def test_many_at_once_are_read_as_one_by_one() -> None:
    tensors = [torch.randn(4, 4) for _ in range(5)] + [torch.randn(300, 300), torch.empty(0)]
    gauge = Gauge()

    together = gauge.read_all(tensors)
    gauge.finish()

    alone = [read(tensor).stats.max for tensor in tensors[:-1]]
    assert together[-1] is None
    made = [each.histogram for each in together if each is not None]
    assert [each.stats.max for each in made if each is not None] == alone


HARD: dict[str, Callable[[], torch.Tensor]] = {
    "int": lambda: torch.arange(10),
    "bool": lambda: torch.tensor([True, False, True]),
    "uint16": lambda: torch.tensor([1, 2, 60000], dtype=torch.uint16),
    "float8": lambda: torch.ones(4).to(torch.float8_e4m3fn),
    "bfloat16": lambda: torch.randn(500, dtype=torch.bfloat16),
    "complex": lambda: torch.tensor([3 + 4j, 1j]),
    "scalar": lambda: torch.tensor(2.0),
    "sparse": lambda: torch.eye(4).to_sparse(),
    "csr": lambda: torch.eye(4).to_sparse_csr(),
    "transposed": lambda: torch.randn(3, 700, 90).transpose(0, 2),
    "expanded": lambda: torch.randn(3, 1).expand(3, 10**9),
    "nan and inf": lambda: torch.tensor([math.nan, math.inf, -math.inf, 1.0]),
    "all nan": lambda: torch.full((70_000,), math.nan),
    "huge": lambda: torch.tensor([3e38, -3e38]),
    "tiny": lambda: torch.tensor([1e-45, 0.0]),
    "outlier": lambda: torch.cat([torch.randn(999), torch.tensor([1e30])]),
    "quantized": lambda: torch.quantize_per_tensor(torch.rand(5), 0.1, 0, torch.quint8),
    "jagged": lambda: torch.nested.nested_tensor(
        [torch.ones(2, 3), torch.zeros(4, 3)], layout=torch.jagged
    ),
}


@pytest.mark.parametrize("name", HARD)
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta:UserWarning")
@pytest.mark.filterwarnings("ignore:.*uantize:UserWarning")
@pytest.mark.filterwarnings("ignore:.*uantize:DeprecationWarning")
def test_any_tensor_is_read(name: str) -> None:
    tensor = HARD[name]()

    histogram = read(tensor)

    assert histogram.stats.count > 0
    assert sum(histogram.counts) <= histogram.stats.count


@pytest.mark.parametrize("tensor", [torch.empty(0), torch.empty(3, device="meta")])
def test_a_tensor_without_numbers_has_no_reading(tensor: torch.Tensor) -> None:
    gauge = Gauge()

    assert gauge.read(tensor) is None
    assert gauge.read_once(tensor, norms=True) is None


def test_zeros_are_counted_exactly_on_request() -> None:
    tensor = torch.ones(70_000)
    tensor[:7] = 0
    gauge = Gauge(zeros=True)

    large, small = gauge.read(tensor), gauge.read(tensor[:14].clone())
    gauge.finish()

    assert large is not None
    assert small is not None
    assert large.zeros == pytest.approx(1e-4)
    assert small.zeros == pytest.approx(0.5)


def test_more_of_a_kind_than_are_measured_together_are_each_read_for_themselves() -> None:
    gauge = Gauge()
    tensors = [torch.full((2, 3), float(number)) for number in range(1000)]

    readings = [gauge.read_once(tensor, norms=True) for tensor in tensors]
    gauge.finish()

    means = [one.stats.mean for one in readings if one is not None and one.stats is not None]
    assert means == [*map(float, range(1000))]


def test_tensors_of_very_many_shapes_are_each_read_for_themselves() -> None:
    gauge = Gauge()
    tensors = [torch.full((size,), float(size)) for size in range(1, 400)]

    readings = [gauge.read_once(tensor) for tensor in tensors]
    gauge.finish()

    assert [one.stats.mean for one in readings if one is not None and one.stats is not None] == [
        *map(float, range(1, 400))
    ]


def test_what_was_first_read_in_inference_mode_is_read_outside_of_it_too() -> None:
    gauge = Gauge()

    with torch.inference_mode():
        inside = gauge.read(torch.ones(3))
    outside = gauge.read(torch.ones(3) * 2)
    gauge.finish()

    assert [one.stats.mean for one in (inside, outside) if one and one.stats] == [1.0, 2.0]
