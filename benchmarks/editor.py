"""How fast `torchglass lsp` answers an editor: `python -m benchmarks.editor`.

A file of 1,500 lines with 350 lines that ran in the latest trace. The editor asks for the hints of
the whole file, over JSON-RPC, from a server in another process: first when the file was opened,
then again and again, and after each of some edits.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

import torchglass as tg
from benchmarks.report import write_between_marks
from tests.language_client import LanguageClient, language_server

LINES, LAYERS, REQUESTS = 1500, 350, 50


def source() -> str:
    """The code of a model with as many lines."""
    layers = [f"        self.layer{n} = nn.Linear(16, 16)\n        # {n}\n" for n in range(LAYERS)]
    calls = [f"        x = self.layer{n}(x).relu()\n" for n in range(LAYERS)]
    head = "from torch import nn\n\n\nclass Net(nn.Module):\n    def __init__(self):\n"
    text = f"{head}        super().__init__()\n{''.join(layers)}\n    def forward(self, x):\n"
    text += f"{''.join(calls)}        return x\n"
    return text + "# end\n" * (LINES - text.count("\n"))


def make_workspace(folder: Path) -> Path:
    """A folder with the file and a trace of its model."""
    file = folder / "net.py"
    file.write_text(source())
    past = time.time() - 60
    os.utime(file, (past, past))
    spec = importlib.util.spec_from_file_location("editor_net", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    tg.trace(module.Net(), torch.ones(2, 16), save=None).save(folder / "pass.glass")
    return file


def measure(folder: Path) -> dict[str, list[float]]:
    """The milliseconds of each request, by situation."""
    file = make_workspace(folder)
    with language_server(folder) as client:
        client.open(file)
        times = {"first request": [_timed(lambda: _ask(client, file))]}
        times["again"] = [_timed(lambda: _ask(client, file)) for _ in range(REQUESTS)]
        times["after an edit"] = []
        for number in range(REQUESTS // 5):
            client.change(file, f"# {number}\n" * (number + 1) + source())
            times["after an edit"].append(_timed(lambda: _ask(client, file)))
    return times


def _ask(client: LanguageClient, file: Path) -> None:
    assert len(client.hints(file)) == LAYERS


def _timed(work: Callable[[], None]) -> float:
    begun = time.perf_counter()
    work()
    return (time.perf_counter() - begun) * 1e3


def markdown(times: dict[str, list[float]]) -> str:
    """A row for each situation."""
    rows = [
        f"| {name} | {len(all_ms)} | {statistics.median(all_ms):.1f} ms | {max(all_ms):.1f} ms |"
        for name, all_ms in times.items()
    ]
    head = ["| hints of a whole file | requests | median | slowest |", "|---|---|---|---|"]
    load = os.getloadavg()[0]
    note = f"{LINES:,} lines, {LAYERS} hints, {os.cpu_count()} cores, load {load:.1f}."
    return "\n".join([*head, *rows, "", note, ""])


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print or write the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.editor", description=__doc__)
    parser.add_argument("--write", type=Path, metavar="FILE", help="renew the part of a page")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="editor-") as folder:
        text = markdown(measure(Path(folder).resolve()))
    print(text)
    if options.write:
        write_between_marks(options.write, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
