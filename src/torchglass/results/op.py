"""An op of a trace, the module calls it ran in, and the tensors it used.

A handle refers to its trace. The trace refers to its handles only weakly: a cycle would keep saved
tensors alive until the garbage collector runs.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload
from weakref import WeakValueDictionary

from torchglass.analyse.flop_formulas import flops_of_op
from torchglass.analyse.trace import TraceStructure, parameters_of
from torchglass.errors import LookupFailedError
from torchglass.records.model import Module, Slot, Stats, TensorSpec
from torchglass.records.trace import CallRecord, OpId, OpRecord, SourceLine, Value
from torchglass.tables.text import format_shape, harmless, plural

if TYPE_CHECKING:
    import torch

    from torchglass.analyse.receptive_field import ReceptiveField
    from torchglass.results.feature_maps import FeatureMaps
    from torchglass.results.trace import Trace
    from torchglass.views.trace_text import TensorPreview


_MOST_COMPOSED = 2000
"""After more ops, printing one does not wait for its receptive field."""


class Op:
    """One operation of a trace, or an input or output of the model; print it for details."""

    __slots__ = ("__weakref__", "record", "trace")

    def __init__(self, trace: Trace, record: OpRecord) -> None:
        self.trace = trace
        self.record = record

    @property
    def label(self) -> str:
        """Its name: "conv2d_3_7", with ":2" where it is the second pass of its layer."""
        return str(self._anatomy.labels[self._id])

    @property
    def layer_label(self) -> str:
        """The name of its layer, which all passes share: "conv2d_3_7"."""
        return self._anatomy.labels[self._id].layer

    @property
    def pass_number(self) -> int:
        """Which pass of its layer it is, from 1."""
        return self._anatomy.labels[self._id].number

    @property
    def passes(self) -> int:
        """How many passes its layer has."""
        return self._anatomy.labels[self._id].passes

    @property
    def lookup_keys(self) -> tuple[int | str, ...]:
        """All keys that find this op."""
        return self._anatomy.lookup.keys(self._id)

    @property
    def is_input(self) -> bool:
        """Whether it is an input of the model."""
        return self.record.kind == "input"

    @property
    def is_output(self) -> bool:
        """Whether it is an output of the model."""
        return self.record.kind == "output"

    @property
    def function(self) -> str:
        """torch's name of the function: "conv2d"; of an input or output its name: "x", "b.0"."""
        return self.record.function

    @property
    def settings(self) -> dict[str, str]:
        """Its arguments that are not tensors, by position or name ("3", "stride"), as text."""
        return dict(self.record.settings)

    @property
    def distances_from_input(self) -> tuple[int, int] | None:
        """The fewest and the most steps from an input; None if it depends on none."""
        return self._anatomy.distances_from_input[self._id]

    @property
    def distances_from_output(self) -> tuple[int, int] | None:
        """The fewest and the most steps to an output; None if none depends on it."""
        return self._anatomy.distances_from_output[self._id]

    @property
    def in_place(self) -> bool:
        """Whether it modified an existing tensor."""
        return self.record.writes

    @property
    def grad_fn(self) -> str:
        """The class of its result's autograd node; "" if there is none."""
        return self.record.grad_fn

    @property
    def seconds(self) -> float:
        """How long it took."""
        return (self.record.end_ns - self.record.start_ns) / 1e9

    @property
    def flops(self) -> int | None:
        """Its FLOPs, 1 multiply-add = 2 FLOPs; None where they are not known."""
        return flops_of_op(self.record)

    @property
    def source(self) -> SourceLine | None:
        """The line of the user's code that called it."""
        return self.record.source

    @property
    def code(self) -> str:
        """The text of that line, "" where its file cannot be read."""
        source = self.record.source
        return linecache.getline(source.file, source.line).strip() if source else ""

    @property
    def tensor(self) -> torch.Tensor | None:
        """Its output when it ran, the first of several; None if it was not saved."""
        return self.trace.saved_tensors.get((self._id, 0))

    @property
    def tensor_contents(self) -> torch.Tensor | None:
        """Another name of `tensor`."""
        return self.tensor

    @property
    def tensors(self) -> tuple[torch.Tensor | None, ...]:
        """All its output tensors."""
        saved = self.trace.saved_tensors
        return tuple(saved.get((self._id, index)) for index in range(len(self.record.outputs)))

    @property
    def gradient(self) -> torch.Tensor | None:
        """The gradient of its tensor, where gradients were captured and there is one."""
        return self.trace.saved_gradients.get((self._id, 0))

    def images(self, sample: int = 0) -> FeatureMaps:
        """Its output for one sample as pictures: a map for each channel.

        Args:
            sample: The index in the batch.

        Returns:
            `FeatureMaps`: print it, or save it with `save("maps.png")`.

        Raises:
            LookupFailedError: The tensor was not saved, or has less than two dimensions.
        """
        from torchglass.results.feature_maps import feature_maps

        return feature_maps(self, sample)

    def attention(self, sample: int = 0) -> FeatureMaps:
        """The weights of an attention for one sample: a map of queries × keys for each head.

        The fused kernel does not keep them, so they are recomputed from query and key.

        Args:
            sample: The index in the batch.

        Returns:
            `FeatureMaps`: print it, or save it with `save("attention.png")`.

        Raises:
            LookupFailedError: It is not an attention, or its query or key were not saved.
        """
        from torchglass.results.feature_maps import attention_maps

        return attention_maps(self, sample)

    def receptive_field(self, input: str | None = None) -> ReceptiveField:
        """The part of a model's input that each position of its output depends on.

        It is composed from the ops before it, so no values are needed.

        Args:
            input: The name of an input. None: the first that it depends on.

        Returns:
            A `ReceptiveField` with `size`, `stride` and `start` for each axis of the input, and
            `at(position)` for one position of the output. Print it.

        Raises:
            LookupFailedError: It depends on no input, or an op before it reads positions that
                values decide.
        """
        from torchglass.analyse.receptive_field import inputs_of, receptive_field

        found = list(inputs_of(self.trace.record, self._id))
        if input is not None:
            found = [self.trace[input if "." in input else f"input.{input}"].record.id]
        if not found:
            raise LookupFailedError(f"{self.label} does not depend on an input")
        return receptive_field(self.trace.record, self._id, found[0], label=self.label)

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The shape of its tensor."""
        return self._spec.shape if self._spec else None

    @property
    def dtype(self) -> str:
        """The dtype of its tensor: "float32"."""
        return self._spec.dtype if self._spec else ""

    @property
    def device(self) -> str:
        """Where its tensor was: "cuda:0"."""
        return self._spec.device if self._spec else ""

    @property
    def bytes(self) -> int:
        """Size of all its output tensors."""
        return sum(value.spec.bytes for value in self.record.outputs)

    @property
    def stats(self) -> Stats | None:
        """Statistics of its tensor; None where it was not saved."""
        return self.trace.stats(self._id)

    @property
    def parameters(self) -> Mapping[str, TensorSpec]:
        """The model's parameters that it used, by dotted name."""
        return parameters_of(self.record)

    @property
    def parents(self) -> tuple[Op, ...]:
        """The ops whose results it used."""
        return self._ops(self.record.parents)

    @property
    def children(self) -> tuple[Op, ...]:
        """The ops that used its result."""
        return self._ops(self._anatomy.children[self._id])

    @property
    def siblings(self) -> tuple[Op, ...]:
        """The other ops that use an input of this one."""
        return self._ops(self._anatomy.siblings(self._id))

    @property
    def spouses(self) -> tuple[Op, ...]:
        """The other ops whose results are used by the same ops as its own."""
        return self._ops(self._anatomy.spouses(self._id))

    @property
    def parent_places(self) -> dict[str, tuple[str, ...]]:
        """The arguments that each parent's result is used as, by the parent's label."""
        places: dict[str, tuple[str, ...]] = {}
        for operand in self.record.operands:
            for parent in self._ops(operand.parents):
                places[parent.label] = (*places.get(parent.label, ()), operand.place)
        return places

    @property
    def modules(self) -> tuple[Call, ...]:
        """The module calls it ran in, outermost first, without the model's."""
        return self._calls(self._anatomy.modules(self._id))

    @property
    def output_of(self) -> tuple[Call, ...]:
        """The module calls that returned its result, innermost first, without the model's."""
        return self._calls(self._anatomy.output_of(self._id))

    def to_dict(self) -> dict[str, Any]:
        """Everything except its tensors, as plain values."""
        return {
            "index": self._id,
            "label": self.label,
            "layer": self.layer_label,
            "pass": self.pass_number,
            "passes": self.passes,
            "kind": self.record.kind,
            "function": self.function,
            "shape": self.shape,
            "dtype": self.dtype,
            "device": self.device,
            "bytes": self.bytes,
            "saved": (self._id, 0) in self.trace.saved_tensors,
            "parents": tuple(op.label for op in self.parents),
            "children": tuple(op.label for op in self.children),
            "modules": tuple(call.label for call in self.modules),
            "output_of": tuple(call.label for call in self.output_of),
            "parameters": tuple(self.parameters),
            "parameter_count": sum(spec.elements for spec in self.parameters.values()),
            "settings": self.settings,
            "in_place": self.in_place,
            "grad_fn": self.grad_fn,
            "seconds": self.seconds,
            "flops": self.flops,
            "file": self.source.file if self.source else "",
            "line": self.source.line if self.source else None,
        }

    def __str__(self) -> str:
        # Imported where it is needed: the first trace of a process waits for all imports.
        from torchglass.analyse.receptive_field import field_line
        from torchglass.views.trace_text import op_text

        previews = {
            index: _preview(tensor)
            for index, tensor in enumerate(self.tensors)
            if tensor is not None
        }
        gradient = None if self.gradient is None else _preview(self.gradient)
        return op_text(
            self._anatomy,
            self._id,
            previews,
            gradient=gradient,
            code=self.code,
            field=field_line(self.trace.record, self._id, most_ops=_MOST_COMPOSED),
        )

    def __repr__(self) -> str:
        from torchglass.views.trace_text import op_line

        return op_line(self._anatomy, self._id)

    @property
    def _id(self) -> OpId:
        return self.record.id

    @property
    def _anatomy(self) -> TraceStructure:
        return self.trace.anatomy

    @property
    def _spec(self) -> TensorSpec | None:
        return self.record.outputs[0].spec if self.record.outputs else None

    def _ops(self, ids: tuple[OpId, ...]) -> tuple[Op, ...]:
        return tuple(self.trace.ops[op] for op in ids)

    def _calls(self, calls: tuple[CallRecord, ...]) -> tuple[Call, ...]:
        return tuple(self.trace.calls[call.id] for call in calls)


