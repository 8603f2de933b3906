"""The tests of this folder need a device: the simulated one of `make device`, or a real GPU."""

from __future__ import annotations

import pytest

from tests.device import simulated_cuda


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if simulated_cuda.device is None:
        skip = pytest.mark.skip(reason="needs a device: run `make device`")
        for item in items:
            if "/device/" in str(item.path):
                item.add_marker(skip)
