"""A real Chromium, the real server, and a watch over all that pages ask for and complain of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

import hatch_build
import torchglass as tg
from tests.browser import chromium
from torchglass.records.run import Reader
from torchglass.views.web.server import Server, serve

OpenPage = Callable[..., Page]
Serve = Callable[..., Server]

PATIENCE_MS = 60_000
"""How long a test waits for the page, on a busy machine too."""
expect.set_options(timeout=PATIENCE_MS)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session", autouse=True)
def _built_page() -> None:
    hatch_build.build_page(Path(hatch_build.__file__).parent)


# One a file and not one a session: while Playwright is open, its event loop counts as running, and
# tests of the terminal explorer in the same process could not start theirs.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    executable = chromium.find()
    assert executable, "no Chromium: run `python -m tests.browser.chromium`"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=[*chromium.FLAGS])
        yield browser
        browser.close()


@pytest.fixture
def serving() -> Iterator[Serve]:
    """Serves a target, or several runs, on free ports until the test ends."""
    servers: list[Server] = []

    def start(target: Any, *others: Reader, **options: Any) -> Server:
        if others:
            server = serve(target, *others, port=0, **options)
        else:
            server = tg.view(target, port=0, **options)
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def open_page(browser: Browser, serving: Serve) -> Iterator[OpenPage]:
    """Opens an address; in the end no page has complained, nor asked another host for anything.

    Pages are closed before the servers, whose end they would complain of.
    """
    complaints: list[str] = []
    strangers: list[str] = []
    contexts = []

    def is_ours(address: str, page: str) -> bool:
        return address.startswith(("data:", "blob:", page.partition("?")[0].partition("#")[0]))

    def open_(
        address: str, *, offline: bool = False, loses_its_server: bool = False, **options: Any
    ) -> Page:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
        context.set_default_timeout(PATIENCE_MS)
        context.set_offline(offline)
        contexts.append(context)
        page = context.new_page()
        if not loses_its_server:
            # Chromium itself writes there of a broken connection.
            page.on("console", lambda said: complaints.append(said.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(f"a dialog: {dialog.message}"))
        context.on(
            "request",
            lambda asked: None if is_ours(asked.url, address) else strangers.append(asked.url),
        )
        page.goto(address)
        return page

    yield open_
    for context in contexts:
        context.close()
    assert complaints == []
    assert strangers == []