def _preview(tensor: torch.Tensor) -> TensorPreview:
    from torchglass.capture.tensor.description import corner, histogram
    from torchglass.capture.tensor.moments import measure
    from torchglass.views.trace_text import TensorPreview

    return TensorPreview(corner=corner(tensor), stats=measure(tensor), histogram=histogram(tensor))


class Call:
    """One run of one module."""

    __slots__ = ("__weakref__", "record", "trace")

    def __init__(self, trace: Trace, record: CallRecord) -> None:
        self.trace = trace
        self.record = record

    @property
    def path(self) -> str:
        """Dotted path of the module; "" is the model itself."""
        return self.record.path

    @property
    def number(self) -> int:
        """Which call of that module it is, from 1."""
        return self.record.number

    @property
    def label(self) -> str:
        """The module's path, with ":2" where the module ran several times."""
        return self.trace.anatomy.call_name(self.record)

    @property
    def module(self) -> Module | None:
        """The module in the model; None for one that is not part of it."""
        return self.trace.model.find(self.path)

    @property
    def inputs(self) -> tuple[Value, ...]:
        """Its input tensors: position, shape and dtype, and the op that produced each."""
        return self.record.inputs

    @property
    def outputs(self) -> tuple[Value, ...]:
        """Its output tensors."""
        return self.record.outputs

    @property
    def seconds(self) -> float:
        """How long it took, inner calls included."""
        return self.record.total_ns / 1e9

    @property
    def parent(self) -> Call | None:
        """The call that made this one."""
        return None if self.record.parent is None else self.trace.calls[self.record.parent]

    @property
    def children(self) -> tuple[Call, ...]:
        """The calls that this one made."""
        return tuple(call for call in self.trace.calls if call.record.parent == self.record.id)

    @property
    def ops(self) -> tuple[Op, ...]:
        """The ops that ran in it, inner calls included."""
        inside = self.trace.anatomy.ops_of_call[self.record.id]
        return tuple(self.trace.ops[op] for op in inside)

    def __repr__(self) -> str:
        return f"<call {self.label or 'of the model'}: {plural(len(self.ops), 'op')}>"


