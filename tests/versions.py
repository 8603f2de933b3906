"""What older versions of torch cannot do, as a reason to skip a test there."""

import pytest
import torch

VERSION = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])


def needs_torch(major: int, minor: int, what: str) -> pytest.MarkDecorator:
    """Skip a test on a torch that lacks what it needs; docs/limits.md lists it for users."""
    reason = f"needs torch {major}.{minor}: {what}"
    return pytest.mark.skipif((major, minor) > VERSION, reason=reason)
