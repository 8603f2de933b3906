from __future__ import annotations

import html
import re
from pathlib import Path

import pytest

import hatch_build
from tests.browser.runs import training
from torchglass.views.web.answers import OpenRuns
from torchglass.views.web.saved_page import NotebookPage, reply


@pytest.fixture(scope="module", autouse=True)
def _built_page() -> None:
    hatch_build.build_page(Path(hatch_build.__file__).parent)


def test_a_notebook_without_widgets_shows_a_static_page() -> None:
    shown = NotebookPage(training(3), height=500)._repr_html_()

    frame = re.fullmatch(
        r'<iframe srcdoc="([^"]*)" style="[^"]*height:500px[^"]*" title="tiny-gpt"></iframe>', shown
    )
    assert frame
    assert "torchglass-data" in html.unescape(frame[1])


def test_with_anywidget_the_bundle_has_a_widget_and_html() -> None:
    pytest.importorskip("anywidget")

    bundle = NotebookPage(training(3))._repr_mimebundle_()

    assert set(bundle) == {"text/plain", "text/html", "application/vnd.jupyter.widget-view+json"}
    assert bundle["text/plain"] == "<page of tiny-gpt>"


def test_widget_requests_get_the_same_answers_as_server_requests() -> None:
    runs = OpenRuns([training(3)])

    answered = reply(runs, {"id": 7, "name": "points", "query": {"series": ["0"], "after": ["1"]}})

    assert answered["id"] == 7
    assert '"steps":[2]' in answered["text"]


@pytest.mark.parametrize(
    ("name", "query"), [("points", {"series": ["x"]}), ("run", {"run": ["9"]}), ("secrets", {})]
)
def test_an_invalid_widget_request_is_refused_with_a_message(
    name: str, query: dict[str, list[str]]
) -> None:
    answered = reply(OpenRuns([training(3)]), {"id": 1, "name": name, "query": query})

    assert answered["error"]
    assert "text" not in answered
