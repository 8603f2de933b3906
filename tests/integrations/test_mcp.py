"""A coding agent asks `torchglass mcp`, in a process of its own, through the SDK's client."""

from __future__ import annotations

import asyncio
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchglass as tg
from benchmarks.agents import PROBLEMS, investigate_all, record, serving
from tests.command_line import main
from torchglass.integrations.mcp import MOST_TOKENS, page, token_count

NET = """
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(4, 8), nn.ReLU())
            self.spare = nn.Linear(8, 8)
            self.head = nn.Linear(8, 1)

        def forward(self, x):
            return self.head(self.body(x))
"""
Ask = Callable[..., tuple[str, bool]]


def ask_all(folder: Path, *questions: tuple[str, dict[str, Any]]) -> list[tuple[str, bool]]:
    """The answers of one server to several questions, and whether each is an error."""

    async def talk() -> list[tuple[str, bool]]:
        async with serving(folder) as client:
            answers = [await client.call_tool(name, arguments) for name, arguments in questions]
        return [(answer.content[0].text, bool(answer.is_error)) for answer in answers]  # type: ignore[union-attr]

    return asyncio.run(talk())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a run whose model has an unused module, a trace, and a file that is neither."""
    (tmp_path / "net.py").write_text(textwrap.dedent(NET))
    monkeypatch.syspath_prepend(tmp_path)
    import net  # type: ignore[import-not-found]

    model = net.Net()
    train(model, tmp_path / "runs" / "first.glass")
    tg.trace(model, torch.ones(2, 4)).save(tmp_path / "pass.glass")
    (tmp_path / "notes.txt").write_text("nothing of interest")
    return tmp_path


def train(model: nn.Module, path: Path) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with tg.watch(model, save=path, verbose=False) as watcher:
        for _ in range(30):
            optimizer.zero_grad()
            loss = model(torch.randn(8, 4)).square().mean()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


def test_an_agent_finds_a_run_its_problem_and_the_lines(folder: Path) -> None:
    (runs, _), (diagnosis, _), (module, _), (series, _), (ops, _) = ask_all(
        folder,
        ("runs", {}),
        ("diagnose", {"run": "runs/first.glass"}),
        ("module", {"target": "runs/first.glass", "path": "body.0"}),
        ("series", {"run": "runs/first.glass", "name": "loss", "points": 3}),
        ("trace", {"file": "pass.glass", "search": "linear"}),
    )

    assert runs.splitlines()[0].startswith("1 run in ")
    assert "runs/first.glass: warning, finished, last step 29, loss " in runs
    assert "`spare` is never called" in runs
    assert "pass.glass: trace of Net" in runs
    assert "module-never-called at spare since step 0" in diagnosis
    assert "created: net.py:8 in __init__" in diagnosis
    assert "used: nowhere; modules beside it: net.py:12 in forward" in diagnosis
    assert "parameter: body.0.weight 8×4 float32" in module
    assert "created: net.py:7 in __init__" in module
    assert [line.partition(":")[0] for line in series.splitlines()[1:]] == [
        "step 0",
        "step 14",
        "step 29",
    ]
    assert ops.splitlines()[0] == "pass.glass: 2 of 5 operations"
    assert "2×8 float32" in ops
    assert "net.py:12 in forward" in ops


def test_runs_are_selected_and_sorted(folder: Path) -> None:
    train(nn.Sequential(nn.Linear(4, 1)), folder / "runs" / "second.glass")

    (best, _), (none, is_error) = ask_all(
        folder,
        ("runs", {"where": "'second' in name", "sort": "loss"}),
        ("runs", {"where": "loss < 0"}),
    )

    assert [line.partition(":")[0] for line in best.splitlines()[1:]] == ["runs/second.glass"]
    assert is_error
    assert "no run has loss < 0. 2 runs in" in none


def test_runs_can_be_queried_in_sql(folder: Path) -> None:
    pytest.importorskip("duckdb")

    (rows, _), (none, _), (wrong, is_error), (writing, _) = ask_all(
        folder,
        ("query", {"sql": "SELECT count(*) AS n FROM points WHERE name = 'loss'"}),
        ("query", {"sql": "SELECT step FROM points WHERE name = 'los'"}),
        ("query", {"sql": "SELECT nothing FROM points"}),
        ("query", {"sql": "CREATE TABLE mine AS SELECT 1"}),
    )

    assert rows.splitlines() == ["1 row", "n", "30"]
    assert none.startswith("No rows for SELECT step")
    assert "1 run in" in none
    assert is_error
    assert "nothing" in wrong
    assert "reads" in writing


def test_two_runs_and_their_models_are_compared(folder: Path) -> None:
    train(nn.Sequential(nn.Linear(4, 1)), folder / "runs" / "second.glass")

    (comparison, _), (summary, _) = ask_all(
        folder,
        ("compare", {"a": "runs/first.glass", "b": "runs/second.glass"}),
        ("summary", {"target": "runs/first.glass"}),
    )

    assert comparison.startswith("runs/first.glass and runs/second.glass: different")
    assert summary.startswith("runs/first.glass: 121 parameters")


def test_every_invalid_request_gets_an_explanation(folder: Path) -> None:
    (nowhere, is_error), (missing, _), (no_run, _), (typo, _), (code, _), (no_trace, _) = ask_all(
        folder,
        ("runs", {"folder": "elsewhere"}),
        ("diagnose", {"run": "runs/frist.glass"}),
        ("diagnose", {"run": "notes.txt"}),
        ("module", {"target": "runs/first.glass", "path": "boddy.0"}),
        ("summary", {"target": "net.py:Net"}),
        ("trace", {"file": "runs/first.glass"}),
    )

    assert not is_error
    assert nowhere.startswith(
        f"No runs (*.glass) in {folder / 'elsewhere'}, which is not a folder."
    )
    assert "runs/first.glass" in nowhere
    assert "There is no" in missing
    assert "runs/first.glass" in missing
    assert "notes.txt is not a run. There: runs in" in no_run
    assert "did you mean body.0" in typo
    assert "would run code" in code
    assert "is a run, not a trace" in no_trace


def test_an_empty_folder_is_reported_as_empty(tmp_path: Path) -> None:
    ((answer, _),) = ask_all(tmp_path, ("runs", {}))

    assert "has no files" in answer
    assert "tg.watch(model)" in answer


def test_a_corrupt_run_does_not_hide_the_others(folder: Path) -> None:
    (folder / "runs" / "bad.glass").write_bytes(b"SQLite format 3\0 and then nothing")

    ((answer, _),) = ask_all(folder, ("runs", {"folder": "runs"}))

    assert "bad.glass: cannot be read" in answer
    assert "first.glass: warning" in answer


def test_paging_reaches_everything_and_every_response_is_short(tmp_path: Path) -> None:
    blocks = (nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)) for _ in range(120))
    tg.trace(nn.Sequential(*blocks), torch.ones(1, 4), save=None).save(tmp_path / "deep.glass")

    async def read() -> list[str]:
        cursor: int | None = 0
        pages: list[str] = []
        async with serving(tmp_path) as client:
            while cursor is not None:
                found = await client.call_tool("trace", {"file": "deep.glass", "cursor": cursor})
                pages.append(found.content[0].text)  # type: ignore[union-attr]
                _, more, rest = pages[-1].rpartition("for more: cursor=")
                cursor = int(rest.rstrip(")")) if more else None
        return pages

    pages = asyncio.run(read())

    assert len(pages) > 3
    assert max(map(token_count, pages)) <= MOST_TOKENS
    assert sum(text.count("float32") for text in pages) == 362


ODD = [
    "",
    " ",
    "x" * 9_000,
    "漢字" * 3_000,
    "no/such.glass",
    "notes.txt",
    "..",
    "odd.glass",
    "1; --",
]
"""What an agent may pass as a name."""


@pytest.mark.slow
def test_every_answer_is_short_and_none_is_empty(folder: Path) -> None:
    config = {f"setting_{number}_{'x' * 50}": "y" * 300 for number in range(200)}
    model = nn.Sequential(nn.Linear(2, 1))
    with tg.watch(
        model, save=folder / "odd.glass", config=config, notes="word " * 3_000, verbose=False
    ) as watcher:
        for number in range(300):
            watcher.log(f"a value with the number {number}", number)
        model(torch.ones(1, 2))
        watcher.step()
    columns = ", ".join(f"{number} AS a_long_name_of_column_{number}" for number in range(900))
    asked: list[tuple[str, dict[str, Any]]] = [
        *(("runs", {"folder": odd}) for odd in ODD),
        *(("runs", {"where": odd, "sort": odd}) for odd in ODD),
        *(("diagnose", {"run": odd}) for odd in ODD),
        *(("module", {"target": "odd.glass", "path": odd}) for odd in ODD),
        *(("series", {"run": "odd.glass", "name": odd}) for odd in ODD),
        *(("summary", {"target": odd}) for odd in ODD),
        *(("trace", {"file": "pass.glass", "search": odd}) for odd in ODD),
        *(("compare", {"a": odd, "b": "odd.glass"}) for odd in ODD),
        *(("query", {"sql": odd}) for odd in ODD),
        ("query", {"sql": f"SELECT {columns}"}),
        ("query", {"sql": f"SELECT 1 WHERE 'no' = '{'x' * 9_000}'"}),
        ("series", {"run": "odd.glass", "points": -3}),
    ]

    answers = ask_all(folder, *asked)

    for question, (answer, _) in zip(asked, answers, strict=True):
        assert answer.strip(), question
        assert token_count(answer) <= MOST_TOKENS, question


def test_a_single_too_long_item_is_truncated_with_a_note() -> None:
    answer = page("A title", ["word " * 5000, "next"])

    assert token_count(answer) <= MOST_TOKENS
    assert "cut: too long for one answer" in answer
    assert answer.endswith("(1 to 1 of 2; for more: cursor=1)")


def test_a_cursor_beyond_the_end_is_refused(folder: Path) -> None:
    ((answer, is_error),) = ask_all(folder, ("runs", {"cursor": 7}))

    assert is_error
    assert "cursor must be from 0 to 1, not 7" in answer


def test_a_skill_names_commands_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["skill"]) == 0

    text = capsys.readouterr().out
    assert text.startswith("---\nname: torchglass\n")
    for command in ("diagnose", "explain", "summary", "trace", "profile", "memory", "compare"):
        assert f"`torchglass {command}" in text


@pytest.mark.slow
def test_a_fixed_policy_finds_module_and_line_of_planted_bugs(tmp_path: Path) -> None:
    names = [
        "detach-before-the-head",
        "division-by-a-zero-norm",
        "norm-that-is-never-called",
        "dropout-of-almost-all",
        "last-block-never-called",
    ]
    assert set(names) <= PROBLEMS.keys()
    record(names, tmp_path)

    for one in asyncio.run(investigate_all(names, tmp_path)):
        assert one.has_path, one
        assert one.has_line, one
        assert one.calls <= 5
        assert one.most_tokens <= MOST_TOKENS
