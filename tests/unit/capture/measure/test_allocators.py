from __future__ import annotations

import pytest
import torch

from torchglass.capture.measure.devices import CpuMeter, DeviceMeter, meters_for


class Statistics:
    """The numbers of a device's allocator."""

    def __init__(self) -> None:
        self.now = self.peak = 0

    def take(self, size: int) -> None:
        self.now += size
        self.peak = max(self.peak, self.now)

    def reset_peak_memory_stats(self, device: str) -> None:
        self.peak = self.now

    def memory_allocated(self, device: str) -> int:
        return self.now

    def max_memory_allocated(self, device: str) -> int:
        return self.peak

    def memory_stats(self, device: str) -> dict[str, int]:
        return {"allocated_bytes.all.current": self.now, "num_ooms": 3}


def test_the_cpu_allocator_meter_reports_the_peak_and_its_op() -> None:
    meter = CpuMeter()

    meter.start()
    first = torch.zeros(100)
    second = first.relu()
    del first
    third = torch.ones(10)
    found = meter.stop()

    assert found is not None
    assert (found.device, found.peak_bytes, found.op) == ("cpu", 800, "relu")
    assert (second.numel(), third.numel()) == (100, 10)


def test_a_running_profiler_is_not_disturbed() -> None:
    meter = CpuMeter()

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        meter.start()
        torch.zeros(100).relu()
        found = meter.stop()

    assert found is None
    assert any(event.key == "aten::relu" for event in profiler.key_averages())


def test_the_peak_of_a_device_is_measured_from_the_start() -> None:
    statistics = Statistics()
    statistics.take(1000)
    statistics.take(-900)
    # The meter brings the user's peak of 1,000 back by a real block, so the device must exist.
    meter = DeviceMeter("cpu", statistics)

    meter.start()
    statistics.take(50)
    statistics.take(-20)
    found = meter.stop()

    assert found is not None
    assert (found.device, found.peak_bytes) == ("cpu", 50)
    assert (found.pools, found.ooms) == ((), 0), "it has no pools, and failed before"


@pytest.mark.parametrize(("devices", "count"), [(["cpu", "cpu"], 1), (["meta"], 0), ([], 0)])
def test_each_supported_device_has_an_allocator_meter(devices: list[str], count: int) -> None:
    assert len(meters_for(devices)) == count
