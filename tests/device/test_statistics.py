"""What is measured on a device is what float64 says, and nothing waits for it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tests.device.counter import DeviceCounter
from torchglass.capture.histogram_reader import HistogramReader
from torchglass.capture.tensor_reader import StatisticsReader
from torchglass.records.model import Stats

NAN, INF = math.nan, math.inf
generator = torch.Generator().manual_seed(0)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=generator)


TRUTH: dict[str, torch.Tensor] = {
    "float32": normal(3, 64),
    "large": normal(1 << 19) * 3 + 1,
    "float64": normal(5, 7).double(),
    "float16": normal(1000).half(),
    "bfloat16": normal(1000).bfloat16() + 3,
    "large bfloat16": normal(1 << 18).bfloat16(),
    "float8_e4m3fn": normal(999).to(torch.float8_e4m3fn),
    "float8_e5m2": normal(999).to(torch.float8_e5m2),
    "int64": torch.randint(-(2**40), 2**40, (100,), generator=generator),
    "int32": torch.arange(-50, 1000, dtype=torch.int32),
    "int8": torch.arange(-100, 100, dtype=torch.int8),
    "uint8": torch.randint(0, 255, (100,), dtype=torch.uint8, generator=generator),
    "bool": torch.rand(100, generator=generator) > 0.3,
    "complex64": normal(50).to(torch.complex64) * (1 + 2j),
    "zeros": torch.zeros(8),
    "one value": torch.tensor(2.5),
    "constant": torch.full((1000,), 0.1),
    "far from zero": normal(1 << 14) + 1e5,
    "very far": normal(1 << 14) + 1e7,
    "large and far": normal(1 << 20) + 1e5,
    "tiny": normal(100) * 1e-20,
    "subnormal": torch.full((10,), 1e-41) * torch.arange(10),
    "huge": normal(100) * 1e25,
    "both ends of float32": torch.tensor([3e38, -3e38, 2e38]),
    "float64 beyond float32": normal(64).double() * 1e300,
    "float64 below float32": normal(64).double() * 1e-300,
    "outlier": torch.cat([normal(999), torch.tensor([1e20])]),
    "skewed": torch.cat([torch.ones(9999), torch.tensor([1e4])]),
    "not finite": torch.tensor([NAN, INF, -INF, 1.0, 2.0]),
    "only NaN": torch.full((9,), NAN),
    "only -Inf": torch.full((9,), -INF),
    "transposed": normal(7, 90),
    "expanded": normal(3, 1),
    "every other": normal(100),
}
VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "transposed": torch.t,
    "expanded": lambda tensor: tensor.expand(3, 100_000),
    "every other": lambda tensor: tensor[::2],
}


def truth(tensor: torch.Tensor) -> Stats:
    values = (tensor.abs() if tensor.is_complex() else tensor).double().numpy().ravel()
    finite = values[np.isfinite(values)]
    scale = np.abs(finite).max() if finite.size and np.abs(finite).max() > 0 else 1.0
    numbers = [NAN] * 4
    if finite.size:
        part = finite / scale
        spread = part.std(ddof=1) if finite.size > 1 else 0.0
        numbers = [finite.min(), finite.max(), part.mean() * scale, spread * scale]
    nan, inf = int(np.isnan(values).sum()), int(np.isinf(values).sum())
    low, high, mean, std = map(float, numbers)
    return Stats(count=values.size, min=low, max=high, mean=mean, std=std, nan=nan, inf=inf)


@pytest.mark.parametrize("reader", [HistogramReader(), StatisticsReader("full")])
@pytest.mark.parametrize("name", TRUTH)
def test_device_statistics_are_exact_to_1e_5(
    name: str, reader: HistogramReader | StatisticsReader
) -> None:
    view = VIEWS.get(name, torch.Tensor.detach)
    on_host, on_device = view(TRUTH[name]), view(TRUTH[name].to("cuda:0"))

    reading = reader.read(on_device)
    reader.finish()

    assert reading is not None
    found, exact = reading.stats, truth(on_host)
    assert found is not None
    assert (found.count, found.nan, found.inf) == (exact.count, exact.nan, exact.inf)
    assert [found.min, found.max] == pytest.approx([exact.min, exact.max], rel=1e-7, nan_ok=True)
    assert found.std == pytest.approx(exact.std, rel=1e-5, nan_ok=True)
    # A mean near zero is as exact as the values that cancel out in it.
    near = 1e-5 * exact.std if exact.std == exact.std else 0
    assert found.mean == pytest.approx(exact.mean, rel=1e-5, abs=near, nan_ok=True)


def test_histograms_on_device_and_host_are_equal() -> None:
    for tensor in (normal(3000), normal(3000).bfloat16(), torch.arange(1000)):
        made = []
        for place in ("cpu", "cuda:0"):
            reader = HistogramReader()
            reading = reader.read(tensor.to(place))
            reader.finish()
            assert reading is not None
            assert reading.histogram is not None
            made.append((reading.histogram.exponent, reading.histogram.counts, reading.zeros))
        assert made[0] == made[1]


def test_a_thousand_tensors_arrive_in_one_copy_without_a_wait() -> None:
    reader = HistogramReader()
    tensors = [normal(1 + number % 7, 64).to("cuda:0") for number in range(1000)]
    large = normal(1 << 20).to("cuda:0")
    for _ in range(2):
        # The first time, the positions of the samples go to the device.
        with DeviceCounter() as seen:
            readings = [reader.read_once(tensor) for tensor in (*tensors, large)]
            reader.send()
    assert (seen.waits, seen.copies) == (0, 1)

    torch.cuda.synchronize()
    reader.reads.receive()
    reader.make_histograms()
    assert all(reading is not None and reading.histogram is not None for reading in readings)


def test_a_tensor_is_read_on_its_stream_with_its_values_at_that_time() -> None:
    reader, tensor = HistogramReader(), torch.zeros(3, device="cuda:0")
    side: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with DeviceCounter() as seen:
        before = reader.read(tensor)
        tensor += 1
        with torch.cuda.stream(side):
            other = torch.full((3,), 5.0, device="cuda:0")
            after = reader.read(other)
        reader.finish()

    assert not seen.races
    assert before is not None
    assert after is not None
    assert before.stats is not None
    assert after.stats is not None
    assert (before.stats.max, after.stats.max) == (0.0, 5.0)


def test_norms_are_computed_per_sample_of_a_batch() -> None:
    for shape in ((5, 4), (3, 2, 2), (7,), (64, 3, 64, 64)):
        reader, tensor = HistogramReader(), normal(*shape)
        reading = reader.read_once(tensor.to("cuda:0"), norms=True)
        reader.finish()

        assert reading is not None
        assert reading.norms is not None
        assert reading.norms.stats is not None
        lengths = tensor.reshape(shape[0], -1).norm(dim=1)
        assert reading.norms.stats.count == shape[0]
        assert reading.norms.stats.max == pytest.approx(lengths.max().item(), rel=1e-5)
