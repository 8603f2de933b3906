import assert from "node:assert/strict";
import test from "node:test";
import { changeFrom, type PairRow, shownRows, strength, sumBelow } from "../src/reports/comparison-rows";
import { leavesFirst, openRows, parentsOf } from "../src/reports/report-rows";

const module = (path: string) => ({ path, name: path, class: "Linear" });
const both = (path: string) => ({ a: module(path), b: module(path) });
const rows: PairRow[] = [
  { depth: 0, ...both("") },
  { depth: 1, ...both("a") },
  { depth: 2, ...both("a.x"), verdict: "changed", distance: 0.25 },
  { depth: 2, ...both("a.y") },
  { depth: 1, a: module("b"), verdict: "removed" },
];
const parents = parentsOf(rows);
const below = sumBelow(rows, parents);

test("a parent knows how many rows below it changed, and how far", () => {
  assert.deepEqual(parents, [-1, 0, 1, 1, 0]);
  assert.deepEqual(below[0], { changed: 2, distance: 0.25 });
  assert.deepEqual(below[1], { changed: 1, distance: 0.25 });
});

test("changed only leaves out what is the same, closed parents what is below them", () => {
  assert.deepEqual(shownRows(rows, parents, below, new Set(), false), [0, 1, 2, 3, 4]);
  assert.deepEqual(shownRows(rows, parents, below, new Set(), true), [0, 1, 2, 4]);
  assert.deepEqual(shownRows(rows, parents, below, new Set([1]), true), [0, 1, 4]);
});

test("the next change goes around the end", () => {
  assert.equal(changeFrom([2, 4], 0, 1), 2);
  assert.equal(changeFrom([2, 4], 4, 1), 2);
  assert.equal(changeFrom([2, 4], 2, -1), 4);
  assert.equal(changeFrom([], 2, 1), undefined);
});

test("no change is without a color, and none is stronger than a distance of 1", () => {
  assert.equal(strength(0), 0);
  assert.equal(strength(-1), 0);
  assert.ok(strength(1e-12) > 0.1);
  assert.ok(strength(1e-3) > strength(1e-5));
  assert.equal(strength(1), 1);
  assert.equal(strength(Infinity), 1);
});

test("modules are shown as a tree, or without their parents by value", () => {
  const tree = ["", "a", "a.x", "a.y", "b"].map((path) => ({ path, name: path, class: "", depth: path ? path.split(".").length : 0 }));
  const values: Record<string, number> = { "a.x": 1, b: 3 };
  assert.deepEqual(openRows(parentsOf(tree), new Set([1])), [0, 1, 4]);
  assert.deepEqual(leavesFirst(tree, (path) => values[path] ?? -Infinity), [4, 2]);
});
