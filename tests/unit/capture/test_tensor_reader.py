"""The readers of tensors: each state is read once, small ones together, and no tensor is held."""

from __future__ import annotations

import math
import tracemalloc
import weakref
from collections.abc import Callable

import numpy as np
import pytest
import torch

from torchglass.capture.histogram_reader import HistogramReader, HistogramReading
from torchglass.capture.tensor.description import describe
from torchglass.capture.tensor.moments import measure
from torchglass.capture.tensor_reader import StatisticsReader, StatisticsReading
from torchglass.records.calls import Level
from torchglass.records.model import Histogram, Stats


def put(reader: StatisticsReader, tensor: torch.Tensor) -> StatisticsReading:
    """Have a tensor measured with others of its kind, however large it is."""
    reading = StatisticsReading(describe(tensor), False, False)
    kind = reader._kind_of(tensor)
    assert kind is not None
    if not reader._put_aside((kind, False), tensor, reading):
        reading.stats = measure(tensor)
    return reading


def measured(*tensors: torch.Tensor) -> list[Stats | None]:
    reader = StatisticsReader("full")
    readings = [put(reader, tensor) for tensor in tensors]
    reader.finish()
    return [reading.stats for reading in readings]


def expected(tensor: torch.Tensor) -> list[float]:
    values = tensor.abs() if tensor.is_complex() else tensor
    numbers = values.double().numpy().ravel()
    spread = numbers.std(ddof=1) if numbers.size > 1 else 0.0
    return [numbers.min(), numbers.max(), numbers.mean(), spread]


def numbers(stats: Stats | None) -> list[float]:
    assert isinstance(stats, Stats)
    return [stats.min, stats.max, stats.mean, stats.std]


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(3, 64),
        torch.randn(1 << 15),
        torch.randn(5, 7).double(),
        torch.randn(1000).half(),
        torch.randn(1000).bfloat16() + 3,
        torch.randint(-(2**40), 2**40, (100,)),
        torch.randint(0, 255, (100,), dtype=torch.uint8),
        torch.rand(100) > 0.3,
        torch.randn(50, dtype=torch.complex64),
        torch.zeros(8),
        torch.tensor(2.5),
        torch.randn(1 << 14) + 1e5,
        torch.randn(100) * 1e-20,
        torch.randn(100) * 1e25,
    ],
    ids=lambda tensor: f"{str(tensor.dtype)[6:]} {tuple(tensor.shape)}",
)
def test_statistics_match_numpy(tensor: torch.Tensor) -> None:
    one, other = measured(tensor, tensor.flip(0) if tensor.dim() else tensor)

    # A mean near zero is known as exactly as the numbers that cancel out in it.
    exactness = 1e-7 * max(map(abs, expected(tensor)))
    for stats in (one, other):
        np.testing.assert_allclose(numbers(stats), expected(tensor), rtol=2e-6, atol=exactness)


def test_a_mean_far_from_zero_is_exact_relative_to_the_standard_deviation() -> None:
    tensors = torch.randn(8, 5000) + 1e5

    found = [numbers(stats) for stats in measured(*tensors)]

    for (_, _, mean, spread), tensor in zip(found, tensors, strict=True):
        _, _, exact_mean, exact_spread = expected(tensor)
        assert mean == pytest.approx(exact_mean, abs=1e-6 * exact_spread)
        assert spread == pytest.approx(exact_spread, rel=1e-4)


def test_non_finite_values_are_counted_and_do_not_affect_other_rows() -> None:
    spoilt = torch.tensor([1.0, float("nan"), float("inf"), 3.0])
    fine = torch.arange(4.0)

    stats = measured(spoilt, fine, torch.full((4,), float("-inf")))

    assert stats[0] == measure(spoilt)
    np.testing.assert_allclose(numbers(stats[1]), expected(fine), rtol=1e-6)
    assert isinstance(stats[0], Stats)
    assert (stats[0].nan, stats[0].inf, stats[0].mean) == (1, 1, 2.0)
    assert isinstance(stats[2], Stats)
    assert stats[2].inf == 4


@pytest.mark.parametrize(("shapes", "most_bytes"), [(1, 2 << 20), (2000, 16 << 20)])
def test_copies_do_not_accumulate(shapes: int, most_bytes: int) -> None:
    reader = StatisticsReader("full")
    tensors = [torch.ones((1 << 12) + number % shapes) for number in range(3000)]
    waiting = []

    most = 0
    for number, tensor in enumerate(tensors):
        waiting.append(put(reader, tensor))
        if number % 10 == 0:
            most = max(most, sum(other.is_pending for other in waiting))

    assert most * 4 * (1 << 12) <= most_bytes


