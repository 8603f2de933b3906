"""What a trace of `torch.profiler` says: kernel, idle and copy time, by module where it has any.

A kernel belongs to the call that launched it (the same correlation id), or else to the op with its
external id. The call belongs to the innermost module or `record_function` range around it on its
thread. A call of the backward belongs to the module of the forward op with its sequence number.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]

_OP, _RANGE, _LAUNCH, _OTHER = range(4)
_KERNEL, _COPY, _SET = range(3)
_DEVICE_WORK = {"kernel": _KERNEL, "gpu_memcpy": _COPY, "gpu_memset": _SET}
_MODULE = "nn.Module: "
_STEP = "ProfilerStep#"
_WAITS = "Synchronize"
_NONE = -(1 << 62)
_BLOCK = 1 << 16
_FARTHEST = 1 << 61
"""Nanoseconds; no clock shows more."""
OUTSIDE = "(no module)"
SEPARATOR = " > "
"""Between a module and one of its children."""


@dataclass(slots=True)
class Work:
    """The kernels, or without a device the ops, of one module or of one name."""

    name: str
    count: int = 0
    self_ns: int = 0
    total_ns: int = 0
    """Including all modules inside it."""
    backward_ns: int = 0
    """The part of `self_ns` that the backward took."""


class DeviceTime(NamedTuple):
    """What one device did in the time of the trace."""

    device: int
    kernels: int
    kernel_ns: int
    """Sum over all kernels."""
    copy_ns: int
    memset_ns: int
    busy_ns: int
    """The time in which it did something; what overlaps counts once."""
    idle_ns: int
    """The rest of the time of the trace."""
    between_ns: int
    """The part of `idle_ns` between its first and its last kernel, copy or memset."""
    longest_gap_ns: int


class ThreadTime(NamedTuple):
    """What one thread of the CPU did that launched work on a device."""

    thread: str
    launches: int
    """Calls of the CUDA runtime or driver."""
    op_ns: int
    """The time in ops, including the calls inside them."""
    call_ns: int
    """The time in calls of the CUDA runtime or driver."""
    wait_ns: int
    """The part of `call_ns` that waited for a device."""


@dataclass(frozen=True)
class TraceTimes:
    """The times of a trace."""

    span_ns: int
    """From the start of the first event to the end of the last."""
    events: int
    steps: int
    """Steps that the user's profiler marked."""
    by_module: tuple[Work, ...]
    """By module or `record_function` range, the largest total first; empty if it has none."""
    by_name: tuple[Work, ...]
    """By kernel, or without a device by op, the largest first."""
    devices: tuple[DeviceTime, ...]
    threads: tuple[ThreadTime, ...]
    """Those that launched something, the busiest first."""
    unlinked: int
    """Kernels whose launch is not in the trace."""

    @property
    def work_ns(self) -> int:
        """The sum over all kernels, or over all ops without nested ops."""
        return sum(one.self_ns for one in self.by_name)


class _Columns:
    """Events as columns of numbers, a few bytes each."""

    def __init__(self, **types: str) -> None:
        self._columns = {name: array(code) for name, code in types.items()}
        self._appends = tuple(column.append for column in self._columns.values())

    def add(self, *values: int) -> None:
        for append, value in zip(self._appends, values, strict=True):
            append(value)

    def __getitem__(self, name: str) -> Numbers:
        column = self._columns[name]
        return np.frombuffer(column, column.typecode) if column else np.empty(0, np.int64)

    def __len__(self) -> int:
        return len(self._columns["start"])


