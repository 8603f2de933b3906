"""Statistics of parts add up to those of the whole."""

from __future__ import annotations

import math
from itertools import chain

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchglass.capture.observe.observed_call import joined
from torchglass.capture.tensor.moments import measure
from torchglass.records.model import Stats

parts = st.lists(
    st.lists(st.floats(-1e3, 1e3) | st.sampled_from([math.nan, math.inf]), min_size=1, max_size=8),
    min_size=1,
    max_size=5,
)


@given(parts)
def test_joined_statistics_of_parts_equal_the_whole(parts: list[list[float]]) -> None:
    whole = measure(torch.tensor([*chain(*parts)], dtype=torch.float64))
    first, *others = [measure(torch.tensor(part, dtype=torch.float64)) for part in parts]

    # As when some calls are in the totals already, and more of them follow.
    total = joined([joined([first, *others[:2]]), *others[2:]])

    assert total is not None
    assert whole is not None
    assert (total.count, total.nan, total.inf) == (whole.count, whole.nan, whole.inf)
    np.testing.assert_allclose(
        [total.min, total.max, total.mean, total.std],
        [whole.min, whole.max, whole.mean, whole.std],
        rtol=1e-9,
        atol=1e-6,
    )


def test_joining_none_with_statistics_gives_the_statistics() -> None:
    something = Stats(count=1, min=1.0, max=1.0, mean=1.0, std=0.0)

    assert joined([None, something]) == joined([something, None]) == something
    assert joined([None, None]) is None
    assert joined([]) is None


def test_values_too_large_to_square_do_not_raise() -> None:
    one = Stats(count=2, min=0.0, max=1e300, mean=5e299, std=7e299)
    other = Stats(count=2, min=0.0, max=1.0, mean=0.5, std=0.7)

    total = joined([one, other])

    assert total is not None
    assert total.max == 1e300
