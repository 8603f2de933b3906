"""Explorer: large models on the screen, and what a key takes then."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from importlib import import_module
from typing import Any, ClassVar, NamedTuple

from benchmarks.cases import each_alone
from benchmarks.models import MANY, Scale, Spec, build
from benchmarks.rows import OURS, Topic

RP = "rp"
TEXTUAL = "Textual"
"""Its own tree, in an app that has nothing else."""

SIZE = (150, 45)
_MOST_ROUNDS = 5
_TURN_SECONDS = 0.001
_REGEX = r"re:(\d)\.\1"
"""It has to be asked of every path: what it refers back to is in no index."""
HUGE = Scale(("tree", {"modules": 200_000}), MANY.small)


class Opened(NamedTuple):
    """An app on a screen of its own, and how to wait until all is drawn."""

    app: Any
    pilot: Any
    drawn: Callable[[], Awaitable[None]]
    """Until rows are on the screen, or what a key changed is."""


def first_paint(spec: Spec, contender: str, rounds: int) -> list[float]:
    """CPU seconds until a model, for us its record, is on the screen."""
    model = build(spec).model
    if contender == OURS:
        model = _record(model)

    async def once() -> float:
        gc.collect()
        start = time.process_time()
        async with _opened(contender, model) as opened:
            await opened.drawn()
            return time.process_time() - start

    # The first round also reads style sheets and compiles what they need.
    return [asyncio.run(once()) for _ in range(min(rounds, _MOST_ROUNDS) + 1)][1:]


def _record(model: Any) -> Any:
    from torchglass.capture.model.structure import read_model

    return read_model(model)


def expanding(spec: Spec, contender: str, rounds: int) -> list[float]:
    """CPU milliseconds of unfolding the whole tree."""
    return asyncio.run(_pressed(spec, contender, rounds, ["Z"], before=["Z"], between=["Z"]))


def parameters(spec: Spec, contender: str, rounds: int) -> list[float]:
    """CPU milliseconds of showing parameter counts."""
    hide = ["p"] if contender == OURS else []
    return asyncio.run(_pressed(spec, contender, rounds, ["p"], before=hide, between=["p"]))


def key(spec: Spec, contender: str, rounds: int) -> list[float]:
    """CPU milliseconds of going one row down, with everything unfolded."""
    return asyncio.run(_pressed(spec, contender, rounds, ["down"], before=["Z", "Z"]))


def searching(spec: Spec, contender: str, rounds: int) -> list[float]:
    """CPU milliseconds of a letter typed into a search, matches shown alone."""
    return asyncio.run(
        _pressed(spec, contender, rounds, ["l"], before=["slash"], between=["backspace"])
    )


def longest_wait(spec: Spec, contender: str, rounds: int) -> list[float]:
    """CPU milliseconds that a key waits at most while a regular expression is searched for."""
    return asyncio.run(_waited(spec, contender, rounds, ["slash", *_REGEX], "backspace"))


async def _waited(
    spec: Spec, contender: str, rounds: int, keys: Sequence[str], back: str
) -> list[float]:
    """The longest stretch of each round in which the screen is busy, after the last of the keys."""
    *before, last = keys
    async with _opened(contender, build(spec).model) as opened:
        await opened.drawn()
        gc.collect()
        gc.freeze()
        await opened.pilot.press(*before)
        samples = []
        for _ in range(min(rounds, _MOST_ROUNDS)):
            await _settled(opened)
            stretches: list[float] = []
            watching = asyncio.create_task(_watch(stretches))
            await opened.pilot.press(last)
            await _settled(opened)
            watching.cancel()
            samples.append(1e3 * max(stretches))
            await opened.pilot.press(back)
        return samples


async def _settled(opened: Opened) -> None:
    while not opened.app.explorer.settled:
        await opened.pilot.pause()


async def _watch(stretches: list[float]) -> None:
    """Note how long the others take until it is one's own turn again."""
    while True:
        start = time.thread_time()
        await asyncio.sleep(_TURN_SECONDS)
        stretches.append(time.thread_time() - start)


