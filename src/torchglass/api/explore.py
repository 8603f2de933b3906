"""The verb `explore`: browse a model in the terminal, and the source of what is shown there."""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard, cast

from torchglass.analyse.nonfinite_cause import first_nan
from torchglass.errors import CaptureError, LookupFailedError, TargetError, ViewError
from torchglass.host_program import has_terminal, in_event_loop
from torchglass.records.calls import CallTensor, ForwardStats, Statistics, statistics_of
from torchglass.records.findings import Finding, Findings
from torchglass.records.measures import ReportRecord
from torchglass.records.model import join_path
from torchglass.records.run import Document
from torchglass.records.trace import OpId, OpRecord, TraceRecord
from torchglass.records.urls import place_text, url_of
from torchglass.results.feature_maps import ATTENTION, FeatureMaps
from torchglass.results.report import Report
from torchglass.results.tree_record import measures
from torchglass.targets.names import ONNX_SUFFIX, resolve
from torchglass.targets.readers import (
    NOT_LIVE,
    hold,
    is_live,
    is_run,
    is_state,
    open_reader,
    read,
)
from torchglass.targets.result_readers import reader_of_result

if TYPE_CHECKING:
    import torch

    from torchglass.classic.module_explorer import ExplorerConfig
    from torchglass.records.model import LiveModel
    from torchglass.records.run import Reader
    from torchglass.results.statistics import Recording
    from torchglass.results.trace import Trace
    from torchglass.views.tui.app import ExplorerSource
    from torchglass.views.tui.explorer_state import MapSource
    from torchglass.views.tui.preferences import SourceKind
    from torchglass.views.web.server import Server

    Tensors = Mapping[tuple[str, int, str], torch.Tensor]

_FEW = 5
"""Files that are named in a message."""


def explore(
    target: object = None,
    /,
    *inputs: Any,
    against: object = None,
    reports: Sequence[Report] = (),
    config: ExplorerConfig | None = None,
    unsafe: bool = False,
    **kwargs: Any,
) -> Server | None:
    """Browse a target in the terminal. Press `?` for the keys and `q` to quit.

    With inputs, the model runs first; the explorer then also shows shapes, times, FLOPs, memory and
    every op. Gradients, buffers and random state are unchanged afterwards. If the forward raises,
    the explorer opens with an explanation and with everything that ran before the error.

    In a notebook, or wherever an event loop is running, the web page opens instead.

    Args:
        target: A model, a checkpoint or run file, a result of another verb, or a name such as
            "net.py:Net". None lists the runs and checkpoints in the current folder.
        *inputs: Positional arguments of the model's forward.
        against: Another target. The explorer marks what differs from it.
        reports: What other verbs returned for this model, such as `tg.quantization` and
            `tg.estimate`. Their values are columns of the tree.
        config: What to show in this session, as an `ExplorerConfig`.
        unsafe: Allow a checkpoint to run the code it contains (pickle).
        **kwargs: Keyword arguments of the model's forward. Pass an argument that has the name of an
            option by position.

    Returns:
        None, or the `Server` of the page where an event loop is running.

    Raises:
        TargetError: The target cannot be read, or a keyword could mean an option or an argument of
            the forward.
        ViewError: There is no terminal.

    Example:
        >>> from torch import nn
        >>> explore(nn.Linear(4, 2))  # doctest: +SKIP
    """
    from torchglass.classic.module_explorer import ExplorerConfig

    if inputs or kwargs:
        target = resolve(target)
        foreign = config is not None and not isinstance(config, ExplorerConfig)
        options = {"against": against is not None, "config": foreign, "unsafe": unsafe}
        options["reports"] = bool(reports)
        _refuse_doubtful(target, {name for name, given in options.items() if given})
    return walk_through(
        target, inputs, kwargs, against=against, reports=reports, config=config, unsafe=unsafe
    )


