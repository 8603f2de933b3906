import assert from "node:assert/strict";
import test from "node:test";
import { readGraph } from "../src/graph/calls";
import { type Boxes, place } from "../src/graph/layout";
import { Levels } from "../src/graph/levels";
import { boxesOf, drawScene, pathOf } from "../src/graph/scene";
import { nearest } from "../src/graph/arrow-keys";
import { makeGraph } from "./make";

const box = { w: 100, h: 40 };

test("what flows goes down", () => {
  const placed = place({
    boxes: [box, box, box],
    links: [
      [0, 1],
      [1, 2],
    ],
  });

  const tops = placed.boxes.map(({ y }) => y);
  assert.deepEqual(
    tops,
    [...tops].sort((a, b) => a - b),
  );
  assert.ok(tops[1]! > 40 && tops[2]! > tops[1]! + 40);
});

test("no two boxes lie over each other", () => {
  const links: [number, number][] = [
    [0, 1],
    [0, 2],
    [0, 3],
    [1, 4],
    [2, 4],
    [3, 4],
    [0, 4],
  ];
  const { boxes } = place({ boxes: Array(5).fill(box), links });

  for (const one of boxes) {
    for (const other of boxes) {
      const apart =
        one.x + one.w <= other.x ||
        other.x + other.w <= one.x ||
        one.y + one.h <= other.y ||
        other.y + other.h <= one.y;
      assert.ok(one === other || apart);
    }
  }
});

test("an open box is as large as what is inside, and all begins at zero", () => {
  const inside: Boxes = { boxes: [box, box], links: [[0, 1]] };

  const placed = place({ boxes: [{ ...box, inside }, box], links: [[0, 1]] });

  assert.ok(placed.boxes[0]!.h > placed.inside[0]!.h && placed.boxes[0]!.w > placed.inside[0]!.w);
  assert.equal(Math.min(...placed.boxes.map(({ x }) => x)), 0);
});

test("where nothing is known to flow boxes stand in lines", () => {
  const { boxes, w, h } = place({ boxes: Array(9).fill(box), links: [] });

  assert.ok(new Set(boxes.map(({ y }) => y)).size > 1);
  assert.ok(w < 9 * 100 && h < 9 * 40);
});

function sceneOf(open: string[]) {
  const sent = makeGraph(
    [
      ["call", ""],
      ["call", "a", 0],
      ["call", "b", 0],
      ["call", "b.c", 2],
      ["call", "b.d", 2],
    ],
    [
      [1, 2],
      [3, 4],
    ],
  );
  const levels = new Levels(readGraph(sent), { ops: false, fold: true }, () => "");
  const level = levels.ofCall(0);
  const boxes = boxesOf(level, levels, new Set(open), () => box);
  return drawScene(level, place(boxes), levels);
}

test("what is inside of an open box lies within it", () => {
  const { boxes, links } = sceneOf(["b:1"]);

  assert.deepEqual(
    boxes.map(({ item, open }) => [item.key, open]),
    [
      ["a:1", undefined],
      ["b:1", true],
      ["b.c:1", undefined],
      ["b.d:1", undefined],
    ],
  );
  const [, outer, inner] = boxes;
  assert.equal(inner!.parent, 1);
  assert.ok(inner!.x >= outer!.x && inner!.y > outer!.y && inner!.y + inner!.h <= outer!.y + outer!.h);
  assert.equal(links.length, 2);
});

test("arrow keys lead to the next box, and into an open one", () => {
  const scene = sceneOf(["b:1"]);
  const [a, b, c] = scene.boxes;

  assert.equal(nearest(scene, undefined, 0, 1), a);
  assert.equal(nearest(scene, a, 0, 1), b);
  assert.equal(nearest(scene, b, 0, 1), c);
  assert.equal(nearest(scene, a, 0, -1), undefined);
});

test("a route of two corners is a straight line", () => {
  assert.equal(pathOf([0, 0, 5, 9]), "M0,0L5,9");
  assert.equal(pathOf([]), "");
});

test("a long chain is wrapped into columns that no box leaves", () => {
  for (const count of [40, 200]) {
    const links: [number, number][] = Array.from({ length: count - 1 }, (_, at) => [at, at + 1]);
    const residuals: [number, number][] = Array.from({ length: count / 4 - 1 }, (_, at) => [4 * at, 4 * at + 4]);
    const { boxes, routes, w, h } = place({ boxes: Array(count).fill(box), links: [...links, ...residuals] });

    assert.ok(h < 3 * w && w < 4 * h, `${w} × ${h}`);
    const overlaps = boxes.filter((one, at) =>
      boxes.some(
        (other, place) =>
          place < at && one.x < other.x + other.w && other.x < one.x + one.w && one.y < other.y + other.h && other.y < one.y + one.h,
      ),
    );
    assert.deepEqual(overlaps, []);
    for (const route of routes) {
      route.forEach((value, at) => assert.ok(value >= 0 && value <= (at % 2 ? h : w)));
    }
    [...links, ...residuals].forEach(([from, to], at) => {
      const [x, y] = [routes[at]!.at(-2)!, routes[at]!.at(-1)!];
      const target = boxes[to]!;
      assert.ok(Math.abs(y - target.y) < 2 && x >= target.x - 1 && x <= target.x + target.w + 1, `${from} to ${to}`);
    });
  }
});
