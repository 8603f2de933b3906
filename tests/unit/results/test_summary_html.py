"""The page holds what the table holds, and nothing that could act."""

from __future__ import annotations

from html.parser import HTMLParser

from tests import make, networks
from torchglass.records.model import Model
from torchglass.results.summary import Summary

EVIL = "</style><script>alert(1)</script>\"'\u202e"


class _Reader(HTMLParser):
    """The tags of a page, checked to be closed in the order in which they were opened."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag != "meta":
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def page(model: Model) -> str:
    return Summary(model).to_html()


def test_every_html_tag_is_closed() -> None:
    tags = _Reader(page(networks.gpt())).tags

    branches = [module for module in networks.gpt().modules if module.children]
    assert tags.count("details") == len(branches)


def test_no_name_becomes_markup() -> None:
    node = {"class": f"evil.{EVIL}", "problem": EVIL, "weight": (1,)}
    model = make.model({"children": {EVIL: node}}, name=EVIL)

    reader = _Reader(page(model))

    assert "script" not in reader.tags
    assert "<script>alert(1)</script>" in reader.text
    assert "\u202e" not in reader.text


def test_the_html_loads_no_external_resources() -> None:
    text = page(networks.resnet())

    assert "http" not in text
    assert "url(" not in text
    assert "src=" not in text


def test_a_large_model_starts_collapsed_and_a_small_one_does_not() -> None:
    many: make.Tree = {str(i): {"children": {"a": {"children": {"b": {}}}}} for i in range(100)}

    large, small = page(make.model({"children": many})), page(networks.resnet())

    assert large.count("<details open>") == 1 + 100
    assert large.count("<details>") == 100
    assert small.count("<details>") == 0