async def _pressed(
    spec: Spec,
    contender: str,
    rounds: int,
    keys: Sequence[str],
    *,
    before: Sequence[str] = (),
    between: Sequence[str] = (),
) -> list[float]:
    async with _opened(contender, build(spec).model) as opened:
        await opened.drawn()
        if contender == OURS:
            await _settled(opened)
        # As the explorer does in a terminal: else each key may meet a walk over all objects.
        gc.collect()
        gc.freeze()
        await opened.pilot.press(*before)
        await opened.drawn()
        samples = []
        for _ in range(min(rounds, _MOST_ROUNDS)):
            start = time.process_time()
            await opened.pilot.press(*keys)
            await opened.drawn()
            samples.append(1e3 * (time.process_time() - start))
            await opened.pilot.press(*between)
            await opened.drawn()
        return samples


def _opened(contender: str, model: Any) -> AbstractAsyncContextManager[Opened]:
    opener = {OURS: _open_ours, RP: _open_rp, TEXTUAL: _open_textual}[contender]
    return _Opening(*opener(model))


class _Opening:
    def __init__(self, app: Any, is_drawn: Callable[[], bool]) -> None:
        self._app = app
        self._is_drawn = is_drawn
        self._running = app.run_test(size=SIZE)

    async def __aenter__(self) -> Opened:
        pilot = await self._running.__aenter__()

        async def drawn() -> None:
            await pilot.pause()
            while not self._is_drawn():
                await pilot.pause()

        return Opened(self._app, pilot, drawn)

    async def __aexit__(self, *error: object) -> None:
        await self._running.__aexit__(*error)


def _open_ours(model: Any) -> tuple[Any, Callable[[], bool]]:
    from torchglass.api.explore import make_source
    from torchglass.views.tui.app import ExplorerApp

    app = ExplorerApp(make_source(model))
    return app, lambda: len(app.explorer.tree_panel.tree_rows) > 1


def _open_rp(model: Any) -> tuple[Any, Callable[[], bool]]:
    rp = import_module("rp.libs.pytorch_module_explorer")
    return rp.ModelTreeViewer(model), lambda: True


def _open_textual(model: Any) -> tuple[Any, Callable[[], bool]]:
    from textual.app import App, ComposeResult
    from textual.binding import Binding
    from textual.widgets import Tree

    class Modules(App[None]):
        """A tree with the names and classes of all modules."""

        BINDINGS: ClassVar = [Binding("Z", "all")]

        def compose(self) -> ComposeResult:
            """Nothing but the tree."""
            tree: Tree[None] = Tree(type(model).__name__)
            waiting = [(tree.root, model)]
            while waiting:
                node, module = waiting.pop()
                for name, child in module.named_children():
                    waiting.append((node.add(f"{name}: {type(child).__name__}"), child))
            tree.root.expand()
            yield tree

        def action_all(self) -> None:
            """Unfold everything, or fold all but the root."""
            tree = self.query_one(Tree)
            unfolded = any(child.is_expanded for child in tree.root.children)
            for child in tree.root.children:
                child.collapse_all() if unfolded else child.expand_all()

    return Modules(), lambda: True


_WITH_RP = (OURS, RP, TEXTUAL)

TOPIC = Topic(
    name="explorer",
    title="Explorer",
    about=(
        "CPU time for a live model in the terminal explorer on a screen of 150×45 without a "
        "terminal, driven by Textual's pilot, which itself takes some milliseconds per key. "
        "Beside it are rp's explorer and Textual's own tree with names and classes only. "
        "First paint is that of a recorded model: a live one is read in a thread meanwhile "
        "(see Structure). The longest wait is the longest time in which no key is handled "
        "while `re:(\\d)\\.\\1` is searched in all paths. rp is left out where everything is "
        "unfolded: at 20,000 modules it had not finished after 390 s."
    ),
    cases=[
        each_alone("20,000 modules, first paint", "s", first_paint, MANY, _WITH_RP, goal=0.3),
        each_alone("20,000 modules, parameters on", "ms", parameters, MANY, (OURS, RP), goal=50),
        each_alone("20,000 modules, expand all", "ms", expanding, MANY, (OURS, TEXTUAL), goal=100),
        each_alone("200,000 modules, first paint", "s", first_paint, HUGE, (OURS, TEXTUAL), goal=1),
        each_alone("200,000 modules, expand all", "ms", expanding, HUGE, (OURS, TEXTUAL), goal=500),
        each_alone("200,000 modules, a key", "ms", key, HUGE, (OURS, TEXTUAL), goal=20),
        each_alone(
            "200,000 modules, a letter of a search", "ms", searching, HUGE, (OURS,), goal=50
        ),
        each_alone(
            "200,000 modules, longest wait in a regex", "ms", longest_wait, HUGE, (OURS,), goal=50
        ),
    ],
)
