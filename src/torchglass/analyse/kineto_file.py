"""Reads the events of a Kineto or Chrome trace one by one, from a file of any size.

`torch.profiler` writes one JSON object whose "traceEvents" is a list of millions of small objects.
Only the one being read is in memory, and a file that ends too early gives what it has.
"""

from __future__ import annotations

import codecs
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from torchglass.analyse.kineto_trace import KinetoTrace, TraceTimes
from torchglass.errors import TargetError

FILE_NAMES = (".json", ".json.gz")
"""How the names of traces end."""
_GZIP = b"\x1f\x8b"
_CHUNK_BYTES = 1 << 20
_LONGEST_EVENT = 16 << 20
"""In characters. A longer piece that is still incomplete is not an event."""
_EVENTS = re.compile(r'"traceEvents"\s*:\s*\[')
_LIST = re.compile(r"\s*\[")
_BETWEEN = re.compile(r"[\s,]*")


def read_trace(path: Path) -> tuple[TraceTimes, str]:
    """The times in a trace file, and why not all of it was read; "" if it was.

    Raises:
        TargetError: The file is not a trace of torch.profiler.
    """
    reader, trace = EventReader(path), KinetoTrace()
    try:
        for event in reader:
            trace.add(event)
    except OSError as error:
        raise TargetError(f"{path}: {error.strerror or error}") from None
    if not trace.has_times:
        raise TargetError(f"{path}: {_why_nothing(reader, trace.events)}")
    return trace.times(), reader.problem


def _why_nothing(reader: EventReader, events: int) -> str:
    if not reader.has_list:
        ending = f" ({reader.problem})" if reader.problem else ""
        return f'not a trace of torch.profiler: it has no list of "traceEvents"{ending}'
    if reader.problem:
        return f"{reader.problem}, before the first op or kernel"
    return f"none of its events is an op or kernel of torch.profiler (events: {events:,})"


class EventReader:
    """The events of a trace file, and how the file ended."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.has_list = False
        """Whether a list of events was found."""
        self.problem = ""
        """Why not all of the file was read; "" if it was."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        with self.path.open("rb") as file:
            chunks = self._texts(file)
            buffer = self._start(chunks)
            if self.has_list:
                yield from self._events(buffer, chunks)

    def _start(self, chunks: Iterator[str]) -> str:
        """The text after the start of the list of events."""
        buffer = ""
        for number, chunk in enumerate(chunks):
            buffer += chunk
            found = _EVENTS.search(buffer) or (None if number else _LIST.match(buffer))
            if found:
                self.has_list = True
                return buffer[found.end() :]
            buffer = buffer[-_CHUNK_BYTES:]
        return ""

    def _events(self, buffer: str, chunks: Iterator[str]) -> Iterator[dict[str, Any]]:
        decode = json.JSONDecoder(strict=False).raw_decode
        between = _BETWEEN.match
        position = 0
        while True:
            try:
                while True:
                    start = between(buffer, position).end()  # type: ignore[union-attr]
                    if buffer.startswith("]", start):
                        self._read_to_the_end(chunks)
                        return
                    event, position = decode(buffer, start)
                    if isinstance(event, dict):
                        yield event
            except json.JSONDecodeError:
                buffer, position = buffer[start:], 0
            more = next(chunks, "")
            if not more or len(buffer) > _LONGEST_EVENT:
                cause = "the file is corrupt" if more else "the file ends in the middle"
                self.problem = self.problem or cause
                return
            buffer += more

    def _read_to_the_end(self, chunks: Iterator[str]) -> None:
        """Read what follows the events, so that a corrupt end of a compressed file is known."""
        for _ in chunks:
            pass

    def _texts(self, file: BinaryIO) -> Iterator[str]:
        decoder = codecs.getincrementaldecoder("utf-8-sig")(errors="replace")
        is_compressed = file.read(2) == _GZIP
        file.seek(0)
        for chunk in self._decompressed(file) if is_compressed else _chunks(file):
            if text := decoder.decode(chunk):
                yield text

    def _decompressed(self, file: BinaryIO) -> Iterator[bytes]:
        """The content of a gzip file; one that was cut off gives what can be decompressed."""
        member = zlib.decompressobj(wbits=31)
        for chunk in _chunks(file):
            left = chunk
            while left:
                try:
                    yield member.decompress(left, _CHUNK_BYTES)
                except zlib.error:
                    self.problem = "the compressed file is corrupt"
                    return
                left = member.unconsumed_tail or member.unused_data
                if member.eof:
                    # A gzip file may have several parts; zeros after the last one are padding.
                    left = member.unused_data.lstrip(b"\0")
                    member = zlib.decompressobj(wbits=31) if left else member
        if not member.eof:
            self.problem = "the file ends in the middle"


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    while chunk := file.read(_CHUNK_BYTES):
        yield chunk
