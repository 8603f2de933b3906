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


def test_a_notebook_without_widgets_shows_the_page_as_it_is_now() -> None:
    shown = NotebookPage(training(3), height=500)._repr_html_()

    frame = re.fullmatch(
        r'<iframe srcdoc="([^"]*)" style="[^"]*height:500px[^"]*" title="tiny-gpt"></iframe>', shown
    )
    assert frame
    assert "torchglass-data" in html.unescape(frame[1])


def test_a_notebook_with_widgets_is_told_of_one_beside_the_page() -> None:
    pytest.importorskip("anywidget")

    bundle = NotebookPage(training(3))._repr_mimebundle_()

    assert set(bundle) == {"text/plain", "text/html", "application/vnd.jupyter.widget-view+json"}
    assert bundle["text/plain"] == "<page of tiny-gpt>"


def test_questions_of_the_widget_are_answered_as_the_server_would() -> None:
    runs = OpenRuns([training(3)])

    answered = reply(runs, {"id": 7, "name": "points", "query": {"series": ["0"], "after": ["1"]}})

    assert answered["id"] == 7
    assert '"steps":[2]' in answered["text"]


@pytest.mark.parametrize(
    ("name", "query"), [("points", {"series": ["x"]}), ("run", {"run": ["9"]}), ("secrets", {})]
)
def test_a_question_that_makes_no_sense_is_refused_in_words(
    name: str, query: dict[str, list[str]]
) -> None:
    answered = reply(OpenRuns([training(3)]), {"id": 1, "name": name, "query": query})

    assert answered["error"]
    assert "text" not in answered