def walk_through(
    target: object,
    inputs: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    against: object = None,
    reports: Sequence[Report] = (),
    config: ExplorerConfig | None = None,
    unsafe: bool = False,
    tensors: Mapping[tuple[str, int, str], torch.Tensor] | None = None,
) -> Server | None:
    """Explore a target whose forward arguments are passed separately from the options."""
    if target is None and (inputs or kwargs):
        raise TargetError("the model comes first: tg.explore(model, *inputs)")
    if in_event_loop():
        shown = make_source(target, inputs, kwargs, against=against, unsafe=unsafe)
        if shown.error is not None:
            raise shown.error
        return _open_page(shown.reader)
    if target is not None and not has_terminal():
        raise ViewError(
            "the explorer needs a terminal. Use print(tg.summary(model)), or "
            'tg.view(model, save="model.html") to write a web page.'
        )
    from torchglass.views.tui.app import run_explorer

    if target is None:
        target = _picked(Path.cwd())
    elif _has_several_runs(target):
        target = _picked(Path(target))
    if target is not None:
        # The user's own code runs and prints before the screen is taken; reading may take longer.
        found = resolve(target)
        make = partial(
            make_source,
            found,
            inputs,
            kwargs,
            against=against,
            reports=reports,
            unsafe=unsafe,
            tensors=tensors,
        )
        source = make() if inputs or kwargs else make
        run_explorer(source, memory=None if config is None else config.memory())
    return None


def _has_several_runs(target: object) -> TypeGuard[str | PathLike[str]]:
    """Whether a target is a folder from which a run is selected."""
    if not isinstance(target, (str, PathLike)):
        return False
    from torchglass.results.runs import RunFolder

    path = Path(target)
    if url_of(target) is not None:
        path = cast(Path, resolve(target))
        return url_of(path) is not None
    return path.is_dir() and len(RunFolder(path).table()) > 1


def _refuse_doubtful(model: object, options: Collection[str]) -> None:
    """Raise if an option may have been meant for the model's forward."""
    doubtful = sorted(set(options).intersection(_arguments(model)))
    if doubtful:
        raise TargetError(
            f"{doubtful[0]!r} is both an option of explore and an argument of this model's "
            f"forward. Pass it by position, or run the model in `with "
            "tg.record_torch_module_forward_stats(model):` and explore it afterwards."
        )


def _arguments(model: object) -> Collection[str]:
    """The names that a model's forward takes."""
    forward = getattr(model, "forward", model)
    try:
        return inspect.signature(forward).parameters if callable(forward) else ()
    except (TypeError, ValueError):
        return ()


def _open_page(reader: Reader) -> Server:
    from torchglass.api.view import view

    server = view(reader, open_browser=True)
    sys.stderr.write(
        f"torchglass: an event loop is running, so the web page opens instead: {server.url}\n"
    )
    return server


def _picked(folder: Path) -> Path | None:
    """The run or checkpoint in a folder that the user selects."""
    from torchglass.results.runs import RunFolder
    from torchglass.targets.names import RUN_SUFFIX, find_targets
    from torchglass.views.tui.run_list import RunList

    is_local = url_of(folder) is None
    found = find_targets(folder) if is_local else [folder]
    if not found:
        raise TargetError(
            "no runs or checkpoints in this folder. Name a target, such as net.py:Net."
        )
    if not has_terminal():
        names = [os.path.relpath(one) if is_local else place_text(one) for one in found[:_FEW]]
        raise ViewError(
            f"selecting a target needs a terminal. Use `torchglass summary {names[0]}`. "
            f"Found: {', '.join(names)}{', …' if len(found) > _FEW else ''}"
        )
    runs = RunFolder(folder)
    local = found if is_local else []
    others = [os.path.relpath(one, folder) for one in local if one.suffix != RUN_SUFFIX]
    picked = RunList(runs, others).run()
    if picked is None:
        return None
    entry = next((one for one in runs.table() if one.path == picked), None)
    # The folder of the ranks of one run is the run.
    is_folder = entry is not None and entry.ranks > 1 and is_local
    return (folder / picked).parent if is_folder else folder / picked


TENSORS_BYTES = 1 << 28
"""The most memory of inputs and outputs that are kept to be viewed."""


