"""What a model did forward and backward: what `inspect` and Inspector Gadgets give."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torchglass.errors import LookupFailedError
from torchglass.export.inspection import inspection_dict, inspection_json, module_info, read_json
from torchglass.records.inspection import InspectedCall, InspectedModel, InspectedModule
from torchglass.results.files import File, written
from torchglass.targets.names import near
from torchglass.views.text.inspection import inspection_text


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
    """The modules of a model by path; print it for a table.

    The model itself is "", and also has its class name, as in the file.
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
