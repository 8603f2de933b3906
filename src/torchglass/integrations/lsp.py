"""Shows a trace in the editor: `torchglass lsp`, a language server on stdin and stdout.

Behind each line that ran in the latest trace it shows shape and dtype of the line's result, and its
time (inlay hints). The problems of the latest run, and the line at which a forward raised, are
diagnostics. Both files are the latest `.glass` files of the workspace.

Lines are those of the code as it was traced. After edits they follow the lines that are unchanged;
of a file that was changed before the server saw it, nothing is shown.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from functools import cached_property
from os.path import realpath
from pathlib import Path
from typing import Any, NamedTuple

from lsprotocol import types
from pygls.lsp.server import LanguageServer
from pygls.protocol import default_converter
from pygls.uris import to_fs_path

from torchglass import __version__
from torchglass.analyse.class_source import module_lines
from torchglass.analyse.training_overview import remedy_of
from torchglass.errors import TorchglassError
from torchglass.records.findings import Finding
from torchglass.records.model import Model
from torchglass.records.trace import OpRecord, SourceLine, TraceRecord
from torchglass.results.diagnosis import diagnose_reader
from torchglass.results.run import open_run
from torchglass.tables.text import format_ns, format_shape, harmless
from torchglass.targets.names import changed_at, find_files

_SECONDS_BETWEEN_SCANS = 2.0
_MOST_IN_TOOLTIP = 20
_SEVERITIES = {
    "error": types.DiagnosticSeverity.Error,
    "warning": types.DiagnosticSeverity.Warning,
    "info": types.DiagnosticSeverity.Information,
}
_WATCHED = types.RegistrationParams(
    registrations=[
        types.Registration(
            id="torchglass-files",
            method=types.WORKSPACE_DID_CHANGE_WATCHED_FILES,
            register_options=types.DidChangeWatchedFilesRegistrationOptions(
                watchers=[types.FileSystemWatcher(glob_pattern="**/*.glass")]
            ),
        )
    ]
)


class LineHint(NamedTuple):
    """What is shown behind a line."""

    line: int
    """From 1."""
    label: str
    tooltip: str


class LineProblem(NamedTuple):
    """What is shown at a line as a diagnostic."""

    line: int
    """From 1."""
    severity: str
    kind: str
    message: str
    is_current: bool
    """Whether the line was read from the file as it is now, and not recorded with the run."""


def line_hints(record: TraceRecord) -> dict[str, list[LineHint]]:
    """The hints of a trace for each file: the last op of a line, and the time of all of them."""
    ops: defaultdict[tuple[str, int], list[OpRecord]] = defaultdict(list)
    for op in record.ops:
        if op.source is not None and op.kind == "op":
            ops[realpath(op.source.file), op.source.line].append(op)
    hints: defaultdict[str, list[LineHint]] = defaultdict(list)
    for (file, line), group in ops.items():
        spent = format_ns(sum(op.end_ns - op.start_ns for op in group))
        count = f" · {len(group)} ops" if len(group) > 1 else ""
        rest = len(group) - _MOST_IN_TOOLTIP
        rows = [*map(_op_row, group[:_MOST_IN_TOOLTIP]), *([f"… {rest} more"] if rest > 0 else [])]
        label = harmless(f"{_output(group[-1])} · {spent}{count}")
        hints[file].append(LineHint(line, label, "\n".join(map(harmless, rows))))
    return hints


def _output(op: OpRecord) -> str:
    spec = op.outputs[0].spec if op.outputs else None
    return "" if spec is None else f"{format_shape(spec.shape)} {spec.dtype}"


def _op_row(op: OpRecord) -> str:
    return f"{op.function}: {_output(op)}, {format_ns(op.end_ns - op.start_ns)}"


class TraceFile:
    """A file with a trace or a run, read when it is first needed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.changed = changed_at(path)

    @cached_property
    def record(self) -> TraceRecord | None:
        """The trace; None if the file has a run."""
        with open_run(self.path) as run:
            return run.reader.document(TraceRecord)

    @cached_property
    def hints(self) -> Mapping[str, Sequence[LineHint]]:
        return {} if self.record is None else line_hints(self.record)

    @cached_property
    def problems(self) -> Mapping[str, Sequence[LineProblem]]:
        """What is wrong, for each file of code."""
        found = self._raised() if self.record is not None else self._diagnosed()
        problems: defaultdict[str, list[LineProblem]] = defaultdict(list)
        for file, problem in found:
            problems[realpath(file)].append(problem)
        return problems

    def _raised(self) -> Iterator[tuple[str, LineProblem]]:
        """The op at which the forward raised."""
        record = self.record
        if record is not None and record.failed is not None and record.failed.source is not None:
            source = record.failed.source
            yield source.file, LineProblem(source.line, "error", "raised", record.error, False)

    def _diagnosed(self) -> Iterator[tuple[str, LineProblem]]:
        with open_run(self.path) as run:
            model = run.model
            findings = diagnose_reader(run.reader).findings
        for one in findings:
            source, is_current = _line_of(one, model)
            if source is not None:
                remedy = remedy_of(one)
                message = f"{one.message}. {remedy}" if remedy else one.message
                yield (
                    source.file,
                    LineProblem(source.line, one.severity, one.kind, harmless(message), is_current),
                )


