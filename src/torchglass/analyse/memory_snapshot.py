"""A memory snapshot of torch's CUDA allocator: whose the blocks are, the pools, and the peak.

`torch.cuda.memory._dump_snapshot` pickles dicts, lists, strings and numbers. Nothing else is read.
"""

from __future__ import annotations

import pickle
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, BinaryIO, NamedTuple, NoReturn

from torchglass.analyse.frame_modules import FrameModules
from torchglass.errors import TargetError, UnsafeFileError
from torchglass.records.model import Model

_WRITE = "Write one with torch.cuda.memory._dump_snapshot(file)."
_NOT_THE_USERS = re.compile(
    r"(^|/)((site|dist)-packages|lib/python3[^/]*|<frozen [^/]*"
    r"|torch/(nn|optim|autograd|utils|cuda|distributed|amp|functional\.py|_\w+))(/|$|\.py$)"
)
"""Files of installed packages, of Python, and of torch built from source."""
_DAMAGED = (
    *(pickle.UnpicklingError, EOFError, ValueError, LookupError, AttributeError, TypeError),
    *(ImportError, ArithmeticError, MemoryError),
)
"""What the unpickler raises for a corrupt file."""
_PASSED_ON = ("_call_impl", "_wrapped_call_impl")
"""Functions of nn.Module that only call the forward."""


class Owner(NamedTuple):
    """The line of code that allocated a block."""

    file: str
    """Empty if no line is known; then `function` says why."""
    line: int
    function: str
    module: str | None = None
    """The path of the module that ran, with `*` for what is not known; None if none is known."""


NOT_RECORDED = Owner("", 0, "no stack recorded")
NO_PYTHON = Owner("", 0, "no Python code on the stack")
BEFORE = Owner("", 0, "allocated before the history began")


class SegmentBlock(NamedTuple):
    """A piece of a segment: a tensor's memory, or free."""

    address: int
    size: int
    requested: int
    """What was asked for, before it was rounded up."""
    state: str
    owner: Owner

    @property
    def is_active(self) -> bool:
        """Whether it is used, or another stream may still use it."""
        return self.state.startswith("active")


class Segment(NamedTuple):
    """Memory that the allocator got from the device in one call."""

    size: int
    device: int
    stream: int
    pool: str
    """ "small", "large", or with the id of a private pool: "large, private 0.1"."""
    blocks: tuple[SegmentBlock, ...]


class Event(NamedTuple):
    """One action of the allocator."""

    action: str
    address: int
    size: int
    device_free: int
    owner: Owner


class Snapshot(NamedTuple):
    """All that a file contains."""

    segments: tuple[Segment, ...]
    history: tuple[tuple[Event, ...], ...]
    """The recorded actions of each device, the oldest first."""


@dataclass(frozen=True, slots=True)
class OwnerMemory:
    """What one line of code has allocated."""

    owner: Owner
    bytes: int
    blocks: int


@dataclass(frozen=True, slots=True)
class PoolMemory:
    """One pool of the allocator. A request only gets a free block of its own pool and stream."""

    pool: str
    stream: int
    segments: int
    reserved_bytes: int
    allocated_bytes: int
    pending_bytes: int
    """Freed, but another stream may still use it."""
    split_bytes: int
    """Free, in segments that also contain used blocks."""
    unused_bytes: int
    """In segments without a used block, which `empty_cache()` returns to the device."""
    largest_free_bytes: int


@dataclass(frozen=True, slots=True)
class SnapshotPeak:
    """The most that was alive in the recorded history, in requested bytes."""

    bytes: int
    event: int
    """Index of the action that reached it."""
    events: int
    owners: tuple[OwnerMemory, ...]


class _PlainUnpickler(pickle.Unpickler):
    """Builds containers, strings and numbers; whatever names a class or function is refused."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise UnsafeFileError(
            f"it refers to {module}.{name}, and opening it could run code. "
            f"A memory snapshot contains plain data only. {_WRITE}"
        )

    def persistent_load(self, pid: Any) -> NoReturn:
        raise TargetError(f"it is not a memory snapshot. {_WRITE}")


FrameList = Sequence[Mapping[str, Any]]
OwnerOf = Callable[[FrameList | None], Owner]


def read_snapshot(file: BinaryIO, model: Model | None = None) -> Snapshot:
    """The contents of a file, without running anything that is in it.

    The owners have the modules of a model, if there is one.

    Raises:
        UnsafeFileError: It refers to a class or a function.
        TargetError: It is cut short, or not a memory snapshot.
    """
    is_pickle = file.read(1) in (b"", pickle.PROTO)
    file.seek(0)
    try:
        content = _PlainUnpickler(file).load()
    except TargetError:
        raise
    except _DAMAGED as error:
        if is_pickle and (isinstance(error, EOFError) or "truncated" in str(error)):
            raise TargetError("it is empty or cut short. Copy it again.") from None
        raise TargetError(f"it is not a memory snapshot, or corrupt. {_WRITE}") from None
    if not isinstance(content, dict) or not isinstance(content.get("segments"), list):
        raise TargetError(f"it is a pickle, but not a memory snapshot. {_WRITE}")
    try:
        traces = content.get("device_traces") or ()
        owner = partial(owner_of, modules=FrameModules(model) if model else None)
        return Snapshot(
            tuple(_segment(part, owner) for part in content["segments"]),
            tuple(tuple(_event(part, owner) for part in events) for events in traces),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise TargetError(f"it is not in the format of torch's memory snapshots: {error}") from None


def _segment(part: Mapping[str, Any], owner: OwnerOf) -> Segment:
    pool, kind = tuple(part.get("segment_pool_id") or (0, 0)), str(part["segment_type"])
    private = "" if pool == (0, 0) else f", private {'.'.join(map(str, pool))}"
    return Segment(
        _number(part, "total_size"),
        _number(part, "device", 0),
        _number(part, "stream", 0),
        kind + private,
        tuple(_blocks(part["blocks"], _number(part, "address", 0), owner)),
    )


def _blocks(
    parts: Iterable[Mapping[str, Any]], address: int, owner: OwnerOf
) -> Iterator[SegmentBlock]:
    for part in parts:
        size = _number(part, "size")
        address = _number(part, "address", address)
        requested = _number(part, "requested_size", size)
        yield SegmentBlock(address, size, requested, str(part["state"]), owner(part.get("frames")))
        address += size


def _event(part: Mapping[str, Any], owner: OwnerOf) -> Event:
    return Event(
        str(part["action"]),
        _number(part, "addr", 0),
        _number(part, "size", 0),
        _number(part, "device_free", 0),
        owner(part.get("frames")),
    )


def _number(part: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = part.get(key, default)
    if not isinstance(value, int) or value < 0:
        raise ValueError(f"{key!r} is {value!r:.40}, not a size or number")
    return value


def owner_of(frames: FrameList | None, modules: FrameModules | None = None) -> Owner:
    """The innermost line of the user's code; without one, of any Python code."""
    if not frames:
        return NOT_RECORDED
    python = [one for one in frames if _is_python(one["filename"])]
    called = [one for one in python if one["name"] not in _PASSED_ON]
    users = (one for one in called if _is_users(one["filename"]))
    found = next(users, None) or next(iter(called or python), None)
    if found is None:
        return NO_PYTHON
    module = modules.path(python) if modules is not None else None
    return Owner(str(found["filename"]), _number(found, "line"), str(found["name"]), module)


