import assert from "node:assert/strict";
import test from "node:test";
import type { NodeKind } from "../src/data/records";
import { readGraph } from "../src/graph/calls";
import { type Choice, type Level, Levels } from "../src/graph/levels";
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
  const levels = levelsOf(makeGraph(nodes, chain(1, 10_000)), { ops: false, fold: false });

  const level = levels.ofCall(0);

  assert.equal(level.items.length, 100);
  assert.equal(level.links.length, 99);
  assert.equal(levels.inside(level.items[7]!).items.length, 100);
});

test("however often a pattern is repeated, what is inside the stack can be laid out", () => {
  const nodes = [["call", ""] as const, ...Array.from({ length: 10_000 }, (_, at) => ["op", "", 0, `op${at % 7}`] as const)];
  const levels = levelsOf(makeGraph(nodes, chain(1, 10_000)));
  const sizes = (level: Level): number[] => [
    level.items.length,
    ...level.items.filter((item) => item.members.length).flatMap((item) => sizes(levels.inside(item))),
  ];

  assert.equal(levels.ofCall(0).items[0]!.members.length, 9996);
  assert.ok(Math.max(...sizes(levels.ofCall(0))) <= 250);
});

/** Blocks whose results are added to what they were given, outside of them, after an input and before an output. */
function residuals(blocks: number, between: readonly string[] = []) {
  const nodes: (readonly [NodeKind, string, number?, string?])[] = [
    ["call", ""],
    ["input", "", 0, "0"],
    ["output", "", 0],
  ];
  const edges: [number, number][] = [];
  let last = 1;
  for (let at = 0; at < blocks; at++) {
    edges.push([last, nodes.length]);
    nodes.push(["call", `blocks.${at}`, 0]);
    for (const op of between) {
      edges.push([nodes.length - 1, nodes.length]);
      nodes.push(["op", "", 0, op]);
    }
    edges.push([last, nodes.length], [nodes.length - 1, nodes.length]);
    last = nodes.length;
    nodes.push(["op", "", 0, "__add__"]);
  }
  edges.push([last, 2]);
  return makeGraph(nodes, edges);
}

for (const blocks of [4, 12, 48]) {
  for (const ops of [false, true]) {
    test(`${blocks} residual connections take O(n) lines, with operations ${ops ? "shown" : "hidden"}`, () => {
      const level = levelsOf(residuals(blocks, ["relu"]), { ops, fold: false }).ofCall(0);

      assert.equal(level.links.length, blocks * (ops ? 4 : 3) + 1);
      assert.equal(level.items.filter((item) => item.node.name === "__add__").length, blocks);
      assert.equal(level.items.filter((item) => item.node.name === "relu").length, ops ? blocks : 0);
    });
  }
}

test("a stack holds the operations between its calls, so that no line leads back", () => {
  for (const ops of [false, true]) {
    const level = levelsOf(residuals(12, ["relu", "dropout"]), { ops, fold: true }).ofCall(0);

    assert.deepEqual(
      level.items.map(({ kind, members }) => [kind, members.length]),
      [
        ["input", 0],
        ["stack", ops ? 48 : 24],
        ["output", 0],
      ],
    );
    assert.deepEqual(
      level.links.map(({ from, to }) => [from, to]),
      [
        [0, 1],
        [1, 2],
      ],
    );
  }
});

test("an operation whose result nothing uses is not drawn where data meets", () => {
  const sent = makeGraph(
    [
      ["call", ""],
      ["call", "a", 0],
      ["call", "b", 0],
      ["op", "", 0, "add"],
    ],
    [
      [1, 2],
      [1, 3],
      [2, 3],
    ],
  );

  assert.equal(levelsOf(sent).ofCall(0).items.length, 2);
});

test("input and output stay out of the groups of a long loop", () => {
  const nodes = [
    ["call", ""] as const,
    ["input", "", 0, "0"] as const,
    ["output", "", 0] as const,
    ...Array.from({ length: 2400 }, (_, at) => ["op", "", 0, `op${at}`] as const),
  ];
  const level = levelsOf(makeGraph(nodes, [[1, 3], ...chain(3, 2402), [2402, 2]])).ofCall(0);

  assert.deepEqual([level.items[0]!.kind, level.items.at(-1)!.kind], ["input", "output"]);
  assert.ok(level.items.slice(1, -1).every((item) => item.kind === "group"));
  assert.ok(level.links.every(({ from, to }) => from < to));
});