def _line_of(one: Finding, model: Model) -> tuple[SourceLine | None, bool]:
    """The line of a finding, and whether it was read from the file as it is now."""
    if one.source is not None:
        return one.source, False
    return (module_lines(model, one.path).created, True) if one.path else (None, True)


class LatestFiles:
    """The latest trace and the latest run of a workspace."""

    def __init__(self, trace: Path | None) -> None:
        self._chosen = trace
        self._known: dict[tuple[Path, float], TraceFile] = {}
        self._scanned = -_SECONDS_BETWEEN_SCANS
        self.trace: TraceFile | None = None
        self.run: TraceFile | None = None

    def scan(self, folders: Sequence[Path], *, now: bool = False) -> bool:
        """Look for new files, if the last time is long ago; whether there are other ones."""
        if not now and time.monotonic() - self._scanned < _SECONDS_BETWEEN_SCANS:
            return False
        self._scanned = time.monotonic()
        before = self.trace, self.run
        self.trace = self.run = None
        for file in self._candidates(folders):
            try:
                is_trace = file.record is not None
            except TorchglassError:
                continue  # Not a run, corrupt, or just being created.
            if is_trace:
                self.trace = self.trace or file
            else:
                self.run = self.run or file
            if self.trace and self.run:
                break
        return before != (self.trace, self.run)

    def _candidates(self, folders: Sequence[Path]) -> Iterator[TraceFile]:
        found = [path for one in folders for path in find_files(one, _is_glass)]
        chosen = [self._chosen] if self._chosen is not None else []
        for path in [*chosen, *sorted(found, key=changed_at, reverse=True)]:
            key = path, changed_at(path)
            if key not in self._known:
                self._known[key] = TraceFile(path)
            yield self._known[key]


def _is_glass(path: Path) -> bool:
    return path.suffix == ".glass"


class TracedCode:
    """The code of a file as it was when it was traced, and where its lines are now."""

    def __init__(self, path: Path, traced_at: float) -> None:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        self.lines = lines if changed_at(path) <= traced_at else None
        """None if the file was changed since."""
        self._now: Sequence[str] = ()
        self._moved: dict[int, int] = {}

    def moved(self, now: Sequence[str]) -> Mapping[int, int]:
        """Where its lines are in the text of the editor, both from 1, without changed ones."""
        if self.lines is not None and now != self._now:
            self._now = list(now)
            self._moved = dict(_unchanged_lines(self.lines, self._now))
        return self._moved


