"""The names of Inspector Gadgets, with correct values."""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, final

from torchglass.blocks import deferred_signals, undo_reliably
from torchglass.errors import (
    CaptureError,
    Fence,
    LookupFailedError,
    TargetError,
    TorchglassError,
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
        """What was seen of each model, by its name; there while the models are watched, too."""
        found = self._results if self._recorder is None else self._read(self._recorder)
        return _Results(found)

    def start(self) -> None:
        """Begin to watch. A watch that runs already goes on; one that has finished begins anew."""
        from torchglass.capture.model.live_modules import modules_in
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
                # Once Python takes its modules apart, a script that ended in between could not be
                # left.
                self._stack.callback(atexit.unregister, self._stack.close)
                atexit.register(self._stack.close)
        except BaseException:
            self._let_go()
            raise
        self._recorder = recorder

    def forward_mode(self) -> None:
        """Say that a forward comes next. Times are right without it, too."""
        recorder = self._running()
        with self._fence:
            recorder.rest()

    def backward_mode(self) -> None:
        """Say that a backward comes next. Times are right without it, too."""
        recorder = self._running()
        with self._fence:
            recorder.rest()

    def finish(self) -> None:
        """Stop watching, let go of the models, and write the files. A second one does nothing."""
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
            for name, result in self._results.items():
                result.save(_file(self._save_file, name))

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
            # The user's own exception is the one to be seen.
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
    """Inspections by the names of models. A model that is the only one is also ""."""

    def __missing__(self, name: str) -> Inspection:
        if not name and len(self) == 1:
            return next(iter(self.values()))
        raise LookupFailedError(f"no model is named {name!r}; the models are {', '.join(self)}")


def _models(model: nn.Module | Sequence[nn.Module]) -> list[nn.Module]:
    from torch import nn

    is_one = isinstance(model, nn.Module) or not isinstance(model, Iterable)
    models: list[Any] = [model] if is_one else list(cast("Iterable[nn.Module]", model))
    strange = next((one for one in models if not isinstance(one, nn.Module)), None)
    if strange is not None or not models:
        what = "an empty list" if not models else type(strange).__qualname__
        raise TargetError(f"model must be a model or a list of models, not {what}")
    return models


def _names(models: Sequence[nn.Module]) -> list[str]:
    """The names of the models' classes, with a number where one has come before."""
    names: list[str] = []
    for model in models:
        name, number = type(model).__name__, 1
        while name in names:
            number += 1
            name = f"{type(model).__name__}_{number}"
        names.append(name)
    return names


def _file(save_file: Path, name: str) -> Path:
    start = without_ending(save_file, "json")
    return start.with_name(f"{start.name}_{name}.json")
