from __future__ import annotations

from pathlib import Path

from playwright.sync_api import expect

from tests import make
from tests.browser.conftest import OpenPage
from tests.browser.runs import RUN, put_steps, transformer
from torchglass.store.memory import MemoryStore
from torchglass.views.web.offline import write_page


def test_a_saved_page_opens_from_the_disk_without_a_network(
    tmp_path: Path, open_page: OpenPage
) -> None:
    store = MemoryStore(RUN)
    store.put_model(transformer())
    put_steps(store, range(50))
    store.close()
    write_page(store, tmp_path / "page.html")

    page = open_page((tmp_path / "page.html").as_uri(), offline=True)

    expect(page.get_by_role("treeitem")).to_have_count(4)
    expect(page.get_by_test_id("state")).to_have_text("finished")
    expect(page.get_by_test_id("chart")).to_contain_text("step 49")

    page.get_by_role("treeitem", name="embed").click()

    expect(page.get_by_test_id("chart")).to_contain_text("max 50")
    page.wait_for_url("**/page.html#module=embed")


def test_a_page_saved_while_the_run_goes_on_does_not_wait(
    tmp_path: Path, open_page: OpenPage
) -> None:
    store = MemoryStore(RUN)
    put_steps(store, range(3))
    write_page(store, tmp_path / "page.html")

    page = open_page((tmp_path / "page.html").as_uri(), offline=True)

    expect(page.get_by_test_id("state")).to_have_text("saved while it ran")
    expect(page.locator(".empty")).to_have_text("No model was recorded yet.")


def test_hostile_names_stay_inside_the_data_of_a_saved_page(
    tmp_path: Path, open_page: OpenPage
) -> None:
    name = "</script><script>alert(1)</script><!--<script>\u2028\ud800"
    store = MemoryStore(RUN)
    store.put_model(make.model({"children": {name: {"extra": name}}}, name=name))
    write_page(store, tmp_path / "page.html")

    page = open_page((tmp_path / "page.html").as_uri(), offline=True)

    expect(page.get_by_role("treeitem")).to_have_count(2)
    expect(page.get_by_role("treeitem").last).to_contain_text("<script>alert(1)")