def make_source(
    target: object,
    inputs: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    against: object = None,
    reports: Sequence[Report] = (),
    unsafe: bool = False,
    tensors: Tensors | None = None,
) -> ExplorerSource:
    """The source of the explorer for any target. With inputs, the model runs.

    A forward that raises is shown up to that point, with the explanation. `tensors` are those of
    a recording of the model.
    """
    from torchglass.api.compare import compare
    from torchglass.results.comparison import Comparison

    found, ran = resolve(target), bool(inputs or kwargs)
    if ran and not is_live(found):
        raise TargetError(NOT_LIVE)
    source = _run(found, inputs, kwargs or {}) if ran else _opened(found, unsafe, tensors)
    compared = found if isinstance(found, Comparison) else None
    if against is not None:
        compared = compare(resolve(against), found, unsafe=unsafe)
        reports = [compared, *reports]
    records = tuple(report_records(found, reports))
    if source.reader.document(TraceRecord) is not None:
        source = replace(source, diagram=partial(_drawn_diagram, source.reader))
    if compared is None or compared.structure is None:
        source = replace(source, reports=records)
        return replace(source, kind=_kind(source, ran))
    return replace(source, kind="comparison", comparison=compared.structure, reports=records)


def _drawn_diagram(reader: Reader) -> str:
    """The block diagram of a traced forward, as SVG."""
    from torchglass.results.diagram import diagram_of

    trace = reader.document(TraceRecord)
    assert trace is not None
    return diagram_of(trace, reader.model(), None).to_svg()


def report_records(target: object, reports: Sequence[object]) -> Iterator[ReportRecord]:
    """The reports that are laid over the tree; what was measured of it is in its columns anyway."""
    if isinstance(target, Report) and not _is_measured(target):
        own = target.tree_record()
        yield from [own] if own is not None else []
    for report in reports:
        record = report.tree_record() if isinstance(report, Report) else None
        if record is None:
            raise TargetError(
                f"a {type(report).__name__} cannot be laid over the tree. Pass what "
                "tg.quantization, tg.pruning, tg.estimate or tg.batch_size returned."
            )
        yield record


def _is_measured(report: Report) -> bool:
    from torchglass.results.flops import Flops
    from torchglass.results.memory import Memory
    from torchglass.results.profile import Profile
    from torchglass.results.summary import Summary

    return isinstance(report, (Flops, Memory, Profile, Summary))


def _kind(source: ExplorerSource, ran: bool) -> SourceKind:
    if source.failure is not None:
        return "failure"
    if source.reports:
        return "report"
    reader = source.reader
    if reader.last_step() >= 0 or not reader.finished():
        return "run"
    if not ran and reader.document(TraceRecord) is not None:
        return "trace"
    return "forward" if ran or reader.document(Statistics) is not None else "model"


def _opened(target: object, unsafe: bool, tensors: Tensors | None = None) -> ExplorerSource:
    """A target that is not run."""
    from torchglass.results.trace import Trace
    from torchglass.views.tui.app import ExplorerSource

    reader = reader_of_result(target)
    if reader is None and not is_live(target):
        reader = open_reader(target, unsafe=unsafe)
    has_tensors = isinstance(target, Trace) or is_state(target) or _is_checkpoint(target)
    if reader is not None and not has_tensors:
        return ExplorerSource(reader=reader)
    # Imports torch, which the file of a run does not need.
    from torchglass.capture.live_object import LiveObject, StoredObject, recorded_tensors

    if reader is None:
        before = _recorded_before(target)
        reader = hold(read(target), *([before] if before.modules else []))
        live = LiveObject(target, calls=_by_call(tensors or {}))
        return ExplorerSource(reader=reader, live=live)
    if isinstance(target, Trace):
        seen = recorded_tensors(target.record, target.saved_tensors)
        live = StoredObject(target.model, {}, seen)
        return ExplorerSource(reader=reader, live=live, maps=partial(_maps, target))
    stored = StoredObject(reader.model(), tensors_of_target(target, unsafe))
    return ExplorerSource(reader=reader, live=stored)


def _is_checkpoint(target: object) -> TypeGuard[Path]:
    return isinstance(target, Path) and not is_run(target)


