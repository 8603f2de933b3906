"""The names of rp's module explorer, and of the forward statistics that it shows."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torchglass.analyse.parameters import count
from torchglass.api import explore
from torchglass.api.summary import summary as summarize
from torchglass.errors import TargetError, ViewError
from torchglass.host_program import has_terminal, in_event_loop
from torchglass.records.calls import CallTensor, ForwardStats
from torchglass.records.model import join_path
from torchglass.records.trace import CallId, CallRecord, Value
from torchglass.results.statistics import Recording
from torchglass.tables import text
from torchglass.tables.export import in_its_folder
from torchglass.targets.names import find_files
from torchglass.targets.readers import is_live, read

if TYPE_CHECKING:
    import torch
    from torch import nn

    from torchglass.results.summary import Summary
    from torchglass.views.tui.preferences import PreferenceStore

format_shape = text.format_shape
format_param_count = text.format_count
format_time = text.format_time


@dataclass(kw_only=True)
class ExplorerConfig:
    """What the explorer and the summary show.

    Args:
        show_parameter_counts: Show parameter counts and shares.
        show_shapes: Show the shapes of tensors, inputs and outputs.
        show_timing: Show recorded times.
        show_memory: Show sizes in bytes.
        compact_view: Show repeated blocks once, with their count.
        color_scheme: "dark" or "light".
        max_depth: Number of open levels below the model. None: all.

    Raises:
        ViewError: A value is not allowed.

    Example:
        >>> import torch
        >>> config = ExplorerConfig(show_memory=False, max_depth=0)
        >>> print(export_model_summary(torch.nn.ReLU(), config=config).splitlines()[1])
        Module  Class  Shapes  Parameters  Share
    """

    show_parameter_counts: bool = True
    show_shapes: bool = True
    show_timing: bool = True
    show_memory: bool = True
    compact_view: bool = False
    color_scheme: str = "dark"
    max_depth: int | None = None

    def __post_init__(self) -> None:
        if self.color_scheme not in ("dark", "light"):
            raise ViewError(f"color_scheme must be 'dark' or 'light', not {self.color_scheme!r}")
        if self.max_depth is not None and self.max_depth < 0:
            raise ViewError(f"max_depth must be 0 or more, not {self.max_depth}")

    def summary_options(self, *, ran: bool = False) -> dict[str, Any]:
        """The same choices as arguments of `summary`; `ran` if a forward was recorded."""
        columns = (
            (True, ["class"]),
            (self.show_shapes, ["shapes", *(["output_size"] if ran else [])]),
            (self.show_parameter_counts, ["parameters", "share"]),
            (self.show_memory, ["bytes"]),
            (self.show_timing and ran, ["time"]),
        )
        names = [name for is_shown, group in columns if is_shown for name in group]
        return {"depth": self.max_depth, "fold": self.compact_view, "col_names": names}

    def memory(self) -> PreferenceStore:
        """The same choices as preferences of the explorer, on top of the user's own."""
        from torchglass.views.tui.preferences import PreferenceFile, PreferenceStore

        chosen = PreferenceFile().load()
        columns = (
            (self.show_parameter_counts, {"params", "params share"}),
            (self.show_shapes, {"shapes", "input", "output"}),
            (self.show_timing, {"time"}),
            (self.show_memory, {"bytes"}),
        )
        shown = set(chosen.labels.shown)
        for is_shown, names in columns:
            shown = shown | names if is_shown else shown - names
        return PreferenceStore(
            replace(
                chosen,
                labels=replace(chosen.labels, shown=frozenset(shown)),
                by_kind={},
                repeats_folded=self.compact_view,
                theme=f"glass-{self.color_scheme}",
                depth=self.max_depth,
            )
        )


def explore_torch_module(module: object, *, config: ExplorerConfig | None = None) -> None:
    """Explore a model in the terminal. rp's name for `explore`.

    Args:
        module: Any target of `explore`.
        config: What to show.

    Raises:
        ViewError: There is no terminal.

    Example:
        >>> import torch
        >>> explore_torch_module(torch.nn.Linear(4, 2))  # doctest: +SKIP
    """
    explore.explore(module, config=config)


def explore_model(model: object, *, config: ExplorerConfig | None = None) -> None:
    """Explore a model in the terminal. Another name for `explore`.

    Args:
        model: Any target of `explore`.
        config: What to show.

    Raises:
        ViewError: There is no terminal.

    Example:
        >>> import torch
        >>> explore_model(torch.nn.Linear(4, 2))  # doctest: +SKIP
    """
    explore.explore(model, config=config)


