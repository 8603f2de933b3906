"""The result of `trace`: every operation of a pass, by name, with its tensor."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from functools import cached_property, partial
from operator import index
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload
from weakref import WeakValueDictionary

from torchglass.analyse.flop_formulas import flops_of_op
from torchglass.analyse.trace import TraceStructure
from torchglass.errors import CaptureError, LookupFailedError, ViewError
from torchglass.records.model import Model, Module, Slot, SlotRole, Stats, join_path
from torchglass.records.trace import OpId, TraceRecord, UnconfirmedOp, Validation
from torchglass.results.op import Call, Handles, NamedTensor, Op
from torchglass.results.result import Result

if TYPE_CHECKING:
    import pandas as pd
    import torch

    from torchglass.analyse.op_graph import Depth, Mode
    from torchglass.capture.trace.assemble import CapturedPass
    from torchglass.results.diagram import Diagram
    from torchglass.results.files import LoadedPass
    from torchglass.views.graph.layout import Direction
    from torchglass.views.graph.style import ColorBy, Overrides

Tensors = Mapping[tuple[OpId, int], "torch.Tensor"]


class _Output(Enum):
    FROM_TENSORS = "only the tensors of the model's output are known"


class _Alive:
    """The handles of a trace that are in use."""

    def __init__(self) -> None:
        self.ops: WeakValueDictionary[int, Op] = WeakValueDictionary()
        self.calls: WeakValueDictionary[int, Call] = WeakValueDictionary()
        self.held: WeakValueDictionary[str, NamedTensor] = WeakValueDictionary()


class Trace(Result, Sequence[Op]):
    """All ops of one pass through a model, in the order they ran.

    Find an op by any of its names: its label ("conv2d_3_7", "conv2d_3"), the module that returned
    it ("features.6"), its index (7, -17), an input or output ("input.x"), or an unambiguous part of
    such a name. The dotted name of a parameter or buffer finds that tensor.

    Args:
        load: Gives the recorded pass on first use.
        model: Gives the structure of the model on first use.
        output: What the forward returned.
        random_seed: The seed of the pass, if it was seeded.
    """

    _saved_only = False
    is_left_out_of_pickles = False
    """Whether it is left out when an object that refers to it is pickled, such as an exception."""

    def __init__(
        self,
        load: Callable[[], CapturedPass | LoadedPass],
        model: Callable[[], Model],
        *,
        output: Any = _Output.FROM_TENSORS,
        random_seed: int | None = None,
    ) -> None:
        """`load` and `model` are each called at most once, when their result is first needed."""
        self._load = load
        self._read_model = model
        self._output = output
        self.random_seed = random_seed

    def __reduce_ex__(self, protocol: Any) -> Any:
        return (type(None), ()) if self.is_left_out_of_pickles else super().__reduce_ex__(protocol)

    @cached_property
    def _pass(self) -> CapturedPass | LoadedPass:
        loaded = self._load()
        # Its recorder keeps all arguments of all ops alive.
        del self._load
        return loaded

    @cached_property
    def model(self) -> Model:
        """The structure of the model."""
        model = self._read_model()
        del self._read_model
        return model

    @property
    def record(self) -> TraceRecord:
        """The pass as plain data."""
        return self._pass.trace

    @property
    def captured(self) -> CapturedPass | None:
        """What is needed to rerun its ops; None if it was loaded from a file."""
        from torchglass.capture.trace.assemble import CapturedPass

        return self._pass if isinstance(self._pass, CapturedPass) else None

    @cached_property
    def anatomy(self) -> TraceStructure:
        """The names and relations of its ops."""
        if not self._saved_only:
            return TraceStructure(self.record)
        saved = {op for op, _ in self.saved_tensors}
        return TraceStructure(self.record, [op.id for op in self.record.ops if op.id in saved])

    @property
    def saved_tensors(self) -> Tensors:
        """The tensors that were saved, by number of the op and of its output."""
        return self._pass.tensors

    @property
    def saved_gradients(self) -> Tensors:
        """The gradients that were captured, by number of the op and of its output."""
        return self._pass.gradients

    @property
    def ops(self) -> Sequence[Op]:
        """Every operation, and the inputs and outputs of the model."""
        return Handles(self.record.ops, partial(Op, self), self._alive.ops)

    @property
    def calls(self) -> Sequence[Call]:
        """Every module call, in the order in which they began."""
        return Handles(self.record.calls, partial(Call, self), self._alive.calls)

    @property
    def inputs(self) -> tuple[Op, ...]:
        """The tensors that went into the model."""
        return tuple(op for op in self.ops if op.is_input)

    @property
    def outputs(self) -> tuple[Op, ...]:
        """The tensors that the model returned."""
        return tuple(op for op in self.ops if op.is_output)

    @property
    def output(self) -> Any:
        """Exactly what the model returned."""
        if self._output is not _Output.FROM_TENSORS:
            return self._output
        if self.error:
            raise ViewError(f"the model has no output: it raised {self.error}")
        outputs = self.outputs
        if len(outputs) == 1 and not outputs[0].function:
            return outputs[0].tensor
        raise ViewError(
            "the model's output object was not kept, only its tensors: see trace.outputs"
        )

    @property
    def error(self) -> str:
        """What the forward raised, "" if it completed."""
        return self.record.error

    @property
    def seconds(self) -> float:
        """How long the pass took."""
        return (self.record.end_ns - self.record.start_ns) / 1e9

    @property
    def layer_labels(self) -> list[str]:
        """The labels of the ops that it lists."""
        return [op.label for op in self]

    @property
    def modules(self) -> dict[str, Module]:
        """The model's modules by path; "" is the model itself."""
        return {module.path: module for module in self.model.modules}

    @property
    def params(self) -> dict[str, Slot]:
        """The model's parameters by dotted name."""
        return self._slots("parameter")

    @property
    def buffers(self) -> dict[str, Slot]:
        """The model's buffers by dotted name."""
        return self._slots("buffer")

    def layer(self, name: str) -> tuple[Op, ...]:
        """All passes of a layer: `trace.layer("linear_1_1")`, or "linear_1" for short."""
        found = self.anatomy.layers.get(name.lower(), ())
        passes = [op for op in found if op in self.anatomy.lookup]
        return tuple(self.ops[op] for op in passes) if passes else (self[name],)

    def to_dict(self) -> dict[str, Any]:
        """The pass and its ops, except their tensors, as dicts, lists, strings and numbers."""
        return {
            "model": self.record.model,
            "error": self.error,
            "seconds": self.seconds,
            "calls": [
                {"path": call.path, "number": call.number, "total_ns": call.total_ns}
                for call in self.record.calls
            ],
            "ops": self.to_dicts(),
        }

    def to_dicts(self) -> list[dict[str, Any]]:
        """Everything about each op except its tensors, as plain values."""
        return [{**op.to_dict(), "index": place} for place, op in enumerate(self)]

    def to_pandas(self) -> pd.DataFrame:
        """The same as a data frame, a row for each op."""
        try:
            import pandas as pd
        except ImportError as error:
            raise ViewError(
                "a data frame needs pandas: pip install 'torchglass[pandas]', or use to_dicts"
            ) from error
        return pd.DataFrame(self.to_dicts()).set_index("index")

    def save(self, path: str | PathLike[str], *, overwrite: bool = False) -> Path:
        """Save it to a file for `load_trace`; its tensors go to a second file beside it."""
        # Imported where it is needed: the first trace of a process waits for all imports.
        from torchglass.results import files

        return files.save(self, Path(path), overwrite=overwrite)

    def list_saved_only(self) -> None:
        """List only the ops whose tensors were saved, when printed and looked up.

        `ops` still has all of them, because parents and children may not be saved.
        """
        self._saved_only = True
        self.__dict__.pop("anatomy", None)

    @property
    def lists_saved_only(self) -> bool:
        """Whether ops whose tensors were not saved are left out."""
        return self._saved_only

    def validate(self, *, perturb: bool = True) -> Validation:
        """Replay each op from its parents' results, and compare with what was saved.

        With `perturb` each parent's result is also changed, to prove that the edge is real.
        """
        from torchglass.capture.trace.assemble import CapturedPass
        from torchglass.capture.trace.replay import validate

        if not isinstance(self._pass, CapturedPass):
            raise CaptureError("a loaded trace cannot be replayed: functions are not saved")
        validation = validate(self._pass, perturb=perturb)
        return replace(
            validation,
            differing=self._labelled(validation.differing),
            unproven=self._labelled(validation.unproven),
            skipped=self._labelled(validation.skipped),
        )

    def _labelled(self, doubts: Iterable[UnconfirmedOp]) -> tuple[UnconfirmedOp, ...]:
        labels = self.anatomy.labels
        return tuple(replace(doubt, label=str(labels[doubt.op])) for doubt in doubts)

    def draw(
        self,
        path: str | PathLike[str] | None = None,
        *,
        mode: Mode = "unrolled",
        depth: Depth = "auto",
        direction: Direction = "down",
        color_by: ColorBy | None = None,
        hide_views: bool = True,
        fold_repeats: bool = True,
        focus: str | None = None,
        show_buffers: bool = False,
        dark: bool = False,
        overrides: Overrides | None = None,
    ) -> bytes:
        """Draw the trace as SVG, PNG or PDF.

        Args:
            path: File to write; its ending is the format. Without one, SVG.
            mode: "unrolled" draws every pass of a layer, "rolled" one node for all of them.
            depth: Close modules this many levels down. None opens all. "auto" opens all up to
                about 300 nodes, and above that closes modules as deep as 300 nodes allow; the
                title of the picture says so.
            direction: "down", "up" or "right".
            color_by: Color ops by "time", "params", "memory" or "flops".
            hide_views: Leave out ops that only change the view of a tensor.
            fold_repeats: Draw identical blocks once, as "12 × Block".
            focus: Draw only the inside of this module.
            show_buffers: Draw buffers as nodes.
            dark: Light on dark.
            overrides: Graphviz attributes that replace the defaults.

        Returns:
            The bytes of the file.
        """
        from torchglass.analyse.op_graph import fold
        from torchglass.views.graph.render import draw

        graph = fold(
            self.record,
            self.model,
            mode=mode,
            depth=depth,
            hide_views=hide_views,
            fold_repeats=fold_repeats,
            focus=focus,
            show_buffers=show_buffers,
            flops={
                op.id: count for op in self.record.ops if (count := flops_of_op(op)) is not None
            },
        )
        return draw(
            graph,
            None if path is None else Path(path),
            direction=direction,
            color_by=color_by,
            dark=dark,
            overrides=overrides,
        )

    def diagram(self, depth: int | None = None) -> Diagram:
        """The blocks of the model on one page, as `torchglass.diagram` draws them.

        Args:
            depth: How many levels of modules to open. None: as many as fit on a page.

        Returns:
            A `Diagram`: write it with `.save("net.svg")` or `.save("net.pdf")`.
        """
        from torchglass.results.diagram import diagram_of

        return diagram_of(self.record, self.model, depth)

    # A name is nearly always that of an op, so callers should not have to tell the two apart.
    @overload
    def __getitem__(self, key: int | str) -> Op: ...

    @overload
    def __getitem__(self, key: slice) -> Sequence[Op]: ...

    def __getitem__(self, key: int | str | slice) -> Op | NamedTensor | Sequence[Op]:
        if isinstance(key, slice):
            return self._listed[key]
        try:
            return self.ops[self.anatomy.lookup.find(key if isinstance(key, str) else index(key))]
        except LookupFailedError:
            if not isinstance(key, str):
                raise
            if key not in self._held:
                near = self._held_like(key)
                if not near:
                    raise
                raise LookupFailedError(
                    f"no op or tensor is named {key!r}; did you mean {', '.join(near)}?"
                ) from None
            return self._alive.held.setdefault(key, NamedTensor(self, key, self._held[key]))

    def _held_like(self, name: str) -> list[str]:
        """The tensors of the same module with similar names."""
        place = name.rpartition(".")[0]
        beside = [other for other in self._held if other.rpartition(".")[0] == place]
        return difflib.get_close_matches(name, beside)

    @cached_property
    def _held(self) -> dict[str, Slot]:
        return {**self.params, **self.buffers}

    @cached_property
    def _alive(self) -> _Alive:
        return _Alive()

    def stats(self, op: OpId) -> Stats | None:
        """Statistics of an op's tensor; None if it was not saved."""
        if op not in self._measured:
            from torchglass.capture.tensor.moments import measure

            tensor = self.saved_tensors.get((op, 0))
            self._measured[op] = None if tensor is None else measure(tensor)
        return self._measured[op]

    @cached_property
    def _measured(self) -> dict[OpId, Stats | None]:
        return {}

    def held_tensor(self, name: str) -> torch.Tensor | None:
        """A parameter or buffer that an op used, as it was when the pass began."""
        from torchglass.capture.trace.assemble import CapturedPass

        return self._pass.held(name) if isinstance(self._pass, CapturedPass) else None

    def __contains__(self, key: object) -> bool:
        """Whether an op, or a key of one, is in the trace."""
        if isinstance(key, Op):
            return key.trace is self and key.record.id in self.anatomy.lookup
        try:
            return isinstance(key, (int, str)) and self[key] is not None
        except LookupFailedError:
            return False

    def __iter__(self) -> Iterator[Op]:
        return iter(self._listed)

    def __len__(self) -> int:
        return len(self._listed)

    @property
    def _listed(self) -> Sequence[Op]:
        ops = self.ops
        return ops if not self._saved_only else tuple(ops[op] for op in self.anatomy.listed)

    def __str__(self) -> str:
        from torchglass.views.trace_text import trace_text

        seed, saved = self.random_seed, frozenset(self.saved_tensors)
        # Only `log_forward_pass` seeds the pass, and what it prints is TorchLens's log.
        return trace_text(self.anatomy, self.model, saved, seed, as_log=seed is not None)

    def __repr__(self) -> str:
        return f"<trace of {self.record.model}: {len(self)} ops, {len(self.calls)} module calls>"

    def _repr_html_(self) -> str:
        from torchglass.views.trace_text import trace_fragment

        return trace_fragment(self.anatomy, self.model, frozenset(self.saved_tensors))

    def __getstate__(self) -> dict[str, Any]:
        from torchglass.results import files

        return files.pickled(self, output=self._kept_output())

    def __setstate__(self, state: dict[str, Any]) -> None:
        from torchglass.results import files

        self.__dict__.update(files.unpickled(state))

    def _kept_output(self) -> Any:
        """What the model returned, unless it is the saved output tensor itself."""
        outputs = self.outputs
        if len(outputs) == 1 and self._output is outputs[0].tensor:
            return _Output.FROM_TENSORS
        return self._output

    def _slots(self, role: SlotRole) -> dict[str, Slot]:
        return {
            join_path(module.path, slot.name): slot
            for module in self.model.modules
            for slot in module.slots
            if slot.role == role
        }


def load_trace(path: str | PathLike[str]) -> Trace:
    """A trace that `Trace.save` wrote. Loading runs no code from the file and needs no model."""
    from torchglass.results import files

    stored, loaded = files.load(Path(path))
    trace = Trace(lambda: loaded, lambda: stored.model, random_seed=stored.random_seed)
    if stored.saved_only:
        trace.list_saved_only()
    return trace
