"""What the command palette offers: everything a key does, every order, and every module."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING

from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.content import Content
from textual.markup import escape

from torchglass.views.formats import harmless
from torchglass.views.tui.table import all_keys
from torchglass.views.tui.tree.arrangement import Sorting
from torchglass.views.tui.tree.components import NAME
from torchglass.views.tui.tree.search import NONE, REGEX

if TYPE_CHECKING:
    from textual.dom import DOMNode

    from torchglass.views.tui.screen import Explorer

_MOST_MODULES = 30


class Commands(Provider):
    """The commands of the explorer."""

    @property
    def _explorer(self) -> Explorer | None:
        from torchglass.views.tui.screen import Explorer

        return self.screen if isinstance(self.screen, Explorer) else None

    async def discover(self) -> Hits:
        """Everything that a key does."""
        for title, help_text, run in self._commands():
            yield DiscoveryHit(Content(title), run, help=escape(help_text))

    async def search(self, query: str) -> Hits:
        """The commands and modules that fit what is typed."""
        matcher = self.matcher(query)
        for title, help_text, run in self._commands():
            score = matcher.match(title)
            if score > 0:
                yield Hit(score, matcher.highlight(title), run, help=escape(help_text))
        async for path, kind, run in self._modules(query):
            yield Hit(0.5, Content(path), run, text=path, help=escape(kind))

    def _commands(self) -> Iterator[tuple[str, str, Callable[[], object]]]:
        explorer = self._explorer
        if explorer is None:
            return
        tree = explorer.tree_panel
        for key in all_keys():
            if key.place in {"anywhere", "tree"} and "{key}" not in key.action:
                namespace = tree if key.place == "tree" else explorer
                title = f"{key.section}: {key.does}"
                yield title, key.label, _running(explorer, key.action, namespace)
        for column in (NAME, *tree.columns):
            sorting = tree.arrangement.sorting.then(column.id)
            yield f"Sort: by {column.name.lower()}", column.title, _sorting(explorer, sorting)

    async def _modules(self, query: str) -> AsyncIterator[tuple[str, str, Callable[[], object]]]:
        explorer = self._explorer
        if explorer is None:
            return
        model, matches = explorer.subject.model, NONE
        for found in explorer.searching.finder.finding(query.removeprefix(REGEX)):
            matches = found
            # Letters that were typed meanwhile come first.
            await asyncio.sleep(0)
        for match in matches[:_MOST_MODULES].tolist():
            module = model[match]
            path = harmless(module.path or model.name)
            yield path, harmless(module.kind), lambda path=module.path: explorer.go_to(path)  # type: ignore[misc]


def _running(explorer: Explorer, action: str, namespace: DOMNode) -> Callable[[], object]:
    return lambda: explorer.call_later(explorer.app.run_action, action, namespace)


def _sorting(explorer: Explorer, sorting: Sorting) -> Callable[[], object]:
    return lambda: explorer.tree_panel.sort(sorting)