def export_model_summary(
    model: object,
    format: Literal["text", "json", "html"] = "text",
    *,
    config: ExplorerConfig | None = None,
) -> str:
    """The summary of a model as text, JSON or HTML.

    Output shapes and times come from forwards in `record_torch_module_forward_stats`.

    Args:
        model: The model.
        format: "text", "json" or "html".
        config: What to show. None shows the usual columns.

    Returns:
        The text of the summary.

    Raises:
        ViewError: `format` is unknown.

    Example:
        >>> import torch
        >>> print(export_model_summary(torch.nn.ReLU()).splitlines()[3])
        ReLU    ReLU            0
    """
    summary = summarize(model) if config is None else _summary(model, config)
    exports = {"text": summary.__str__, "json": summary.to_json, "html": summary.to_html}
    if format not in exports:
        raise ViewError(f"format must be 'text', 'json' or 'html', not {format!r}")
    return exports[format]()


def _summary(model: object, config: ExplorerConfig) -> Summary:
    """A summary with the forwards that were recorded on the model, if any were."""
    from torchglass.results.summary import Summary

    record = summarize(model).model
    recorded = get_forward_stats(model) if is_live(model) else {}
    calls = [
        CallRecord(
            id=CallId(number),
            parent=None,
            path=path,
            number=call.number,
            inputs=_values(call.inputs),
            outputs=_values(call.outputs),
            end_ns=call.total_ns,
        )
        for number, (path, call) in enumerate(
            (path, call) for path, calls in recorded.items() for call in calls
        )
    ]
    return Summary(record, calls or None, **config.summary_options(ran=bool(calls)))


def _values(measured: Iterable[CallTensor]) -> tuple[Value, ...]:
    return tuple(Value(place=one.place, spec=one.spec) for one in measured)


def get_parameter_statistics(model: object) -> dict[str, int]:
    """Count the parameters of a model, and their bytes. A tied parameter counts once.

    Args:
        model: The model.

    Returns:
        Counts by name.

    Example:
        >>> import torch
        >>> get_parameter_statistics(torch.nn.Linear(2, 3))
        {'total_params': 9, 'trainable_params': 9, 'non_trainable_params': 0, 'memory_usage': 36}
    """
    total = count(read(model))[0].total
    return {
        "total_params": total.parameters,
        "trainable_params": total.trainable,
        "non_trainable_params": total.frozen,
        "memory_usage": total.parameter_bytes,
    }


def analyze_memory_usage(model: object) -> dict[str, int]:
    """The bytes of each parameter, by dotted name. A tied parameter is listed under its first name.

    Args:
        model: The model.

    Returns:
        Bytes by parameter name.

    Example:
        >>> import torch
        >>> analyze_memory_usage(torch.nn.Linear(2, 3))
        {'weight': 24, 'bias': 12}
    """
    record = read(model)
    seen = set()
    sizes = {}
    for module in record.modules:
        for slot in module.slots:
            if slot.role != "buffer" and slot.tensor not in seen:
                seen.add(slot.tensor)
                sizes[join_path(module.path, slot.name)] = slot.spec.bytes
    return sizes


def select_torch_device() -> torch.device:
    """The best available device: the GPU with most free memory, another accelerator, or the CPU.

    Returns:
        The device.

    Example:
        >>> select_torch_device().type in ("cuda", "mps", "xpu", "cpu")
        True
    """
    import torch

    if torch.cuda.device_count() > 1:
        free = [torch.cuda.mem_get_info(index)[0] for index in range(torch.cuda.device_count())]
        return torch.device("cuda", free.index(max(free)))
    best = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return best or torch.device("cpu")


def input_select_file(
    root: str | os.PathLike[str] = ".", *, extension_filter: str | Iterable[str] | None = None
) -> str:
    """Ask the user to pick a file below a folder, latest first.

    Args:
        root: The folder.
        extension_filter: One file ending such as "pth", or several. None offers all files.

    Returns:
        The path of the file.

    Raises:
        TargetError: There is no such file, or none was picked.
        ViewError: There is no terminal.

    Example:
        >>> path = input_select_file("checkpoints", extension_filter="pth")  # doctest: +SKIP
    """
    endings = [extension_filter] if isinstance(extension_filter, str) else extension_filter
    wanted = None if endings is None else tuple("." + ending.lstrip(".") for ending in endings)
    folder = Path(root)
    found = find_files(folder, lambda path: wanted is None or path.name.endswith(wanted))
    if not found:
        kind = "file" if wanted is None else f"{' or '.join(wanted)} file"
        raise TargetError(f"no {kind} in {folder.resolve()}")
    if in_event_loop() or not has_terminal():
        raise ViewError(f"selecting a file needs a terminal. Found: {_listed(found)}")
    from torchglass.views.tui.windows import pick_file

    picked = pick_file(found, "Which file")
    if picked is None:
        raise TargetError("no file was selected")
    return str(picked)


def save_text_file(text: str, path: str | os.PathLike[str]) -> str:
    """Write text to a file as UTF-8.

    Args:
        text: The text.
        path: The file. Missing folders are created.

    Returns:
        The absolute path of the file.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Path(save_text_file("glass", folder + "/note.txt")).read_text()
        'glass'
    """
    file = in_its_folder(Path(path).expanduser())
    file.write_text(text, encoding="utf-8")
    return str(file.absolute())


