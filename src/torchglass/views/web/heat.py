"""What heat maps are drawn from: a few hundred columns of each series, however long it is."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from torchglass.analyse.histograms import merged
from torchglass.records.flow import Reader
from torchglass.records.histogram import Histogram
from torchglass.records.series import SeriesId
from torchglass.views.web.ribbon import MOST_COLUMNS, Ribbon


class Heat:
    """The histograms of a run. What was read is kept, so that only new steps are read again."""

    def __init__(self, reader: Reader, most_columns: int = MOST_COLUMNS) -> None:
        self._reader = reader
        self._most_columns = most_columns
        self._ribbons: dict[SeriesId, Ribbon[Histogram]] = {}
        self._lock = threading.Lock()

    def ribbons(self, ids: Sequence[SeriesId]) -> list[Ribbon[Histogram]]:
        """Some series, up to their latest steps."""
        with self._lock:
            behind: dict[int, list[SeriesId]] = {}
            for one in dict.fromkeys(ids):
                ribbon = self._ribbons.setdefault(one, Ribbon(merged, self._most_columns))
                behind.setdefault(ribbon.last_step, []).append(one)
            for last_step, group in behind.items():
                for news in self._reader.histograms_of(group, after=last_step):
                    self._ribbons[news.series.id].extend(news.steps.tolist(), news.bins)
            return [self._ribbons[one] for one in ids]
