"""The page for those who do not see it, or do not use a mouse: checked by axe."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import OpenPage, Serve
from tests.browser.runs import training
from tests.unit.views.web.frontend import FRONTEND, find_node

VIEWS = {
    "overview": "",
    "graph": "columns=embed%3A1",
    "opened": "open=%3A1*stackblocks.0%3A1&color=time",
    "gradients": "view=gradients",
    "scalars": "view=scalars",
    "findings": "view=findings",
}


def serious_problems(page: Page) -> list[str]:
    """What axe finds that keeps someone from using the page."""
    page.evaluate((FRONTEND / "node_modules" / "axe-core" / "axe.min.js").read_text("utf-8"))
    found = page.evaluate("() => axe.run()")["violations"]
    return [
        f"{each['id']}: {each['help']} ({node['html'][:160]})"
        for each in found
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"][:3]
    ]


@pytest.fixture(scope="module", autouse=True)
def _axe() -> None:
    if find_node() is None:
        pytest.skip("there is no Node.js on this machine")


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
@pytest.mark.parametrize("place", VIEWS.values(), ids=VIEWS)
def test_axe_finds_nothing_serious(
    place: str, scheme: str, open_page: OpenPage, serving: Serve
) -> None:
    page = open_page(serving(training()).url + "#" + place, color_scheme=scheme)
    page.get_by_role("treeitem").first.wait_for()

    assert serious_problems(page) == []


def test_every_control_is_reachable_by_keyboard(open_page: OpenPage, serving: Serve) -> None:
    page = open_page(serving(training()).url + "#view=graph")
    page.get_by_test_id("box").first.wait_for()
    reached = set()

    for _ in range(40):
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate(
                "() => document.activeElement.getAttribute('aria-label')"
                " ?? document.activeElement.textContent.trim()"
            )
        )

    assert {"Search modules", "Modules of Gpt", "Graph of Gpt", "Color by", "Step"} <= reached


def test_a_box_has_a_descriptive_label(open_page: OpenPage, serving: Serve) -> None:
    page = open_page(serving(training()).url + "#view=graph")

    expect(page.get_by_role("button", name="embed Embedding")).to_be_visible()
