"""The verbs for one traced pass: `trace`, `tracing`, `diagram`, `pluck`, `explain` and `load`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any, cast, get_args

from torchglass.errors import CaptureError, FencedBlock, TargetError, expect_module, expect_one_of
from torchglass.records.model import Model

if TYPE_CHECKING:
    import torch
    from torch import nn

    from torchglass.capture.trace.assemble import OpSelector, PassCapture, Selection
    from torchglass.capture.trace.pass_recorder import Edit, Level
    from torchglass.results.diagram import Diagram
    from torchglass.results.failures import Explanation
    from torchglass.results.trace import Trace


def trace(
    model: nn.Module,
    *args: Any,
    save: Selection = "all",
    gradients: bool = False,
    edit: Mapping[OpSelector, Edit] | None = None,
    stop_after: OpSelector | None = None,
    level: Level = "torch",
    offload: bool = False,
    **kwargs: Any,
) -> Trace:
    """Run a model once and record every op: its output, its parents and its source line.

    Use `tracing` for a forward whose own arguments have the names of these options.

    Args:
        model: The model to run.
        *args: Positional arguments of the forward.
        save: Which outputs to keep: "all", None, op names, module paths, indices, parts of names, a
            predicate on an op, or a list of these.
        gradients: Also collect the gradient of each op when you run a backward later.
        edit: Functions by op name; each replaces the output of its op. Resolving a name runs the
            model once more.
        stop_after: End the forward after this op. Resolving a name runs the model once more.
        level: "torch" records the functions you call, "aten" the kernels they run.
        offload: Keep copies of the outputs on the CPU. A GPU copies them while the forward goes on,
            and frees its own. Such a trace cannot be validated by replay.
        **kwargs: Keyword arguments of the forward.

    Returns:
        A `Trace`: index it by op name, print it, draw it, save it.

    Raises:
        TargetError: `model` is not a module.
        CaptureError: `level` is unknown.
        LookupFailedError: A name does not match any op.

    Example:
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.ReLU())
        >>> traced = trace(model, torch.ones(3, 4))
        >>> traced.layer_labels
        ['input_1_0', 'linear_1_1', 'relu_1_2', 'output_1_3']
        >>> traced["relu"].tensor.shape
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
        offload=offload,
    )


def trace_forward(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    edit: Mapping[OpSelector, Edit] | None = None,
    stop_after: OpSelector | None = None,
    level: Level = "torch",
    **options: Any,
) -> Trace:
    """`trace`, with the arguments of the forward passed separately from the options."""
    from torchglass.capture.trace.assemble import op_numbers
    from torchglass.results.trace import Trace

    expect_module(model, "trace")
    _expect_level(level)
    edits = edit or {}
    keys = [*edits] if stop_after is None else [*edits, stop_after]
    numbers = op_numbers(model, args, kwargs, keys, level)
    options["edits"] = {numbers[key]: change for key, change in edits.items()}
    options["stop_after"] = None if stop_after is None else numbers[stop_after]
    output = None
    with _telling_of_errors(model, level=level, **options) as tape:
        output = model(*args, **kwargs)
    return Trace(lambda: tape.captured, partial(_structure, model), output=output)


def diagram(
    model: nn.Module | Trace, *inputs: Any, depth: int | None = None, **kwargs: Any
) -> Diagram:
    """Draw the structure of a model as one clean page, like a figure in a paper.

    Repeated blocks are drawn once with their number, a residual addition is a "+", and arrows say
    the shape where it changes. Norms and activations join the layer before them; dropout, reshapes
    and arithmetic with constants are left out. `trace(...).draw(...)` draws every op.

    Args:
        model: A module, which is run once, or a trace.
        *inputs: Positional arguments of the forward.
        depth: How many levels of modules to open. None: as many as fit on a page.
        **kwargs: Keyword arguments of the forward.

    Returns:
        A `Diagram`: write it with `.save("net.svg")` or `.save("net.pdf")`; a notebook shows it.

    Raises:
        TargetError: `model` is not a module or a trace.
        ViewError: `depth` is less than 1.

    Example:
        >>> from torch import nn
        >>> import torch
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten())
        >>> print(diagram(model, torch.randn(1, 3, 8, 8)))
        input → 1×3×8×8
        3×3 Conv2d, 8 · BatchNorm2d · ReLU → 1×8×6×6
        output
    """
    import torch

    from torchglass.capture.isolated_run import leave_unchanged
    from torchglass.results.trace import Trace

    if isinstance(model, Trace):
        return model.diagram(depth)
    expect_module(model, "diagram")
    with torch.no_grad(), leave_unchanged(model.modules()):
        return trace_forward(model, inputs, kwargs, save=None).diagram(depth)