def _unchanged_lines(old: Sequence[str], new: Sequence[str]) -> Iterator[tuple[int, int]]:
    """The numbers of the lines of a text that another one has, too, both from 1."""
    # An edit is mostly in one place, and comparing all lines takes far longer.
    shorter = min(len(old), len(new))
    head = next((n for n in range(shorter) if old[n] != new[n]), shorter)
    tail = next((n for n in range(shorter - head) if old[-1 - n] != new[-1 - n]), shorter - head)
    yield from ((n, n) for n in range(1, head + 1))
    inner = SequenceMatcher(
        None, old[head : len(old) - tail], new[head : len(new) - tail], autojunk=False
    )
    for block in inner.get_matching_blocks():
        for offset in range(block.size):
            yield head + block.a + offset + 1, head + block.b + offset + 1
    yield from ((len(old) - n, len(new) - n) for n in range(tail))


class GlassServer(LanguageServer):
    """A language server that knows the latest trace and run of its workspace."""

    def __init__(self, trace: Path | None = None) -> None:
        self._messages: Any = default_converter()  # type: ignore[no-untyped-call]
        super().__init__("torchglass", __version__, converter_factory=lambda: self._messages)
        self._files = LatestFiles(trace)
        self._code: dict[tuple[str, float], TracedCode] = {}
        self.is_told_of_files = False
        """Whether the editor tells of new files, so that there is no need to look for them."""

    def warm_up(self) -> None:
        """Read the latest trace and its code before the editor asks for the first hints."""
        self.scan(now=True)
        trace = self._files.trace
        if trace is not None:
            for name in trace.hints:
                with contextlib.suppress(OSError):
                    self._traced(name, trace.changed)
        # The first message of a kind takes 40 ms longer than the others.
        hint = _inlay(LineHint(1, "", ""), 1, "")
        self._messages.unstructure(types.InlayHintResponse(id=0, result=[hint]))

    def hints(self, uri: str, first: int, last: int) -> list[types.InlayHint]:
        """The hints for some lines of a document, both from 0."""
        if not self.is_told_of_files:
            self.scan()
        trace, name = self._files.trace, _file_name(uri)
        hints = trace.hints.get(name, ()) if trace is not None else ()
        if trace is None or not hints:
            return []
        lines = self._lines(uri)
        moved = self._traced(name, trace.changed).moved(lines)
        places = [(moved.get(hint.line, 0), hint) for hint in hints]
        return [
            _inlay(hint, line, lines[line - 1])
            for line, hint in places
            if line and first <= line - 1 <= last
        ]

    def publish(self, uri: str) -> None:
        """Send the problems of a document."""
        items = list(self._diagnostics(uri))
        self.text_document_publish_diagnostics(
            types.PublishDiagnosticsParams(uri=uri, diagnostics=items)
        )

    def scan(self, *, now: bool = False) -> None:
        """Look for a newer trace or run; tell the editor if there is one."""
        folders = [Path(to_fs_path(uri) or ".") for uri in self.workspace.folders]
        if not folders and self.workspace.root_path:
            folders = [Path(self.workspace.root_path)]
        if self._files.scan(folders, now=now):
            for uri in self.workspace.text_documents:
                self.publish(uri)

    def _diagnostics(self, uri: str) -> Iterator[types.Diagnostic]:
        lines, name = self._lines(uri), _file_name(uri)
        for file in filter(None, (self._files.trace, self._files.run)):
            for one in file.problems.get(name, ()):
                line = one.line
                if not one.is_current:
                    line = self._traced(name, file.changed).moved(lines).get(one.line, 0)
                if 1 <= line <= len(lines):
                    yield _diagnostic(one, line, lines[line - 1], file.path)
        trace = self._files.trace
        is_shown = trace is not None and bool(trace.hints.get(name))
        if trace is not None and is_shown and self._traced(name, trace.changed).lines is None:
            yield _stale(trace.path)

    def _lines(self, uri: str) -> list[str]:
        return self.workspace.get_text_document(uri).source.splitlines()

    def _traced(self, name: str, traced_at: float) -> TracedCode:
        key = name, traced_at
        if key not in self._code:
            self._code[key] = TracedCode(Path(name), traced_at)
        return self._code[key]


