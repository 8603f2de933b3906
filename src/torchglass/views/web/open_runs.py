"""The runs that a page shows."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence

from torchglass.errors import StoreError
from torchglass.records.reader import Reader
from torchglass.views.web import payloads
from torchglass.views.web.decimated_steps import GradientNormColumns, HistogramColumns


class OpenRun:
    """A run with what is cached between requests."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.histograms = HistogramColumns(reader)
        self.gradient_norms = GradientNormColumns(reader)
        self._documents: dict[str, tuple[int, bytes]] = {}

    def document_json(self, name: str) -> bytes:
        """The model or a document as JSON, rebuilt when the revision of the run changes."""
        revision = self.reader.revision()
        known = self._documents.get(name)
        if known is None or known[0] != revision:
            payload = payloads.document_payload(self.reader, name)
            known = revision, payloads.to_json(payload).encode("ascii")
            self._documents[name] = known
        return known[1]


Distances = Callable[[Reader, Reader], Mapping[str, float] | None]
"""The distances between the tensors of two targets, by name; None if either has no tensors."""

FindMore = Callable[[], Sequence[Reader]]
"""Returns the runs that have appeared since the last call."""

_SECONDS_BETWEEN_LOOKS = 1.0


class OpenRuns:
    """The runs that a page shows; with `find_more`, runs that appear later are appended.

    `compared` are the indices of the runs that the page compares the first one with at the start.
    """

    def __init__(
        self,
        readers: Sequence[Reader],
        find_more: FindMore | None = None,
        *,
        compared: Sequence[int] = (),
        distances: Distances | None = None,
    ) -> None:
        self.readers = tuple(readers)
        self.compared = tuple(compared)
        self._distances = distances
        self._known_distances: dict[tuple[int, int], Mapping[str, float] | None] = {}
        self._runs = [OpenRun(reader) for reader in readers]
        self._find_more = find_more
        self._looked = time.monotonic()
        self._lock = threading.Lock()
        self._comparing = threading.Lock()

    @property
    def grows(self) -> bool:
        """Whether runs may be added."""
        return self._find_more is not None

    def find(self, number: int) -> OpenRun | None:
        """The run at an index, or None."""
        return self._runs[number] if 0 <= number < len(self._runs) else None

    def distances(self, number: int, other: int) -> Mapping[str, float] | None:
        """The distances from the tensors of the second run to those of the first."""
        pair = number, other
        if self._distances is None or not all(0 <= each < len(self.readers) for each in pair):
            return None
        if pair not in self._known_distances:
            # A separate lock: reading large checkpoints must not block other requests.
            with self._comparing:
                if pair not in self._known_distances:
                    found = self._distances(self.readers[other], self.readers[number])
                    self._known_distances[pair] = found
        return self._known_distances[pair]

    def statuses(self) -> list[payloads.Payload]:
        """The progress of each run. A run that cannot be read does not hide the others."""
        self._look_for_more()
        if len(self.readers) == 1:
            return [payloads.status(self.readers[0])]
        return [_status_or_problem(reader) for reader in self.readers]

    def _look_for_more(self) -> None:
        with self._lock:
            now = time.monotonic()
            if self._find_more is None or now - self._looked < _SECONDS_BETWEEN_LOOKS:
                return
            self._looked = now
            found = self._find_more()
            self._runs += [OpenRun(reader) for reader in found]
            self.readers += tuple(found)


def _status_or_problem(reader: Reader) -> payloads.Payload:
    try:
        return payloads.status(reader)
    except StoreError as error:
        ended = {"last_step": -1, "finished": True, "series": 0, "revision": 0}
        return {**ended, "problem": str(error)}
