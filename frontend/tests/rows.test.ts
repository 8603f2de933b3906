import assert from "node:assert/strict";
import test from "node:test";
import { browse, browseFound, nameSpan, search } from "../src/tree/rows";
import { makeModel } from "./make";

const PATHS = ["", "stem", "layer", "layer.0", "layer.0.conv", "layer.1", "layer.1.conv", "head"];

test("a closed module hides what is below it", () => {
  const rows = browse(makeModel(PATHS), new Set([0]));

  assert.deepEqual(
    rows.map((row) => row.id),
    [0, 1, 2, 7],
  );
  assert.deepEqual(
    rows.map((row) => row.open),
    [true, undefined, false, undefined],
  );
});

test("open modules show their children in order, one level deeper", () => {
  const rows = browse(makeModel(PATHS), new Set([0, 2, 5]));

  assert.deepEqual(
    rows.map((row) => row.id),
    [0, 1, 2, 3, 5, 6, 7],
  );
  assert.deepEqual(
    rows.map((row) => row.level),
    [1, 2, 2, 3, 3, 4, 2],
  );
  assert.deepEqual([rows[4]!.position, rows[4]!.siblings], [2, 2]);
});

test("a model a thousand levels deep is walked", () => {
  const paths = Array.from({ length: 1000 }, (_, depth) => Array(depth).fill("a").join("."));

  const rows = browse(makeModel(paths), new Set(paths.keys()));

  assert.equal(rows.length, 1000);
  assert.equal(rows.at(-1)!.level, 1000);
});

test("a search keeps the modules above what it found, and nothing else", () => {
  const model = makeModel(PATHS);

  const found = search(model, "CONV");

  assert.deepEqual([...found.matches], [4, 6]);
  assert.deepEqual(
    browseFound(model, found, new Set()).map((row) => row.id),
    [0, 2, 3, 4, 5, 6],
  );
});

test("a search finds classes", () => {
  const model = makeModel(PATHS, { head: { class_name: "torch.nn.Embedding" } });

  assert.deepEqual([...search(model, "embed").matches], [7]);
});

test("a dotted search finds that module and not all below it", () => {
  const found = search(makeModel(PATHS), "layer.0");

  assert.deepEqual([...found.matches], [3]);
});

test("what was found can be opened to see what is inside", () => {
  const model = makeModel(PATHS);
  const found = search(model, "layer.0");

  const rows = browseFound(model, found, new Set([3]));

  assert.deepEqual(
    rows.map((row) => row.id),
    [0, 2, 3, 4],
  );
});

test("a match that begins in the path is marked where it reaches into the name", () => {
  const model = makeModel(["", "encoder", "encoder.weight"]);

  assert.deepEqual(nameSpan(model.module(2), "coder.wei"), { start: 0, end: 3 });
});
