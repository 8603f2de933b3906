"""A program calls `torchglass`: every command that reports has JSON with a schema, and a brief."""

from __future__ import annotations

import json
import sys
import textwrap
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch

import torchglass as tg
from tests.command_line import COMMANDS, main

NET = """
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3)
            self.norm = nn.BatchNorm2d(8)
            self.head = nn.Linear(8, 2)

        def forward(self, x):
            return self.head(self.norm(self.conv(x)).relu().mean((2, 3)))

    class Root(nn.Module):
        def forward(self, x):
            return x.sqrt()

    def deep():
        blocks = (nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)) for _ in range(60))
        return nn.Sequential(*blocks)
"""
INPUT = ["--input", "2x3x8x8"]
ON_NET = ["net.py:Net", *INPUT]
REPORTS = {
    "summary": ON_NET,
    "tree": ["net.py:Net"],
    "flops": [*ON_NET, "--backward"],
    "memory": [*ON_NET, "--optimizer", "adamw"],
    "profile": [*ON_NET, "--warmup", "0", "--repeats", "1"],
    "trace": ON_NET,
    "diagram": ON_NET,
    "explain": ["net.py:Net", "--input", "1x4x8x8"],
    "inspect": [*ON_NET, "--backward"],
    "estimate": [*ON_NET, "--world-size", "2"],
    "batch-size": [*ON_NET, "--memory", "1GB", "--no-check"],
    "quantization": ON_NET,
    "pruning": ["net.py:Net", "--input", "2x3x16x16", "--no-timed"],
    "diagnose": ["first.glass"],
    "compare": ["first.glass", "second.glass"],
    "replay": ["dump.safetensors"],
    "runs": ["."],
    "query": ["SELECT step, value FROM points WHERE kind = 'scalar'", "first.glass"],
}
"""The commands that print a report, and words for each."""
NO_REPORT = {
    *("explore", "export", "ship", "view", "serve", "report", "demo", "completion"),
    *("schema", "mcp", "lsp", "skill"),
}
"""They open, serve, write or install something."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a file of models, two runs, and a dump of a NaN."""
    where = tmp_path_factory.mktemp("programs")
    (where / "net.py").write_text(textwrap.dedent(NET))
    for name, scale in (("first", 1.0), ("second", float("nan"))):
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with tg.watch(model, save=where / f"{name}.glass", verbose=False) as watcher:
            for step in range(6):
                loss = model(torch.randn(8, 4)).square().mean() * (scale if step > 3 else 1.0)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                watcher.log("loss", loss)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        root = torch.nn.Sequential(torch.nn.LayerNorm(4), _Root())
        with tg.guard(root, on="record", dump=where):
            root(torch.randn(2, 4))
    next(where.glob("*sqrt*.safetensors")).rename(where / "dump.safetensors")
    return where


class _Root(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sqrt()


@pytest.fixture(autouse=True)
def _here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("net", None)


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What a command prints to stdout; 1 and 3 are the exit codes of a difference or a problem."""
    code = main(words)
    captured = capsys.readouterr()
    assert code in (0, 1, 3), captured.err
    return captured.out


def closed(schema: Any) -> Any:
    """A schema that allows no field which it does not describe."""
    if isinstance(schema, dict):
        parts = {key: closed(part) for key, part in schema.items()}
        is_object = "required" in parts and "properties" in parts
        return {**parts, **({"additionalProperties": False} if is_object else {})}
    return [closed(part) for part in schema] if isinstance(schema, list) else schema


def test_every_command_that_prints_a_report_is_tested_here() -> None:
    assert {*REPORTS, *NO_REPORT} == {*COMMANDS}


@pytest.mark.parametrize("command", REPORTS)
def test_the_json_of_a_command_matches_its_schema(
    capsys: pytest.CaptureFixture[str], command: str
) -> None:
    document = json.loads(printed(capsys, command, *REPORTS[command], "--json"))
    schema = json.loads(printed(capsys, "schema", document["schema"]))

    assert list(document)[:2] == ["schema", "version"]
    assert document["version"] == 1
    jsonschema.Draft202012Validator(closed(schema)).validate(document)


@pytest.mark.parametrize("command", REPORTS)
def test_a_brief_has_at_most_40_lines(capsys: pytest.CaptureFixture[str], command: str) -> None:
    lines = printed(capsys, command, *REPORTS[command], "--brief").splitlines()

    assert 0 < len(lines) <= 40


@pytest.mark.parametrize(
    "words",
    [
        ["summary", "net.py:deep"],
        ["tree", "net.py:deep"],
        ["flops", "net.py:deep", "--input", "1x4"],
        ["memory", "net.py:deep", "--input", "1x4", "--ops"],
        ["trace", "net.py:deep", "--input", "1x4"],
        ["inspect", "net.py:deep", "--input", "1x4"],
    ],
    ids=lambda words: words[0],
)
def test_a_brief_of_a_long_report_says_what_it_omits(
    capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    everything = printed(capsys, *words).splitlines()
    brief = printed(capsys, *words, "--brief")

    assert len(everything) > 40
    assert len(brief.splitlines()) <= 40
    assert "lines left out; to_json() (--json) has everything" in brief or "60 ×" in brief


def test_a_shortened_brief_lists_the_largest_modules_first(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = printed(capsys, "flops", "net.py:deep", "--input", "1x4", "--brief").splitlines()

    assert lines[3].startswith(("0.0 ", "0.2 ")), lines[3]
    assert any(line.startswith("Total") for line in lines)


def test_json_never_overwrites_the_target(capsys: pytest.CaptureFixture[str]) -> None:
    before = Path("first.glass").read_bytes()

    document = json.loads(printed(capsys, "diagnose", "--json", "first.glass"))

    assert document["schema"] == "torchglass/diagnosis"
    assert Path("first.glass").read_bytes() == before


def test_json_is_written_to_a_path_ending_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert "conv" in printed(capsys, "summary", "net.py:Net", "--json", "net.json")

    assert json.loads(Path("net.json").read_text())["model"] == "Net"


def test_json_has_no_nan(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "replay", "dump.safetensors", "--json")

    assert json.loads(text, parse_constant=pytest.fail)["reproduced"] is True


def test_json_of_one_op_has_that_op(capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(printed(capsys, "trace", *ON_NET, "--op", "relu_1", "--json"))

    (op,) = document["ops"]
    assert op["function"] == "relu"
    assert op["line"] == 13


def test_an_unknown_schema_error_lists_the_schemas(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "flop"]) == 2
    assert "did you mean flops?" in capsys.readouterr().err

    names = printed(capsys, "schema").splitlines()
    assert names[0].startswith("summary ")
