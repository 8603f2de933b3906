"""The verbs take any target, and leave nothing behind when they refuse one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from torch import nn

import torchglass as tg
from tests import make
from torchglass.errors import CaptureError, TargetError, ViewError


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def train(model: nn.Module, steps: int = 2, **options: Any) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tg.watch(model, **options) as watcher:
        for _ in range(steps):
            optimizer.zero_grad()
            loss = model(torch.ones(4, 2)).square().mean()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


def test_summary_accepts_a_model_a_record_a_summary_and_a_run() -> None:
    train(nn.Linear(2, 1), save="a.glass")
    record = make.model({"weight": (1, 2), "bias": (1,)}, name="Linear")

    with tg.open("a.glass") as run:
        targets = [nn.Linear(2, 1), record, tg.summary(record), run, "a.glass", Path("a.glass")]
        totals = [tg.summary(target).to_dict()["totals"]["parameters"] for target in targets]

    assert totals == [3] * len(targets)


@pytest.mark.parametrize(
    "inputs", [{"input_size": (1, 2)}, {"input_data": torch.ones(1)}, {"mask": 1}]
)
def test_a_target_without_code_cannot_be_run(inputs: dict[str, Any]) -> None:
    with pytest.raises(TargetError, match="only a live model can run"):
        tg.summary(make.model(), **inputs)


@pytest.mark.parametrize(
    "verb",
    [tg.trace, tg.explain, lambda x: tg.tracing(x).__enter__(), tg.pluck, tg.watch],
    ids=["trace", "explain", "tracing", "pluck", "watch"],
)
@pytest.mark.parametrize(
    "model", [5, None, "net", torch.relu], ids=["number", "nothing", "text", "function"]
)
def test_a_target_that_is_not_a_module_is_refused_with_its_class(verb: Any, model: Any) -> None:
    with pytest.raises(TargetError, match=f"expects an nn.Module, not {type(model).__name__}"):
        verb(model, "relu") if verb is tg.pluck else verb(model)


def test_guard_and_inspector_refuse_non_modules() -> None:
    with pytest.raises(TargetError, match="guard expects an nn"), tg.guard(5):  # type: ignore[arg-type]
        pass
    with pytest.raises(TargetError, match="must be a model or a list of models, not int"):
        tg.InspectorGadgets(5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on": "shout"}, 'on must be "raise", "warn" or "record", not \'shout\''),
        ({"allow": 3}, "allow must be a name or a list of names, not 3"),
        ({"allow": ["log", 3]}, "allow must be a name or a list of names, but 3 is not a string"),
    ],
)
def test_a_guard_refuses_invalid_options_when_called(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TargetError, match=message):
        tg.guard(nn.ReLU(), **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"level": "foo"}, "level must be one of full, cheap, shapes, not 'foo'"),
        ({"keep": 0}, "keep must be 1 or more, not 0"),
        ({"keep": "all"}, "keep must be 1 or more, not 'all'"),
        ({"tensors": -1}, "tensors must be 0 or more, not -1"),
        ({"tensors": "all"}, "tensors must be 0 or more, not 'all'"),
    ],
)
def test_a_recording_refuses_invalid_options_when_called(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(CaptureError, match=message):
        tg.record(nn.ReLU(), **options)


@pytest.mark.parametrize("verb", [tg.trace, tg.tracing], ids=["trace", "tracing"])
def test_an_unknown_trace_level_is_refused(verb: Any) -> None:
    with pytest.raises(CaptureError, match="level must be one of torch, aten, not 'foo'"):
        verb(nn.ReLU(), *[torch.ones(2)] * (verb is tg.trace), level="foo")


@pytest.mark.parametrize("words", [(), (torch.ones(2),)], ids=["nothing", "no name"])
def test_pluck_without_a_name_says_where_the_name_goes(words: tuple[Any, ...]) -> None:
    with pytest.raises(TargetError, match="the op name comes last"):
        tg.pluck(nn.ReLU(), *words)


def test_inputs_can_be_call_arguments_or_torchinfo_style() -> None:
    model = nn.Bilinear(2, 3, 4)
    left, right = torch.ones(5, 2), torch.ones(5, 3)

    ways = [
        tg.summary(model, left, right),
        tg.summary(model, left, input2=right),
        tg.summary(model, input_size=[(5, 2), (5, 3)]),
        tg.summary(model, input_data=[left, right]),
        tg.summary(model, input_data={"input1": left, "input2": right}),
        tg.summary(model, left, right, fake=True),
    ]

    assert len({str(way) for way in ways}) == 1
    assert "5×4" in str(ways[0])


def test_a_run_gets_a_new_file_each_time(folder: Path) -> None:
    train(nn.Linear(2, 1))
    train(nn.Linear(2, 1))

    files = sorted(folder.glob("runs/*-Linear*.glass"))
    assert len(files) == 2
    with tg.open(files[0]) as run:
        assert run["loss"].steps.tolist() == [0, 1]


def test_each_rank_gets_its_own_run_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")

    train(nn.Linear(2, 1))

    (file,) = folder.glob("runs/*-Linear-rank1.glass")
    with tg.open(file) as run:
        assert (run.run.rank, run.run.world_size) == (1, 2)


def test_a_refused_watch_leaves_no_file(folder: Path) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        tg.watch(nn.Linear(2, 1), log_freq=0)

    assert not list(folder.glob("runs/*"))


def test_a_page_is_served_until_it_is_closed() -> None:
    server = tg.view(nn.Linear(2, 1), port=0)

    with httpx.Client(follow_redirects=True, trust_env=False) as browser:
        browser.get(server.url)
        page = browser.get(server.url.partition("?")[0])
        server.close()

        assert page.status_code == 200
        assert "<html" in page.text
        with pytest.raises(httpx.ConnectError):
            browser.get(server.url)


@pytest.mark.parametrize("port", [-5, 99999, "8080"])
def test_view_refuses_an_invalid_port(port: Any) -> None:
    with pytest.raises(ViewError, match=r"port must be from 0 \(any free port\) to 65535"):
        tg.view(nn.Linear(2, 1), port=port)


def test_a_page_is_saved_as_one_file(folder: Path) -> None:
    assert tg.view(nn.Linear(2, 1), save="linear.html") == Path("linear.html")

    assert "<html" in (folder / "linear.html").read_text(encoding="utf-8")
