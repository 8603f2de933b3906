"""The page: what a browser's main thread is busy with, on large graphs and long runs.

A headless Chromium shows a page of a server in the same process. The numbers are CPU time of the
page's main thread, as Chromium counts its tasks; the layout runs in a worker beside it.
"""

from __future__ import annotations

import contextlib
import gzip
import itertools
from collections.abc import Callable, Iterator
from functools import partial

from playwright.sync_api import CDPSession, Page, sync_playwright

from benchmarks.cases import Measure, together
from benchmarks.rows import OURS, Case, Effort, Reading, Topic
from tests import make
from tests.browser import chromium
from tests.browser.runs import RUN, bell
from torchglass.records.run import Frame, Reader
from torchglass.records.trace import Edge, Graph, Node, NodeId
from torchglass.store.readers import MemoryStore
from torchglass.views.web import saved_page
from torchglass.views.web.server import serve

_MOVES = 30
_SERIES = 20
_UPDATE_MS = 800
"""Longer than it takes until a page has heard of a step, asked for it and drawn it."""

Found = dict[str, list[float]]


class Tab:
    """A page, and what its main thread has done so far."""

    def __init__(self, page: Page, metrics: CDPSession) -> None:
        self.page = page
        self._metrics = metrics

    def busy_ms(self) -> float:
        """The CPU time of all tasks until now."""
        found = self._metrics.send("Performance.getMetrics")["metrics"]
        values = {each["name"]: float(each["value"]) for each in found}
        return 1e3 * values["TaskDuration"]

    def cost(self, action: Callable[[], object]) -> float:
        """What an action takes, what is drawn because of it included."""
        before = self.busy_ms()
        action()
        # Two frames: what an event changes is drawn in the next one.
        self.page.evaluate(
            "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )
        return self.busy_ms() - before


@contextlib.contextmanager
def _tab(reader: Reader, place: str = "", height: int = 1000) -> Iterator[Tab]:
    server = serve(reader, port=0)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium.find(), args=[*chromium.FLAGS]
        )
        page = browser.new_page(viewport={"width": 1600, "height": height})
        metrics = page.context.new_cdp_session(page)
        metrics.send("Performance.enable", {"timeDomain": "threadTicks"})
        page.goto(server.url + place)
        yield Tab(page, metrics)
        browser.close()
    server.close()


def nested(layers: int, blocks: int, ops: int, *, chained: bool = True) -> MemoryStore:
    """A model of layers of blocks of ops, each a chain; layers are one, too, if so wished."""
    block = {"class": "shop.Block"}
    layer = {"class": "shop.Layer", "children": {str(at): block for at in range(blocks)}}
    store = MemoryStore(RUN)
    store.put_model(make.model({"children": {f"l{at}": layer for at in range(layers)}}))
    nodes: list[Node] = []
    edges: list[Edge] = []

    def add(**fields: object) -> NodeId:
        nodes.append(Node(id=NodeId(len(nodes)), **fields))  # type: ignore[arg-type]
        return nodes[-1].id

    def chain(ids: list[NodeId]) -> None:
        edges.extend(
            Edge(source=one, target=other, spec=make.spec(2, 3))
            for one, other in itertools.pairwise(ids)
        )

    root = add(kind="call")
    outer = []
    for at in range(layers):
        outer.append(add(kind="call", parent=root, path=f"l{at}"))
        inner = []
        for one in range(blocks):
            inner.append(add(kind="call", parent=outer[-1], path=f"l{at}.{one}"))
            # Another op in each layer, so that layers are not alike and no two are folded.
            names = [f"op{(at + place) % 97}" for place in range(ops)]
            chain(
                [
                    add(kind="op", parent=inner[-1], path=f"l{at}.{one}", name=name, number=place)
                    for place, name in enumerate(names)
                ]
            )
        chain(inner)
    if chained:
        chain(outer)
    store.put_document(Graph(nodes=tuple(nodes), edges=tuple(edges)))
    store.close()
    return store


def measured(series: int, steps: int) -> MemoryStore:
    """A run with histograms of one module."""
    store = MemoryStore(RUN)
    store.put_model(make.model({"children": {"a": {"weight": (2, 3)}}}))
    ids = [store.series("a", f"input.{at}", "histogram") for at in range(series)]
    for step in range(steps):
        points = dict.fromkeys(ids, bell(step / 1000, exponent=-3))
        store.put_frame(Frame(step=step, time_ns=step, points=points))
    return store


def _open_all(page: Page, boxes: int) -> None:
    # Buttons by their attributes: looking for a role would itself keep the page busy.
    page.click("[title='Expand all']")
    page.wait_for_selector(f'[data-boxes="{boxes}"]')
    page.click("[aria-label='Zoom to fit']")


