"""The commands that run a model, and `replay`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from torchglass.analyse.sibling_order import MeasureSort
from torchglass.cli.options import (
    AS_TABLE,
    PRINTED,
    STDOUT,
    Debug,
    ExplorableOptions,
    File,
    Flag,
    Inputs,
    Model,
    ResultOptions,
    TableOptions,
    app,
    expect_one_printed,
    export,
    float_indices,
    missing_input,
    stdout_for_results,
    tell,
    terminal_width,
)
from torchglass.errors import TargetError
from torchglass.tables.text import broken
from torchglass.targets.inputs import ready_to_run

if TYPE_CHECKING:
    from torchglass.results.op import Op
    from torchglass.results.report import ModuleReport
    from torchglass.results.trace import Trace
    from torchglass.results.trace_profile import TraceProfile

Backward = Annotated[
    bool,
    Parameter(
        negative=("--no-backward", "--forward-only"),
        help="Also run backward (on the sum of the outputs).",
    ),
]


@Parameter(name="*")
@dataclass(frozen=True)
class ReportOptions(ExplorableOptions):
    """The options of all commands that print a table of modules."""

    depth: int | None = None
    """Levels to show. Default: as many as fit in about 100 rows."""
    sort: MeasureSort | None = None
    """Sort by the measured value: `total` (within each parent) or `self` (all modules)."""
    debug: Debug = False

    def show_modules(self, result: ModuleReport[Any], *more: str, ops: bool = False) -> None:
        """Write the requested files, or print the tables of modules and of ops."""
        width = terminal_width()
        table = None
        if self.sort is not None or self.depth is not None:
            table = result.table(sort=self.sort, depth=self.depth, width=width)
        self.show(
            result, text=table, more=[*([result.op_table(width=width)] if ops else []), *more]
        )


DEFAULTS = ReportOptions()
_SNAPSHOTS = (".pickle", ".pkl")
"""How files of `torch.cuda.memory._dump_snapshot` end."""


def _measure(
    verb: Callable[..., Any], target: Path, input: Inputs, report: ReportOptions, **options: Any
) -> Any:
    report.check()
    return _run(verb, target, input, **options)


def _run(verb: Callable[..., Any], target: Path, input: Inputs, **options: Any) -> Any:
    """The result of a verb on a model and its inputs. What the model prints goes to stderr."""
    with stdout_for_results():
        model, inputs, named = ready_to_run(target, input, fake=options.get("fake", False))
        return verb(model, *inputs, **options, **named)


@app.command
def flops(
    target: Model,
    /,
    *,
    input: Inputs = (),
    backward: Flag = False,
    fake: Flag = False,
    timed: Flag = False,
    ops: Flag = False,
    report: ReportOptions = DEFAULTS,
) -> None:
    """Count the floating-point operations (FLOPs) of each module.

    ```
    torchglass flops torchvision.models:resnet18 --input 1x3x224x224
    torchglass flops net.py:Net --input 8x16 --backward --ops
    torchglass flops net.py:Net --input 8x16 --fake --json flops.json
    ```

    Parameters
    ----------
    backward
        Also count backward (of the sum of the outputs).
    fake
        Run on fake tensors: no memory, no arithmetic.
    timed
        Also measure FLOP/s.
    ops
        Also print the largest ops.
    """
    from torchglass.api import measure

    result = _measure(
        measure.flops, target, input, report, backward=backward, fake=fake, timed=timed
    )
    report.show_modules(result, ops=ops)


@app.command
def memory(
    target: Model,
    /,
    *,
    input: Inputs = (),
    backward: Backward = True,
    optimizer: str | None = None,
    fake: Flag = False,
    ops: Flag = False,
    peak: Flag = False,
    of: str | None = None,
    report: ReportOptions = DEFAULTS,
) -> None:
    """Measure the memory of each module in a training step, and what the peak consists of.

    ```
    torchglass memory torchvision.models:resnet18 --input 8x3x224x224 --optimizer adamw
    torchglass memory net.py:Net --input 8x16 --no-backward --peak
    torchglass memory net.py:Net --input 4096x16 --fake --json memory.json
    torchglass memory snapshot.pickle --peak --of run.glass
    ```

    `snapshot.pickle` is a file of `torch.cuda.memory._dump_snapshot`. It is read without a GPU.

    Parameters
    ----------
    optimizer
        Also step this optimizer of torch.optim: `adam`, `adamw`, `sgd` …
    fake
        Predict the memory from fake tensors, without allocating it.
    ops
        Also print the ops that allocate most.
    peak
        Also print what the peak consists of.
    of
        The model or the watched run that a snapshot is of, to show its modules: `net.py:Net`,
        `run.glass`.
    """
    from torchglass.api import measure

    if of is not None and target.suffix not in _SNAPSHOTS:
        raise TargetError("--of is for memory snapshots: omit it")
    if target.suffix in _SNAPSHOTS:
        given = (input, optimizer, fake, ops, not backward, report.sort, report.depth is not None)
        if any(given):
            raise TargetError("a memory snapshot is only read: it takes --peak, --of and formats")
        report.check()
        snapshot = measure.memory(target, of)
        report.show(snapshot, more=[snapshot.peak_table(width=terminal_width())] if peak else [])
        return
    if optimizer is not None and not backward:
        raise TargetError("--optimizer needs the backward. Remove --no-backward.")
    options = {"backward": backward, "optimizer": optimizer, "fake": fake}
    result = _measure(measure.memory, target, input, report, **options)
    more = [result.peak_table(width=terminal_width())] if peak else []
    report.show_modules(result, *more, ops=ops)


@app.command
def profile(
    target: Annotated[
        Path, Parameter(help="`net.py:Net`, `package.module:name`, or a trace of torch.profiler.")
    ],
    /,
    *,
    input: Inputs = (),
    backward: Backward = True,
    warmup: Annotated[int, Parameter(validator=Number(gte=0))] = 3,
    repeats: Annotated[int, Parameter(validator=Number(gte=1))] = 10,
    ops: Flag = False,
    layers: Flag = False,
    trace: Path | None = None,
    report: ReportOptions = DEFAULTS,
) -> None:
    """Time each module, forward and backward, or read a trace of torch.profiler.

    ```
    torchglass profile torchvision.models:resnet18 --input 1x3x224x224
    torchglass profile net.py:Net --input 8x16 --sort self --ops
    torchglass profile net.py:Net --input 8x16 --forward-only --trace run.json
    torchglass profile net.py:Net --input 8x16 --csv times.csv
    torchglass profile trace.json.gz --ops
    ```

    Parameters
    ----------
    warmup
        Untimed runs before the timed ones.
    repeats
        Timed runs; the fastest is shown.
    ops
        Also time each op, with more overhead, and print the slowest; of a trace, its kernels.
    layers
        Print each layer with its parameters, shapes, times and memory instead of a table.
    trace
        Write the fastest run as a trace for chrome://tracing or ui.perfetto.dev.
    """
    from torchglass.analyse.kineto_file import FILE_NAMES
    from torchglass.api import measure

    if target.name.endswith(FILE_NAMES):
        if input or layers or trace:
            raise TargetError("--input, --layers and --trace are for a model, not for a trace")
        _show_trace(target, report, ops=ops)
        return
    options = {"backward": backward, "warmup": warmup, "repeats": repeats}
    with_ops = ops or bool(trace or report.json)
    result = _measure(measure.profile, target, input, report, **options, ops=with_ops)
    if trace:
        tell(f"wrote {result.to_chrome_trace(trace)}")
    if not layers:
        report.show_modules(result, ops=ops)
    else:
        more = [result.op_table(width=terminal_width())] if ops else []
        report.show(result, text=result.overlay(width=terminal_width()), more=more)


def _show_trace(file: Path, report: ReportOptions, *, ops: bool) -> None:
    """Print the times in a trace of torch.profiler."""
    from torchglass.api import measure

    if report.sort is not None or report.depth is not None:
        raise TargetError("--sort and --depth are for a model, not for a trace")
    report.check()
    result: TraceProfile = measure.profile(file)
    report.show(result, more=[result.op_table(width=terminal_width())] if ops else [])


@app.command
def trace(
    target: Model,
    /,
    *,
    input: Inputs = (),
    op: str | None = None,
    draw: Path | None = None,
    images: File | None = None,
    depth: Annotated[int | None, Parameter(validator=Number(gte=1))] = None,
    level: Literal["torch", "aten"] = "torch",
    out: Path | None = None,
    output: ResultOptions = PRINTED,
    debug: Debug = False,
) -> None:
    """Record one forward and print every op: name, shape and module.

    ```
    torchglass trace net.py:Net --input 1x3x32x32
    torchglass trace net.py:Net --input 1x3x32x32 --op relu_1 --draw net.svg
    torchglass trace net.py:Net --input 1x3x32x32 --op conv --images maps.png
    torchglass trace net.py:Net --input 1x3x32x32 --out pass.glass
    ```

    Parameters
    ----------
    op
        Print only this op, with its values, parents and source line.
    draw
        Write a drawing to this file: `.svg`, `.png` or `.pdf`.
    images
        Write the channels of --op, or the heads of an attention, as a PNG; `-` prints them.
    depth
        Levels to draw. Default: all, up to about 300 nodes.
    level
        Record `torch` functions or `aten` kernels.
    out
        Save the trace to this file, and its tensors beside it.
    """
    from torchglass.api.trace import trace_forward

    if images is not None and op is None:
        raise TargetError("--images needs an op, such as --op conv2d_1")

    def run(model: Any, *inputs: Any, **named: Any) -> Trace:
        return trace_forward(model, inputs, named, level=level)

    traced = _run(run, target, input)
    if draw:
        traced.draw(draw, depth=depth or "auto")
        tell(f"wrote {draw}")
    if out:
        tell(f"wrote {traced.save(out)}")
    if op is None:
        output.show(traced)
        return
    found = traced[op]
    if images is not None:
        _show_maps(found, images)
        return
    ops = [one for one in traced.to_dicts() if one["label"] == getattr(found, "label", None)]
    document = {**traced.document(), "calls": [], "ops": ops}
    output.show(traced, text=broken(str(found), terminal_width()), document=document)


def _show_maps(op: Op, file: Path) -> None:
    """Write the maps of an op as a PNG, or print them."""
    maps = op.attention() if "attention" in op.function else op.images()
    if file == STDOUT:
        print(maps.text(terminal_width() or 80))
        return
    maps.save(file)
    tell(f"wrote {file}: {maps.heading}")


@app.command
def diagram(
    target: Model,
    /,
    *,
    input: Inputs = (),
    out: Path | None = None,
    depth: Annotated[int | None, Parameter(validator=Number(gte=1))] = None,
    output: ResultOptions = PRINTED,
    debug: Debug = False,
) -> None:
    """Draw the structure of a model as one page, like a figure in a paper.

    ```
    torchglass diagram net.py:Net --input 1x3x224x224 --out net.svg
    torchglass diagram net.py:Net --input 1x3x224x224 --depth 2 --out net.pdf
    ```

    Parameters
    ----------
    out
        Write the page to this file: `.svg` or `.pdf`. The blocks are printed as text.
    depth
        Levels of modules to open. Default: as many as fit on a page.
    """
    from torchglass.api import trace

    drawn = _run(trace.diagram, target, input, depth=depth)
    if out:
        drawn.save(out)
        tell(f"wrote {out}")
    output.show(drawn)


@app.command
def explain(
    target: Model,
    /,
    *,
    input: Inputs = (),
    output: ResultOptions = PRINTED,
    debug: Debug = False,
) -> None:
    """Run one forward and explain its error: the op, its shapes, and what would fit.

    ```
    torchglass explain net.py:Net --input 1x4x32x32
    ```
    """
    from torchglass.api import trace

    story = _run(trace.explain, target, input)
    output.show(story)
    words = [word for text in input for word in ("--input", text)]
    if advice := missing_input(story.error) or float_indices(story.error, words):
        tell(advice)


@app.command
def inspect(
    target: Model,
    /,
    *,
    input: Inputs = (),
    backward: Flag = False,
    depth: int | None = None,
    out: File | None = None,
    output: TableOptions = AS_TABLE,
    debug: Debug = False,
) -> None:
    """Inspect each module: shapes, time, memory, gradients, NaN and Inf.

    ```
    torchglass inspect torchvision.models:resnet18 --input 1x3x224x224
    torchglass inspect net.py:Net --input 8x16 --backward --out insight.json
    ```

    Parameters
    ----------
    backward
        Also run backward (on the sum of the outputs).
    depth
        Levels below the model to inspect. Default: all.
    out
        Write Inspector Gadgets' JSON to this file; `-` prints it.
    """
    from torchglass.api import measure

    expect_one_printed(out=out, json=output.json, csv=output.csv, html=output.html)
    with _progress() as progress:
        result = _run(
            measure.inspect, target, input, backward=backward, depth=depth, progress=progress
        )
    if out is not None:
        export(result.to_json, out)
    if out != STDOUT:
        output.show(result)


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[int, int], None] | None]:
    """A progress bar on stderr, if that is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("inspecting module calls", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@app.command
def replay(file: Path, /, *, output: ResultOptions = PRINTED, debug: Debug = False) -> None:
    """Rerun the op that produced a NaN or Inf, from a dump of `tg.guard`.

    ```
    torchglass replay dumps/001-attention-sqrt.safetensors
    ```

    Parameters
    ----------
    file
        A file written by `guard(model, dump=FOLDER)`.
    """
    from torchglass.api import guard

    output.show(guard.replay(file))
