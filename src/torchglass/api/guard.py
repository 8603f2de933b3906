"""The verbs `guard` and `replay`: find where a NaN or Inf comes from."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from torchglass.errors import FencedBlock, TargetError, expect_module, expect_names, uninterruptible

if TYPE_CHECKING:
    from torch import nn

    from torchglass.results.failures import Guard, On, Replay


def guard(
    model: nn.Module,
    *,
    on: On = "raise",
    backward: bool = True,
    cheap: bool = False,
    allow: str | Iterable[str] = (),
    dump: str | PathLike[str] | None = None,
) -> contextlib.AbstractContextManager[Guard]:
    """Find the op that produces the first NaN or Inf in a with-block, forward or backward.

    Without `with`, nothing is checked. An op is blamed if its output is not finite and all its
    inputs were. These are not findings:

    - −Inf that is written on purpose, as in attention masks.
    - An overflow that a `GradScaler` handles, unless an optimizer uses it anyway.

    Values that need no gradient are checked when they leave their module. float16 and bfloat16
    tensors cause a warning at half of their range.

    Args:
        model: The model to check.
        on: What to do with a finding: "raise" `NonFiniteError` at once, "warn" once per position,
            or only "record" it in `.findings`.
        backward: Also check the backward.
        cheap: Check only the model's outputs, and gradients before an optimizer step; rerun a bad
            batch with all checks, the same random state and the same buffers. Use this on GPUs,
            where every check waits for the device.
        allow: Names of ops ("log") or modules that may produce NaN or Inf.
        dump: Folder for a file with the blamed op and its inputs, which `replay` runs again. The
            inputs of ops are kept alive until then.

    Returns:
        A context manager that gives a `Guard` with `.findings` and `.first`.

    Raises:
        TargetError: `model` is not a module, or `on` is unknown.
        NonFiniteError: In the block, with `on="raise"`, where the first NaN or Inf appears.

    Example:
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Softmax(-1))
        >>> with guard(model, on="record") as checked:
        ...     loss = (model(torch.ones(2, 4)) - 1).log().sum()
        >>> checked.first.op, checked.first.facts["nan"]
        ('log', 8)
    """
    expect_module(model, "guard")
    if on not in ("raise", "warn", "record"):
        raise TargetError(f'on must be "raise", "warn" or "record", not {on!r}')
    from torchglass.results.failures import Guard

    found, allowed = Guard(on), expect_names("allow", allow)

    @uninterruptible
    def guarded() -> Iterator[Guard]:
        from torchglass.capture.guard.finding_report import FindingReport
        from torchglass.capture.guard.guard import guarding, rerunning
        from torchglass.capture.guard.op_dump import Dumper

        dumper = None if dump is None else Dumper(Path(dump))
        repeat = on == "raise"
        report = FindingReport(model, found.report, allow=allowed, dumper=dumper, repeat=repeat)
        with (rerunning if cheap else guarding)(report, backward=backward):
            yield found

    return FencedBlock(guarded(), lambda: found, "the guard checks nothing")


def replay(path: str | PathLike[str]) -> Replay:
    """Run an op again that `guard(..., dump=...)` wrote to a file, without the model.

    The file contains no code: the op is one of torch's own, called by name.

    Args:
        path: The file. A finding has its path in `facts["dump"]`.

    Returns:
        A `Replay`: whether the problem was reproduced, and the outputs.

    Raises:
        TargetError: The file was not written by `guard`.
        StoreError: The file is missing or corrupt.
        UnsafeFileError: The file names an op that does more than compute.

    Example:
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.ReLU())
        >>> with guard(model, on="record", dump="dumps") as checked:
        ...     loss = model(torch.tensor([-1.0, 2.0])).log().sum()
        >>> again = replay(checked.first.facts["dump"])
        >>> again.finding.op, again.reproduced
        ('log', True)
    """
    from torchglass.capture.guard.op_dump import replay as replayed
    from torchglass.results.failures import Replay

    return Replay(replayed(Path(path)))
