"""The verb `summary`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchglass.errors import TargetError
from torchglass.records.model import Model
from torchglass.targets.names import resolve
from torchglass.targets.readers import (
    NOT_LIVE,
    is_live,
    is_ours,
    is_reader,
    is_run,
    open_reader,
    read,
)

if TYPE_CHECKING:
    from torchglass.analyse.sibling_order import Sort
    from torchglass.capture.model_inputs import Dtype, Size
    from torchglass.results.run_report import RunNote
    from torchglass.results.summary import Summary


def summary(
    model: object,
    *inputs: Any,
    input_size: Size | Iterable[Size] | None = None,
    input_data: Any = None,
    dtypes: Dtype | Sequence[Dtype] | None = None,
    fake: bool = False,
    depth: int | None = None,
    col_names: Sequence[str] | None = None,
    sort: Sort | None = None,
    fold: bool = False,
    unsafe: bool = False,
    **kwargs: Any,
) -> Summary:
    """Summarize a model: modules, parameters, sizes, and shapes if inputs are given.

    With inputs, one forward runs and the table also shows shapes and times. The model, its buffers
    and the random state are unchanged afterwards.

    Args:
        model: A model, a checkpoint or run file, a result of another verb, or a name such as
            "net.py:Net".
        *inputs: Positional arguments of the model's forward.
        input_size: Shape of one input, or shapes of several, as in torchinfo. Inputs of
            that shape are created.
        input_data: The inputs themselves, as in torchinfo: a tensor, a list or a dict.
        dtypes: Dtype of the inputs created from `input_size`: one, or one per input.
        fake: Run without allocating memory or computing values. Works for models of any size.
        depth: Number of levels shown below the model. None shows all.
        col_names: Names of the columns to show, in order. None chooses them.
        sort: Order of the modules within their parent. None keeps the model's order.
        fold: Show repeated blocks once, with their count.
        unsafe: Allow a checkpoint to run the code it contains (pickle).
        **kwargs: Keyword arguments of the model's forward.

    Returns:
        A `Summary`. Print it, or use `.tree()`, `.to_json()`, `.to_html()` and `.to_csv()`.

    Raises:
        TargetError: The target cannot be read, or inputs were given for a target that cannot run.

    Example:
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 5), nn.BatchNorm2d(8), nn.ReLU())
        >>> print(summary(model, input_size=(1, 3, 32, 32)).tree())
        Sequential(
        ├── 624 parameters
        ├── 0: Conv2d(3→8, 5×5) → 1×8×28×28 [608 params]
        ├── 1: BatchNorm2d(8) → 1×8×28×28 [16 params]
        └── 2: ReLU → 1×8×28×28 [0 params]
    """
    from torchglass.results.summary import Summary

    target = _unpacked(resolve(model))
    if not (inputs or kwargs) and input_size is None and input_data is None:
        record, calls, run = read(target, unsafe=unsafe), None, _run_of(target)
    elif not is_live(target):
        raise TargetError(NOT_LIVE)
    else:
        from torchglass.capture.model_inputs import look_at

        run = None
        record, calls = look_at(
            target,
            inputs,
            kwargs,
            input_size=input_size,
            input_data=input_data,
            dtypes=dtypes,
            fake=fake,
        )
    return Summary(record, calls, depth=depth, col_names=col_names, sort=sort, fold=fold, run=run)


def _run_of(target: object) -> RunNote | None:
    """The status of the training that a target records; None if it is not a training."""
    if isinstance(target, Path) and is_run(target):
        with closing(open_reader(target)) as reader:
            return _run_of(reader)
    if not is_reader(target) or target.last_step() < 0:
        return None
    from torchglass.records.findings import Findings
    from torchglass.results.run_report import RunNote

    found = target.document(Findings)
    findings = found.findings if found else ()
    return RunNote(target.run(), target.status(), target.last_step(), findings)


def _unpacked(target: object) -> object:
    """The reader or record inside the result of a verb."""
    if not is_ours(target):
        return target
    from torchglass.results.run import SavedRun

    if isinstance(target, SavedRun):
        return target.reader
    model = getattr(target, "model", None)
    return model if isinstance(model, Model) else target