def _listed(files: list[Path]) -> str:
    more = ", …" if len(files) > 5 else ""
    return ", ".join(map(str, files[:5])) + more


_ATTRIBUTE = "forward_stats"


@contextlib.contextmanager
def record_torch_module_forward_stats(module: object, *, keep: int = 100) -> Iterator[Recording]:
    """Fill `forward_stats` of every module with its calls in a with-block, latest last.

    The lists stay after the block, until the next one begins. They contain no tensors.

    Args:
        module: A module, an object that contains modules, or a list of models.
        keep: Number of latest calls kept per module.

    Returns:
        A context manager that gives a `Recording`.

    Example:
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.ReLU())
        >>> with record_torch_module_forward_stats(model):
        ...     output = model(torch.ones(3, 4))
        >>> model[1].forward_stats[-1].in_shape
        (3, 2)
    """
    with _filling(module, keep=keep) as recording:
        yield recording


@contextlib.contextmanager
def _filling(module: object, *, keep: int = 100, budget_bytes: int = 0) -> Iterator[Recording]:
    """The same, also keeping copies of tensors up to `budget_bytes`."""
    from torchglass.capture.model.structure import modules_in
    from torchglass.capture.observe.recorder import recording_statistics

    lists: dict[str, list[ForwardStats]] = {}
    for path, inner in modules_in(module):
        lists[path] = _attributes(inner)[_ATTRIBUTE] = []

    def fill(calls: list[ForwardStats]) -> None:
        for call in calls:
            # A module that is not in the model has no list.
            if call.path in lists:
                lists[call.path].append(call)
                del lists[call.path][:-keep]

    with recording_statistics(module, keep=keep, budget_bytes=budget_bytes, ended=fill) as recorder:
        yield Recording(recorder, type(module).__name__)


class TimingData(dict[str, list[ForwardStats]]):
    """The recorded calls of modules by path, and their model."""

    def __init__(self, model: object, calls: Iterable[tuple[str, list[ForwardStats]]]) -> None:
        super().__init__(calls)
        self.model = model


def get_forward_stats(model: object) -> TimingData:
    """The recorded calls of a model's modules by path, latest last.

    Args:
        model: A model that ran in `record_torch_module_forward_stats`.

    Returns:
        A dict from module path to calls, for the modules that were called.

    Example:
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.ReLU())
        >>> with record_torch_module_forward_stats(model):
        ...     output = model(torch.ones(3, 4))
        >>> {path: len(calls) for path, calls in get_forward_stats(model).items()}
        {'': 1, '0': 1}
    """
    from torchglass.capture.model.structure import modules_in

    found = ((path, _attributes(module).get(_ATTRIBUTE)) for path, module in modules_in(model))
    return TimingData(model, ((path, calls) for path, calls in found if calls))


def display_timing_in_explorer(timing_data: TimingData) -> None:
    """Explore a model with the recorded times of its modules.

    Args:
        timing_data: The result of `get_forward_stats(model)`.

    Raises:
        TargetError: `timing_data` is something else.
        ViewError: There is no terminal.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(4, 2)
        >>> with record_torch_module_forward_stats(model):
        ...     output = model(torch.ones(3, 4))
        >>> display_timing_in_explorer(get_forward_stats(model))  # doctest: +SKIP
    """
    if not isinstance(timing_data, TimingData):
        raise TargetError("timing_data must be the result of get_forward_stats(model)")
    explore.explore(timing_data.model)


def explore_torch_module_with_stats(module: Any, /, *inputs: Any, **kwargs: Any) -> None:
    """Run one forward, record its statistics, and explore the model in the terminal.

    The attributes panel (`a`) shows `forward_stats` and the tensors. Random state and buffers are
    unchanged afterwards. If the forward raises, the explorer opens with an explanation.

    Args:
        module: The model to run.
        *inputs: Positional arguments of the forward.
        **kwargs: Keyword arguments of the forward.

    Raises:
        ViewError: There is no terminal.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(4, 2)
        >>> explore_torch_module_with_stats(model, torch.ones(3, 4))  # doctest: +SKIP
    """
    from torchglass.api.explore import TENSORS_BYTES
    from torchglass.capture.isolated_run import leave_unchanged
    from torchglass.capture.model.structure import modules_in

    inner = [one for _, one in modules_in(module)]
    with _filling(module, budget_bytes=TENSORS_BYTES) as recording, leave_unchanged(inner):
        failed = False
        try:
            module(*inputs, **kwargs)
        except Exception:  # noqa: BLE001 - the explorer runs it again to explain what it raises
            failed = True
    if failed:
        explore.walk_through(module, inputs, kwargs)
    else:
        explore.walk_through(module, (), {}, tensors=recording.tensors)


def _attributes(module: nn.Module) -> dict[str, Any]:
    # Scripted modules refuse new attributes, and others may have their own `__setattr__`.
    attributes: dict[str, Any] = object.__getattribute__(module, "__dict__")
    return attributes
