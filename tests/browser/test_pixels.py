"""Heat maps pixel by pixel: what a histogram looks like."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.conftest import OpenPage, Serve
from tests.browser.runs import bell, histograms, put_histogram, run_of, transformer

CanvasOf = Callable[..., Locator]
Shade = tuple[int, int, int]
WHITE = (255, 255, 255)
ALARM = (176, 42, 27)

PIXELS = """canvas => {
  const area = canvas.parentElement.querySelector(".u-over").getBoundingClientRect();
  const around = canvas.getBoundingClientRect();
  const [left, top] = [area.left - around.left, area.top - around.top].map(Math.round);
  const [width, height] = [area.width, area.height].map(Math.round);
  const { data } = canvas.getContext("2d").getImageData(left, top, width, height);
  return Array.from({ length: height }, (_, row) =>
    Array.from({ length: width }, (_, column) => {
      const at = 4 * (row * width + column);
      return [...data.slice(at, at + 3)];
    }),
  );
}"""
"""The part of a canvas that the plot covers, its axes left out: rows of red, green and blue."""

WATCH_TEXT = """() => {
  const write = CanvasRenderingContext2D.prototype.fillText;
  globalThis.written = [];
  CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
    globalThis.written.push([text, x, y]);
    return write.apply(this, arguments);
  };
}"""


@pytest.fixture
def canvas_of(open_page: OpenPage, serving: Serve) -> CanvasOf:
    def open_(counts: tuple[int, ...], *, first: int = 0, nan: int = 0) -> Locator:
        return drawn(
            open_page(serving(histograms(counts, first, nan)).url + "#columns=embed:1&outliers=0")
        )

    return open_


def drawn(page: Page, last: int = 2) -> Locator:
    chart = page.get_by_test_id("chart")
    expect(chart.get_by_role("img").first).to_have_attribute(
        "aria-label", re.compile(f"steps 0 to {last}$")
    )
    # Two frames: what a new step brings is drawn after the label was written.
    page.evaluate(
        "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
    )
    return chart.locator("canvas")


def pixels(canvas: Locator) -> list[list[Shade]]:
    rows: list[list[list[int]]] = canvas.evaluate(PIXELS)
    return [[(red, green, blue) for red, green, blue in row] for row in rows]


def test_a_bin_is_white_without_values_light_gray_with_one_and_colored_with_many(
    canvas_of: CanvasOf,
) -> None:
    rows = pixels(canvas_of((1, 0, 900)))

    one, none, many = (rows[int(share * len(rows))][30] for share in (5 / 6, 1 / 2, 1 / 6))
    assert none == WHITE
    assert max(one) - min(one) < 10
    assert 200 < min(one) < 255
    assert max(many) - min(many) > 60


def test_colors_are_stronger_for_bins_with_more_values(canvas_of: CanvasOf) -> None:
    rows = pixels(canvas_of((4, 40, 400)))

    shades = [rows[int(share * len(rows))][30] for share in (5 / 6, 1 / 2, 1 / 6)]
    light = [sum(shade) for shade in shades]
    assert light == sorted(light, reverse=True)
    assert len(set(light)) == 3


def test_zero_is_marked_by_a_dashed_line(canvas_of: CanvasOf) -> None:
    rows = pixels(canvas_of((5, 0, 0, 0, 5), first=-2))

    # From -2 to 3, so that two fifths lie below zero, and nothing fell around it.
    empty = range(int(len(rows) * 0.3), int(len(rows) * 0.7))
    (line,) = (at for at in empty if any(pixel != WHITE for pixel in rows[at]))
    assert line == pytest.approx(0.6 * len(rows), abs=1)
    dashes = [len(list(run)) for _, run in itertools.groupby(rows[line], WHITE.__eq__)]
    assert len(dashes) > 10
    assert set(dashes[1:-1]) == {3, 4}


def test_no_zero_line_is_drawn_when_the_axis_excludes_zero(canvas_of: CanvasOf) -> None:
    rows = pixels(canvas_of((5, 0, 0, 0, 5), first=2))

    middle = rows[int(len(rows) * 0.3) : int(len(rows) * 0.7)]
    assert {pixel for row in middle for pixel in row} == {WHITE}


def test_a_step_with_nan_has_a_red_tick_below(canvas_of: CanvasOf) -> None:
    canvas = canvas_of((9, 0, 0, 0, 9), nan=3)

    rows = pixels(canvas)
    red = [at for at, (r, g, b) in enumerate(rows[-3]) if (r, g, b) == ALARM]
    assert red == pytest.approx([0, *(len(rows[0]) * at / 3 for at in (1, 1, 2, 2))], abs=2)
    expect(canvas.page.get_by_test_id("chart")).to_contain_text("3 NaN or Inf")


@pytest.mark.slow
def test_columns_added_live_match_a_full_redraw(open_page: OpenPage, serving: Serve) -> None:
    store = run_of(transformer(), ends=False)

    def put(step: int) -> None:
        put_histogram(store, step, bell(0.25 * (step % 3), exponent=-2))

    for step in range(60):
        put(step)
    address = serving(store).url + "#columns=embed:1&outliers=0"
    page = open_page(address)
    live = drawn(page, last=59)

    for step in range(60, 64):
        put(step)
        live = drawn(page, last=step)

    assert pixels(live) == pixels(drawn(open_page(address), last=63))


def test_the_axis_is_labeled_with_the_minimum_and_maximum(
    open_page: OpenPage, serving: Serve
) -> None:
    page = open_page(serving(histograms((5, 0, 0, 0, 5), -2)).url + "#columns=embed:1&outliers=0")
    page.add_init_script(f"({WATCH_TEXT})()")
    page.reload()
    canvas = drawn(page)
    height = canvas.bounding_box()["height"]  # type: ignore[index]

    page.wait_for_function("() => written.some(([text]) => text === '3')")
    places = {text: y for text, _, y in page.evaluate("written")}

    assert places["3"] < height / 6
    assert places["-2"] > height / 2
