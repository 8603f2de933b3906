"""The verbs `guard` and `replay`: find where a NaN or Inf comes from."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from torchglass.api.argument_checks import expect_module, expect_names
from torchglass.blocks import FencedBlock, unbroken
from torchglass.errors import TargetError

if TYPE_CHECKING:
    from torch import nn

    from torchglass.results.guard import Guard, On, Replay


def guard(
    model: nn.Module,
    *,
    on: On = "raise",
    backward: bool = True,
    cheap: bool = False,
    allow: str | Iterable[str] = (),
    dump: str | PathLike[str] | None = None,
) -> contextlib.AbstractContextManager[Guard]:
    """Find the op that makes the first NaN or Inf in a with-block, forward or backward.

    Use it in a with-block: called without `with`, it looks at nothing.

    An op is to blame for what is not finite in its result and was so in none of its inputs. `on`
    says whether that raises `NonFiniteError` right there, warns once for each place, or is only
    kept in `.findings`. −Inf that is written down, as in masks, is nobody's fault; `allow` names
    further ops ("log") or modules that may. What needs no gradient is told when it leaves its
    module, and an overflow that a `GradScaler` checks only if an optimizer uses it all the same.
    float16 and bfloat16 are warned of when half of what they hold is reached. With `dump`, a
    folder, the culprit and its inputs are written to a file that `replay` runs again; until then
    the guard holds what ops were given.

    `cheap` looks only at what the model returns and at the gradients before an optimizer's step,
    and runs a bad batch again under guard, with the same random numbers and buffers. It is the one
    for GPUs, where each look waits for the device.

    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Softmax(-1))
    >>> with guard(model, on="record") as watched:
    ...     loss = (model(torch.ones(2, 4)) - 1).log().sum()
    >>> watched.first.op, watched.first.facts["nan"]
    ('log', 8)
    """
    expect_module(model, "guard")
    if on not in ("raise", "warn", "record"):
        raise TargetError(f'on is "raise", "warn" or "record", not {on!r}')
    block = _guarding(
        model,
        on,
        backward=backward,
        cheap=cheap,
        allow=expect_names("allow", allow),
        folder=None if dump is None else Path(dump),
    )
    return FencedBlock(block, lambda: _guard_of_nothing(on), "the guard looks at nothing")


def _guard_of_nothing(on: On) -> Guard:
    from torchglass.results.guard import Guard

    return Guard(on)


@unbroken
def _guarding(
    model: nn.Module,
    on: On,
    *,
    backward: bool,
    cheap: bool,
    allow: tuple[str, ...],
    folder: Path | None,
) -> Iterator[Guard]:
    from torchglass.capture.guard.finding_report import Desk
    from torchglass.capture.guard.guard import guarding, rerunning
    from torchglass.capture.guard.op_dump import Dumper
    from torchglass.results.guard import Guard

    found = Guard(on)
    desk = Desk(
        model,
        found.report,
        allow=allow,
        dumper=None if folder is None else Dumper(folder),
        repeat=on == "raise",
    )
    with (rerunning if cheap else guarding)(desk, backward=backward):
        yield found


def replay(path: str | PathLike[str]) -> Replay:
    """Run the op that a guard wrote to a file again, alone, and say what comes of it.

    The file holds no code: the op is one of torch's own, called by its name.

    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.ReLU())
    >>> with guard(model, on="record", dump="dumps") as watched:
    ...     loss = model(torch.tensor([-1.0, 2.0])).log().sum()
    >>> again = replay(watched.first.facts["dump"])
    >>> again.finding.op, again.reproduced
    ('log', True)
    """
    from torchglass.capture.guard.op_dump import replay as replayed
    from torchglass.results.guard import Replay

    return Replay(replayed(Path(path)))