class KinetoTrace:
    """Collects the events of a trace, and works out its times at the end."""

    def __init__(self) -> None:
        self.events = 0
        self._steps = 0
        self._names: dict[str, int] = {}
        self._threads: dict[tuple[Any, Any], int] = {}
        self._cpu = _Columns(start="q", end="q", kind="b", name="i", thread="i", seq="q", link="q")
        self._device = _Columns(
            start="q", end="q", kind="b", name="i", device="q", link="q", external="q"
        )
        self._first, self._last = 1 << 62, -(1 << 62)

    def add(self, event: dict[str, Any]) -> None:
        """Keep what is needed of an event; others, and those without a time, are ignored."""
        self.events += 1
        if event.get("ph") != "X":
            return
        category, name = event.get("cat"), event.get("name")
        kind = _kind(category, name)
        if kind is None:
            return
        try:
            start = round(event["ts"] * 1000)
            end = start + round(event["dur"] * 1000)
        except (KeyError, TypeError, ValueError, OverflowError):
            return
        if not -_FARTHEST < start <= end < _FARTHEST:
            return
        self._first, self._last = min(self._first, start), max(self._last, end)
        args = event.get("args")
        number = self._names.setdefault(str(name), len(self._names))
        if category in _DEVICE_WORK:
            device = _integer(args, "device", _integer(event, "pid", 0))
            link, external = _integer(args, "correlation"), _integer(args, "External id")
            self._device.add(start, end, kind, number, device, link, external)
        elif kind != _OTHER:
            if kind == _RANGE and str(name).startswith(_STEP):
                self._steps += 1
                return
            where = (event.get("pid"), event.get("tid"))
            thread = self._threads.setdefault(where, len(self._threads))
            link = _integer(args, "correlation" if kind == _LAUNCH else "External id")
            self._cpu.add(start, end, kind, number, thread, _sequence(args), link)

    @property
    def has_times(self) -> bool:
        """Whether there was anything that torch.profiler writes."""
        return bool(len(self._cpu) or len(self._device))

    def times(self) -> TraceTimes:
        """The times of all events so far."""
        names = list(self._names)
        ranges = _Ranges(self._cpu, names)
        device = self._device
        is_kernel = device["kind"] == _KERNEL
        if len(device):
            owner, backward, linked = ranges.of_device(device)
            taken = device["end"] - device["start"]
            chosen = is_kernel
            name = device["name"]
            unlinked = int((~linked & is_kernel).sum())
        else:
            owner, backward, taken = ranges.owner, ranges.is_backward, ranges.self_ns
            chosen, name, unlinked = self._cpu["kind"] == _OP, self._cpu["name"], 0
        chains = (owner[chosen], taken[chosen], backward[chosen])
        return TraceTimes(
            span_ns=max(0, self._last - self._first),
            events=self.events,
            steps=self._steps,
            by_module=_by_module(*chains, ranges.chains, names) if ranges.chains else (),
            by_name=_by_name(name[chosen], *chains[1:], names),
            devices=tuple(_devices(device, max(0, self._last - self._first))),
            threads=tuple(_launching(self._cpu, names, list(self._threads))),
            unlinked=unlinked,
        )


def _kind(category: Any, name: Any) -> int | None:
    """What an event is; None if it does not count even for the time of the whole trace."""
    if not isinstance(category, str):
        return None
    if category == "cpu_op":
        return _OP
    if category == "python_function":
        return _RANGE if str(name).startswith(_MODULE) else _OTHER
    if category == "user_annotation":
        return _RANGE
    if category in _DEVICE_WORK:
        return _DEVICE_WORK[category]
    return _LAUNCH if category.endswith(("_runtime", "_driver")) else None


def _integer(values: Any, key: str, default: int = _NONE) -> int:
    value = values.get(key, default) if isinstance(values, dict) else default
    return value if isinstance(value, int) and abs(value) < 1 << 62 else default


def _sequence(args: Any) -> int:
    """The sequence number of a forward op, its complement for one of the backward."""
    number = _integer(args, "Sequence number")
    if number < 0:
        return _NONE
    return ~number if _integer(args, "Fwd thread id", 0) else number


