"""A run's page in a notebook."""

from __future__ import annotations

import html
import re
from pathlib import Path

import torchglass as tg
from tests.integrations.trainings import Net, train
from torchglass.integrations.jupyter import live_frame, saved_frame
from torchglass.store.readers import FileReader
from torchglass.views.web.saved_page import render_page


def test_a_live_frame_links_to_the_server() -> None:
    frame = live_frame('http://localhost:5000/?token=a"b', height=300)

    assert 'src="http://localhost:5000/?token=a&quot;b"' in frame
    assert 'height="300"' in frame


def test_a_static_frame_contains_the_whole_page_of_a_run(tmp_path: Path) -> None:
    model, file = Net(), tmp_path / "a.glass"
    with tg.watch(model, save=file, verbose=False) as watcher:
        train(model, watcher, 2)

    frame = saved_frame(file)

    held = re.search(r' srcdoc="([^"]*)"', frame)
    assert held is not None
    with FileReader(file) as reader:
        assert html.unescape(held[1]) == render_page(reader)
        assert saved_frame(reader) == frame


def test_a_watcher_displays_the_page_of_the_data_recorded_so_far(tmp_path: Path) -> None:
    model, file = Net(), tmp_path / "a.glass"
    with tg.watch(model, save=file, verbose=False) as watcher:
        train(model, watcher, 2)
        shown = watcher._repr_html_()

    assert watcher.path == file
    assert shown is not None
    assert shown.startswith("<iframe sandbox=")


def test_a_watcher_that_serves_the_page_shows_it_live(tmp_path: Path) -> None:
    watcher = tg.watch(
        Net(), backend="standalone", standalone_port=0, run_dir=tmp_path, verbose=False
    )
    with watcher:
        shown = watcher._repr_html_()

    assert shown is not None
    assert shown.startswith('<iframe src="http://')
