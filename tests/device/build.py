"""Builds the simulated device once for each version of torch and of its source.

    python -m tests.device.build

The library is kept in the cache directory of the platform. A build takes about a minute.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

NAME = "torchglass_simulated_cuda"
SOURCE = Path(__file__).with_name("simulated_cuda.cpp")


class NoDeviceError(Exception):
    """There is no simulated device; the message says why."""


def cache_folder() -> Path:
    """Where libraries are kept: each version of torch and of the source has a folder."""
    if sys.platform == "darwin":
        home = Path.home() / "Library" / "Caches"
    else:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    version = metadata.version("torch")
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]
    return home / "torchglass" / f"simulated-cuda-{version}-{python}-{digest}"


def library() -> Path:
    """The library, built if it is not there. torch is imported in another process only."""
    found = cache_folder() / f"{NAME}.so"
    if found.exists():
        return found
    if sys.platform != "linux":
        raise NoDeviceError(f"the simulated device is written for Linux, not {sys.platform}")
    if shutil.which(os.environ.get("CXX", "c++")) is None:
        raise NoDeviceError("there is no C++ compiler: install g++, or set CXX")
    print("Building the simulated device (about a minute, once) …", file=sys.stderr, flush=True)
    done = subprocess.run(
        [sys.executable, "-m", "tests.device.build"], capture_output=True, text=True, check=False
    )
    if done.returncode or not found.exists():
        last = (done.stderr or done.stdout).strip()[-2000:]
        raise NoDeviceError(f"the simulated device cannot be built with this torch:\n{last}")
    return found


def _build() -> None:
    os.environ.setdefault("MAX_JOBS", "1")
    from torch.utils import cpp_extension

    folder = cache_folder()
    # Built beside its place: an interrupted build leaves no half library.
    work = folder.with_name(f"{folder.name}.{os.getpid()}")
    work.mkdir(parents=True)
    try:
        cpp_extension.load(
            NAME,
            [str(SOURCE)],
            build_directory=str(work),
            extra_cflags=["-O1", "-g0", "-w"],
            is_python_module=False,
            verbose=True,
        )
        folder.mkdir(parents=True, exist_ok=True)
        (work / f"{NAME}.so").replace(folder / f"{NAME}.so")
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    _build()
