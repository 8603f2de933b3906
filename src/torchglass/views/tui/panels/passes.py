"""The trace of a run by module, worked out once for all panels that look at it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from weakref import WeakKeyDictionary

from torchglass.analyse.trace.anatomy import Anatomy
from torchglass.records.model import Module
from torchglass.records.trace import Call, Op, OpId, Trace
from torchglass.views.formats import harmless
from torchglass.views.tui.panels.drawing import Row, paragraph
from torchglass.views.tui.subject import SHARED, Subject


class Pass:
    """One pass: its anatomy, and its ops by the module that they ran in."""

    def __init__(self, trace: Trace) -> None:
        self.anatomy = Anatomy(trace)

    @property
    def trace(self) -> Trace:
        """The record."""
        return self.anatomy.record

    def op(self, id: OpId) -> Op:
        """One op."""
        return self.trace.ops[id]

    def name(self, id: OpId) -> str:
        """What an op is called."""
        return str(self.anatomy.labels[id])

    @cached_property
    def calls(self) -> Mapping[str, tuple[Call, ...]]:
        """The calls of each module, by its path."""
        found: dict[str, list[Call]] = {}
        for call in self.trace.calls:
            found.setdefault(call.path, []).append(call)
        return {path: tuple(calls) for path, calls in found.items()}

    def ops(self, path: str) -> list[OpId]:
        """The ops that ran in a module, inner modules included, in the order of the pass."""
        calls = self.calls.get(path, ())
        if not path:
            return [op.id for op in self.trace.ops]
        return sorted({op for call in calls for op in self.anatomy.ops_of_call[call.id]})

    def path(self, id: OpId) -> str:
        """The module that an op ran in."""
        call = self.op(id).call
        return "" if call is None else self.trace.calls[call].path


def shared_note(subject: Subject, module: Module, width: int) -> Iterator[Row]:
    """Where the calls of a module that stands in several places are recorded."""
    if module.alias_of is not None:
        first = harmless(subject.path_of_calls(module)) or "the model"
        words = f"{SHARED} The same module as {first}: all calls of both are recorded there."
        yield from paragraph(words, width, "note")


_KNOWN: WeakKeyDictionary[Subject, Pass] = WeakKeyDictionary()


def pass_of(subject: Subject) -> Pass | None:
    """The pass that a run keeps; the same object as long as the trace is the same."""
    trace = subject.document(Trace)
    if trace is None:
        return None
    known = _KNOWN.get(subject)
    if known is None or known.trace is not trace:
        known = _KNOWN[subject] = Pass(trace)
    return known