def _run(model: Any, inputs: tuple[Any, ...], kwargs: Mapping[str, Any]) -> ExplorerSource:
    """Statistics, trace, time, FLOPs, memory and findings of a forward."""
    from torch import nn

    from torchglass.api.measure import record
    from torchglass.api.trace import trace_forward
    from torchglass.capture.autograd import retried_with_gradients
    from torchglass.capture.live_object import LiveObject
    from torchglass.views.tui.app import ExplorerSource

    # One after the other: the time of tracing would count as the model's.
    error: Exception | None = None
    with _leaving_as_found(model), record(model, tensors=TENSORS_BYTES) as recording:
        try:
            model(*inputs, **kwargs)
        except Exception as raised:  # noqa: BLE001 - whatever the forward raises is explained
            error = raised
    if error is not None:
        failed = _failed(model, inputs, kwargs, recording)
        if failed is None:
            raise error
        return failed
    live = LiveObject(model, calls=_by_call(recording.tensors))
    documents: list[Document] = [Statistics(modules=tuple(recording.values()))]
    maps: MapSource | None = None
    if isinstance(model, nn.Module):
        with _leaving_as_found(model):
            traced = trace_forward(model, inputs, kwargs, save=_Budget(TENSORS_BYTES))
        documents.append(traced.record)
        maps = partial(_maps, traced)
    with contextlib.suppress(CaptureError):
        documents.append(retried_with_gradients(_measured)(model, inputs, kwargs))
    documents.append(_findings(model, inputs, kwargs, recording.calls, live))
    return ExplorerSource(reader=hold(read(model), *documents), live=live, maps=maps)


class _Budget:
    """Selects the ops of a trace whose outputs are kept, as long as there is memory for them."""

    def __init__(self, left: int) -> None:
        self.left = left

    def __call__(self, op: OpRecord) -> bool:
        size = sum(value.spec.bytes for value in op.outputs)
        if size > self.left:
            return False
        self.left -= size
        return True


def _maps(trace: Trace, op: OpId) -> FeatureMaps | None:
    """Pictures of the output of an op, or of its attention weights; None if there are none."""
    found = trace.ops[op]
    try:
        return found.attention() if found.function == ATTENTION else found.images()
    except LookupFailedError:
        return None


def _failed(
    model: Any, inputs: tuple[Any, ...], kwargs: Mapping[str, Any], recording: Recording
) -> ExplorerSource | None:
    """A forward that raised; None if it cannot be explained, or did not raise again."""
    from torch import nn

    from torchglass.capture.live_object import LiveObject
    from torchglass.results.failures import explain
    from torchglass.views.tui.app import ExplorerSource

    explained = explain(model, *inputs, **kwargs) if isinstance(model, nn.Module) else None
    if explained is None or explained.ok:
        return None
    failure = explained.failure
    call, op = failure.call, failure.op
    finding = Finding(
        severity="error",
        kind="raised",
        message=failure.error.strip().partition("\n")[0],
        path="" if call is None else call.path,
        call=0 if call is None else call.number,
        op="" if op is None else op.function,
        source=failure.source,
    )
    reader = hold(
        read(model),
        Statistics(modules=tuple(recording.values())),
        explained.trace.record,
        Findings(findings=(finding,)),
    )
    live = LiveObject(model, calls=_by_call(recording.tensors))
    return ExplorerSource(reader=reader, live=live, failure=failure, error=explained.error)


def _findings(
    model: Any,
    inputs: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    calls: Sequence[ForwardStats],
    live: LiveModel,
) -> Findings:
    """The NaN and Inf values in the weights and the outputs of one forward, in order."""
    from torch import nn

    from torchglass.api.guard import guard

    weights = live.check(lambda share: True) or ()
    spoiled = [call for call in calls if any(_is_not_finite(one) for one in call.outputs)]
    if not spoiled:
        return Findings(findings=weights)
    guarded: tuple[Finding, ...] = ()
    if isinstance(model, nn.Module):
        # What the guard cannot run is still known from the statistics.
        with contextlib.suppress(Exception), _leaving_as_found(model):
            with guard(model, on="record", backward=False) as watched:
                model(*inputs, **kwargs)
            guarded = watched.findings
    holders = {one.holder for finding in weights for one in finding.tensors}
    told = tuple(one for one in guarded if not holders.intersection(_holders(one)))
    if weights or any(one.severity == "error" for one in told):
        return Findings(findings=(*weights, *told))
    first = first_nan(calls)
    return Findings(findings=(*((first,) if first else ()), *told))