def time_many(layers: int, rounds: int) -> Found:
    """Opening every box of a graph so that all of it is in view, moving it, and zooming in."""
    boxes = layers + 3 * layers + 18 * layers
    found: Found = {"mount": [], "pan": [], "zoom": []}
    for _ in range(rounds):
        with _tab(nested(layers, 3, 6, chained=False), "#ops=1&fold=0") as tab:
            page = tab.page
            page.get_by_test_id("box").first.wait_for()
            found["mount"].append(tab.cost(partial(_open_all, page, boxes)))
            page.mouse.move(500, 500)
            page.mouse.down()
            found["pan"].append(tab.cost(partial(_move, page)) / _MOVES)
            page.mouse.up()
            found["zoom"].append(tab.cost(partial(page.click, "[aria-label='Zoom in']")))
    return found


def _move(page: Page) -> None:
    for at in range(_MOVES):
        page.mouse.move(500 + 4 * at, 500 + 3 * at)


def time_deep(layers: int, rounds: int) -> Found:
    """The first view of a graph of many ops, and opening one of its levels."""
    found: Found = {"first": [], "open": []}
    store = nested(layers, 10, 20)
    for _ in range(rounds):
        with _tab(store) as tab:
            tab.page.get_by_test_id("box").first.wait_for()
            found["first"].append(tab.busy_ms())
            found["open"].append(tab.cost(partial(_open_one, tab.page)))
    return found


def _open_one(page: Page) -> None:
    page.locator("[data-twist]").first.click()
    page.locator("[data-testid=box][aria-expanded=true]").first.wait_for()


def time_heat(steps: int, rounds: int) -> Found:
    """Drawing one heat map over many steps, reading its data included."""
    found: Found = {"heat": []}
    store = measured(1, steps)
    for _ in range(rounds):
        with _tab(store, "#view=graph") as tab:
            tab.page.get_by_test_id("box").first.click()
            found["heat"].append(tab.cost(partial(_pin, tab.page)))
    return found


def _pin(page: Page) -> None:
    page.get_by_role("button", name="Pin", exact=True).click()
    page.locator("[aria-label*='histograms over']").first.wait_for()


def time_live(rounds: int) -> Found:
    """One new step of a training of which many series are in view."""
    store = measured(_SERIES, 200)
    found: Found = {"live": []}
    with _tab(store, "#view=graph", height=2200) as tab:
        page = tab.page
        page.get_by_test_id("box").first.click()
        page.get_by_role("button", name="Pin", exact=True).click()
        page.locator("[aria-label*='to 199']").nth(_SERIES - 1).wait_for()
        ids = [series.id for series in store.series()]
        for step in range(200, 200 + max(3, rounds)):

            def live(step: int = step) -> None:
                points = dict.fromkeys(ids, bell(step / 1000, exponent=-3))
                store.put_frame(Frame(step=step, time_ns=step, points=points))
                # Looking for what changed would itself keep the page busy.
                page.wait_for_timeout(_UPDATE_MS)

            found["live"].append(tab.cost(live))
            page.locator(f"[aria-label*='to {step}']").nth(_SERIES - 1).wait_for()
    return found


def script_sizes(rounds: int) -> Found:
    """The scripts of the page as they are sent, in KB: with a run, and those loaded on demand."""
    names = [name for name in saved_page.MEDIA_TYPES if name.endswith(".js")]
    sizes = {name: len(gzip.compress(saved_page.read(name))) / 1024 for name in names}
    first = sizes.pop("page.js") + sizes.pop("layout.js")
    return {"first": [first] * min(rounds, 1), "later": [sum(sizes.values())] * min(rounds, 1)}


def _case(
    name: str, unit: str, function: Measure, part: str, goal: float, **sizes: tuple[int, int]
) -> Case:
    def measure(effort: Effort) -> dict[str, Reading]:
        chosen = {name: size[effort.quick] for name, size in sizes.items()}
        rounds = min(effort.rounds, 5)
        found = together((part,), unit, function, rounds=rounds, **chosen)
        return {OURS: found[part]}

    return Case(name, measure, goal)


TOPIC = Topic(
    name="page",
    title="Page",
    about=(
        "CPU time of the main thread of a headless Chromium without a GPU. In a study before "
        "this page was written, 2,000 boxes took xyflow 1456 ms to mount and 85 ms per move, "
        "and Cytoscape 2547 ms and 538 ms; a heat map of 10,000 × 32 took ECharts 2008 ms."
    ),
    cases=[
        _case("2,000 ops in view, mount", "ms", time_many, "mount", 200, layers=(111, 6)),
        _case("2,000 ops in view, one move", "ms", time_many, "pan", 8, layers=(111, 6)),
        _case("2,000 ops, zooming in to names", "ms", time_many, "zoom", 300, layers=(111, 6)),
        _case("10,000 ops, first view", "ms", time_deep, "first", 1000, layers=(50, 4)),
        _case("10,000 ops, opening a level", "ms", time_deep, "open", 100, layers=(50, 4)),
        _case("heat map, 10,000 steps × 32", "ms", time_heat, "heat", 150, steps=(10_000, 50)),
        _case("one live step, 20 series in view", "ms", time_live, "live", 16),
        _case("scripts, compressed", "KB", script_sizes, "first", 100),
        _case(
            "scripts of the tables of runs and reports, on demand",
            "KB",
            script_sizes,
            "later",
            50,
        ),
    ],
)