class _Ranges:
    """The ranges of all threads: in which module each one is, and its own time."""

    def __init__(self, cpu: _Columns, names: list[str]) -> None:
        self._cpu = cpu
        self._is_range = cpu["kind"] == _RANGE
        self.chains: dict[tuple[int, int], int] = {}
        """Numbers of modules, by the number of the module around it (-1: none) and the name."""
        self._owners = array("q", bytes(8 * len(cpu)))
        self._backward_of = array("q", bytes(8 * len(cpu)))
        self._self_ns = array("q", (cpu["end"] - cpu["start"]).tobytes())
        self._sweep()
        self.owner = _as_array(self._owners)
        self.self_ns = _as_array(self._self_ns)
        self.is_backward = _as_array(self._backward_of) != _NONE
        self._follow_backward()

    def _sweep(self) -> None:
        """Walk over the ranges of each thread in order, with those around the current one."""
        cpu, chains = self._cpu, self.chains
        owners, backward_of, self_ns = self._owners, self._backward_of, self._self_ns
        thread_before = _NONE
        # The ends, modules, backward sequence numbers and ops of the ranges around this one.
        stack: list[tuple[int, int, int, int]] = []
        for index, start, end, kind, name, thread, seq in _in_order(cpu):
            if thread != thread_before:
                stack, thread_before = [], thread
            while stack and stack[-1][0] <= start:
                stack.pop()
            limit, owner, backward, op = stack[-1] if stack else (end, -1, _NONE, -1)
            if kind == _RANGE:
                owner = chains.setdefault((owner, name), len(chains))
            elif kind == _OP:
                if op >= 0:
                    self_ns[op] -= min(end, limit) - start
                op = index
                if _NONE < seq < 0:
                    backward = ~seq
            owners[index], backward_of[index] = owner, backward
            stack.append((min(end, limit), owner, backward, op))

    def _follow_backward(self) -> None:
        """Give what the backward ran to the module of the forward op with its number."""
        seq, thread = self._cpu["seq"], self._cpu["thread"]
        forward = np.flatnonzero(seq >= 0)
        # Of the ops with one number, the last one made the node of the backward.
        forward = forward[np.lexsort((self._cpu["start"][forward], seq[forward]))]
        if not len(forward):
            return
        numbers, first = np.unique(seq[forward], return_index=True)
        last = np.append(first[1:], len(forward)) - 1
        # Threads count on their own: a number that two of them used says nothing.
        threads = thread[forward]
        lowest, highest = np.minimum.reduceat(threads, first), np.maximum.reduceat(threads, first)
        owners = np.where(lowest == highest, self.owner[forward[last]], -1)
        mine = np.flatnonzero(self.is_backward)
        place, found = _places(numbers, _as_array(self._backward_of)[mine])
        known = found & (owners[place] >= 0)
        self.owner = self.owner.copy()
        self.owner[mine[known]] = owners[place[known]]

    def of_device(self, device: _Columns) -> tuple[Numbers, NDArray[np.bool_], NDArray[np.bool_]]:
        """The module of each kernel, whether the backward launched it, and if that is known."""
        index = np.full(len(device), -1)
        for kind, key in ((_OP, "external"), (_LAUNCH, "link")):
            calls = np.flatnonzero((self._cpu["kind"] == kind) & (self._cpu["link"] != _NONE))
            calls = calls[np.argsort(self._cpu["link"][calls], kind="stable")]
            place, found = _places(self._cpu["link"][calls], device[key])
            index[found] = calls[place[found]]
        linked = index >= 0
        owner, backward = np.full(len(device), -1), np.zeros(len(device), bool)
        owner[linked], backward[linked] = self.owner[index[linked]], self.is_backward[index[linked]]
        return owner, backward, linked


def _as_array(values: array[int]) -> Numbers:
    return np.frombuffer(values, np.int64) if values else np.empty(0, np.int64)


def _places(known: Numbers, wanted: Numbers) -> tuple[Numbers, NDArray[np.bool_]]:
    """Where the numbers are in a sorted list, and which of them are there."""
    if not len(known):
        return np.zeros(len(wanted), np.int64), np.zeros(len(wanted), bool)
    place = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    return place, known[place] == wanted


def _in_order(cpu: _Columns) -> Iterator[tuple[int, ...]]:
    """All ranges by thread and start, outer ones first; in blocks, which take little memory."""
    kinds = cpu["kind"]
    outer = np.where(kinds == _RANGE, 0, np.where(kinds == _OP, 1, 2))
    order = np.lexsort((outer, -cpu["end"], cpu["start"], cpu["thread"]))
    columns = [cpu[name] for name in ("start", "end", "kind", "name", "thread", "seq")]
    for first in range(0, len(order), _BLOCK):
        block = order[first : first + _BLOCK]
        yield from zip(block.tolist(), *(one[block].tolist() for one in columns), strict=True)


