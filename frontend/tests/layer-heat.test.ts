import assert from "node:assert/strict";
import test from "node:test";
import { columnOfStep, extendLayers, scaleOf, shareOn } from "../src/data/layer-heat";
import type { LayerHeatPayload } from "../src/data/records";

const sent = (fields: Partial<LayerHeatPayload>): LayerHeatPayload => ({
  title: "gradient norm",
  logarithmic: true,
  rows: 2,
  paths: ["a", "b"],
  starts: [],
  ends: [],
  columns: [],
  ...fields,
});
const first = sent({ starts: [0, 1], ends: [0, 1], columns: [[1, "NaN"], [null, 0.5]] });

test("a cell with NaN or Inf is infinite, and one without a value is NaN", () => {
  assert.deepEqual(extendLayers(undefined, first)!.columns, [[1, Infinity], [NaN, 0.5]]);
});

test("new columns are put behind those that are known", () => {
  const news = sent({ starts: [0, 1, 2], ends: [0, 1, 2], columns: [[3, 4]] });
  const { paths, ...withoutPaths } = news;

  const grown = extendLayers(extendLayers(undefined, first), withoutPaths)!;

  assert.deepEqual(grown.columns.at(-1), [3, 4]);
  assert.deepEqual(grown.paths, paths);
  assert.equal(columnOfStep(grown, 99), 2);
});

test("a last column that took more steps replaces the one that is known", () => {
  const news = sent({ starts: [0, 1], ends: [0, 2], columns: [[7, 7]] });

  assert.deepEqual(extendLayers(extendLayers(undefined, first), news)!.columns[1], [7, 7]);
});

test("columns that were joined, or rows that were added, must be asked for again", () => {
  const known = extendLayers(undefined, first);

  assert.equal(extendLayers(known, sent({ starts: [0, 2], ends: [1, 2], columns: [[3, 4]] })), undefined);
  assert.equal(extendLayers(known, sent({ rows: 3, paths: ["a", "b"], starts: [0, 1], ends: [0, 1] })), undefined);
});

test("the colors run over round numbers, and zero and NaN are not on the scale", () => {
  const heat = extendLayers(undefined, sent({ starts: [0], ends: [0], columns: [[0.0031, 47]] }))!;
  const scale = scaleOf(heat);

  assert.deepEqual([scale.low, scale.high, scale.hasZero, scale.hasNonfinite], [0.002, 50, false, false]);
  assert.equal(shareOn(scale, 0.002), 0);
  assert.equal(shareOn(scale, 1e9), 1);
  const odd = scaleOf(extendLayers(undefined, sent({ starts: [0], ends: [0], columns: [[0, "NaN"]] }))!);
  assert.deepEqual([odd.hasZero, odd.hasNonfinite], [true, true]);
});

test("a share runs from 0 to 1 evenly", () => {
  const heat = extendLayers(undefined, sent({ logarithmic: false, starts: [0], ends: [0], columns: [[0, 0.25]] }))!;

  assert.equal(shareOn(scaleOf(heat), 0.25), 0.25);
});
