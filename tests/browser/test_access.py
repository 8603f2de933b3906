"""Who gets to see a page, as a browser asks."""

from __future__ import annotations

import http.client
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.conftest import OpenPage, Serve
from tests.browser.runs import run_of, transformer


@pytest.fixture
def store() -> Any:
    return run_of(transformer())


@pytest.mark.parametrize("query", ["", "?token=wrong"])
def test_the_page_requires_its_token(
    query: str, store: Any, browser: Browser, serving: Serve
) -> None:
    with browser.new_context() as context:
        page = context.new_page()

        answer = page.goto(serving(store).url.partition("?")[0] + query)

        assert answer is not None
        assert answer.status == 403
        expect(page.locator("body")).to_contain_text("This page needs its token")


def test_a_foreign_host_name_is_refused(store: Any, serving: Serve) -> None:
    address = urlsplit(serving(store).url)
    connection = http.client.HTTPConnection("127.0.0.1", address.port)

    connection.request("GET", f"/?{address.query}", headers={"Host": "evil.example:5000"})

    assert connection.getresponse().status == 400
    connection.close()


def test_a_link_on_another_site_opens_the_page(
    store: Any, browser: Browser, serving: Serve
) -> None:
    server = serving(store)
    with browser.new_context() as context:
        page = context.new_page()
        page.goto(f"data:text/html,<a href='{server.url}'>look</a>")

        page.get_by_text("look").click()

        expect(page.get_by_role("treeitem")).to_have_count(4)
        assert "token" not in page.url


def test_the_page_works_under_a_proxy_prefix(
    store: Any, open_page: OpenPage, serving: Serve
) -> None:
    page = open_page(serving(store, root_path="/user/ada/glass").url)

    expect(page.get_by_role("treeitem")).to_have_count(4)
    assert page.url.endswith("/user/ada/glass/")