def test_a_batch_accepts_tensors_of_all_grad_modes() -> None:
    reader = StatisticsReader("full")

    with torch.inference_mode():
        waiting = [put(reader, torch.ones(3)) for _ in range(2)]
    waiting += [put(reader, torch.ones(3, requires_grad=True) * 2) for _ in range(2)]
    with torch.no_grad():
        waiting += [put(reader, torch.ones(3)) for _ in range(2)]
    reader.finish()

    assert [numbers(one.stats)[2] for one in waiting] == [1, 1, 2, 2, 1, 1]


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(0, 3),
        torch.zeros(3, device="meta"),
        torch.ones(3).expand(4, 3),
        torch.eye(3).to_sparse(),
        torch.ones(3).to(torch.float8_e4m3fn),
    ],
    ids=["empty", "meta", "expanded", "sparse", "float8"],
)
def test_a_tensor_that_cannot_be_batched_is_read_at_once(tensor: torch.Tensor) -> None:
    assert not StatisticsReader("full").read(tensor).is_pending


def test_a_tensor_with_freed_memory_is_not_pending() -> None:
    tensor = torch.ones(3)
    tensor.untyped_storage().resize_(0)

    assert not StatisticsReader("full").read(tensor).is_pending


def test_tensors_that_share_memory_have_their_own_statistics() -> None:
    whole = torch.arange(12.0).view(3, 4)
    complex_numbers = torch.complex(torch.zeros(1), torch.ones(1))

    found = measured(*whole, whole[1, 2:], complex_numbers.conj().imag, torch.tensor([3.0]))

    assert [numbers(one)[2] for one in found] == [1.5, 5.5, 9.5, 6.5, -1.0, 3.0]


@pytest.mark.skipif(
    not hasattr(torch.Tensor, "const_data_ptr"), reason="this torch copies a clone that is read"
)
@pytest.mark.parametrize("count", [3, 100_000])
def test_reading_a_lazy_clone_leaves_it_lazy(count: int) -> None:
    clone = torch._lazy_clone(torch.ones(count))
    reader = StatisticsReader("full")

    reading = reader.read(clone)
    reader.finish()

    assert stats(reading).mean == 1
    assert torch._C._is_cow_tensor(clone)  # type: ignore[attr-defined]


@pytest.mark.parametrize("count", [3, 100_000])
def test_a_tensor_that_was_read_can_be_resized(count: int) -> None:
    tensor = torch.ones(count)
    reader = HistogramReader()

    reading = reader.read(tensor)
    reader.finish()

    assert reading is not None
    assert reading.stats is not None
    assert reading.stats.mean == 1
    tensor.resize_(count + 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int8])
