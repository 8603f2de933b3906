"""The page in the frame of a notebook, which carries its questions to the kernel."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import Browser, expect

import torchglass as tg
from tests.browser.runs import graph, put_training, run_of, transformer

NOTEBOOK = """async ([script, page]) => {
  const widget = (await import(`data:text/javascript,${encodeURIComponent(script)}`)).default;
  const listeners = [];
  const model = {
    get: (name) => ({ page, height: 700 })[name],
    send: async (content) => {
      const reply = await kernel(content);
      listeners.forEach((tell) => tell(reply));
    },
    on: (_, tell) => listeners.push(tell),
    off: () => {},
  };
  widget.render({ model, el: document.body });
}"""


def test_the_widget_shows_a_run_and_follows_it(browser: Browser) -> None:
    store = run_of(transformer(), graph(), ends=False)
    put_training(store, range(5))
    widget = tg.view(store, notebook=True).widget
    replies: list[dict[str, Any]] = []
    widget.send = replies.append

    def kernel(content: dict[str, Any]) -> dict[str, Any]:
        """What the widget sends to the page that has sent it a message."""
        widget._handle_custom_msg(content, [])
        return replies.pop()

    with browser.new_context(viewport={"width": 1280, "height": 760}) as context:
        tab = context.new_page()
        problems: list[str] = []
        tab.on("pageerror", lambda error: problems.append(str(error)))
        tab.expose_function("kernel", kernel)
        tab.evaluate(NOTEBOOK, [str(widget._esm), widget.page])
        frame = tab.frame_locator("iframe")

        expect(frame.get_by_test_id("verdict")).to_contain_text("Healthy")
        frame.get_by_role("button", name="Graph").click()
        expect(frame.get_by_test_id("box")).to_have_count(5)
        frame.locator('[data-key="embed:1"]').drag_to(frame.get_by_test_id("drop"))
        expect(frame.get_by_test_id("chart")).to_have_count(3)

        put_training(store, range(5, 8))

        expect(frame.get_by_test_id("step")).to_have_text("step 7")
        assert problems == []