def _file_name(uri: str) -> str:
    return realpath(to_fs_path(uri) or "")


def _inlay(hint: LineHint, line: int, text: str) -> types.InlayHint:
    return types.InlayHint(
        position=types.Position(line=line - 1, character=_utf16(text)),
        label=hint.label,
        tooltip=hint.tooltip,
        padding_left=True,
    )


def _utf16(text: str) -> int:
    """The length of a text as the protocol counts it."""
    return len(text.encode("utf-16-le")) // 2


def _diagnostic(one: LineProblem, line: int, text: str, file: Path) -> types.Diagnostic:
    begin = types.Position(line=line - 1, character=_utf16(text) - _utf16(text.lstrip()))
    end = types.Position(line=line - 1, character=_utf16(text))
    return types.Diagnostic(
        range=types.Range(start=begin, end=end),
        message=one.message,
        severity=_SEVERITIES[one.severity],
        code=one.kind,
        source=f"torchglass {file.name}",
    )


def _stale(file: Path) -> types.Diagnostic:
    start = types.Position(line=0, character=0)
    return types.Diagnostic(
        range=types.Range(start=start, end=start),
        message=f"This file was changed after {file.name} was saved. Trace again to see shapes.",
        severity=types.DiagnosticSeverity.Information,
        code="changed",
        source="torchglass",
    )


def make_server(trace: Path | None = None) -> GlassServer:
    """The server with its features."""
    server = GlassServer(trace)

    @server.feature(types.INITIALIZE)
    def initialize(ls: GlassServer, params: types.InitializeParams) -> None:
        ls.warm_up()

    @server.feature(types.INITIALIZED)
    def initialized(ls: GlassServer, params: types.InitializedParams) -> None:
        workspace = ls.client_capabilities.workspace
        watching = workspace.did_change_watched_files if workspace is not None else None
        if watching is not None and watching.dynamic_registration:
            ls.client_register_capability(_WATCHED)
            ls.is_told_of_files = True

    @server.feature(types.TEXT_DOCUMENT_INLAY_HINT)
    def inlay_hints(ls: GlassServer, params: types.InlayHintParams) -> list[types.InlayHint]:
        lines = params.range
        return ls.hints(params.text_document.uri, lines.start.line, lines.end.line)

    @server.feature(types.TEXT_DOCUMENT_DID_OPEN)
    def opened(ls: GlassServer, params: types.DidOpenTextDocumentParams) -> None:
        ls.scan(now=True)
        ls.publish(params.text_document.uri)

    @server.feature(types.TEXT_DOCUMENT_DID_SAVE)
    def saved(ls: GlassServer, params: types.DidSaveTextDocumentParams) -> None:
        ls.scan(now=True)
        ls.publish(params.text_document.uri)

    @server.feature(types.WORKSPACE_DID_CHANGE_WATCHED_FILES)
    def changed(ls: GlassServer, params: types.DidChangeWatchedFilesParams) -> None:
        ls.scan(now=True)
        workspace = ls.client_capabilities.workspace
        hints = workspace.inlay_hint if workspace is not None else None
        if hints is not None and hints.refresh_support:
            ls.workspace_inlay_hint_refresh(None)

    return server


def serve(trace: Path | None = None) -> None:
    """Answer an editor on stdin and stdout until it closes them."""
    # The server closes its streams at the end, and Python flushes its own once more.
    with os.fdopen(os.dup(0), "rb") as requests, os.fdopen(os.dup(1), "wb") as answers:
        make_server(trace).start_io(requests, answers)