@cache
def _is_python(file: str) -> bool:
    return file.endswith(".py") or file.startswith("<")


@cache
def _is_users(file: str) -> bool:
    return not _NOT_THE_USERS.search(file.replace("\\", "/"))


def owners_of(held: Iterable[tuple[Owner, int]]) -> tuple[OwnerMemory, ...]:
    """The owners of blocks of these sizes, the one with the most bytes first."""
    sizes: Counter[Owner] = Counter()
    blocks: Counter[Owner] = Counter()
    for owner, size in held:
        sizes[owner] += size
        blocks[owner] += 1
    return tuple(OwnerMemory(owner, size, blocks[owner]) for owner, size in sizes.most_common())


def pools_of(segments: Iterable[Segment]) -> tuple[PoolMemory, ...]:
    """The pools of one device, the one with the most memory first."""
    by_pool: dict[tuple[str, int], list[Segment]] = {}
    for segment in segments:
        by_pool.setdefault((segment.pool, segment.stream), []).append(segment)
    pools = (_pool(pool, stream, those) for (pool, stream), those in by_pool.items())
    return tuple(sorted(pools, key=lambda one: -one.reserved_bytes))


def _pool(pool: str, stream: int, segments: Sequence[Segment]) -> PoolMemory:
    blocks = [block for segment in segments for block in segment.blocks]
    unused = [one for one in segments if not any(block.is_active for block in one.blocks)]
    reserved, unused_bytes = (sum(one.size for one in those) for those in (segments, unused))
    active = sum(block.size for block in blocks if block.is_active)
    allocated = sum(block.size for block in blocks if block.state == "active_allocated")
    return PoolMemory(
        pool,
        stream,
        len(segments),
        reserved,
        allocated,
        active - allocated,
        reserved - active - unused_bytes,
        unused_bytes,
        max((block.size for block in blocks if not block.is_active), default=0),
    )


def peak_of(segments: Iterable[Segment], history: Sequence[Event]) -> SnapshotPeak | None:
    """The peak of the history, which ends with the blocks of the snapshot.

    None if nothing was recorded, or if the history does not lead to these blocks. The history may
    begin late: what was alive then is what is alive at its end without what it changed.
    """
    alive = {block.address: block for one in segments for block in one.blocks if block.is_active}
    changes = {"alloc": 1, "free_completed": -1}
    now = sum(block.requested for block in alive.values())
    now -= sum(changes.get(one.action, 0) * one.size for one in history)
    if now < 0 or not any(one.action in changes for one in history):
        return None
    most, at = now, -1
    for index, one in enumerate(history):
        now += changes.get(one.action, 0) * one.size
        if now > most:
            most, at = now, index
    held = _traced(history[: at + 1])
    traced = _traced(history)
    # What is alive at the end and was not allocated in the history was alive all the time.
    always = [block for address, block in alive.items() if address not in traced]
    known = [(one.owner, one.size) for one in held.values()]
    known += [(block.owner, block.requested) for block in always]
    known += [(BEFORE, size) for size in _older(history, at)]
    return SnapshotPeak(most, at, len(history), owners_of(known))


def _older(history: Sequence[Event], at: int) -> Iterator[int]:
    """The sizes of what was allocated before the history and freed after one of its actions."""
    traced: set[int] = set()
    for index, one in enumerate(history):
        if one.action == "alloc":
            traced.add(one.address)
        elif one.action == "free_completed" and one.address in traced:
            traced.remove(one.address)
        elif one.action == "free_completed" and index > at:
            yield one.size


def _traced(history: Iterable[Event]) -> dict[int, Event]:
    """The allocations of a history that it has not freed, by address."""
    alive: dict[int, Event] = {}
    for one in history:
        if one.action == "alloc":
            alive[one.address] = one
        elif one.action == "free_completed":
            alive.pop(one.address, None)
    return alive
