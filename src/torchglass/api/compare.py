"""The verb `compare`: what is different between two models, and where they first diverge."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchglass.api.explore import tensors_of_target
from torchglass.errors import TargetError
from torchglass.records.model import Model
from torchglass.targets.names import ONNX_SUFFIX, resolve
from torchglass.targets.readers import is_run, open_reader, read
from torchglass.targets.result_readers import reader_of_result

if TYPE_CHECKING:
    import torch

    from torchglass.records.comparison import ExecutionComparison
    from torchglass.results.comparison import Comparison
    from torchglass.whatif.execution import Execution
    from torchglass.whatif.forward import Runnable

    Tensors = Mapping[str, Callable[[], torch.Tensor]]

_LOOKED_THROUGH = (
    "both ran in float32 on the same rounded weights: half precision hides small differences"
)


def compare(
    a: Any,
    b: Any,
    *inputs: Any,
    names: Mapping[str, str] | None = None,
    values: bool = True,
    unsafe: bool = False,
    **kwargs: Any,
) -> Comparison:
    """Say what is different between two models, and with inputs at which op they first diverge.

    Modules are matched by path, and those that were renamed or moved by what they look like. With
    inputs both models run, and every value that `b` computes is looked for in `a`: names, the
    order of ops and how they are split up do not matter. Rounding is measured, so that `a` and `b`
    may have different dtypes. Both models, their buffers and the random state stay as they are.

    Args:
        a: The reference: a model, a checkpoint or its path, a trace, a run, an exported program
            (`.pt2`), or an ONNX file (`.onnx`, which needs `torchglass[onnx]`).
        b: What is compared with it, of any of these kinds.
        *inputs: Positional arguments of both forwards.
        names: Paths of modules of `a` by those of `b`, where you know them.
        values: Compare the values of tensors, too.
        unsafe: Allow checkpoints to run the code that they contain.
        **kwargs: Keyword arguments of both forwards.

    Returns:
        A `Comparison`: print it, or read `.same`, `.first_divergence`, `.tensors` and `.rows`.

    Raises:
        TargetError: A target cannot be read, or cannot run on inputs.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> a = nn.Sequential(nn.Linear(4, 4), nn.GELU())
        >>> b = nn.Sequential(nn.Linear(4, 4), nn.GELU(approximate="tanh"))
        >>> _ = b.load_state_dict(a.state_dict())
        >>> found = compare(a, b, torch.ones(2, 4)).first_divergence
        >>> found.b.function, found.reason
        ('gelu', "different arguments: approximate='tanh' in b, 'none' in a")
    """
    from torchglass.results.comparison import Comparison
    from torchglass.whatif.tensor_changes import compare_weights

    ran = bool(inputs or kwargs)
    first, second = _loaded(resolve(a), ran), _loaded(resolve(b), ran)
    if _is_run(first) and _is_run(second) and not ran:
        return _compare_runs(first, second)
    forwards = _forwards(first, second, inputs, kwargs) if ran or _are_traces(a, b) else None
    models = _model(first, unsafe), _model(second, unsafe)
    tensors = tensors_of_target(first, unsafe), tensors_of_target(second, unsafe)
    structure, changes = compare_weights(models, tensors if values else ({}, {}), names)
    execution = None if forwards is None else _compare_forwards(*forwards)
    return Comparison(
        _names(models, a, b),
        structure,
        changes,
        execution,
        notes=list(_notes(values, tensors, ran)),
        source_lines=_lines(execution),
    )


def _loaded(target: object, ran: bool) -> object:
    """A target; an exported program that must run is read from its file."""
    if not (ran and isinstance(target, Path) and target.suffix == ".pt2"):
        return target
    import torch

    return torch.export.load(target).module()


def _is_run(target: object) -> bool:
    from torchglass.results.run import SavedRun

    return isinstance(target, SavedRun) or (isinstance(target, Path) and is_run(target))


def _compare_runs(a: object, b: object) -> Comparison:
    """Compare the models, settings and curves of two recorded runs."""
    from torchglass.analyse.model_diff import compare as compare_models
    from torchglass.analyse.run_diff import curve_changes, setting_changes
    from torchglass.results.comparison import Comparison, curve_row, setting_row

    readers = [reader_of_result(one) or open_reader(one) for one in (a, b)]
    before, after = readers
    models = before.model(), after.model()
    curves = curve_changes(before, after)
    rows = [
        *map(setting_row, setting_changes(before, after)),
        *(curve_row(one) for one in curves),
    ]
    quiet = sum(one.apart_from is None for one in curves)
    notes = [
        "curves diverge where they stay further apart than their noise between steps",
        *([f"{quiet:,} of {len(curves):,} curves differ within their noise"] if quiet else []),
    ]
    names = before.run().name, after.run().name
    return Comparison(names, compare_models(*models), rows=rows, notes=notes)


def _compare_forwards(a: Runnable, b: Runnable) -> ExecutionComparison:
    """Where two forwards diverge; half precision is compared in float32 first."""
    from torchglass.whatif.forward import in_float32

    copies = in_float32(a, b)
    if copies is not None:
        found = _compare_executions(*copies)
        if found.divergence is not None:
            return replace(found, notes=(*found.notes, _LOOKED_THROUGH))
    return _compare_executions(a, a.execute(), b.execute())


def _compare_executions(a: Runnable, first: Execution, second: Execution) -> ExecutionComparison:
    """Measure the rounding of `a`, and find where both diverge."""
    from torchglass.whatif.divergence import compare_executions
    from torchglass.whatif.divergence_report import describe

    a.measure_noise(first, max(first.eps, second.eps))
    return describe(compare_executions(first, second))


def _are_traces(*targets: object) -> bool:
    from torchglass.results.trace import Trace

    return all(isinstance(one, Trace) for one in targets)


def _forwards(
    a: object, b: object, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Runnable, Runnable]:
    return _forward(a, args, kwargs), _forward(b, args, kwargs)


def _forward(target: object, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Runnable:
    import torch
    from torch import nn

    from torchglass.results.trace import Trace
    from torchglass.whatif.execution import execution_of
    from torchglass.whatif.forward import Forward, Recorded

    if isinstance(target, Trace):
        return Recorded(execution_of(target.record, target.saved_tensors, target.captured))
    if isinstance(target, Path) and target.suffix == ONNX_SUFFIX:
        from torchglass.whatif.onnx_model import OnnxForward

        return OnnxForward(target, args, kwargs)
    if isinstance(target, torch.export.ExportedProgram):
        target = target.module()
    if isinstance(target, nn.Module):
        return Forward(target, args, kwargs)
    raise TargetError(f"{_kind(target)} cannot run: omit the inputs, or pass the model itself")


def _kind(target: object) -> str:
    return str(target) if isinstance(target, Path) else f"a {type(target).__name__}"


def _model(target: object, unsafe: bool) -> Model:
    reader = reader_of_result(target)
    return reader.model() if reader is not None else read(target, unsafe=unsafe)


def _names(models: tuple[Model, Model], a: object, b: object) -> tuple[str, str]:
    """The names of both; the same class twice gets numbers."""
    found = [
        Path(str(one)).name if isinstance(one, (str, Path)) else model.name
        for one, model in zip((a, b), models, strict=True)
    ]
    if found[0] == found[1]:
        found = [f"{found[0]} (a)", f"{found[1]} (b)"]
    return found[0], found[1]


def _notes(values: bool, tensors: tuple[Tensors, Tensors], ran: bool) -> Iterator[str]:
    if values and not all(tensors):
        yield "values were not compared: a target has no tensors, only their shapes"
    if not ran:
        yield "nothing was run: pass inputs to find the first op that differs"


def _lines(execution: ExecutionComparison | None) -> tuple[str, str]:
    """The code of the ops at which both diverge."""
    found = execution.divergence if execution is not None else None
    if found is None:
        return "", ""
    sources = [op.source if op is not None else None for op in (found.a, found.b)]
    lines = [linecache.getline(one.file, one.line) if one else "" for one in sources]
    return lines[0], lines[1]