def test_large_tensors_have_the_statistics_of_float64(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    values = (torch.randn(3, 100_001) * 20 + 50).to(dtype)
    reader = HistogramReader(zeros=True)

    reading = reader.read_once(values, norms=True)
    reader.finish()

    assert reading is not None
    assert reading.stats is not None
    truth = values.double()
    found = reading.stats
    assert (found.min, found.max) == (truth.min().item(), truth.max().item())
    close = 1e-5 * truth.abs().max().item()
    assert found.mean == pytest.approx(truth.mean().item(), abs=close)
    assert found.std == pytest.approx(truth.std().item(), abs=close)
    assert reading.zeros == pytest.approx((truth == 0).double().mean().item())
    assert reading.norms is not None
    assert reading.norms.stats is not None
    assert reading.norms.stats.max == pytest.approx(truth.norm(dim=1).max().item(), rel=1e-5)


def test_large_tensors_count_nan_and_inf() -> None:
    values = torch.ones(100_000)
    values[:3], values[3:5], values[5] = math.nan, math.inf, -math.inf
    reader = HistogramReader()

    reading = reader.read(values)
    reader.finish()

    assert reading is not None
    assert reading.stats is not None
    found = reading.stats
    assert (found.nan, found.inf, found.negative_inf) == (3, 3, 1)
    assert (found.min, found.max, found.mean) == (1, 1, 1)


def test_tensors_of_one_value_are_exact() -> None:
    found = measured(*(torch.full((7,), value) for value in (0.0, 0.1, -3e-20, 1e30)))

    assert [(numbers(one)[2], numbers(one)[3]) for one in found] == [
        (torch.tensor(value).item(), 0.0) for value in (0.0, 0.1, -3e-20, 1e30)
    ]


def stats(reading: StatisticsReading) -> Stats:
    found = reading.record("").stats
    assert found is not None
    return found


def test_statistics_of_an_unchanged_tensor_are_reused() -> None:
    reader = StatisticsReader("full")
    tensor = torch.ones(3)

    assert reader.read(tensor) is reader.read(tensor)


def test_a_modified_tensor_is_read_again() -> None:
    reader = StatisticsReader("full")
    tensor = torch.ones(3)
    before = reader.read(tensor)

    tensor.view(-1)[0] = 7.0
    after = reader.read(tensor)
    reader.finish()

    assert [stats(before).max, stats(before).mean, stats(before).std] == [1.0, 1.0, 0.0]
    assert [stats(after).max, stats(after).mean] == [7.0, 3.0]
    assert stats(after).std == pytest.approx(12**0.5)


def test_a_tensor_without_a_version_counter_is_always_read_again() -> None:
    reader = StatisticsReader("full")

    with torch.inference_mode():
        tensor = torch.ones(3)
        reader.read(tensor)
        tensor.zero_()
        after = reader.read(tensor)
    reader.finish()

    assert stats(after).max == 0.0


def test_a_changed_requires_grad_is_read_again() -> None:
    reader = StatisticsReader("shapes")
    tensor = torch.ones(3)

    assert not reader.read(tensor).requires_grad
    assert reader.read(tensor.requires_grad_()).requires_grad


def test_has_grad_is_read_without_a_warning() -> None:
    reader = StatisticsReader("shapes")
    leaf = torch.ones(3, requires_grad=True)
    torch.autograd.backward(leaf.sum())
    result = leaf * 2

    assert reader.read(leaf).has_grad
    assert not reader.read(result).has_grad


@pytest.mark.parametrize("level", ["full", "cheap", "shapes"])
def test_the_statistics_reader_keeps_no_tensor_alive(level: Level) -> None:
    reader = StatisticsReader(level)
    tensor = torch.ones(1 << 20)
    gone = weakref.ref(tensor)

    reader.read(tensor)
    del tensor

    assert gone() is None


def test_a_cheap_sample_comes_from_all_columns_of_a_tensor() -> None:
    reader = StatisticsReader("cheap")
    columns = torch.arange(64.0).expand(8192, 64).contiguous()

    reading = reader.read(columns)
    reader.finish()

    assert stats(reading).count <= 4096
    assert (stats(reading).min, stats(reading).max) == (0.0, 63.0)
    assert stats(reading).mean == pytest.approx(31.5, abs=0.5)


def test_the_oldest_copies_are_dropped_when_the_budget_is_exceeded() -> None:
    reader = StatisticsReader("shapes", copy_bytes=1000)
    tensors = [torch.full((100,), float(number)) for number in range(5)]

    readings = [reader.read(tensor) for tensor in tensors]
    reader.read(torch.zeros(1000))

    kept = [reading.copy for reading in readings if reading.copy is not None]
    assert [float(copy[0]) for copy in kept] == [3.0, 4.0]
    assert reader.left_out == 4


def test_a_copy_keeps_the_original_values() -> None:
    reader = StatisticsReader("full", copy_bytes=1000)
    tensor = torch.ones(3)

    reading = reader.read(tensor)
    tensor.zero_()

    assert reading.copy is not None
    assert reading.copy.tolist() == [1.0, 1.0, 1.0]


def read(tensor: torch.Tensor, **options: int | None) -> Histogram:
    reader = HistogramReader(**options)  # type: ignore[arg-type]
    reading = reader.read(tensor)
    reader.finish()
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
def test_a_histogram_uses_at_most_the_requested_sample_size(size: int) -> None:
    histogram = read(torch.rand(size), sample_n=100)

    assert sum(histogram.counts) == min(size, 100)


def test_a_sample_covers_the_whole_tensor() -> None:
    rows = torch.arange(64.0).repeat_interleave(64)
    columns = torch.arange(64.0).repeat(64)

    for tensor in (rows, columns):
        histogram = read(tensor, sample_n=512, bins=64)

        assert len([count for count in histogram.counts if count]) > 60


def test_sampling_does_not_change_any_random_state() -> None:
    before = torch.get_rng_state()

    read(torch.rand(100_000, generator=torch.Generator().manual_seed(1)))

    assert torch.equal(torch.get_rng_state(), before)


def test_the_histogram_of_an_unchanged_tensor_is_reused() -> None:
    reader, tensor = HistogramReader(), torch.zeros(3)

    first, again = reader.read(tensor), reader.read(tensor)
    tensor += 1
    written = reader.read(tensor)

    assert first is again
    assert written is not first


def test_a_small_tensor_is_read_with_its_values_at_that_time() -> None:
    reader, tensor = HistogramReader(), torch.zeros(3)
    reading = reader.read(tensor)

    tensor += 1
    reader.finish()

    assert reading is not None
    assert reading.stats is not None
    assert reading.stats.max == 0


def test_norms_are_computed_per_sample_of_a_batch() -> None:
    for shape in ((5, 4), (3, 2, 2), (7,), (64, 3, 32, 32)):
        reader, tensor = HistogramReader(), torch.randn(shape)
        reading = reader.read_once(tensor, norms=True)
        reader.finish()

        lengths = tensor.reshape(shape[0], -1).norm(dim=1)
        norms = norms_of(reading)
        assert norms.stats.count == shape[0]
        assert norms.stats.max == pytest.approx(lengths.max().item(), rel=1e-5)


def test_all_values_of_a_large_tensor_are_not_copied_for_each_small_one() -> None:
    reader = HistogramReader(sample_n=None)
    tracemalloc.start()
    try:
        for size in range(2, 102):
            reader.read(torch.randn(size))
        large = torch.randn(1 << 19)
        reading = reader.read(large)
        reader.finish()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert reading is not None
    assert reading.histogram is not None
    assert sum(reading.histogram.counts) > 0.97 * large.numel()
    assert peak < 25 * large.nbytes


def norms_of(reading: HistogramReading | None) -> Histogram:
    assert reading is not None
    assert reading.norms is not None
    assert reading.norms.histogram is not None
    return reading.norms.histogram


def test_a_factor_scales_statistics_and_bins() -> None:
    reader = HistogramReader()
    plain, scaled = (reader.read_once(torch.tensor([1.0, 2.0, 4.0])) for _ in range(2))
    assert plain is not None
    assert scaled is not None
    scaled.factor = 0.25

    reader.finish()

    assert plain.histogram is not None
    assert scaled.histogram is not None
    assert scaled.histogram.stats.max == 1.0
    assert scaled.histogram.counts == plain.histogram.counts
    assert scaled.histogram.exponent == plain.histogram.exponent - 2


def test_a_batched_read_equals_separate_reads() -> None:
    tensors = [torch.randn(4, 4) for _ in range(5)] + [torch.randn(300, 300), torch.empty(0)]
    reader = HistogramReader()

    together = [reader.read_once(tensor) for tensor in tensors]
    reader.finish()

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
def test_a_tensor_of_any_type_is_read(name: str) -> None:
    tensor = HARD[name]()

    histogram = read(tensor)

    assert histogram.stats.count > 0
    assert sum(histogram.counts) <= histogram.stats.count


@pytest.mark.parametrize("tensor", [torch.empty(0), torch.empty(3, device="meta")])
def test_a_tensor_without_values_has_no_reading(tensor: torch.Tensor) -> None:
    reader = HistogramReader()

    assert reader.read(tensor) is None
    assert reader.read_once(tensor, norms=True) is None


def test_zeros_are_counted_exactly_on_request() -> None:
    tensor = torch.ones(70_000)
    tensor[:7] = 0
    reader = HistogramReader(zeros=True)

    large, small = reader.read(tensor), reader.read(tensor[:14].clone())
    reader.finish()

    assert large is not None
    assert small is not None
    assert large.zeros == pytest.approx(1e-4)
    assert small.zeros == pytest.approx(0.5)


def test_tensors_beyond_the_batch_size_are_read_correctly() -> None:
    reader = HistogramReader()
    tensors = [torch.full((2, 3), float(number)) for number in range(1000)]

    readings = [reader.read_once(tensor, norms=True) for tensor in tensors]
    reader.finish()

    means = [one.stats.mean for one in readings if one is not None and one.stats is not None]
    assert means == [*map(float, range(1000))]


def test_tensors_of_very_many_shapes_are_read_correctly() -> None:
    reader = HistogramReader()
    tensors = [torch.full((size,), float(size)) for size in range(1, 400)]

    readings = [reader.read_once(tensor) for tensor in tensors]
    reader.finish()

    assert [one.stats.mean for one in readings if one is not None and one.stats is not None] == [
        *map(float, range(1, 400))
    ]


def test_a_reader_first_used_in_inference_mode_works_outside_of_it() -> None:
    reader = HistogramReader()

    with torch.inference_mode():
        inside = reader.read(torch.ones(3))
    outside = reader.read(torch.ones(3) * 2)
    reader.finish()

    assert [one.stats.mean for one in (inside, outside) if one and one.stats] == [1.0, 2.0]
