"""The page in the frame of a notebook, which carries its questions to the kernel."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Browser, expect

from tests.browser.runs import RUN, graph, put_training, transformer
from torchglass.store.memory import MemoryStore
from torchglass.views.notebook import page as notebook
from torchglass.views.web.open_runs import OpenRuns
from torchglass.views.web.saved_page import render_shell

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
    store = MemoryStore(RUN)
    store.put_model(transformer())
    store.put_document(graph())
    put_training(store, range(5))
    shelf = OpenRuns([store])
    script = Path(notebook.__file__).with_name("widget.js").read_text("utf-8")
    with browser.new_context(viewport={"width": 1280, "height": 760}) as context:
        tab = context.new_page()
        problems: list[str] = []
        tab.on("pageerror", lambda error: problems.append(str(error)))
        tab.expose_function("kernel", lambda content: notebook.reply(shelf, content))
        tab.evaluate(NOTEBOOK, [script, render_shell()])
        frame = tab.frame_locator("iframe")

        expect(frame.get_by_test_id("box")).to_have_count(5)
        frame.locator('[data-key="embed:1"]').drag_to(frame.get_by_test_id("drop"))
        expect(frame.get_by_test_id("chart")).to_have_count(3)

        put_training(store, range(5, 8))

        expect(frame.get_by_test_id("step")).to_have_text("step 7")
        assert problems == []
