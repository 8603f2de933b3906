"""Measures how hard the source is to find one's way in.

    python -m tools.shape            print the table
    python -m tools.shape --write    record it in CONTRIBUTING.md
    python -m tools.shape --check    fail where a structural number is worse than recorded

Totals (files and lines) may grow with the product, so `--check` only reports them.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import inspect
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "torchglass"
RECORD = ROOT / "CONTRIBUTING.md"
START, END = "<!-- shape -->", "<!-- /shape -->"

_DEEPEST = 2
"""Levels of folders below torchglass/ that need no excuse."""
_DEEP_ON_PURPOSE = ("views/tui/panels",)
_NAMED_ALIKE_ON_PURPOSE = frozenset({"TorchglassCallback"})
"""Classes that users import by the same name from the module of their trainer."""
_VERBLIKE = re.compile(r"(ing|ings|ed)$")
_DOMAIN_WORDS = frozenset(
    {"timing", "pruning", "embedding", "padding", "training", "shared", "findings", "lightning"}
)
"""Nouns of the field and names of products that only look like a gerund or a participle."""


@dataclass(frozen=True)
class Measure:
    """One row: lower is better."""

    name: str
    value: int
    is_total: bool = False


def main() -> int:
    """Print, record or check the numbers; the exit code of `--check` is 1 if one got worse."""
    parser = argparse.ArgumentParser(description="Measure the structure of the source.")
    parser.add_argument("--write", action="store_true", help="record the numbers")
    parser.add_argument("--check", action="store_true", help="compare with the recorded ones")
    options = parser.parse_args()
    measures = [*_static_measures(), *_dynamic_measures()]
    table = _table(measures)
    print(table)
    if options.write:
        text = RECORD.read_text(encoding="utf-8")
        before, _, rest = text.partition(START)
        RECORD.write_text(f"{before}{START}\n{table}\n{END}{rest.partition(END)[2]}", "utf-8")
    if options.check:
        return _report_worse(measures)
    return 0


def _table(measures: list[Measure]) -> str:
    rows = [f"| {one.name} | {one.value:,} |" for one in measures]
    return "\n".join(["| measure | now |", "|---|---|", *rows])


def _report_worse(measures: list[Measure]) -> int:
    recorded = _recorded()
    worse = [
        f"{one.name}: {one.value:,}, recorded {recorded[one.name]:,}"
        for one in measures
        if not one.is_total and one.name in recorded and one.value > recorded[one.name]
    ]
    for line in worse:
        print(f"worse than CONTRIBUTING.md says: {line}", file=sys.stderr)
    return 1 if worse else 0


def _recorded() -> dict[str, int]:
    text = RECORD.read_text(encoding="utf-8").partition(START)[2].partition(END)[0]
    rows = re.findall(r"^\| (.+?) \| ([\d,]+) \|$", text, flags=re.MULTILINE)
    return {name: int(value.replace(",", "")) for name, value in rows}


def _static_measures() -> Iterator[Measure]:
    files = sorted(PACKAGE.rglob("*.py"))
    trees = {file: ast.parse(file.read_text(encoding="utf-8")) for file in files}
    lines = sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)
    yield Measure("Python files in src", len(files), is_total=True)
    yield Measure("lines in src", lines, is_total=True)
    yield Measure("folders deeper than two levels", len(_deep_folders(files)))
    yield Measure("modules with a single importer", len(_single_importer(trees)))
    yield Measure("class names used more than once", len(_repeated_classes(trees)))
    yield Measure("file names that are a gerund or a participle", len(_verblike(files)))
    yield Measure("classes with a stack of module calls of their own", len(_call_stacks(trees)))
    yield Measure("files that align cells outside of tables and explorer", len(_aligning(trees)))
    yield Measure("public parameters not explained in their docstring", len(_unexplained()))


def _deep_folders(files: list[Path]) -> set[Path]:
    folders = {file.parent.relative_to(PACKAGE) for file in files}
    return {
        folder
        for folder in folders
        if len(folder.parts) > _DEEPEST
        and not any(folder.as_posix().startswith(one) for one in _DEEP_ON_PURPOSE)
    }


def _single_importer(trees: dict[Path, ast.Module]) -> set[str]:
    importers: Counter[str] = Counter()
    names = {_module_name(file) for file in trees}
    for file, tree in trees.items():
        used = {name for node in ast.walk(tree) for name in _imports(node) if name in names}
        importers.update(used - {_module_name(file)})
    return {name for name, count in importers.items() if count == 1}


def _imports(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.ImportFrom) and node.module:
        yield node.module
        yield from (f"{node.module}.{one.name}" for one in node.names)
    elif isinstance(node, ast.Import):
        yield from (one.name for one in node.names)


def _module_name(file: Path) -> str:
    parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _repeated_classes(trees: dict[Path, ast.Module]) -> list[str]:
    names = Counter(
        node.name.lstrip("_")
        for tree in trees.values()
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    )
    return [
        name for name, count in names.items() if count > 1 and name not in _NAMED_ALIKE_ON_PURPOSE
    ]


def _verblike(files: list[Path]) -> list[Path]:
    """Files whose last word is a verb form: keeping.py, held.py."""
    words = ((file, file.stem.rpartition("_")[2]) for file in files)
    return [file for file, word in words if _VERBLIKE.search(word) and word not in _DOMAIN_WORDS]


def _call_stacks(trees: dict[Path, ast.Module]) -> list[str]:
    """Classes that are told of each module call, unless they pass it on to another one."""
    nodes = (node for tree in trees.values() for node in ast.walk(tree))
    classes = (node for node in nodes if isinstance(node, ast.ClassDef))
    return [
        one.name
        for one in classes
        for method in one.body
        if isinstance(method, ast.FunctionDef) and method.name == "enter"
        if any(argument.arg == "module" for argument in method.args.args)
        if not any(isinstance(n, ast.Attribute) and n.attr == "enter" for n in ast.walk(method))
    ]


def _aligning(trees: dict[Path, ast.Module]) -> list[Path]:
    """Files that pad text to a width that depends on other text, as whoever makes a table does."""
    return [
        file
        for file, tree in trees.items()
        if not file.relative_to(PACKAGE).as_posix().startswith(("tables/", "views/tui/"))
        if any(map(_aligns, ast.walk(tree)))
    ]


def _aligns(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr in {"ljust", "rjust", "center"}
    if not isinstance(node, ast.FormattedValue) or not isinstance(node.format_spec, ast.JoinedStr):
        return False
    return bool(re.search(r":[<>^]\{", ast.unparse(ast.JoinedStr([node]))))


def _unexplained() -> list[str]:
    """Parameters of public functions that their docstring does not name."""
    import torchglass as tg

    found = []
    for name in tg.__all__:
        verb = getattr(tg, name)
        if not (inspect.isfunction(verb) or inspect.isclass(verb)) or _is_error(verb):
            continue
        found += [
            f"{name}({parameter})"
            for parameter in inspect.signature(verb).parameters
            if not re.search(rf"\b{re.escape(parameter)}\b", verb.__doc__ or "")
        ]
    return found


def _is_error(verb: Any) -> bool:
    return inspect.isclass(verb) and issubclass(verb, Exception)


def _dynamic_measures() -> Iterator[Measure]:
    import torch
    from torch import nn

    import torchglass as tg

    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    x = torch.ones(3, 4)
    yield Measure("files that tg.flops runs through", _files_of(lambda: str(tg.flops(model, x))))
    yield Measure(
        "files that tg.trace(...)[...] runs through",
        _files_of(lambda: tg.trace(model, x)["relu_1"].tensor),
    )
    forwards, files = _explore(model, x)
    yield Measure("files that the explorer's key p runs through", files)
    yield Measure("forwards that tg.explore(model, x) runs", forwards)


class _Files:
    """The files of ours whose functions run while it is switched on."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_name != "<module>":
            self.names.add(code.co_filename)

    def count(self) -> int:
        return sum(name.startswith(str(PACKAGE)) for name in self.names)


