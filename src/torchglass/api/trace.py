"""The verbs for one traced pass: `trace`, `tracing`, `pluck`, `explain` and `load`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any, cast, get_args

from torchglass.analyse.trace import Selection
from torchglass.api.argument_checks import expect_module, expect_one_of
from torchglass.blocks import FencedBlock
from torchglass.errors import CaptureError, TargetError
from torchglass.records.model import Model

if TYPE_CHECKING:
    import torch
    from torch import nn

    from torchglass.capture.trace.pass_recorder import Edit, Level
    from torchglass.capture.trace.selection import Key, Tape
    from torchglass.results.explanation import Explanation
    from torchglass.results.trace import Trace


def trace(
    model: nn.Module,
    *args: Any,
    save: Selection = "all",
    gradients: bool = False,
    edit: Mapping[Key, Edit] | None = None,
    stop_after: Key | None = None,
    level: Level = "torch",
    **kwargs: Any,
) -> Trace:
    """Run a model once and keep every operation, with its tensor, its parents and its source line.

    `save` says which tensors are kept: names, modules, ordinals, parts of names, a test of an op, a
    list of these, or None. With `gradients` a later backward fills in the gradient of each op.
    `edit` replaces the output of selected ops. `stop_after` ends the forward early. Both take op
    names; resolving a name runs the model once more. With `level="aten"` the ops are aten kernels.
    Use `tracing` for a forward whose own arguments have these names.

    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.ReLU())
    >>> passed = trace(model, torch.ones(3, 4))
    >>> passed.layer_labels
    ['input_1_0', 'linear_1_1', 'relu_1_2', 'output_1_3']
    >>> passed["relu"].tensor.shape
    torch.Size([3, 2])
    """
    return trace_forward(
        model,
        args,
        kwargs,
        save=save,
        gradients=gradients,
        edit=edit,
        stop_after=stop_after,
        level=level,
    )


def trace_forward(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    edit: Mapping[Key, Edit] | None = None,
    stop_after: Key | None = None,
    level: Level = "torch",
    **options: Any,
) -> Trace:
    """`trace`, with the arguments of forward kept apart from the options."""
    from torchglass.capture.trace.selection import numbered
    from torchglass.results.trace import Trace

    expect_module(model, "trace")
    _expect_level(level)
    edits = edit or {}
    keys = [*edits] if stop_after is None else [*edits, stop_after]
    numbers = numbered(model, args, kwargs, keys, level)
    options["edits"] = {numbers[key]: change for key, change in edits.items()}
    options["stop_after"] = None if stop_after is None else numbers[stop_after]
    output = None
    with _telling_of_errors(model, level=level, **options) as tape:
        output = model(*args, **kwargs)
    return Trace(lambda: tape.captured, _reading(model), output=output)


def tracing(
    model: nn.Module,
    *,
    save: Selection = "all",
    gradients: bool = False,
    level: Level = "torch",
) -> contextlib.AbstractContextManager[Trace]:
    """Trace whatever runs in a with-block: a training step, `generate()`, several forwards.

    The trace can be read when the block has ended. With `level="aten"` it lists every kernel,
    those of a backward in the block included.

    >>> import torch
    >>> model = torch.nn.Linear(4, 2)
    >>> with tracing(model) as passed:
    ...     loss = model(torch.ones(3, 4)).sum()
    >>> passed.layer_labels
    ['ones_1_0', 'linear_1_1', 'output_1_2', 'sum_1_3']
    """
    expect_module(model, "tracing")
    _expect_level(level)
    return FencedBlock(
        _tracing(model, save=save, gradients=gradients, level=level),
        lambda: _nothing_traced(model),
        "the trace is lost",
    )


def _nothing_traced(model: nn.Module) -> Trace:
    from torchglass.results.trace import Trace

    def fail() -> Any:
        raise CaptureError("there is no trace: tracing could not start (see the warning)")

    return Trace(fail, _reading(model))


@contextlib.contextmanager
def _tracing(model: nn.Module, **options: Any) -> Iterator[Trace]:
    from torchglass.results.trace import Trace

    with _telling_of_errors(model, **options) as tape:
        yield Trace(lambda: tape.captured, _reading(model))


def _expect_level(level: object) -> None:
    from torchglass.capture.trace.pass_recorder import Level

    expect_one_of("level", level, get_args(Level))


def pluck(model: nn.Module, *args: Any, **kwargs: Any) -> torch.Tensor:
    """The tensor that one op of a forward makes; its name comes last: `pluck(model, x, "relu_1")`.

    >>> import torch
    >>> pluck(torch.nn.Sequential(torch.nn.ReLU()), torch.tensor([-1.0, 2.0]), "relu")
    tensor([0., 2.])
    """
    *inputs, key = args or (None,)
    if not isinstance(key, (str, int)):
        raise TargetError('the name of an op comes last: pluck(model, x, "relu_1")')
    passed = trace_forward(model, tuple(inputs), kwargs, save=[key])
    return cast("torch.Tensor", passed[key].tensor)


def explain(model: nn.Module, /, *args: Any, **kwargs: Any) -> Explanation:
    """Run one forward and tell what happened: where it failed, which shapes met, what would fit.

    The forward's own exception is in the story and does not come out. Buffers and random state are
    afterwards what they were.

    >>> import torch
    >>> story = explain(torch.nn.Linear(8, 2), torch.ones(3, 4))
    >>> story.ok, type(story.error).__name__
    (False, 'RuntimeError')
    """
    from torchglass.results.explanation import explain as explained

    expect_module(model, "explain")
    return explained(model, *args, **kwargs)


def load(path: str | PathLike[str]) -> Trace:
    """Read a trace that `Trace.save` wrote; neither the model nor its code is needed.

    >>> import torch
    >>> file = trace(torch.nn.ReLU(), torch.tensor([-1.0, 2.0])).save("pass.glass")
    >>> load(file)["relu"].tensor
    tensor([0., 2.])
    """
    from torchglass.results.trace import load_trace

    return load_trace(path)


@contextlib.contextmanager
def _telling_of_errors(model: nn.Module, **options: Any) -> Iterator[Tape]:
    """Tape a pass, and let an exception that comes out of it say where it was."""
    from torchglass.capture.trace.selection import taping
    from torchglass.results.trace import Trace

    try:
        with taping(model, **options) as tape:
            yield tape
    except Exception as error:
        with contextlib.suppress(Exception):
            failed = _trace_of_error(Trace(lambda: tape.captured, _reading(model)))
            error.trace = failed  # type: ignore[attr-defined]
            # Python 3.10 has no notes.
            if hasattr(error, "add_note"):
                from torchglass.capture.trace.failing_forward import clues
                from torchglass.views.text.findings import failure_note

                known = clues(error, tape.failure)
                error.add_note(failure_note(failed.record, failed.model, known))
        raise


def _trace_of_error(trace: Trace) -> Trace:
    """A trace that is left out where the exception that has it is pickled, with all its tensors."""
    trace.is_left_out_of_pickles = True
    return trace


def _reading(model: nn.Module) -> Callable[[], Model]:
    def read() -> Model:
        from torchglass.capture.model.structure import read_model

        return read_model(model)

    return read
