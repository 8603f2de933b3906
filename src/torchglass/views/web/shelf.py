"""The runs that one page shows, and what was worked out for them."""

from __future__ import annotations

from collections.abc import Sequence

from torchglass.errors import StoreError
from torchglass.records.flow import Reader
from torchglass.views.web import payloads
from torchglass.views.web.flow import Flow
from torchglass.views.web.heat import Heat


class ShownRun:
    """A run, with what need not be worked out again for each question."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.heat = Heat(reader)
        self.flow = Flow(reader)
        self._kept: dict[str, tuple[int, bytes]] = {}

    def kept(self, name: str) -> bytes:
        """The model or a document as JSON, written anew when the run's revision changed."""
        revision = self.reader.revision()
        known = self._kept.get(name)
        if known is None or known[0] != revision:
            payload = payloads.document_payload(self.reader, name)
            known = revision, payloads.to_json(payload).encode("ascii")
            self._kept[name] = known
        return known[1]


class Shelf:
    """Several runs side by side."""

    def __init__(self, readers: Sequence[Reader]) -> None:
        self.readers = tuple(readers)
        self._runs = [ShownRun(reader) for reader in readers]

    def find(self, number: int) -> ShownRun | None:
        """The run at a place, or None."""
        return self._runs[number] if 0 <= number < len(self._runs) else None

    def statuses(self) -> list[payloads.Payload]:
        """How far each run is. One that cannot be read does not hide the others."""
        if len(self.readers) == 1:
            return [payloads.status(self.readers[0])]
        return [_status_or_problem(reader) for reader in self.readers]


def _status_or_problem(reader: Reader) -> payloads.Payload:
    try:
        return payloads.status(reader)
    except StoreError as error:
        ended = {"last_step": -1, "finished": True, "series": 0, "revision": 0}
        return {**ended, "problem": str(error)}
