import assert from "node:assert/strict";
import test from "node:test";
import { readGraph } from "../src/graph/calls";
import { type Choice, Levels } from "../src/graph/levels";
import { chain, makeGraph } from "./make";

const PLAIN: Choice = { ops: false, fold: true };
const levelsOf = (sent: Parameters<typeof readGraph>[0], choice = PLAIN) =>
  new Levels(readGraph(sent), choice, () => "Block");

test("calls that follow each other and are alike become one stack", () => {
  const levels = levelsOf(
    makeGraph([["call", ""], ...Array.from({ length: 5 }, (_, at) => ["call", `b${at}`, 0] as const)], chain(1, 5)),
  );

  const level = levels.ofCall(0);

  assert.deepEqual(
    level.items.map((item) => [item.kind, item.members.length]),
    [["stack", 5]],
  );
  assert.equal(levels.inside(level.items[0]!).links.length, 4);
});

test("a pattern that is repeated becomes one stack, and what does not belong to it stays outside", () => {
  const classes = ["Conv", "Norm", "ReLU", "Conv", "Norm", "ReLU", "Conv", "Norm", "ReLU", "Conv", "Linear"];
  const sent = makeGraph(
    [["call", ""], ...classes.map((_, at) => ["call", String(at), 0] as const)],
    chain(1, classes.length),
  );
  const levels = new Levels(readGraph(sent), PLAIN, (path) => classes[Number(path)] ?? "");

  const { items } = levels.ofCall(0);

  assert.deepEqual(
    items.map((item) => [item.kind, item.members.length, item.period]),
    [
      ["stack", 9, 3],
      ["call", 0, undefined],
      ["call", 0, undefined],
    ],
  );
});

test("two alike are no stack", () => {
  const levels = levelsOf(
    makeGraph(
      [
        ["call", ""],
        ["call", "a", 0],
        ["call", "b", 0],
      ],
      chain(1, 2),
    ),
  );

  assert.equal(levels.ofCall(0).items.length, 2);
});

test("calls of other shapes are not folded together", () => {
  const sent = makeGraph(
    [
      ["call", ""],
      ["call", "a", 0],
      ["call", "b", 0],
      ["call", "c", 0],
    ],
    chain(1, 3),
  );
  const shaped = {
    ...sent,
    specs: [{ shape: [1], dtype: "float32" }],
    nodes: sent.nodes.map((node, id) => (id === 2 ? { ...node, outputs: [0] } : node)),
  };

  assert.equal(levelsOf(shaped).ofCall(0).items.length, 3);
});

test("links lead past ops that are not shown", () => {
  const nodes = [
    ["call", ""],
    ["call", "a", 0],
    ["op", "", 0, "add"],
    ["op", "", 0, "relu"],
    ["call", "b", 0],
  ] as const;
  const sent = makeGraph(nodes, chain(1, 4));

  assert.deepEqual(
    levelsOf(sent)
      .ofCall(0)
      .links.map(({ from, to }) => [from, to]),
    [[0, 1]],
  );
  assert.equal(levelsOf(sent, { ops: true, fold: true }).ofCall(0).items.length, 4);
});

test("a call that holds only ops opens into them", () => {
  const levels = levelsOf(
    makeGraph(
      [
        ["call", ""],
        ["call", "a", 0],
        ["op", "a", 1, "linear"],
        ["call", "b", 0],
      ],
      [],
    ),
  );
  const [first, second] = levels.ofCall(0).items;

  assert.equal(levels.canOpen(first!), true);
  assert.equal(levels.canOpen(second!), false);
  assert.deepEqual(
    levels.inside(first!).items.map((item) => item.node.name),
    ["linear"],
  );
});

test("ten thousand ops in one call are groups that none is too large to lay out", () => {
  const nodes = [
    ["call", ""] as const,
    ...Array.from({ length: 10_000 }, (_, at) => ["op", "", 0, `op${at % 7}`] as const),
  ];
  const levels = levelsOf(makeGraph(nodes, chain(1, 10_000)));

  const level = levels.ofCall(0);

  assert.equal(level.items.length, 100);
  assert.equal(level.links.length, 99);
  assert.equal(levels.inside(level.items[7]!).items.length, 100);
});
