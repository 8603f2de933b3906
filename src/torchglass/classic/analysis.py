"""The names under which rp's document analyses one module after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torchglass.analyse.model.parameters import ModuleCounts, count
from torchglass.classic.statistics import get_forward_stats
from torchglass.errors import LookupFailedError
from torchglass.records.model import Model, Module, join_path
from torchglass.targets.names import near
from torchglass.targets.reading import read

_AT_ONCE = 100
"""How many modules are analysed before others get their turn."""


@dataclass(kw_only=True)
class ModuleInfo:
    """What is known of one module."""

    name: str
    module_type: str
    parameter_count: int
    """Of all that is in it; a tied parameter counts once."""
    shapes: dict[str, tuple[int, ...]]
    """Of its own parameters and buffers, by name."""
    timing_stats: dict[str, float] | None = None
    """Seconds of its recorded forwards: last, mean, total; None where none were recorded."""
    memory_usage: int | None = None
    """Bytes of all parameters in it."""


def analyze_module(name: str, module: Any) -> ModuleInfo:
    """What a module is and holds, and what its recorded forwards took.

    >>> import torch
    >>> analyze_module("fc", torch.nn.Linear(2, 3)).shapes
    {'weight': (3, 2), 'bias': (3,)}
    """
    record = read(module)
    return _told(name, record.root, count(record)[0], _timing(module).get(""))


def analyze_module_detailed(module: Any) -> ModuleInfo:
    """The same with the shapes of all that is inside of it, by dotted name.

    >>> import torch
    >>> list(analyze_module_detailed(torch.nn.Sequential(torch.nn.Linear(2, 3))).shapes)
    ['0.weight', '0.bias']
    """
    record = read(module)
    found = analyze_module(record.name, module)
    found.shapes = {
        join_path(inner.path, name): shape
        for inner in record.modules
        for name, shape in _shapes(inner).items()
    }
    return found


async def analyze_model_async(model: Any) -> dict[str, ModuleInfo]:
    """All modules by path, worked out while other tasks of the event loop go on.

    >>> import torch
    >>> list(asyncio.run(analyze_model_async(torch.nn.Sequential(torch.nn.ReLU()))))
    ['', '0']
    """
    record, counts = await asyncio.to_thread(_read, model)
    timing = _timing(model)
    found = {}
    for number, module in enumerate(record.modules):
        if number % _AT_ONCE == 0:
            await asyncio.sleep(0)
        path = module.path
        found[path] = _told(path, module, counts[module.id], timing.get(path))
    return found


def lazy_parameter_analysis(model: Any) -> Callable[[str], ModuleInfo]:
    """A function from the path of a module to what there is to know of it, worked out then.

    >>> import torch
    >>> get_module_info = lazy_parameter_analysis(torch.nn.Sequential(torch.nn.Linear(2, 3)))
    >>> info = get_module_info("0")
    >>> info.name, info.parameter_count
    ('0', 9)
    """

    def get_module_info(module_path: str) -> ModuleInfo:
        found = analyze_module_detailed(get_module_by_path(model, module_path))
        return replace(found, name=module_path)

    return get_module_info


def get_module_by_path(model: Any, path: str) -> Any:
    """The module at a dotted path; "" is the model itself.

    >>> import torch
    >>> get_module_by_path(torch.nn.Sequential(torch.nn.ReLU()), "0")
    ReLU()
    """
    from torchglass.capture.forward.looking import modules_in

    modules = dict(modules_in(model)) if path else {"": model}
    if path not in modules:
        raise LookupFailedError(f"the model has no module {path!r}{near(path, modules)}")
    return modules[path]


def _read(model: Any) -> tuple[Model, list[ModuleCounts]]:
    record = read(model)
    return record, list(count(record))


def _told(
    name: str, module: Module, counts: ModuleCounts, timing: dict[str, float] | None
) -> ModuleInfo:
    return ModuleInfo(
        name=name,
        module_type=module.kind,
        parameter_count=counts.total.parameters,
        shapes=_shapes(module),
        timing_stats=timing,
        memory_usage=counts.total.parameter_bytes,
    )


def _shapes(module: Module) -> dict[str, tuple[int, ...]]:
    return {slot.name: tuple(slot.spec.shape or ()) for slot in module.slots}


def _timing(model: Any) -> dict[str, dict[str, float]]:
    """What the recorded forwards of each module took, by path."""
    found = {}
    for path, calls in get_forward_stats(model).items():
        seconds = [call.runtime for call in calls]
        total = sum(seconds)
        found[path] = {"last": seconds[-1], "mean": total / len(seconds), "total": total}
    return found
