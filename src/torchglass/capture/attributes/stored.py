"""The tensors of a model that is not here itself: those of a checkpoint, or of a traced pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from torchglass.capture.attributes.holding import Held
from torchglass.capture.attributes.live import LiveObject, Recorded
from torchglass.errors import LookupFailedError
from torchglass.records.model import Model, join_path


class StoredObject(LiveObject):
    """A model by its record, of which the tensors can be loaded that its modules hold."""

    def __init__(
        self,
        model: Model,
        load: Mapping[str, Callable[[], torch.Tensor]],
        recorded: Recorded | None = None,
    ) -> None:
        """`load` is how to get at a tensor by its dotted name."""
        super().__init__(model, recorded)
        self._model = model
        self._load = load

    def _module_at(self, path: str) -> object:
        if self._model.find(path) is None:
            raise LookupFailedError(f"the model has no module {path!r}")
        # Nothing but its tensors is known of it.
        return object()

    def _tensors_at(self, path: str) -> list[Held]:
        module = self._model.find(path)
        loads = [
            (slot, self._load.get(join_path(path, slot.name)))
            for slot in (module.slots if module else ())
        ]
        stored = [
            Held(slot.name, "buffer" if slot.role == "buffer" else "parameter", load())
            for slot, load in loads
            if load is not None
        ]
        return [*super()._tensors_at(path), *stored]
