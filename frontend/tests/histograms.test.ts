import assert from "node:assert/strict";
import test from "node:test";
import { constantOf,
  binAt,
  type Column,
  columnOf,
  extendHeat,
  fromLog,
  intoRows,
  quantiles,
  rangeOf,
  rangeOfHeat,
  readColumn,
  toLog,
} from "../src/data/histograms";
import type { SentColumn } from "../src/data/records";

const sent = (first: number, last = first): SentColumn => [first, last, -1, -2, [1, 2, 3, 4], 0];
const column: Column = readColumn(sent(0));

test("a bin tells its edges and exactly how many fell into it", () => {
  assert.deepEqual(binAt(column, 0.1), { low: 0, high: 0.5, count: 3 });
  assert.deepEqual(binAt(column, -0.9), { low: -1, high: -0.5, count: 1 });
  assert.equal(binAt(column, 7).count, 0);
});

test("quantiles lie where the counts say", () => {
  assert.deepEqual(quantiles(column, [0, 0.3, 1]), [-1, 0, 1]);
  assert.equal(quantiles({ ...column, counts: [0, 0] }, [0.5]), undefined);
});

test("the range without outliers is narrower", () => {
  assert.deepEqual(rangeOf([column], 0), { low: -1, high: 1 });
  const bulk = rangeOf([column], 0.4)!;
  assert.ok(bulk.low > -1 && bulk.high < 1);
});

test("the range of a heat map grows with it", () => {
  const heat = extendHeat(undefined, { series: 0, width: 1, columns: [sent(0)] })!;
  assert.deepEqual(rangeOfHeat(heat, 0), { low: -1, high: 1 });

  const grown = extendHeat(heat, { series: 0, width: 1, columns: [[1, 1, 0, 0, [1, 0, 1], 0]] })!;

  assert.deepEqual(rangeOfHeat(grown, 0), { low: -1, high: 3 });
  assert.deepEqual(rangeOfHeat(grown, 0.4), rangeOf(grown.columns, 0.4));
});

test("a range of one value is widened", () => {
  const range = rangeOf([{ ...column, width: 0, counts: [5] }], 0)!;

  assert.ok(range.low < range.high);
});

test("counts are shared out among rows and none gets lost", () => {
  const rows = intoRows(column, Float64Array.from([-1, -0.25, 0.25, 1]));

  assert.deepEqual([...rows], [2, 2.5, 5.5]);
});

test("the column that grew replaces what was known of it", () => {
  const known = extendHeat(undefined, { series: 0, width: 2, columns: [sent(0, 1), sent(2)] })!;

  const heat = extendHeat(known, { series: 0, width: 2, columns: [sent(2, 3), sent(4)] })!;

  assert.deepEqual(
    heat.columns.map(({ firstStep, lastStep }) => [firstStep, lastStep]),
    [
      [0, 1],
      [2, 3],
      [4, 4],
    ],
  );
  assert.equal(columnOf(heat, 3)!.firstStep, 2);
});

test("columns that hold more steps than before are read anew", () => {
  const known = extendHeat(undefined, { series: 0, width: 1, columns: [sent(0)] });

  assert.equal(extendHeat(known, { series: 0, width: 2, columns: [sent(2, 3)] }), undefined);
});

test("the logarithmic scale keeps signs and is undone", () => {
  for (const value of [-5, -0.001, 0, 3e-4, 12]) assert.ok(Math.abs(fromLog(toLog(value, 0.01), 0.01) - value) < 1e-12);
});

test("a tensor that is one value is told as such, and no other is", () => {
  const column = { firstStep: 0, lastStep: 0, broken: 0 };

  assert.equal(constantOf({ ...column, width: 2 ** -30, first: 0, counts: [64] }), "all 0");
  assert.equal(constantOf({ ...column, width: 1 / 32, first: 32, counts: [64] }), "all ≈1");
  assert.equal(constantOf({ ...column, width: 0.5, first: 0, counts: [3, 4] }), "");
  assert.equal(constantOf({ ...column, width: 2 ** -30, first: 0, counts: [3], broken: 1 }), "");
  assert.equal(constantOf({ ...column, width: 1, first: 0, counts: [] }), "");
});
