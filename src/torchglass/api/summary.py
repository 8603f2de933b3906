"""The verb `summary`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchglass.errors import TargetError
from torchglass.records.findings import Findings
from torchglass.targets.names import resolve
from torchglass.targets.readers import is_live, is_reader, is_run, open_reader, read

if TYPE_CHECKING:
    from torchglass.analyse.summary import Sort
    from torchglass.capture.model_inputs import Dtype, Size
    from torchglass.results.summary import RunNote, Summary


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
    """What a target is made of, as a table to print and as JSON, HTML and CSV.

    With inputs (those of forward, or torchinfo's `input_size` and `input_data`) one forward is run
    and shapes are shown, too; with `fake` it takes no memory. `depth`, `col_names`, `sort` and
    `fold` choose what is shown. `unsafe` lets a checkpoint run the code that it carries.

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
    run = None
    if is_live(target):
        from torchglass.capture.trial_forward import look_at

        record, calls = look_at(
            target,
            inputs,
            kwargs,
            input_size=input_size,
            input_data=input_data,
            dtypes=dtypes,
            fake=fake,
        )
    elif inputs or kwargs or input_size is not None or input_data is not None:
        raise TargetError("only a live model can be run: leave the inputs out, or load the model")
    else:
        record, calls = read(target, unsafe=unsafe), None
        run = _run_of(target)
    return Summary(record, calls, depth=depth, col_names=col_names, sort=sort, fold=fold, run=run)


def _run_of(target: object) -> RunNote | None:
    """The status of the training that a target records; None if it is not a training."""
    from torchglass.results.summary import RunNote

    if isinstance(target, Path) and is_run(target):
        with closing(open_reader(target)) as reader:
            return _run_of(reader)
    if not is_reader(target) or target.last_step() < 0:
        return None
    found = target.document(Findings)
    return RunNote(target.status(), target.last_step(), found.findings if found else ())


def _unpacked(target: object) -> object:
    """What a verb gave back, as the reader or the record that is in it."""
    # The reading of runs takes longer to import than most models take to be summarised.
    if not type(target).__module__.startswith("torchglass."):
        return target
    from torchglass.results.run import SavedRun
    from torchglass.results.summary import Summary

    if isinstance(target, SavedRun):
        return target.reader
    return target.model if isinstance(target, Summary) else target
