"""Print what each verb costs on a device, and run the tests of this folder on it.

    python -m tests.device [verb …]     the simulated device, or a real GPU where torch has one

A verb is watch, record, guard, inspect or trace. Without one, the tests run, too.
"""

from __future__ import annotations

import sys

from tests.device import simulated_cuda
from tests.device.build import NoDeviceError


def _has_gpu() -> bool:
    """Asked in another process: torch must not be imported before the simulated device."""
    import subprocess

    asked = "import torch, sys; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", asked], check=False).returncode == 0


def main(wanted: list[str]) -> int:
    if _has_gpu():
        where = "real"
    else:
        where = "simulated"
        try:
            simulated_cuda.install()
        except NoDeviceError as problem:
            print(f"No table: {problem}")
            return 0
    import torch

    from tests.device import verbs

    name = torch.cuda.get_device_name()
    print(f"{where} device: {name}, torch {torch.__version__}\n")
    costs = [cost for group in wanted or verbs.GROUPS for cost in verbs.GROUPS[group]()]
    print(verbs.table(costs))
    for cost in costs:
        if not cost.is_within:
            print(f"\n{cost.verb} waits at", *cost.lines, sep="\n")
    failed = sum(not cost.is_within for cost in costs)
    if wanted or where == "real":
        return int(bool(failed))
    import pytest

    return int(pytest.main(["-q", "-p", "no:cacheprovider", "tests/device"])) or int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
