"""The names of rp's module explorer."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torchglass.analyse.parameters import count
from torchglass.api import explore
from torchglass.api.explore import in_event_loop
from torchglass.api.summary import summary as summarize
from torchglass.errors import TargetError, ViewError
from torchglass.records.calls import Measured
from torchglass.records.model import join_path
from torchglass.records.trace import Call, CallId, Value
from torchglass.targets.names import find_files
from torchglass.targets.readers import is_live, read
from torchglass.views import formats
from torchglass.views.output_paths import in_its_folder

if TYPE_CHECKING:
    import torch

    from torchglass.results.summary import Summary
    from torchglass.views.tui.preferences import Memory

format_shape = formats.format_shape
format_param_count = formats.format_count
format_time = formats.format_time


@dataclass(kw_only=True)
class ExplorerConfig:
    """What of a model is shown.

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
    """"dark" or "light"."""
    max_depth: int | None = None
    """How many levels below the model are open; None for all."""

    def __post_init__(self) -> None:
        if self.color_scheme not in ("dark", "light"):
            raise ViewError(f"color_scheme is 'dark' or 'light', not {self.color_scheme!r}")
        if self.max_depth is not None and self.max_depth < 0:
            raise ViewError(f"max_depth is 0 or more, not {self.max_depth}")

    def summary_options(self, *, ran: bool = False) -> dict[str, Any]:
        """The same wishes as arguments of `summary`; `ran` where a forward was recorded."""
        wishes = (
            (True, ["class"]),
            (self.show_shapes, ["shapes", *(["output_size"] if ran else [])]),
            (self.show_parameter_counts, ["parameters", "share"]),
            (self.show_memory, ["bytes"]),
            (self.show_timing and ran, ["time"]),
        )
        columns = [name for wished, names in wishes if wished for name in names]
        return {"depth": self.max_depth, "fold": self.compact_view, "col_names": columns}

    def memory(self) -> Memory:
        """The same wishes for the explorer, beside what the user chose there before."""
        from torchglass.views.tui.preferences import Forgetful, PreferenceFile

        chosen = PreferenceFile().load()
        wishes = {
            ("params", "params share"): self.show_parameter_counts,
            ("shapes", "input", "output"): self.show_shapes,
            ("time",): self.show_timing,
            ("bytes",): self.show_memory,
        }
        shown = set(chosen.labels.shown)
        for columns, wished in wishes.items():
            shown = shown.union(columns) if wished else shown.difference(columns)
        return Forgetful(
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
    """Walk through a model in the terminal: `explore` under the name that rp gave it."""
    explore.explore(module, config=config)


def explore_model(model: object, *, config: ExplorerConfig | None = None) -> None:
    """Walk through a model in the terminal: another name for `explore`."""
    explore.explore(model, config=config)


def export_model_summary(
    model: object,
    format: Literal["text", "json", "html"] = "text",
    *,
    config: ExplorerConfig | None = None,
) -> str:
    """The summary of a model as text, as JSON or as one HTML page.

    With a config it shows what the config asks for. Output shapes and times are those of forwards
    that `record_torch_module_forward_stats` recorded.

    >>> import torch
    >>> print(export_model_summary(torch.nn.ReLU()).splitlines()[3])
    ReLU    ReLU            0
    """
    summary = summarize(model) if config is None else _summary(model, config)
    if format == "text":
        return str(summary)
    if format == "json":
        return summary.to_json()
    if format == "html":
        return summary.to_html()
    raise ViewError(f"format is 'text', 'json' or 'html', not {format!r}")


def _summary(model: object, config: ExplorerConfig) -> Summary:
    """A summary with the forwards that were recorded on the model, if any were."""
    from torchglass.classic.forward_stats import get_forward_stats
    from torchglass.results.summary import Summary

    record = summarize(model).model
    recorded = get_forward_stats(model) if is_live(model) else {}
    calls = [
        Call(
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


def _values(measured: Iterable[Measured]) -> tuple[Value, ...]:
    return tuple(Value(place=one.place, spec=one.spec) for one in measured)


def get_parameter_statistics(model: object) -> dict[str, int]:
    """How many parameters a model has, and their bytes; a tied one counts once.

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
    """The bytes of each parameter by its dotted name; a tied one stands under its first name.

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
    """The best device there is: the GPU with the most free memory, another accelerator, the CPU.

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
    """Let the user pick a file of a folder and of the ones in it, the latest first; its path.

    `extension_filter` is an ending such as "pth", or several; without it all files are offered.
    """
    endings = [extension_filter] if isinstance(extension_filter, str) else extension_filter
    wanted = None if endings is None else tuple("." + ending.lstrip(".") for ending in endings)
    folder = Path(root)
    found = find_files(folder, lambda path: wanted is None or path.name.endswith(wanted))
    if not found:
        kind = "file" if wanted is None else f"{' or '.join(wanted)} file"
        raise TargetError(f"there is no {kind} in {folder.resolve()}")
    if in_event_loop() or not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ViewError(f"picking a file needs a terminal; there are {_listed(found)}")
    from torchglass.views.tui.file_picker import pick

    picked = pick(found, "Which file")
    if picked is None:
        raise TargetError("no file was picked")
    return str(picked)


def save_text_file(text: str, path: str | os.PathLike[str]) -> str:
    """Write a text to a file in UTF-8; the whole path of the file.

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
