"""An editor asks `torchglass lsp`, in a process of its own, over JSON-RPC."""

from __future__ import annotations

import os
import textwrap
import time
from pathlib import Path

import pytest
import torch
from torch import nn

import torchglass as tg
from tests.language_client import language_server

NET = """\
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.spare = nn.Linear(8, 8)
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        x = self.conv(x).relu()
        x = x.mean((2, 3))
        return self.head(x)
"""
CONV, MEAN, HEAD, SPARE = 12, 13, 14, 8


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> nn.Module:
    (tmp_path / "net.py").write_text(NET)
    # The code is older than what is recorded of it.
    past = time.time() - 60
    os.utime(tmp_path / "net.py", (past, past))
    monkeypatch.syspath_prepend(tmp_path)
    import net  # type: ignore[import-not-found]

    model: nn.Module = net.Net()
    return model


@pytest.fixture
def traced(tmp_path: Path, net: nn.Module) -> Path:
    """A file whose forward was traced."""
    tg.trace(net, torch.ones(1, 3, 8, 8)).save(tmp_path / "pass.glass")
    return tmp_path / "net.py"


def train(model: nn.Module, path: Path) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tg.watch(model, save=path, verbose=False) as watcher:
        for _ in range(10):
            optimizer.zero_grad()
            loss = model(torch.randn(4, 3, 8, 8)).square().mean()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


def test_shapes_dtypes_and_times_are_hints_after_the_lines_that_ran(traced: Path) -> None:
    with language_server(traced.parent) as client:
        client.open(traced)
        hints = client.hints(traced)

    assert client.capabilities["inlayHintProvider"]
    assert hints.keys() == {CONV, MEAN, HEAD}
    assert hints[CONV].startswith("1×8×6×6 float32 · ")
    assert hints[CONV].endswith("s · 2 ops")
    assert hints[MEAN].startswith("1×8 float32 · ")
    assert hints[HEAD].startswith("1×2 float32 · ")


def test_only_hints_for_the_requested_lines_are_sent(traced: Path) -> None:
    with language_server(traced.parent) as client:
        client.open(traced)

        assert client.hints(traced, lines=CONV - 1).keys() == {CONV}


def test_hints_follow_moved_lines_and_disappear_from_edited_lines(
    traced: Path,
) -> None:
    edited = NET.replace("        x = x.mean((2, 3))\n", "        x = x.amax((2, 3))\n")
    with language_server(traced.parent) as client:
        client.open(traced)
        client.change(traced, f"# a new line\n\n{edited}")

        assert client.hints(traced).keys() == {CONV + 2, HEAD + 2}


def test_a_file_changed_after_the_trace_says_so_and_shows_no_hints(traced: Path) -> None:
    traced.write_text(f"# changed\n{NET}")
    later = time.time() + 60
    os.utime(traced, (later, later))

    with language_server(traced.parent) as client:
        client.open(traced)

        assert client.hints(traced) == {}
        (told,) = client.diagnostics(traced)
    assert "changed after pass.glass was saved" in told["message"]


def test_the_latest_or_the_named_trace_is_shown(traced: Path, net: nn.Module) -> None:
    folder = traced.parent
    tg.trace(net, torch.ones(5, 3, 8, 8)).save(folder / "newer.glass")
    later = time.time() + 60
    os.utime(folder / "newer.glass", (later, later))

    with language_server(folder) as client:
        client.open(traced)
        assert client.hints(traced)[HEAD].startswith("5×2 ")
    with language_server(folder, "--trace", "pass.glass") as client:
        client.open(traced)
        assert client.hints(traced)[HEAD].startswith("1×2 ")


def test_problems_of_the_latest_run_are_diagnostics_at_their_lines(
    traced: Path, net: nn.Module
) -> None:
    train(net, traced.parent / "runs" / "first.glass")

    with language_server(traced.parent) as client:
        client.open(traced)
        (problem,) = client.diagnostics(traced)

    assert problem["code"] == "module-never-called"
    assert problem["message"].startswith("`spare` is never called")
    assert problem["severity"] == 2
    assert problem["range"]["start"] == {"line": SPARE - 1, "character": 8}


def test_a_failed_forward_is_an_error_diagnostic_at_its_line(
    tmp_path: Path, net: nn.Module
) -> None:
    file = tmp_path / "net.py"
    with pytest.raises(RuntimeError) as raised:
        tg.trace(net, torch.ones(1, 4, 8, 8))
    raised.value.trace.save(tmp_path / "failed.glass")  # type: ignore[attr-defined]

    with language_server(tmp_path) as client:
        client.open(file)
        (problem,) = client.diagnostics(file)

    assert problem["severity"] == 1
    assert problem["range"]["start"]["line"] == CONV - 1
    assert "channels" in problem["message"]


def test_a_workspace_with_no_or_corrupt_traces_shows_nothing(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(textwrap.dedent(NET))
    (tmp_path / "bad.glass").write_bytes(b"SQLite format 3\0 and then nothing")

    with language_server(tmp_path) as client:
        client.open(tmp_path / "net.py")

        assert client.hints(tmp_path / "net.py") == {}
        assert client.diagnostics(tmp_path / "net.py") == []
