"""The verb that shows a target as a page, and what it makes of each."""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from torch import nn

import hatch_build
from torchglass.api.trace import trace
from torchglass.api.view import MOST_OPEN, ServedFolder, view
from torchglass.errors import StoreError, TargetError, TorchglassWarning
from torchglass.records.run import RunRecord
from torchglass.store.writer import FileSink


@pytest.fixture(scope="module", autouse=True)
def _built_page() -> None:
    hatch_build.build_page(Path(hatch_build.__file__).parent)


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 3), nn.ReLU())


def run_file(path: Path) -> Path:
    FileSink(path, RunRecord(name=path.stem, created_ns=0)).close()
    return path


def runs_in(page: Path) -> list[dict[str, Any]]:
    found = re.search(r'id="torchglass-data">(.*?)</script>', page.read_text("utf-8"))
    assert found
    runs: list[dict[str, Any]] = json.loads(gzip.decompress(base64.b64decode(found[1])))["runs"]
    return runs


def names_in(page: Path) -> list[str]:
    return [run["run"]["run"]["name"] for run in runs_in(page)]


def test_a_model_is_shown_without_running_it(tmp_path: Path) -> None:
    (run,) = runs_in(view(model(), save=tmp_path / "page.html"))

    assert len(run["model"]["model"]["modules"]) == 3
    assert run["graph"]["graph"] is None


def test_viewing_a_model_with_inputs_runs_it_and_shows_its_graph(tmp_path: Path) -> None:
    (run,) = runs_in(view(model(), torch.ones(1, 2), save=tmp_path / "page.html"))

    nodes = run["graph"]["graph"]["nodes"]
    assert [node["path"] for node in nodes if node["kind"] == "call"] == ["", "0", "1"]
    assert [node["name"] for node in nodes if node["kind"] == "op"] == ["linear", "relu"]
    assert run["spans"]["spans"]


def test_a_trace_is_shown(tmp_path: Path) -> None:
    traced = trace(model(), torch.ones(1, 2), save=None)

    (run,) = runs_in(view(traced, save=tmp_path / "page.html"))

    assert run["graph"]["graph"]["edges"]


def test_several_targets_are_shown_side_by_side(tmp_path: Path) -> None:
    one, other = (run_file(tmp_path / f"{name}.glass") for name in ("one", "other"))

    assert names_in(view(one, against=other, save=tmp_path / "page.html")) == ["one", "other"]
    three = view(one, against=[other, model()], save=tmp_path / "page.html")
    assert names_in(three) == ["one", "other", "Sequential"]


def test_a_folder_lists_its_runs_latest_first(tmp_path: Path) -> None:
    for age, name in enumerate(("new", "old")):
        path = run_file(tmp_path / f"{name}.glass")
        os.utime(path, (1000 - age, 1000 - age))

    assert names_in(view(tmp_path, save=tmp_path / "page.html")) == ["new", "old"]


def test_new_runs_in_a_served_folder_are_found_once(tmp_path: Path) -> None:
    run_file(tmp_path / "first.glass")
    folder = ServedFolder(tmp_path)
    for reader in folder.new_readers():
        reader.close()
    run_file(tmp_path / "second.glass")
    (tmp_path / "being-made.glass").write_bytes(b"")

    found = folder.new_readers()

    assert [reader.run().name for reader in found] == ["second"]
    assert folder.new_readers() == []
    for reader in found:
        reader.close()


