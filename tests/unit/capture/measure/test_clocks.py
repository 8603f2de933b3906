"""A clock is asked for marks while the model runs, and for times when it has."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from tests.sleepers import FakeClock, Sleeper
from torchglass.capture.measure.devices import (
    DeviceQueue,
    EventClock,
    HostClock,
    clock_for,
    cpu_clock,
)
from torchglass.capture.measure.profile import measure
from torchglass.errors import CaptureError


class Device:
    """A device whose events have times only after it was waited for."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.synchronized = 0
        self.events = 0

    def queue(self, name: str = "cuda:0") -> DeviceQueue:
        return DeviceQueue(name, self.new_event, self.synchronize)

    def new_event(self) -> Event:
        self.events += 1
        return Event(self)

    def synchronize(self) -> None:
        self.synchronized += 1


class Event:
    def __init__(self, device: Device) -> None:
        self.device = device

    def record(self) -> None:
        self.passed_ns = self.device.clock.now
        self.waits_for = self.device.synchronized + 1

    def elapsed_time(self, other: Event) -> float:
        assert self.device.synchronized >= other.waits_for, "the device was not waited for"
        return (other.passed_ns - self.passed_ns) / 1e6


class On:
    """A tensor as far as a clock looks at it."""

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)


def clock_on(*devices: str) -> Any:
    return clock_for([On(device) for device in devices])  # type: ignore[misc]


def test_host_timestamps_are_nanoseconds() -> None:
    clock = HostClock()
    first, second = clock.mark(), clock.mark()

    assert clock.nanoseconds([first, second]) == [first, second]
    assert second >= first


def test_a_device_is_synchronized_once_for_any_number_of_events() -> None:
    clock = FakeClock()
    device = Device(clock)
    events = EventClock([device.queue()])

    marks = []
    for _ in range(4):
        marks.append(events.mark())
        clock.sleep(1_000)

    assert device.synchronized == 0
    assert events.nanoseconds(marks) == [0, 1_000, 2_000, 3_000]
    assert device.synchronized == 1
    assert events.nanoseconds([]) == []


def test_timing_by_device_events_reports_like_the_host_and_syncs_once_per_run() -> None:
    clock = FakeClock()
    device = Device(clock)
    events = EventClock([device.queue()])
    model = Sleeper(clock, 1_000, 3_000, child=Sleeper(clock, 2_000, 5_000))

    timing = measure(
        model, (torch.ones(2, requires_grad=True),), {}, warmup=1, repeats=1, clock=events
    ).timing

    (run,) = timing.runs
    assert (run.root("forward").total_ns, run.root("backward").total_ns) == (3_000, 8_000)
    assert timing.clock == "cuda:0"
    assert device.events > 0
    assert device.synchronized == 3


def test_the_clock_is_that_of_the_common_device() -> None:
    assert isinstance(clock_on("cpu"), HostClock)
    assert isinstance(clock_on(), HostClock)
    assert clock_on("cpu", "cuda:0").name == "cuda:0"


def test_the_time_of_two_devices_is_when_both_are_done() -> None:
    clocks = FakeClock(), FakeClock()
    # The clocks of two devices began at different times.
    clocks[1].sleep(77_000)
    first, second = map(Device, clocks)
    events = EventClock([first.queue("cuda:0"), second.queue("cuda:1")])

    marks = [events.mark()]
    clocks[0].sleep(5_000_000)
    marks.append(events.mark())
    clocks[1].sleep(3_000_000)
    marks.append(events.mark())
    clocks[1].sleep(4_000_000)
    marks.append(events.mark())

    assert events.name == "cuda:0 and cuda:1"
    times = events.nanoseconds(marks)
    # The second device was not waiting for the first: 3 of its 7 ms are hidden behind the first.
    assert times == pytest.approx([0, 5_000_000, 5_000_000, 7_000_000], abs=1_000_000)
    assert times == sorted(times)
    assert events.nanoseconds(marks[::-1]) == times[::-1]


def test_a_model_without_ops_has_no_time() -> None:
    with pytest.raises(CaptureError, match="meta"):
        clock_on("meta")


def test_cpu_time_covers_all_threads_if_several_work() -> None:
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = cpu_clock(HostClock())
        torch.set_num_threads(2)
        together = cpu_clock(HostClock())
    finally:
        torch.set_num_threads(threads)

    assert alone is time.thread_time_ns
    assert together is time.process_time_ns
    assert cpu_clock(FakeClock()) is time.process_time_ns
