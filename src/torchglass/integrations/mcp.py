"""Serves runs, traces and checkpoints to coding agents: `torchglass mcp`, over stdio.

Every answer is at most 2,000 tokens: a title, then items, then the cursor for the rest. An answer
is never empty: it says what was looked for, and what there is instead. No code of the user runs
unless `allow_code` is set, and nothing is written but the index of a folder of runs.
"""

from __future__ import annotations

import contextlib
import functools
import math
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations

from torchglass import __version__
from torchglass.analyse.class_source import module_lines
from torchglass.analyse.training_overview import remedy_of
from torchglass.api.compare import compare as compare_targets
from torchglass.api.diagnose import diagnose as diagnose_run
from torchglass.api.runs import query as query_runs
from torchglass.api.summary import summary as summarize
from torchglass.errors import LookupFailedError, TargetError
from torchglass.records.findings import Finding, Findings
from torchglass.records.model import Model, Module, join_path
from torchglass.records.run import Points, RunEntry, Series
from torchglass.records.step_points import FIELDS
from torchglass.records.trace import OpRecord, SourceLine, TraceRecord
from torchglass.results.run import open_run
from torchglass.results.runs import RunFolder, value_of
from torchglass.tables.text import format_ns, format_shape, harmless
from torchglass.targets.inputs import ready_to_run
from torchglass.targets.names import find_files, near_or_all, resolve
from torchglass.targets.readers import is_run, read

MOST_TOKENS = 2000
_FOOTER_TOKENS = 60
_PIECES = re.compile(r"[A-Za-z]+|\d|\s+|.", re.DOTALL)
_MOST_OTHERS = 12
_MOST_LINES_OF_USE = 3
_MOST_VALUES = 4
_INSTRUCTIONS = (
    "Start with `runs`, then `diagnose` a run: each finding names a module, a step, a line of code "
    "and what to change. Then `module`, `series` or `compare` for the evidence. Answers end with a "
    "cursor if there is more: call again with it."
)

F = TypeVar("F", bound=Callable[..., str])
T = TypeVar("T")


def serve(folder: Path, *, allow_code: bool = False) -> None:
    """Answer an agent on stdin and stdout until it closes them."""
    make_server(folder, allow_code=allow_code).run("stdio")


def make_server(folder: Path, *, allow_code: bool = False) -> MCPServer:
    """The server with its tools."""
    server = MCPServer(
        "torchglass", instructions=_INSTRUCTIONS, version=__version__, log_level="WARNING"
    )
    tools = RunTools(folder, allow_code=allow_code)
    read_only = ToolAnnotations(read_only_hint=True, destructive_hint=False, open_world_hint=False)
    names = ["runs", "diagnose", "module", "series", "query", "summary", "trace", "compare"]
    for name in names:
        server.tool(annotations=read_only, structured_output=False)(_fenced(getattr(tools, name)))
    if allow_code:
        runs_code = ToolAnnotations(read_only_hint=False)
        server.tool(annotations=runs_code, structured_output=False)(_fenced(tools.explain))
    return server


def _fenced(tool: F) -> F:
    """A tool whose errors are one line for the agent, and that prints nothing into the protocol."""

    @functools.wraps(tool)
    def fenced(*args: Any, **kwargs: Any) -> str:
        try:
            with contextlib.redirect_stdout(sys.stderr), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return _cut(tool(*args, **kwargs), MOST_TOKENS)
        except Exception as error:
            kind = "" if type(error).__module__.startswith("torchglass") else type(error).__name__
            message = ": ".join(filter(None, (kind, " ".join(str(error).split()))))
            # The SDK puts the name of the tool before it.
            raise ToolError(_cut(message, MOST_TOKENS - _FOOTER_TOKENS)) from error

    return fenced  # type: ignore[return-value]


def token_count(text: str) -> int:
    """A high estimate of the tokens of a text.

    A token for every 3 letters of a word, every digit, every sign, and every run of white space but
    a single space, which belongs to the next word; a token per byte of anything else.
    """
    return sum(map(_tokens_of_piece, _PIECES.findall(text)))


def _tokens_of_piece(piece: str) -> int:
    if piece[0].isascii() and piece[0].isalpha():
        return math.ceil(len(piece) / 3)
    return 0 if piece == " " else 1 if piece.isspace() else len(piece.encode())


