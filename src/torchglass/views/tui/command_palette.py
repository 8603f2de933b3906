"""The command palette: every key, every sort order, every module."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING

from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.content import Content
from textual.markup import escape

from torchglass.views.formats import harmless
from torchglass.views.tui.keys import KeyEntry
from torchglass.views.tui.panel_tabs import all_keys
from torchglass.views.tui.tree.columns import NAME, SortOrder

if TYPE_CHECKING:
    from textual.dom import DOMNode

    from torchglass.records.model import Module
    from torchglass.views.tui.screen import Explorer

_MOST_MODULES = 30
_BATCH = 5_000
_TOGGLES = {"Show or hide columns": "Toggle column", "Open or close a panel": "Toggle panel"}
"""How commands under these headings of the help begin."""


class Commands(Provider):
    """The commands of the explorer."""

    @property
    def _explorer(self) -> Explorer | None:
        from torchglass.views.tui.screen import Explorer

        return self.screen if isinstance(self.screen, Explorer) else None

    async def discover(self) -> Hits:
        for title, help_text, run in self._commands():
            yield DiscoveryHit(Content(title), run, help=escape(help_text))

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for title, help_text, run in self._commands():
            score = matcher.match(title)
            if score > 0:
                yield Hit(score, matcher.highlight(title), run, help=escape(help_text))
        async for score, module in self._modules(query.strip()):
            path = harmless(module.path) or harmless(self._name)
            yield Hit(
                score,
                Content(f"Go to {path}"),
                _going(self._explorer, module.path),
                text=path,
                help=escape(harmless(module.kind)),
            )

    @property
    def _name(self) -> str:
        return self._explorer.state.model.name if self._explorer else ""

    def _commands(self) -> Iterator[tuple[str, str, Callable[[], object]]]:
        explorer = self._explorer
        if explorer is None:
            return
        tree = explorer.tree_panel
        for key in all_keys():
            if key.place in {"anywhere", "tree"} and "{key}" not in key.action:
                namespace = tree if key.place == "tree" else explorer
                yield command_title(key), key.label, _running(explorer, key.action, namespace)
        for column in (NAME, *tree.columns):
            sorting = tree.sorting.then(column.id)
            yield f"Sort by {column.name.lower()}", column.title, _sorting(explorer, sorting)

    async def _modules(self, query: str) -> AsyncIterator[tuple[float, Module]]:
        """The modules with the query in their path or class: "layer3" finds layer3.0."""
        explorer = self._explorer
        if explorer is None or not query:
            return
        modules, wanted = explorer.state.model.modules, query.lower()
        found: list[tuple[float, Module]] = []
        for start in range(0, len(modules), _BATCH):
            batch = modules[start : start + _BATCH]
            found += [(score, one) for one in batch if (score := _score(one, wanted))]
            # Handle letters that were typed meanwhile first.
            await asyncio.sleep(0)
        found.sort(key=lambda hit: -hit[0])
        for hit in found[:_MOST_MODULES]:
            yield hit


def command_title(key: KeyEntry) -> str:
    """What a key does, as a command."""
    toggled = _TOGGLES.get(key.section)
    is_thing = toggled and key.action not in ("align", "labels")
    return f"{toggled}: {key.does}" if is_thing else key.does


def _score(module: Module, wanted: str) -> float:
    path = module.path.lower()
    if path == wanted:
        return 1.0
    if wanted in module.name.lower():
        return 0.8
    if wanted in path:
        return 0.6
    return 0.4 if wanted in module.kind.lower() else 0.0


def _going(explorer: Explorer | None, path: str) -> Callable[[], object]:
    return lambda: explorer.go_to(path) if explorer else None


def _running(explorer: Explorer, action: str, namespace: DOMNode) -> Callable[[], object]:
    return lambda: explorer.call_later(explorer.app.run_action, action, namespace)


def _sorting(explorer: Explorer, sorting: SortOrder) -> Callable[[], object]:
    return lambda: explorer.tree_panel.sort(sorting)