class NamedTensor:
    """A parameter or buffer of the model, found by its name: `trace["bn.running_mean"]`."""

    parents: tuple[Op, ...] = ()

    def __init__(self, trace: Trace, name: str, slot: Slot) -> None:
        self.trace = trace
        self.label = name
        self.slot = slot

    @property
    def lookup_keys(self) -> tuple[int | str, ...]:
        """The key that finds it."""
        return (self.label,)

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Its shape."""
        return self.slot.spec.shape

    @property
    def dtype(self) -> str:
        """Its dtype: "float32"."""
        return self.slot.spec.dtype

    @property
    def device(self) -> str:
        """Where it is: "cuda:0"."""
        return self.slot.spec.device

    @property
    def bytes(self) -> int:
        """Its size."""
        return self.slot.spec.bytes

    @property
    def tensor(self) -> torch.Tensor | None:
        """Its value when the pass began; None for a trace from a file, or if no op used it."""
        return self.trace.held_tensor(self.label)

    @property
    def tensor_contents(self) -> torch.Tensor | None:
        """Another name of `tensor`."""
        return self.tensor

    @property
    def gradient(self) -> torch.Tensor | None:
        """Its current gradient."""
        return self.tensor.grad if self.tensor is not None and self.tensor.is_leaf else None

    @cached_property
    def stats(self) -> Stats | None:
        """Its statistics; None where its value is not known."""
        from torchglass.capture.tensor.moments import measure

        return measure(self.tensor) if self.tensor is not None else None

    @property
    def children(self) -> tuple[Op, ...]:
        """The ops that used it."""
        return tuple(
            op
            for op in self.trace.ops
            if any(self.label in (use.parameter, use.buffer) for use in op.record.operands)
        )

    def __repr__(self) -> str:
        kind = f"{format_shape(self.shape) or 'scalar'} {self.dtype}"
        used = ", ".join(op.label for op in self.children) or "no op"
        return f"<{self.slot.role} {harmless(self.label)}: {kind}, used by {used}>"


Record = TypeVar("Record")
Handle = TypeVar("Handle")


class Handles(Sequence[Handle], Generic[Record, Handle]):
    """The handles of records; each record has at most one handle at a time."""

    def __init__(
        self,
        records: Sequence[Record],
        make: Callable[[Record], Handle],
        alive: WeakValueDictionary[int, Handle],
    ) -> None:
        self._records = records
        self._make = make
        self._alive = alive

    @overload
    def __getitem__(self, place: int) -> Handle: ...

    @overload
    def __getitem__(self, place: slice) -> tuple[Handle, ...]: ...

    def __getitem__(self, place: int | slice) -> Handle | tuple[Handle, ...]:
        found = range(len(self))[place]
        return self._at(found) if isinstance(found, int) else tuple(map(self._at, found))

    def __len__(self) -> int:
        return len(self._records)

    def __repr__(self) -> str:
        return repr(list(self))

    def _at(self, place: int) -> Handle:
        handle = self._alive.get(place)
        if handle is None:
            handle = self._alive.setdefault(place, self._make(self._records[place]))
        return handle
