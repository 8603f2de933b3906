"""The verbs that run a model and measure it: `flops`, `memory`, `profile`, `record`, `inspect`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args, overload

from torchglass.errors import (
    CaptureError,
    FencedBlock,
    TargetError,
    expect_at_least,
    expect_one_of,
    uninterruptible,
)
from torchglass.records.calls import Level
from torchglass.results.report import check_order

if TYPE_CHECKING:
    from torchglass.analyse.flop_formulas import Formula
    from torchglass.capture.isolated_run import Loss
    from torchglass.capture.measure.memory import OptimizerChoice
    from torchglass.results.flops import Flops
    from torchglass.results.inspection import Inspection
    from torchglass.results.memory import Memory
    from torchglass.results.memory_snapshot import MemorySnapshot
    from torchglass.results.profile import Profile
    from torchglass.results.statistics import Recording
    from torchglass.results.trace_profile import TraceProfile

F = TypeVar("F", bound="Formula")

_WARMUP = 1
_REPEATS = 3


def flops(
    model: Any,
    *inputs: Any,
    backward: bool = False,
    loss: Loss | None = None,
    fake: bool = False,
    timed: bool = False,
    **kwargs: Any,
) -> Flops:
    """Count the floating-point operations (FLOPs) of each module and op.

    1 multiply-add = 2 FLOPs. Gradients, buffers and random state are unchanged afterwards.

    Args:
        model: A module, or any function of tensors.
        *inputs: Positional arguments of the forward.
        backward: Also run and count the backward.
        loss: Called with the output; backward starts from its result. None: the sum of the outputs.
        fake: Count without allocating memory or computing values.
        timed: Run the model a few more times to report FLOPs per second.
        **kwargs: Keyword arguments of the forward.

    Returns:
        A `Flops`: print it, index it by module path, or export it.

    Raises:
        CaptureError: The model cannot be run this way.

    Example:
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.ReLU())
        >>> counted = flops(model, torch.ones(3, 4), backward=True)
        >>> counted.forward_flops, counted.backward_flops, counted["0"].self_flops
        (48, 48, 96)
    """
    from torchglass.capture.measure.flops import count
    from torchglass.results.flops import Flops

    step: Any = {"backward": backward, "loss": loss}
    record, work = count(model, inputs, kwargs, fake=fake, timed=timed, **step)
    if not timed:
        return Flops(record, work)
    from torchglass.capture.measure.profile import measure

    runs = {"warmup": _WARMUP, "repeats": _REPEATS}
    measured = measure(model, inputs, kwargs, ops=False, **runs, **step)
    return Flops(record, work, measured.timing)


def register_flops(op: Any, *, backward: bool = False) -> Callable[[F], F]:
    """Register a FLOP formula for a custom op. It replaces the count of everything inside the op.

    Args:
        op: An op of `torch.ops`, its name ("mylib::mix"), the result of `torch.library.custom_op`,
            or an autograd Function.
        backward: The formula counts the backward of an autograd Function.

    Returns:
        A decorator. The formula is called like the op, with shapes instead of tensors, plus
        `out_shape`: the shape of the result, or a list of shapes.

    Raises:
        CaptureError: `op` is not an op.

    Example:
        >>> import torch
        >>> @torch.library.custom_op("doctest::mix", mutates_args=())
        ... def mix(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ...     return x @ weight
        >>> @register_flops(mix)
        ... def mix_flops(x, weight, *, out_shape):
        ...     return 2 * x[0] * x[1] * weight[1]
        >>> flops(mix, torch.ones(3, 4), torch.ones(4, 5)).total_flops
        120
    """
    from torchglass.capture.measure.registered_flops import register_flops

    return register_flops(op, backward=backward)


def unregister_flops(op: Any) -> None:
    """Remove the FLOP formulas registered for an op. Does nothing if there are none.

    Args:
        op: The op, in any form that `register_flops` accepts.

    Raises:
        CaptureError: `op` is not an op.

    Example:
        >>> import torch
        >>> _ = register_flops(torch.ops.aten.exp)(lambda x, *, out_shape: 1000)
        >>> flops(torch.exp, torch.ones(3)).total_flops
        1000
        >>> unregister_flops(torch.ops.aten.exp)
        >>> flops(torch.exp, torch.ones(3)).total_flops
        0
    """
    from torchglass.capture.measure.registered_flops import unregister_flops

    unregister_flops(op)


@overload
def memory(model: str | os.PathLike[str], of: Any = None, /) -> MemorySnapshot: ...


@overload
def memory(
    model: Any,
    *inputs: Any,
    backward: bool = True,
    optimizer: OptimizerChoice | None = None,
    loss: Loss | None = None,
    fake: bool = False,
    **kwargs: Any,
) -> Memory: ...


def memory(
    model: Any,
    *inputs: Any,
    backward: bool = True,
    optimizer: OptimizerChoice | None = None,
    loss: Loss | None = None,
    fake: bool = False,
    **kwargs: Any,
) -> Memory | MemorySnapshot:
    """Measure the memory of one step: the peak, what it consists of, and which module keeps it.

    Parameters, gradients, buffers and random state are unchanged afterwards.

    Args:
        model: A module, or any function of tensors. Or a file that
            `torch.cuda.memory._dump_snapshot` wrote: read without a GPU, without running its code.
        *inputs: Positional arguments of the forward. For a file, the model that ran, or a run of
            it that was watched: its modules are shown beside the lines of code.
        backward: Also run the backward. False computes no gradients at all.
        optimizer: Also run an optimizer step, on copies: a name such as "adamw", a class, a
            function that takes parameters, or your optimizer.
        loss: Called with the output; backward starts from its result. None: the sum of the outputs.
        fake: Predict the memory without allocating or computing, for models of any size. Models on
            "meta" are always predicted.
        **kwargs: Keyword arguments of the forward.

    Returns:
        A `Memory`: print it, index it by module path, or export it. For a file, a
        `MemorySnapshot`: print it or export it.

    Raises:
        CaptureError: The model cannot be run this way, or `optimizer` cannot be used.
        TargetError: The file is not a memory snapshot, or could run code.

    Example:
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.ReLU())
        >>> taken = memory(model, torch.ones(3, 4), optimizer="adam")
        >>> taken.parameters_bytes, taken.gradients_bytes, taken.rows["1"].total.activation_bytes
        (40, 40, 24)
        >>> predicted = memory(model, torch.ones(3, 4), optimizer="adam", fake=True)
        >>> predicted.peak_bytes == taken.peak_bytes
        True
    """
    from torchglass.capture.measure.memory import measure
    from torchglass.results.memory import Memory

    if isinstance(model, (str, os.PathLike)):
        if kwargs or optimizer is not None or loss is not None or fake or not backward:
            raise TargetError("a memory snapshot is only read: pass the file, and a model or run")
        return _snapshot(Path(model), *inputs)
    if optimizer is not None:
        _expect_optimizer(optimizer)
    step: Any = {"backward": backward, "optimizer": optimizer, "loss": loss}
    return Memory(*measure(model, inputs, kwargs, fake=fake, **step))


def _snapshot(path: Path, of: Any = None) -> MemorySnapshot:
    from torchglass.analyse.memory_snapshot import read_snapshot
    from torchglass.results.memory_snapshot import MemorySnapshot
    from torchglass.targets.names import resolve
    from torchglass.targets.readers import read
    from torchglass.targets.result_readers import reader_of_result

    model = None
    if of is not None:
        target = resolve(of)
        reader = reader_of_result(target)
        model = reader.model() if reader is not None else read(target)
    try:
        with path.open("rb") as file:
            return MemorySnapshot(path.name, read_snapshot(file, model))
    except OSError as error:
        raise TargetError(f"cannot read {path}: {error.strerror}") from None
    except TargetError as error:
        raise type(error)(f"cannot read {path}: {error}") from None


def _expect_optimizer(optimizer: Any) -> None:
    """Reject what is not an optimizer, and LBFGS, which needs a closure."""
    from torch.optim import LBFGS, Optimizer

    from torchglass.capture.measure.memory import optimizer_named

    made = optimizer_named(optimizer) if isinstance(optimizer, str) else optimizer
    if not callable(made) and not isinstance(made, Optimizer):
        raise CaptureError(
            "optimizer must be a name such as 'adamw', a class, a function that takes parameters, "
            f"or an optimizer, not {optimizer!r}"
        )
    if made is LBFGS or isinstance(made, LBFGS):
        raise CaptureError(
            "LBFGS cannot be measured: its step runs the model again. Use another optimizer."
        )


@overload
def profile(model: str | os.PathLike[str]) -> TraceProfile: ...


@overload
def profile(
    model: Any,
    *inputs: Any,
    backward: bool = True,
    warmup: int = 3,
    repeats: int = 10,
    loss: Loss | None = None,
    ops: bool = True,
    **kwargs: Any,
) -> Profile: ...


def profile(
    model: Any,
    *inputs: Any,
    backward: bool = True,
    warmup: int = 3,
    repeats: int = 10,
    loss: Loss | None = None,
    ops: bool = True,
    **kwargs: Any,
) -> Profile | TraceProfile:
    """Time each module and op, forward and backward; or read a trace that torch.profiler wrote.

    Every run gets the same random values. Gradients, buffers and random state are unchanged
    afterwards.

    Args:
        model: A module, or any function of tensors. Or the path of a trace, .json or .json.gz.
        *inputs: Positional arguments of the forward.
        backward: Also time the backward. False computes no gradients.
        warmup: Number of runs before the timed ones.
        repeats: Number of timed runs. Times are medians over them.
        loss: Called with the output; backward starts from its result. None: the sum of the outputs.
        ops: Time ops too. False times modules only, with less overhead.
        **kwargs: Keyword arguments of the forward.

    Returns:
        A `Profile`: print it, index it by module path, or export it. Of a trace a `TraceProfile`:
        kernel, idle and copy time, by module where the trace has modules.

    Raises:
        TargetError: The file is not a trace of torch.profiler.
        CaptureError: `warmup` is negative, `repeats` is less than 1, or the model cannot be run.

    Example:
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.ReLU())
        >>> taken = profile(model, torch.ones(3, 4), warmup=1, repeats=2)
        >>> list(taken.rows), [op.op for op in taken.ops if op.path == "1" and op.op]
        (['', '0', '1'], ['relu'])
        >>> every = [*taken.rows.values(), taken.unattributed]
        >>> sum(row.self_ns for row in every) == taken.root.total_ns
        True
    """
    if isinstance(model, (str, os.PathLike)):
        from torchglass.analyse.kineto_file import read_trace
        from torchglass.results.trace_profile import TraceProfile

        return TraceProfile(Path(model).name, *read_trace(Path(model)))
    from torchglass.capture.measure.profile import measure
    from torchglass.results.profile import Profile

    expect_at_least(0, "warmup", warmup)
    expect_at_least(1, "repeats", repeats)
    runs: Any = {"backward": backward, "warmup": warmup, "repeats": repeats, "loss": loss}
    return Profile(*measure(model, inputs, kwargs, ops=ops, **runs))


def inspect(
    model: Any,
    *inputs: Any,
    backward: bool = False,
    save: str | os.PathLike[str] | None = None,
    loss: Loss | None = None,
    depth: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    **kwargs: Any,
) -> Inspection:
    """Inspect each module in one call: shapes, gradients, NaN and Inf, time and memory.

    The model runs three times from the same state: warm-up, time, everything else. Gradients,
    buffers and random state are unchanged afterwards.

    Args:
        model: A module, or an object that contains modules.
        *inputs: Positional arguments of the forward.
        backward: Also run the backward.
        save: Write the result as Inspector Gadgets' JSON to this file.
        loss: Called with the output; backward starts from its result. None: the sum of the outputs.
        depth: Number of levels inspected below the model. None: all.
        progress: Called with the number of module calls done and the total.
        **kwargs: Keyword arguments of the forward.

    Returns:
        An `Inspection`: print it, index it by module path, or save it.

    Raises:
        ViewError: `depth` is negative.
        CaptureError: The model cannot be run this way.

    Example:
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.ReLU())
        >>> found = inspect(model, torch.ones(3, 4), backward=True)
        >>> found["0"].info["output_shapes"], found["0"].info["gradient_memory_usage"]
        ([[3, 2]], 4e-05)
    """
    from torchglass.capture.observe.inspection import inspect_run
    from torchglass.results.inspection import Inspection

    check_order(None, depth)
    result = Inspection(
        inspect_run(
            model, inputs, kwargs, backward=backward, loss=loss, depth=depth, progress=progress
        )
    )
    if save is not None:
        result.save(save)
    return result


_BUDGET_BYTES = 1 << 30


def record(
    model: object, *, level: Level = "full", keep: int = 100, tensors: bool | int = False
) -> contextlib.AbstractContextManager[Recording]:
    """Record the inputs, outputs and time of every module call in a with-block.

    Without `with`, nothing is recorded. Times exclude our own measuring. At level "shapes" nothing
    waits for a GPU, so times there are launch times.

    Args:
        model: A module, an object that contains modules (a pipeline), or a list of models.
        level: "full" reads all values of each tensor, "cheap" at most 4,096 of them, "shapes" none.
        keep: Number of latest calls kept per module. Totals cover all calls.
        tensors: Also keep copies of the latest tensors, up to this many bytes. True: 1 GB.

    Returns:
        A context manager that gives a `Recording`: index it by module path.

    Raises:
        CaptureError: An argument is out of range.

    Example:
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.ReLU())
        >>> with record(model) as recording:
        ...     output = model(torch.ones(3, 4))
        >>> recording["1"][-1].in_shape, recording["1"].totals.calls
        ((3, 2), 1)
    """
    expect_one_of("level", level, get_args(Level))
    expect_at_least(1, "keep", keep)
    expect_at_least(0, "tensors", tensors)
    from torchglass.capture.observe.recorder import recording_statistics, statistics_recorder
    from torchglass.results.statistics import Recording

    name, budget = type(model).__name__, _BUDGET_BYTES if tensors is True else int(tensors)

    @uninterruptible
    def recording() -> Iterator[Recording]:
        with recording_statistics(model, level=level, keep=keep, budget_bytes=budget) as recorder:
            yield Recording(recorder, name)

    return FencedBlock(
        recording(),
        lambda: Recording(statistics_recorder(()), name),
        "statistics were not recorded",
    )
