import assert from "node:assert/strict";
import test from "node:test";
import { extend, readPoints } from "../src/data/points";

test("words stand for the numbers that JSON does not have", () => {
  const points = readPoints({ series: 0, steps: [0, 1, 2], columns: { value: [1.5, "NaN", "-Infinity"] } });

  assert.deepEqual(points.columns["value"], [1.5, NaN, -Infinity]);
});

test("new points follow the known ones", () => {
  const known = { steps: [0, 1], columns: { value: [5, 6] } };

  const more = extend(known, { steps: [2], columns: { value: [7] } });

  assert.deepEqual(more, { steps: [0, 1, 2], columns: { value: [5, 6, 7] } });
});

test("a step that was sent twice is kept once", () => {
  const known = { steps: [0, 1], columns: { value: [5, 6] } };

  const more = extend(known, { steps: [1, 2], columns: { value: [6, 7] } });

  assert.deepEqual(more.steps, [0, 1, 2]);
  assert.equal(extend(known, { steps: [1], columns: { value: [6] } }), known);
});
