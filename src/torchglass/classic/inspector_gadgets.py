"""The names of Inspector Gadgets, with correct values."""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from torchglass.errors import (
    CaptureError,
    Fence,
    LookupFailedError,
    TargetError,
    TorchglassError,
    deferred_signals,
    undo_reliably,
    warn,
)
from torchglass.results.inspection import Inspection
from torchglass.tables.export import without_ending

if TYPE_CHECKING:
    from types import TracebackType

    from torch import nn

    from torchglass.capture.observe.recorder import ModuleRecorder


@final
class InspectorGadgets:
    """Inspects models in your own loop, from `start()` to `finish()` or in a with-block.

    `finish` writes `<save_file>_<Class>.json` per model. `results` has the same as objects, by
    model name.

    Args:
        model: A model, or several.
        watch_forward: Record forwards.
        watch_backward: Record backwards.
        watch_depth: Number of levels inspected below the model. None or -1: all.
        save_file: Prefix of the JSON files. None writes no file.
        watch_memory: Measure additional memory. On a CPU this observes every op, so it takes
            longer.

    Example:
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.ReLU())
        >>> with InspectorGadgets(model) as inspector:
        ...     output = model(torch.ones(3, 4))
        ...     inspector.backward_mode()
        ...     output.sum().backward()
        >>> inspector.results["Sequential"]["0"].info["grad_out_shape"]
        [[3, 2]]
    """

    def __init__(
        self,
        model: nn.Module | Sequence[nn.Module],
        watch_forward: bool = True,
        watch_backward: bool = True,
        watch_depth: int | None = None,
        save_file: str | os.PathLike[str] | None = None,
        *,
        watch_memory: bool = True,
    ) -> None:
        from torchglass.capture.observe.recorder import RecordOptions

        self._models = _models(model)
        self._names = _names(self._models)
        self._finished: list[weakref.ref[nn.Module]] = []
        self._options = RecordOptions(
            forward=watch_forward,
            backward=watch_backward,
            memory=watch_memory,
            # Inspector Gadgets' own word for all of them was -1.
            depth=None if watch_depth is None or watch_depth < 0 else watch_depth,
        )
        self._save_file = None if save_file is None else Path(save_file)
        self._recorder: ModuleRecorder | None = None
        self._stack = ExitStack()
        self._fence = Fence("some of the inspection was lost")
        self._results: dict[str, Inspection] = {}

    @property
    def results(self) -> Mapping[str, Inspection]:
        """The inspection of each model by name, also while the inspector runs."""
        found = self._results if self._recorder is None else self._read(self._recorder)
        return _Results(found)

    def start(self) -> None:
        """Start inspecting. Does nothing if it runs; starts again if it has finished."""
        from torchglass.capture.model.structure import modules_in
        from torchglass.capture.module_calls import observe_calls
        from torchglass.capture.observe.recorder import ModuleRecorder

        if self._recorder is not None:
            return
        if self._finished:
            self._models = [model for link in self._finished if (model := link()) is not None]
            if len(self._models) < len(self._finished):
                raise CaptureError("a model was deleted: create a new inspector")
        recorder = ModuleRecorder([modules_in(model) for model in self._models], self._options)
        try:
            with deferred_signals():
                self._stack.callback(undo_reliably, recorder.close)
                self._stack.enter_context(observe_calls(recorder))
                # A script that ends before `finish` is cleaned up while Python's modules exist.
                self._stack.callback(atexit.unregister, self._stack.close)
                atexit.register(self._stack.close)
        except BaseException:
            self._let_go()
            raise
        self._recorder = recorder

    def forward_mode(self) -> None:
        """Announce a forward. Optional: times are correct without it."""
        recorder = self._running()
        with self._fence:
            recorder.rest()

    def backward_mode(self) -> None:
        """Announce a backward. Optional: times are correct without it."""
        self.forward_mode()

    def finish(self) -> None:
        """Stop inspecting, release the models, and write the files. Does nothing if finished."""
        if self._recorder is None and self._finished:
            return
        recorder = self._running()
        self._recorder = None
        try:
            self._let_go()
            self._results = self._read(recorder)
        finally:
            self._finished = [weakref.ref(model) for model in self._models]
            self._models = []
        if self._save_file is not None:
            start = without_ending(self._save_file, "json")
            for name, result in self._results.items():
                result.save(start.with_name(f"{start.name}_{name}.json"))

    def __enter__(self) -> InspectorGadgets:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.finish()
        except Exception as problem:
            # The user's own exception takes precedence over ours.
            if error is None and isinstance(problem, (OSError, TorchglassError)):
                raise
            if isinstance(problem, OSError):
                warn(f"the inspection was not written: {problem}")
            else:
                self._fence.caught(problem)
        finally:
            undo_reliably(self._let_go)

    def _let_go(self) -> None:
        with deferred_signals():
            undo_reliably(self._stack.close)

    def _running(self) -> ModuleRecorder:
        if self._recorder is None:
            raise CaptureError("the inspector has not started: call start(), or use a with-block")
        return self._recorder

    def _read(self, recorder: ModuleRecorder) -> dict[str, Inspection]:
        from torchglass.capture.observe.inspection import inspected_model

        return {
            name: Inspection(inspected_model(recorder, index, model, name))
            for index, (name, model) in enumerate(zip(self._names, self._models, strict=True))
        }


class _Results(dict[str, Inspection]):
    """Inspections by model name. The key "" also gives the only one."""

    def __missing__(self, name: str) -> Inspection:
        if not name and len(self) == 1:
            return next(iter(self.values()))
        raise LookupFailedError(f"no model is named {name!r}; the models are {', '.join(self)}")


def _models(model: nn.Module | Sequence[nn.Module]) -> list[nn.Module]:
    from torch import nn

    # nn.Sequential and nn.ModuleList are also iterable.
    if isinstance(model, nn.Module) or not isinstance(model, Iterable):
        models: list[Any] = [model]
    else:
        models = list(model)
    others = [type(one).__qualname__ for one in models if not isinstance(one, nn.Module)]
    if others or not models:
        what = others[0] if others else "an empty list"
        raise TargetError(f"model must be a model or a list of models, not {what}")
    return models


def _names(models: Sequence[nn.Module]) -> list[str]:
    """The class names of the models, numbered if a name is already used."""
    names: list[str] = []
    for model in models:
        name = type(model).__name__
        candidates = (name if number == 1 else f"{name}_{number}" for number in count(1))
        names.append(next(one for one in candidates if one not in names))
    return names