def _is_not_finite(tensor: CallTensor) -> bool:
    return tensor.stats is not None and bool(tensor.stats.nan or tensor.stats.inf)


def _holders(finding: Finding) -> set[str]:
    return {one.holder for one in finding.tensors if one.holder}


def _by_call(tensors: Tensors) -> dict[tuple[str, int], dict[str, torch.Tensor]]:
    """The recorded inputs and outputs of each call, named like series."""
    calls: dict[tuple[str, int], dict[str, torch.Tensor]] = {}
    for (path, number, place), tensor in tensors.items():
        side, _, inner = place.partition(".")
        name = join_path("input" if side == "in" else "output", inner)
        calls.setdefault((path, number), {})[name] = tensor
    return calls


def _measured(
    model: Any, inputs: tuple[Any, ...], kwargs: Mapping[str, Any], *, gradients: bool = False
) -> Document:
    """Time, FLOPs and memory of the modules, with a backward if the model is in training mode.

    FLOPs and memory are counted in one run, and time is measured in another.
    """
    from torchglass.capture.isolated_run import isolated_run
    from torchglass.capture.measure.flops import FlopObserver
    from torchglass.capture.measure.memory import MemoryObserver
    from torchglass.capture.measure.profile import TimedRuns
    from torchglass.capture.torch_modes import running_uncompiled
    from torchglass.results.flops import Flops
    from torchglass.results.memory import Memory
    from torchglass.results.profile import Profile

    # Not by the verbs: an argument of forward may have the name of one of their options.
    backward = bool(getattr(model, "training", False))
    with isolated_run(
        model, inputs, kwargs, backward=backward, gradients=gradients, compiled=True
    ) as run:
        timed = TimedRuns(run, ops=False)
        flops, memory = FlopObserver(run), MemoryObserver(run)
        # The mode that logs memory counts who holds a tensor, so it has to be the outer one.
        with running_uncompiled(), memory:
            run.run(flops, memory)
        # The runs before have warmed up all but what is compiled.
        timed.measure(warmup=int(run.has_compiled), repeats=1, plain=0)
        structure = run.read_model()
    times = Profile(structure, memory.calls, timed.timing()).rows
    taken = Memory(structure, memory.calls, memory.footprint()).rows
    return measures(times, Flops(structure, flops.work()).rows, taken, timed.timing().notes)


def _recorded_before(model: Any) -> Statistics:
    """What `record_torch_module_forward_stats` left on the modules."""
    from torchglass.classic.module_explorer import get_forward_stats

    recorded = get_forward_stats(model).items()
    return Statistics(modules=tuple(statistics_of(path, calls) for path, calls in recorded))


@contextlib.contextmanager
def _leaving_as_found(model: Any) -> Iterator[None]:
    """Restore random state and buffers, and compute no gradients."""
    import torch

    from torchglass.capture.isolated_run import leave_unchanged
    from torchglass.capture.model.structure import modules_in

    with torch.no_grad(), leave_unchanged(module for _, module in modules_in(model)):
        yield


def tensors_of_target(target: object, unsafe: bool) -> Mapping[str, Callable[[], torch.Tensor]]:
    """Functions that load the tensors of a target, by dotted name; a record has none."""
    from torchglass.capture.tensor.description import constant

    if isinstance(target, Path) and target.suffix == ONNX_SUFFIX:
        from torchglass.whatif.onnx_model import weights

        target = weights(target)
    if _is_checkpoint(target):
        from torchglass.capture.model.checkpoints import StoredTensors

        return StoredTensors(target, unsafe=unsafe)
    if is_state(target):
        from torchglass.capture.model.checkpoints import checkpoint_tensors

        tensors = checkpoint_tensors([target])
    elif is_live(target):
        from torchglass.capture.model.structure import modules_in

        tensors = {
            join_path(path, name): tensor
            for path, module in modules_in(target)
            for table in (module._parameters, module._buffers)
            for name, tensor in table.items()
            if tensor is not None
        }
    else:
        tensors = {}
    return {name: constant(tensor) for name, tensor in tensors.items()}