def test_a_folder_without_runs_is_served_and_shows_new_runs(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a run")
    server = view(tmp_path, port=0)
    folder = ServedFolder(tmp_path)
    assert folder.new_readers() == []

    run_file(tmp_path / "first.glass")

    (reader,) = folder.new_readers()
    assert reader.run().name == "first"
    reader.close()
    server.close()


def test_a_saved_page_of_many_runs_has_the_latest_and_says_so(tmp_path: Path) -> None:
    for number in range(MOST_OPEN + 5):
        run_file(tmp_path / f"{number}.glass")
        os.utime(tmp_path / f"{number}.glass", (number, number))

    with pytest.warns(TorchglassWarning, match=r"25 run files, .* the 20 latest.*torchglass serve"):
        page = view(tmp_path, save=tmp_path / "page.html")

    assert names_in(page) == [str(number) for number in range(MOST_OPEN + 4, 4, -1)]


def test_only_a_few_of_many_runs_are_open_and_all_can_be_opened(tmp_path: Path) -> None:
    for number in range(MOST_OPEN + 5):
        run_file(tmp_path / f"{number}.glass")
    server = view(tmp_path, port=0)
    address = server.url.partition("?")[0]

    with httpx.Client(follow_redirects=True) as client:
        client.get(server.url)

        def ask(name: str, **query: str | int) -> Any:
            return client.get(f"{address}api/{name}", params=query).json()

        table = ask("table", sort="-name", count=3)["table"]
        assert (table["total"], len(table["rows"])) == (MOST_OPEN + 5, 3)
        assert len(ask("runs")["runs"]) == MOST_OPEN
        hidden = {f"{number}.glass" for number in range(MOST_OPEN + 5)}
        hidden -= {Path(run["file"]).name for run in ask("runs")["runs"]}
        number = ask("open", which=min(hidden))["number"]
        assert number == MOST_OPEN
        assert ask("run", run=number)["run"]["name"] == Path(min(hidden)).stem
        assert ask("open", which=min(hidden))["number"] == number
        assert "is not a filter" in ask("table", where="name <")["problem"]
        assert ask("curves", path="0.glass")["curves"] == [{"path": "0.glass", "points": ""}]
        assert len(ask("curves", sort="-name", count=3)["curves"]) == 3
        assert client.get(f"{address}api/open", params={"which": "../x"}).status_code == 404
    server.close()


def test_a_folder_without_runs_cannot_be_saved(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="no checkpoint in the folder"):
        view(tmp_path, save=tmp_path / "page.html")


def test_a_server_shows_its_address_until_it_is_closed() -> None:
    server = view(nn.Linear(2, 2), port=0)

    assert repr(server) == f"<Server at {server.url}>"
    server.close()
    assert repr(server) == "<Server closed>"


def test_a_folder_with_a_checkpoint_does_not_wait_for_runs(tmp_path: Path) -> None:
    torch.save(model().state_dict(), tmp_path / "weights.pt")

    server = view(tmp_path, port=0)

    with httpx.Client(follow_redirects=True) as client:
        client.get(server.url)
        address = server.url.partition("?")[0]
        assert "table" not in client.get(f"{address}api/runs").json()
        assert client.get(f"{address}api/table").status_code == 404
    server.close()


def test_a_broken_run_does_not_hide_the_others_of_its_folder(tmp_path: Path) -> None:
    run_file(tmp_path / "good.glass")
    (tmp_path / "bad.glass").write_bytes(b"half a file")

    with pytest.warns(TorchglassWarning, match="skipped .*bad.glass"):
        page = view(tmp_path, save=tmp_path / "page.html")

    assert names_in(page) == ["good"]


@pytest.mark.filterwarnings("ignore::torchglass.errors.TorchglassWarning")
def test_a_folder_of_broken_runs_says_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "bad.glass").write_bytes(b"half a file")

    with pytest.raises(StoreError):
        view(tmp_path, save=tmp_path / "page.html")


def test_in_a_notebook_the_page_is_shown_below_the_cell() -> None:
    page = view(model(), notebook=True)

    assert page._repr_html_().startswith("<iframe")


def test_a_run_cannot_be_given_inputs(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="only a live model"):
        view(run_file(tmp_path / "run.glass"), torch.ones(1), save=tmp_path / "page.html")


def test_a_page_is_served_until_it_is_closed() -> None:
    server = view(model(), port=0)

    assert server.url.startswith("http://localhost:")
    server.close()