def page(title: str, items: Sequence[T], cursor: int = 0, text: Callable[[T], str] = str) -> str:
    """A title, the text of as many items from a cursor on as fit, and the next cursor."""
    if not 0 <= cursor < max(len(items), 1):
        raise TargetError(f"cursor must be from 0 to {len(items) - 1}, not {cursor}")
    title = _cut(title, MOST_TOKENS // 2)
    room = MOST_TOKENS - token_count(title) - _FOOTER_TOKENS
    shown: list[str] = []
    for item in map(text, items[cursor:]):
        tokens = token_count(item) + 1
        if tokens > room and shown:
            break
        shown.append(item if tokens <= room else _cut(item, room))
        room -= tokens
    end = cursor + len(shown)
    more = f"\n({cursor + 1} to {end} of {len(items)}; for more: cursor={end})"
    return "\n".join([title, *shown]) + (more if end < len(items) else "")


def _cut(text: str, most: int) -> str:
    """A text with at most this many tokens."""
    if token_count(text) <= most:
        return text
    pieces, left = [], most - 10
    for piece in _PIECES.findall(text):
        left -= _tokens_of_piece(piece)
        if left < 0:
            break
        pieces.append(piece)
    return f"{''.join(pieces)} … (cut: too long for one answer)"


class RunTools:
    """What an agent can ask. The text of each tool is its description."""

    def __init__(self, folder: Path, *, allow_code: bool = False) -> None:
        self._folder = folder.resolve()
        self._allow_code = allow_code
        self._folders: dict[Path, RunFolder] = {}

    def runs(self, folder: str = ".", where: str = "", sort: str = "", cursor: int = 0) -> str:
        """List recorded trainings, latest first: verdict, end, last step, values, settings.

        `where` selects them ("loss < 0.1 and state == 'finished'"), `sort` orders them ("loss").
        Saved traces and files that cannot be read come last.
        """
        place = self._path(folder)
        if not place.is_dir():
            return self._nothing(f"No runs (*.glass) in {place}, which is not a folder", place)
        known = self._folders.setdefault(place, RunFolder(place))
        table = known.table()
        others = [] if where or sort else [*known.traces(), *table.unreadable]
        if not table.entries and not others:
            return self._nothing(f"No runs (*.glass) in {place}", place)
        chosen = table.where(where) if where else table
        chosen = chosen.sort(sort) if sort else chosen
        if where and not chosen.entries:
            raise LookupFailedError(f"no run has {where}. {table.answer}.")
        entries = [*chosen.entries, *others]
        return page(chosen.answer, entries, cursor, partial(self._line, place))

    def diagnose(self, run: str, cursor: int = 0) -> str:
        """Say what is wrong with a training: each problem with module, step, line and remedy."""
        path = self._run(run)
        found = diagnose_run(path)
        with open_run(path) as opened:
            model = opened.model
        items = [_finding(number, one, model) for number, one in enumerate(found.findings, 1)]
        return page(f"{run}: {found.summary}", items, cursor)

    def module(self, target: str, path: str = "", cursor: int = 0) -> str:
        """Describe one module of a run or checkpoint: class, lines of code, parts, series."""
        model, series, findings = self._parts(target)
        found = model.find(path)
        if found is None:
            every = (module.path for module in model.modules)
            raise LookupFailedError(f"no module {path!r} in {target}{near_or_all(path, every)}")
        return page(_module_title(found), [*_module_facts(found, model, series, findings)], cursor)

    def series(self, run: str, name: str = "", points: int = 20, cursor: int = 0) -> str:
        """Values over steps. Without the exact name of a series, list those that contain `name`."""
        with open_run(self._run(run)) as opened:
            every = list(opened.reader.series())
            exact = [one for one in every if one.label == name]
            if exact:
                found = opened.reader.points(exact[0].id)
                return page(_series_title(found), [*_values(found, points)], cursor)
            matching = [one for one in every if name in one.label]
            if not matching:
                labels = [one.label for one in every]
                raise LookupFailedError(f"no series {name!r} in {run}{near_or_all(name, labels)}")
            lines = [f"{one.label} ({one.kind})" for one in matching]
        return page(f"{len(matching)} of {len(every)} series of {run}", lines, cursor)

    def query(self, sql: str, folder: str = ".", cursor: int = 0) -> str:
        """Ask runs in SQL, read-only. Table `points`: run, step, path, name, value, mean, std …

        Table `runs`: a row for each run, with its settings and last values.
        """
        found = query_runs(sql, self._path(folder))
        if not found.entries:
            return f"No rows for {sql}. {RunFolder(self._path(folder)).table().answer}."
        lines = [", ".join(map(str, row)) for row in found.to_dict()["rows"]]
        return page(f"{found.answer}\n{', '.join(found.names)}", lines, cursor)

    def summary(self, target: str, depth: int | None = None, cursor: int = 0) -> str:
        """Modules with classes, parameters and sizes of a run, a checkpoint or a trace."""
        result = summarize(self._target(target), depth=depth, fold=True)
        lines = [line.rstrip() for line in result.table().splitlines() if line.strip("─ ")]
        return page(f"{target}: {result.total_params:,} parameters", lines, cursor)

    def trace(self, file: str, search: str = "", cursor: int = 0) -> str:
        """Operations of a saved trace in order: label, shape, dtype, time, module, line of code.

        `search` selects by any part of that text.
        """
        with open_run(self._run(file)) as opened:
            record = opened.reader.document(TraceRecord)
        if record is None:
            raise TargetError(f"{file} is a run, not a trace. Ask for diagnose, series or module.")
        from torchglass.analyse.trace import TraceStructure

        anatomy = TraceStructure(record)
        lines = [_op(op, str(anatomy.labels[op.id]), record) for op in record.ops]
        matching = [line for line in lines if search in line]
        if not matching:
            return page(f"No operation contains {search!r}; all {len(lines)}:", lines, cursor)
        raised = f"; it raised {record.error}" if record.error else ""
        return page(f"{file}: {len(matching)} of {len(lines)} operations{raised}", matching, cursor)

    def compare(self, a: str, b: str, cursor: int = 0) -> str:
        """Compare two runs, checkpoints or models: structure, values, settings, curves."""
        found = compare_targets(self._target(a), self._target(b))
        lines = [line.rstrip() for line in found.table().splitlines() if line.strip("─ ")]
        return page(f"{a} and {b}: {'the same' if found.same else 'different'}", lines, cursor)

    def explain(self, target: str, inputs: list[str], cursor: int = 0) -> str:
        """Run a forward of a model (`net.py:Net`) on inputs (`1x3x224x224`), and explain its error.

        This runs the user's code.
        """
        from torchglass.api.trace import explain

        model, values, named = ready_to_run(self._target(target), tuple(inputs))
        lines = str(explain(model, *values, **named)).splitlines()  # type: ignore[arg-type]
        return page(f"{target} on {', '.join(inputs)}", lines, cursor)

    def _path(self, text: str) -> Path:
        return self._folder / Path(text).expanduser()

    def _run(self, text: str) -> Path:
        path = self._path(text)
        if not path.exists():
            raise TargetError(self._nothing(f"There is no {path}", path.parent))
        if not is_run(path):
            raise TargetError(self._nothing(f"{path} is not a run", path.parent))
        return path

    def _target(self, text: str) -> Path:
        """The path of a file, or the name of code if code may run."""
        path = self._path(text)
        if path.exists() and path.suffix != ".py":
            return path
        if ":" not in text:
            raise TargetError(self._nothing(f"There is no {path}", path.parent))
        if not self._allow_code:
            raise TargetError(
                f"{text} would run code; this server reads files only. Start it with "
                "`torchglass mcp --allow-code`, or name a run or a checkpoint."
            )
        return Path(text)

    def _nothing(self, what: str, folder: Path) -> str:
        """What was looked for, and what there is instead."""
        while not folder.is_dir() and folder != folder.parent:
            folder = folder.parent
        files = [path for path in find_files(folder, lambda path: True) if path.suffix != ".pyc"]
        runs = [path for path in files if path.suffix == ".glass"]
        shown = [self._name(path) for path in (runs or files)[:_MOST_OTHERS]]
        rest = len(runs or files) - len(shown)
        names = ", ".join([*shown, *([f"and {rest} more"] if rest else [])])
        there = f"{'runs' if runs else 'files'} in {folder}: {names}"
        there = there if shown else f"{folder} has no files"
        hint = "" if runs else ". `tg.watch(model)` in a training writes a run."
        return _cut(f"{what}. There: {there}{hint}", MOST_TOKENS)

    def _name(self, path: Path) -> str:
        """A path in the form that this server accepts."""
        return str(path.relative_to(self._folder) if path.is_relative_to(self._folder) else path)

    def _line(self, folder: Path, entry: RunEntry) -> str:
        path = folder / entry.path
        name = self._name(path.parent if entry.ranks > 1 else path)
        if entry.unreadable:
            return f"{name}: cannot be read: {entry.unreadable}"
        if entry.is_trace:
            return f"{name}: trace of {entry.run.name}"
        values = [f"{key} {value:.4g}" for key, value in entry.values.items()]
        settings = [f"{key}={value}" for key, value in entry.run.config.items()]
        facts = [
            str(value_of(entry, "verdict") or "no steps"),
            entry.status.full,
            f"last step {entry.last_step}",
            *values[:_MOST_VALUES],
            *settings[:_MOST_VALUES],
            *([f"{entry.ranks} ranks"] if entry.ranks > 1 else []),
            *entry.problems[:1],
        ]
        return f"{name}: {harmless(', '.join(facts))}"

    def _parts(self, text: str) -> tuple[Model, list[Series], tuple[Finding, ...]]:
        target = self._target(text)
        if not (target.exists() and is_run(target)):
            return read(resolve(target)), [], ()
        with open_run(target) as run:
            found = run.reader.document(Findings)
            return run.model, list(run.reader.series()), found.findings if found else ()


def _finding(number: int, one: Finding, model: Model) -> str:
    """A problem: what, where in the model and in the code, since when, and what to do."""
    since = "" if one.first_step is None else f" since step {one.first_step}"
    lines = [f"{number}. {one.severity}: {one.kind} at {one.path or 'the model'}{since}"]
    lines.append(f"   {harmless(one.message)}")
    if one.source is not None:
        lines.append(f"   line: {_place(one.source)}")
    if place := one.path or _parameter_of(one.series, model):
        lines += [f"   {text}" for text in _lines_of_code(model, place)]
    elif one.source is None:
        lines += [f"   {text}" for text in _forward_line(model, model.root)]
    if remedy := remedy_of(one):
        lines.append(f"   do: {harmless(remedy)}")
    if one.consequences:
        lines.append(f"   caused {len(one.consequences)} more: {harmless(one.consequences[0])}")
    if one.series:
        lines.append(f"   series: {one.series}")
    return "\n".join(lines)


def _parameter_of(series: str, model: Model) -> str:
    """The name of the parameter that a series belongs to; "" if it is of something else."""
    owner, _, name = series.removesuffix(".grad").rpartition(".")
    module = model.find(owner)
    has_it = module is not None and any(slot.name == name for slot in module.slots)
    return join_path(owner, name) if has_it else ""


def _lines_of_code(model: Model, path: str) -> Iterator[str]:
    found = module_lines(model, path)
    if found.created is not None:
        yield f"created: {_place(found.created)}"
    if found.set_up:
        yield f"set up: {_places(found.set_up)}"
    if found.used:
        yield f"used: {_places(found.used)}"
    elif found.siblings_used:
        yield f"used: nowhere; modules beside it: {_places(found.siblings_used)}"


def _places(sources: Sequence[SourceLine]) -> str:
    shown = ", ".join(map(_place, sources[:_MOST_LINES_OF_USE]))
    rest = len(sources) - _MOST_LINES_OF_USE
    return shown + (f" and {rest} more" if rest > 0 else "")


def _place(source: SourceLine) -> str:
    function = f" in {source.function}" if source.function else ""
    return f"{_file(source.file)}:{source.line}{function}"


def _file(name: str) -> str:
    """A file, relative to the current folder if it is in it."""
    path, here = Path(name), Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else name


def _module_title(module: Module) -> str:
    extra = f"({harmless(module.extra)})" if module.extra else ""
    return f"{module.path or 'The model'}: {module.class_name}{extra}"


def _module_facts(
    module: Module, model: Model, series: Iterable[Series], findings: Iterable[Finding]
) -> Iterator[str]:
    yield from _lines_of_code(model, module.path)
    yield from _forward_line(model, module)
    for one in findings:
        if one.path == module.path:
            yield f"finding: {one.kind}: {harmless(one.message)}"
    for slot in module.slots:
        frozen = "" if slot.trainable or slot.role != "parameter" else ", frozen"
        name = join_path(module.path, slot.name)
        yield f"{slot.role}: {name} {format_shape(slot.spec.shape)} {slot.spec.dtype}{frozen}"
    for child in model.children(module):
        yield f"inside: {child.path} {child.kind}"
    for each in series:
        if each.path == module.path:
            yield f"series: {each.label}"
    yield f"mode: {'training' if module.training else 'eval'} when the model was read"


def _forward_line(model: Model, module: Module) -> Iterator[str]:
    source = model.classes.get(module.class_name)
    if source is not None and source.forward_line is not None:
        yield f"forward: {_file(source.forward_file or source.file)}:{source.forward_line}"


def _series_title(points: Points) -> str:
    series = points.series
    if not len(points):
        return f"{series.label} ({series.kind}) has no values yet"
    steps = f"steps {points.steps[0]} to {points.steps[-1]}"
    return f"{series.label} ({series.kind}): {len(points)} values, {steps}"


def _values(points: Points, most: int) -> Iterator[str]:
    """Evenly spaced values, the first and the last among them."""
    count = len(points)
    shown = min(max(most, 2), count)
    fields = FIELDS[points.series.kind]
    rows = [round(one * (count - 1) / max(shown - 1, 1)) for one in range(shown)]
    for row in rows:
        values = points.values[row].tolist()
        cells = " ".join(f"{name}={value:.4g}" for name, value in zip(fields, values, strict=True))
        yield f"step {points.steps[row]}: {cells}"


def _op(op: OpRecord, label: str, record: TraceRecord) -> str:
    spec = op.outputs[0].spec if op.outputs else None
    shape = f"{format_shape(spec.shape)} {spec.dtype}" if spec is not None else ""
    path = record.calls[op.call].path if op.call is not None else ""
    place = _place(op.source) if op.source is not None else ""
    time = format_ns(op.end_ns - op.start_ns) if op.kind == "op" else ""
    return "  ".join(filter(None, (label, shape, time, path, place)))
