"""How large gradients are along the depth of a model, over the steps of its training."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import numpy as np

from torchglass.analyse.gradients import gradient_norms, layers
from torchglass.errors import StoreError
from torchglass.records.flow import Reader
from torchglass.views.web.ribbon import Ribbon

Norms = Mapping[str, float]
"""The norm of the gradients of all parameters of a module, by its path."""


class Flow:
    """The gradient norms of a run. What was read is kept, so that only new steps are read again."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._ribbon: Ribbon[Norms] = Ribbon(_largest)
        self._lock = threading.Lock()

    def ribbon(self) -> Ribbon[Norms]:
        """All layers up to the latest step."""
        with self._lock:
            norms = self._new_norms()
            steps = sorted(norms)
            self._ribbon.extend(steps, [norms[step] for step in steps])
            return self._ribbon

    def _new_norms(self) -> dict[int, dict[str, float]]:
        """The norms of all layers, by the steps since the last ones."""
        try:
            found = layers(self._reader.model(), self._reader.series())
        except StoreError:
            return {}
        ids = [series.id for layer in found for series in layer.gradients]
        read = self._reader.points_of(ids, after=self._ribbon.last_step)
        by_series = {points.series.id: points for points in read}
        norms: dict[int, dict[str, float]] = {}
        for layer in found:
            own = [by_series[series.id] for series in layer.gradients]
            steps = min((points.steps for points in own), key=len, default=np.empty(0))
            of_layer = gradient_norms(layer, lambda series: by_series.get(series.id))
            for step, norm in zip(steps.tolist(), of_layer.tolist(), strict=False):
                norms.setdefault(step, {})[layer.path] = norm
        return norms


def _largest(parts: Sequence[Norms]) -> Norms:
    paths = dict.fromkeys(path for part in parts for path in part)
    return {path: max(part.get(path, 0.0) for part in parts) for path in paths}