def _by_name(
    name: Numbers, taken: Numbers, backward: NDArray[np.bool_], names: list[str]
) -> tuple[Work, ...]:
    works = _sums(name, taken, backward, len(names))
    found = [
        Work(text, count, own, own, back)
        for text, (count, own, back) in zip(names, works, strict=True)
        if count
    ]
    return tuple(sorted(found, key=lambda one: -one.self_ns))


def _sums(
    group: Numbers, taken: Numbers, backward: NDArray[np.bool_], groups: int
) -> list[tuple[int, int, int]]:
    """How many there are of each group, their time, and that of the backward."""
    totals = np.zeros((2, groups), np.int64)
    np.add.at(totals[0], group, taken)
    np.add.at(totals[1], group[backward], taken[backward])
    counts = np.bincount(group, minlength=groups)
    return list(zip(counts.tolist(), totals[0].tolist(), totals[1].tolist(), strict=True))


def _by_module(
    owner: Numbers,
    taken: Numbers,
    backward: NDArray[np.bool_],
    chains: dict[tuple[int, int], int],
    names: list[str],
) -> tuple[Work, ...]:
    """A row for each module that did something, and one for what is in none."""
    # What is in no module has number -1, and the last row.
    sums = _sums(owner % (len(chains) + 1), taken, backward, len(chains) + 1)
    works = [Work("", count, own, own, back) for count, own, back in sums]
    for (outer, name), number in chains.items():
        text = names[name].removeprefix(_MODULE)
        works[number].name = f"{works[outer].name}{SEPARATOR}{text}" if outer >= 0 else text
    for (outer, _), number in reversed(chains.items()):
        if outer >= 0:
            works[outer].total_ns += works[number].total_ns
    works[-1].name = OUTSIDE
    return tuple(
        sorted((one for one in works if one.total_ns or one.count), key=lambda one: -one.total_ns)
    )


def _devices(work: _Columns, span_ns: int) -> Iterator[DeviceTime]:
    for device in np.unique(work["device"]).tolist():
        mine = work["device"] == device
        start, end, kind = work["start"][mine], work["end"][mine], work["kind"][mine]
        busy, gaps = _busy(start, end)
        taken = end - start
        kernel, copy, memset = (int(taken[kind == one].sum()) for one in (_KERNEL, _COPY, _SET))
        yield DeviceTime(
            device=device,
            kernels=int((kind == _KERNEL).sum()),
            kernel_ns=kernel,
            copy_ns=copy,
            memset_ns=memset,
            busy_ns=busy,
            idle_ns=span_ns - busy,
            between_ns=int(gaps.sum()),
            longest_gap_ns=int(gaps.max(initial=0)),
        )


def _launching(
    cpu: _Columns, names: list[str], threads: list[tuple[Any, Any]]
) -> Iterable[ThreadTime]:
    """The threads that launched something."""
    waits = np.array([_WAITS in name for name in names], bool)
    taken, kind, thread = cpu["end"] - cpu["start"], cpu["kind"], cpu["thread"]
    found = []
    for number in np.unique(thread[kind == _LAUNCH]).tolist():
        mine = (thread == number) & (kind == _LAUNCH)
        ops = (thread == number) & (kind == _OP)
        found.append(
            ThreadTime(
                thread=f"{threads[number][1]}",
                launches=int(mine.sum()),
                op_ns=_busy(cpu["start"][ops], cpu["end"][ops])[0],
                call_ns=int(taken[mine].sum()),
                wait_ns=int(taken[mine & waits[cpu["name"]]].sum()),
            )
        )
    return sorted(found, key=lambda one: -one.launches)


def _busy(start: Numbers, end: Numbers) -> tuple[int, Numbers]:
    """The time that intervals cover together, and the gaps between them."""
    if not len(start):
        return 0, start
    order = np.argsort(start, kind="stable")
    start, reached = start[order], np.maximum.accumulate(end[order])
    gaps = np.maximum(0, start[1:] - reached[:-1])
    return int(reached[-1] - start[0] - gaps.sum()), gaps
