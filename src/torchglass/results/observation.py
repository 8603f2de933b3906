"""The results of `record` and `inspect`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from torchglass.errors import LookupFailedError
from torchglass.export.inspection import inspection_dict, inspection_json, module_info, read_json
from torchglass.export.measurements import statistics_csv
from torchglass.records.calls import (
    ForwardStats,
    InspectedCall,
    InspectedModel,
    InspectedModule,
    Level,
    ModuleStatistics,
)
from torchglass.records.json_data import nan_as_none, to_json_data
from torchglass.tables.files import File, json_text, written
from torchglass.targets.names import near
from torchglass.views.text.observation import inspection_text, statistics_text

if TYPE_CHECKING:
    import torch


class ModuleInspection:
    """One module of an inspected model.

    `info` has Inspector Gadgets' names and units (MB of 1e6 bytes, milliseconds); `record` has
    bytes and nanoseconds.
    """

    def __init__(self, model: InspectedModel, module: InspectedModule) -> None:
        self.record = model.resolve(module)
        self.path = module.path
        self._model = model
        self._module = module

    @property
    def info(self) -> dict[str, Any]:
        """What the file says of it."""
        return module_info(self._model, self._module)

    @property
    def calls(self) -> tuple[InspectedCall, ...]:
        """Its latest calls, one by one."""
        return self.record.calls

    def __repr__(self) -> str:
        lines = (f"  {key}: {value}" for key, value in self.info.items() if key != "calls")
        return "\n".join([self.path or self._model.name, *lines])


class Inspection(Mapping[str, ModuleInspection]):
    """The inspected modules of a model by path. Print it for a table.

    The model itself is "", or its class name, as in the file.

    Args:
        record: What was recorded of the model.
    """

    def __init__(self, record: InspectedModel) -> None:
        self.record = record
        self._by_path = {module.path: module for module in reversed(record.modules)}

    @classmethod
    def read(cls, file: File) -> Inspection:
        """An inspection from its file."""
        return cls(read_json(Path(file).read_bytes()))

    def __getitem__(self, path: str) -> ModuleInspection:
        module = self._by_path.get(path)
        if module is None and path == self.record.name:
            module = self._by_path.get("")
        if module is None:
            raise LookupFailedError(f"there is no module {path!r}{near(path, list(self._by_path))}")
        return ModuleInspection(self.record, module)

    def __iter__(self) -> Iterator[str]:
        return (module.path for module in self.record.modules)

    def __len__(self) -> int:
        return len(self.record.modules)

    def table(self, depth: int | None = None, *, width: int | None = None) -> str:
        """All modules, or those of so many levels, as a table that fits into a width."""
        return inspection_text(self.record, depth=depth, room=width)

    def to_dict(self) -> dict[str, Any]:
        """The tree of `info` and `children` that the file holds."""
        return inspection_dict(self.record)

    def to_json(self, file: File | None = None) -> str:
        """The text of the file, also written to one if it is named."""
        return written(inspection_json(self.record), file)

    def save(self, file: File) -> Path:
        """Write the file, and the folders that it is in."""
        path = Path(file)
        self.to_json(path)
        return path

    def __repr__(self) -> str:
        return self.table()


class Recorder(Protocol):
    """Whoever takes the statistics down."""

    level: Level
    keep: int
    forward_count: int

    @property
    def paths(self) -> list[str]:
        """The modules that were called."""

    @property
    def left_out(self) -> int:
        """How many tensors the budget had no room for."""

    def module(self, path: str) -> ModuleStatistics:
        """What one of them did."""

    def tensors(self, path: str) -> Iterator[tuple[int, str, torch.Tensor]]:
        """The copies of its tensors: number of the call, place, tensor."""


class Recording(Mapping[str, ModuleStatistics]):
    """The statistics of the modules that were called, by path; "" is the model itself.

    `recording["encoder.0"][-1].out_mean` is of the latest call, `recording["encoder.0"].totals` of
    all of them, and `recording.forwards[2]` has the calls of the second forward pass. It is there
    while the with-block still runs, too.
    """

    def __init__(self, recorder: Recorder, model: str) -> None:
        self._recorder = recorder
        self.model = model
        """The class of the model."""

    def __getitem__(self, path: str) -> ModuleStatistics:
        paths = self._recorder.paths
        if path not in paths:
            raise LookupFailedError(f"no module {path!r} was called{near(path, paths)}")
        return self._recorder.module(path)

    def __iter__(self) -> Iterator[str]:
        return iter(self._recorder.paths)

    def __len__(self) -> int:
        return len(self._recorder.paths)

    @property
    def level(self) -> Level:
        """How much was looked at."""
        return self._recorder.level

    @property
    def forward_count(self) -> int:
        """How many forward passes there were; one begins with each outermost call."""
        return self._recorder.forward_count

    @property
    def calls(self) -> tuple[ForwardStats, ...]:
        """All calls that are kept, in the order in which they began."""
        calls = (call for module in self.values() for call in module)
        return tuple(sorted(calls, key=lambda call: call.start_ns))

    @property
    def forwards(self) -> dict[int, dict[str, tuple[ForwardStats, ...]]]:
        """The calls that are kept by forward pass, from 1, and by path."""
        passes: dict[int, dict[str, tuple[ForwardStats, ...]]] = {}
        for call in self.calls:
            of_pass = passes.setdefault(call.forward, {})
            of_pass[call.path] = (*of_pass.get(call.path, ()), call)
        return passes

    @property
    def tensors(self) -> dict[tuple[str, int, str], torch.Tensor]:
        """The tensors that `tensors=True` kept: `recording.tensors["encoder.0", 1, "out"]`.

        A key is the path, the number of the call, and "in" or "out" with the place there: "in.0".
        """
        return {
            (path, number, place): tensor
            for path in self
            for number, place, tensor in self._recorder.tensors(path)
        }

    @property
    def tensors_left_out(self) -> int:
        """How many tensors the budget had no room for."""
        return self._recorder.left_out

    def to_dict(self) -> dict[str, Any]:
        """All of it but the tensors, as dicts, lists, strings and numbers; NaN becomes None."""
        return {
            "model": self.model,
            "level": self.level,
            "keep": self._recorder.keep,
            "forwards": self.forward_count,
            "modules": {path: nan_as_none(to_json_data(module)) for path, module in self.items()},
        }

    def to_json(self, file: File | None = None) -> str:
        """The same as JSON, also written to a file if one is named."""
        return written(json_text(self.to_dict()), file)

    def to_csv(self, file: File | None = None) -> str:
        """A line for each call that is kept, also written to a file if one is named."""
        return written(statistics_csv(self.model, self.calls), file)

    def table(self, *, width: int | None = None) -> str:
        """The modules as a table that fits into a width."""
        modules = list(self.values())
        return statistics_text(self.model, self.level, self.forward_count, modules, width)

    def __repr__(self) -> str:
        return self.table()
