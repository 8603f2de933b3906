"""Two simulated CUDA devices: `install` before torch is imported, then use torch as on a GPU.

    from tests.device import simulated_cuda
    simulated_cuda.install()
    import torch
    torch.ones(3, device="cuda:1").is_cuda

The dispatch key, the streams, the events and the allocators are real (simulated_cuda.cpp). What
`torch.cuda` asks of a library that a CPU build does not have is answered here.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.machinery
import importlib.util
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.device.build import NAME, library

_IMPORTED_FIRST = ("libc10.so", "libtorch_cpu.so", "libtorch.so", "libtorch_python.so")
_WRITTEN_HERE = {
    *("empty.memory_format", "empty_strided", "as_strided", "view", "view.dtype", "view_as_real"),
    *("view_as_complex", "_reshape_alias", "unfold", "resize_", "copy_", "_copy_from", "set_"),
    *("_copy_from_and_resize", "_local_scalar_dense", "set_.source_Storage", "record_stream"),
    *("set_.source_Storage_storage_offset", "set_.source_Tensor", "_pin_memory", "is_pinned"),
}

device: Any = None
"""The extension, once it is installed."""


def install() -> None:
    """Load the devices into this process; torch asks for its CUDA hooks only once."""
    global device  # noqa: PLW0603 - one process has them or has not
    if device is not None:
        return
    if "torch" in sys.modules:
        raise ImportError("install the simulated device before torch is imported")
    path = library()
    found = importlib.util.find_spec("torch")
    assert found is not None
    assert found.submodule_search_locations
    folder = Path(found.submodule_search_locations[0]) / "lib"
    ctypes.CDLL(str(folder / "libtorch_global_deps.so"), mode=ctypes.RTLD_GLOBAL)
    for name in _IMPORTED_FIRST:
        ctypes.CDLL(str(folder / name))
    ctypes.CDLL(str(path))
    import torch
    import torch._dynamo

    loader = importlib.machinery.ExtensionFileLoader(NAME, str(path))
    spec = importlib.util.spec_from_loader(NAME, loader)
    assert spec is not None
    device = importlib.util.module_from_spec(spec)
    loader.exec_module(device)
    device.run_as_one(_fused_ops(torch._C))
    _answer_for(torch)
    with warnings.catch_warnings():
        # Parts of torch.compile that are imported for devices only are deprecated.
        warnings.simplefilter("ignore")
        torch._dynamo.reset()


def _fused_ops(private: Any) -> list[str]:
    names = []
    for full in private._dispatch_get_all_op_names():
        space, _, name = full.partition("::")
        has = private._dispatch_has_kernel_for_dispatch_key
        if space != "aten" or name in _WRITTEN_HERE or has(full, "CUDA"):
            continue
        if has(full, "CPU") or name.startswith("_foreach"):
            names.append(name)
    return names


def _answer_for(torch: Any) -> None:
    """Answer what torch.cuda asks of the library that a CPU build does not have."""
    cuda, private = torch.cuda, torch._C

    def index(given: Any = None) -> int:
        if given is None:
            return int(device.get_device())
        if isinstance(given, int):
            return given
        its = torch.device(given).index
        return int(device.get_device() if its is None else its)

    def exchange(given: int) -> int:
        before = device.get_device()
        if given >= 0:
            device.set_device(given)
        return int(before)

    answers: dict[str, Any] = {
        "_lazy_init": lambda: None,
        "_is_compiled": lambda: True,
        "_is_in_bad_fork": lambda: False,
        "is_initialized": lambda: True,
        "is_available": lambda: True,
        "is_bf16_supported": lambda *args, **kwargs: True,
        "is_current_stream_capturing": device.is_capturing,
        "device_count": lambda: device.DEVICES,
        "current_device": device.get_device,
        "set_device": lambda given: device.set_device(index(given)),
        "synchronize": lambda device_=None, **kwargs: device.synchronize(
            index(kwargs.get("device", device_))
        ),
        "get_device_name": lambda given=None: "simulated device",
        "get_device_capability": lambda given=None: (9, 0),
        "_exchange_device": exchange,
        "_maybe_exchange_device": exchange,
    }
    for name, answer in answers.items():
        setattr(cuda, name, answer)
    cuda._initialized = True
    private._cuda_init = lambda: None
    private._cuda_getDeviceCount = lambda: device.DEVICES
    private._cuda_getDevice = device.get_device
    private._cuda_setDevice = device.set_device
    private._cuda_isCurrentStreamCapturing = device.is_capturing
    private._cuda_exchangeDevice = private._cuda_maybeExchangeDevice = exchange
    _answer_for_memory(cuda, private)
    _answer_for_streams(torch, index)
    _answer_for_random_state(torch, index)


def _answer_for_memory(cuda: Any, private: Any) -> None:
    private._cuda_memoryStats = device.memory_stats
    private._cuda_resetPeakMemoryStats = device.reset_peak
    private._cuda_resetAccumulatedMemoryStats = lambda of: None
    private._cuda_emptyCache = lambda: None
    cuda.empty_cache = cuda.memory.empty_cache = lambda: None
    cuda.mem_get_info = cuda.memory.mem_get_info = lambda of=None: (8 << 30, 8 << 30)


def _answer_for_streams(torch: Any, index: Any) -> None:
    cuda = torch.cuda

    class Event:
        def __new__(cls, enable_timing: bool = False, blocking: bool = False, **kwargs: Any) -> Any:
            return torch.Event("cuda", enable_timing=enable_timing, blocking=blocking)

    def current_stream(given: Any = None) -> Any:
        return torch.accelerator.current_stream(torch.device("cuda", index(given)))

    @contextlib.contextmanager
    def stream(given: Any) -> Iterator[None]:
        if given is None:
            yield
            return
        before = current_stream(given.device)
        torch.accelerator.set_stream(given)
        try:
            yield
        finally:
            torch.accelerator.set_stream(before)

    cuda.Event = cuda.streams.Event = Event
    cuda.Stream = cuda.streams.Stream = torch.Stream
    cuda.current_stream = current_stream
    cuda.default_stream = lambda given=None: torch.Stream(
        stream_id=0, device_index=index(given), device_type=1
    )
    cuda.set_stream = torch.accelerator.set_stream
    cuda.stream = stream


def _answer_for_random_state(torch: Any, index: Any) -> None:
    cuda = torch.cuda
    all_ = cuda.default_generators = tuple(map(device.generator, range(device.DEVICES)))

    def seed_all(seed: int) -> None:
        for one in all_:
            one.manual_seed(seed)

    def set_all(states: Any) -> None:
        for one, state in zip(all_, states, strict=True):
            one.set_state(state)

    answers = {
        "get_rng_state": lambda given="cuda": all_[index(given)].get_state(),
        "set_rng_state": lambda state, given="cuda": all_[index(given)].set_state(state),
        "get_rng_state_all": lambda: [one.get_state() for one in all_],
        "set_rng_state_all": set_all,
        "manual_seed_all": seed_all,
        "manual_seed": lambda seed: all_[device.get_device()].manual_seed(seed),
    }
    for name, answer in answers.items():
        setattr(cuda, name, answer)
        setattr(cuda.random, name, answer)
    seed_all(0)