def _files_of(work: Callable[[], object]) -> int:
    work()
    files = _Files()
    sys.setprofile(files)
    try:
        work()
    finally:
        sys.setprofile(None)
    return files.count()


def _explore(model: Any, x: Any) -> tuple[int, int]:
    """How many forwards the explorer runs, and through how many files the key `p` goes."""
    from textual.app import App

    import torchglass as tg

    files, forwards = _Files(), 0

    def count(*_: object) -> None:
        nonlocal forwards
        forwards += 1

    async def press(app: App[Any]) -> None:
        async with app.run_test(size=(120, 40)) as pilot:
            await pilot.pause()
            await pilot.press("p")
            sys.setprofile(files)
            try:
                await pilot.press("p")
                await pilot.pause()
            finally:
                sys.setprofile(None)

    original, terminals = App.run, (sys.stdin.isatty, sys.stdout.isatty)
    handle = model.register_forward_pre_hook(count)
    App.run = lambda app, *_, **__: asyncio.run(press(app))  # type: ignore[method-assign]
    sys.stdin.isatty = sys.stdout.isatty = lambda: True  # type: ignore[method-assign]
    try:
        tg.explore(model, x)
    finally:
        App.run = original  # type: ignore[method-assign]
        sys.stdin.isatty, sys.stdout.isatty = terminals  # type: ignore[method-assign]
        handle.remove()
    return forwards, files.count()


if __name__ == "__main__":
    raise SystemExit(main())