def tracing(
    model: nn.Module,
    *,
    save: Selection = "all",
    gradients: bool = False,
    level: Level = "torch",
    offload: bool = False,
) -> contextlib.AbstractContextManager[Trace]:
    """Trace everything that runs in a with-block: a training step, `generate()`, several forwards.

    Read the trace after the block has ended.

    Args:
        model: The model whose modules the ops are assigned to.
        save: Which outputs to keep, as in `trace`.
        gradients: Also collect the gradient of each op when you run a backward later.
        level: "torch" records the functions you call; "aten" records every kernel, those of a
            backward in the block included.
        offload: Keep copies of the outputs on the CPU, as in `trace`.

    Returns:
        A context manager that gives a `Trace`.

    Raises:
        TargetError: `model` is not a module.
        CaptureError: `level` is unknown.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(4, 2)
        >>> with tracing(model) as traced:
        ...     loss = model(torch.ones(3, 4)).sum()
        >>> traced.layer_labels
        ['ones_1_0', 'linear_1_1', 'output_1_2', 'sum_1_3']
    """
    expect_module(model, "tracing")
    _expect_level(level)
    from torchglass.results.trace import Trace

    read = partial(_structure, model)

    @contextlib.contextmanager
    def traced() -> Iterator[Trace]:
        options = {"save": save, "gradients": gradients, "level": level, "offload": offload}
        with _telling_of_errors(model, **options) as tape:
            yield Trace(lambda: tape.captured, read)

    def fail() -> Any:
        raise CaptureError("no trace was recorded: tracing could not start (see the warning)")

    return FencedBlock(traced(), lambda: Trace(fail, read), "the trace is lost")


def _expect_level(level: object) -> None:
    from torchglass.capture.trace.pass_recorder import Level

    expect_one_of("level", level, get_args(Level))


def pluck(model: nn.Module, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Run a model once and return the output of one op.

    Args:
        model: The model to run.
        *args: Positional arguments of the forward, then the name or index of the op.
        **kwargs: Keyword arguments of the forward.

    Returns:
        The output of that op.

    Raises:
        TargetError: The last argument is not a name or an index.
        LookupFailedError: The name does not match any op.

    Example:
        >>> import torch
        >>> pluck(torch.nn.Sequential(torch.nn.ReLU()), torch.tensor([-1.0, 2.0]), "relu")
        tensor([0., 2.])
    """
    *inputs, key = args or (None,)
    if not isinstance(key, (str, int)):
        raise TargetError('the op name comes last: pluck(model, x, "relu_1")')
    passed = trace_forward(model, tuple(inputs), kwargs, save=[key])
    return cast("torch.Tensor", passed[key].tensor)


def explain(model: nn.Module, /, *args: Any, **kwargs: Any) -> Explanation:
    """Run one forward and explain why it fails: the op, its shapes, and what would fit.

    The exception of the forward is not raised; it is in `.error`. Buffers and random state are
    unchanged afterwards.

    Args:
        model: The model to run.
        *args: Positional arguments of the forward.
        **kwargs: Keyword arguments of the forward.

    Returns:
        An `Explanation`: print it. `.ok` is True if the forward did not raise.

    Raises:
        TargetError: `model` is not a module.

    Example:
        >>> import torch
        >>> explanation = explain(torch.nn.Linear(8, 2), torch.ones(3, 4))
        >>> explanation.ok, type(explanation.error).__name__
        (False, 'RuntimeError')
    """
    from torchglass.results.failures import explain as explained

    expect_module(model, "explain")
    return explained(model, *args, **kwargs)


def load(path: str | PathLike[str]) -> Trace:
    """Load a trace that `Trace.save` wrote. The model and its code are not needed.

    Args:
        path: The file.

    Returns:
        The `Trace`, with the tensors that were saved.

    Raises:
        StoreError: The file is missing, corrupt or not a trace.

    Example:
        >>> import torch
        >>> file = trace(torch.nn.ReLU(), torch.tensor([-1.0, 2.0])).save("pass.glass")
        >>> load(file)["relu"].tensor
        tensor([0., 2.])
    """
    from torchglass.results.trace import load_trace

    return load_trace(path)


@contextlib.contextmanager
def _telling_of_errors(model: nn.Module, **options: Any) -> Iterator[PassCapture]:
    """Record a pass; add its trace and the failed op to an exception."""
    from torchglass.capture.trace.assemble import capturing
    from torchglass.results.trace import Trace

    try:
        with capturing(model, **options) as tape:
            yield tape
    except Exception as error:
        with contextlib.suppress(Exception):
            failed = Trace(lambda: tape.captured, partial(_structure, model))
            # The trace is not pickled together with the exception.
            failed.is_left_out_of_pickles = True
            error.trace = failed  # type: ignore[attr-defined]
            # Python 3.10 has no notes.
            if hasattr(error, "add_note"):
                from torchglass.capture.trace.failing_forward import clues
                from torchglass.views.failure_text import failure_note

                known = clues(error, tape.failure)
                error.add_note(failure_note(failed.record, failed.model, known))
        raise


def _structure(model: nn.Module) -> Model:
    from torchglass.capture.model.structure import read_model

    return read_model(model)
