import assert from "node:assert/strict";
import test from "node:test";
import { mergeGraphs } from "../src/compare/merge";
import { titleOf } from "../src/data/names";
import { toCsv } from "../src/export/table";
import { readGraph } from "../src/graph/calls";
import { factsOf, rowsFor } from "../src/graph/words";
import { sectionsOf, seriesOf } from "../src/panels/series";
import { ridge, thinned } from "../src/training/ridge";
import { makeGraph, makeModel } from "./make";

test("what a module says of itself becomes rows, split at commas outside of brackets", () => {
  assert.deepEqual(factsOf("3, 64, kernel_size=(7, 7), bias=False"), [
    ["–", "3"],
    ["–", "64"],
    ["kernel_size", "(7, 7)"],
    ["bias", "False"],
  ]);
  assert.deepEqual(factsOf(""), []);
});

const series = ["output", "output.grad", "weight", "weight.grad", "weight.update", "input.0", "eval:output"].map(
  (name, id) => ({
    id,
    path: "a",
    name,
    kind: "histogram" as const,
  }),
);

test("series stand in sections, each quantity beside its gradient", () => {
  const sections = sectionsOf(series, (name) => name === "weight");

  assert.deepEqual(
    sections.map(({ title }) => title),
    ["Inputs", "Outputs", "Parameters", "In eval mode"],
  );
  const [weight, update] = sections[2]!.pairs;
  assert.deepEqual(
    [weight!.value!.name, weight!.gradient!.name, update!.value!.name],
    ["weight", "weight.grad", "weight.update"],
  );
});

test("an input has only its own series", () => {
  const graph = readGraph(
    makeGraph(
      [
        ["call", "a"],
        ["input", "a", 0, "0"],
      ],
      [],
    ),
  );

  assert.deepEqual(
    seriesOf(graph, 1, series).map(({ name }) => name),
    ["input.0"],
  );
  assert.equal(seriesOf(graph, 0, series).length, series.length);
});

test("each call has its own series, and all of them the parameters", () => {
  const names = ["output", "2:output", "eval:2:output.grad", "more:output", "mid", "2:mid", "weight", "weight.update"];
  const recorded = names.map((name, id) => ({ id, path: "a", name, kind: "histogram" as const }));
  const calls = [1, 2, 17].map((number) => ({ kind: "call" as const, path: "a", number }));
  const graph = readGraph({ passes: 1, specs: [], nodes: calls, edges: [] });

  const [first, second, later] = [0, 1, 2].map((id) => seriesOf(graph, id, recorded).map(({ name }) => name));

  assert.deepEqual(first, ["output", "mid", "weight", "weight.update"]);
  assert.deepEqual(second, ["2:output", "eval:2:output.grad", "2:mid", "weight", "weight.update"]);
  assert.deepEqual(later, ["more:output", "mid", "weight", "weight.update"]);
});

test("a series is titled as people say it", () => {
  assert.deepEqual(["output.0.grad", "output.grad_norm.zeros", "eval:2:input.mask", "more:output", "weight.update", "lr"].map((name) => titleOf(name)), [
    "output 0 (gradient)",
    "output (gradient norm, share of zeros)",
    "input mask · call 2 · evaluation",
    "output · later calls",
    "weight (update / weight)",
    "lr",
  ]);
});

test("a fact without a name has a dash for one", () => {
  const graph = readGraph({
    passes: 1,
    specs: [],
    nodes: [{ kind: "call", path: "", facts: { "0": "3", kernel: "7" } }],
    edges: [],
  });
  const node = graph.node(0);

  assert.deepEqual(rowsFor(makeModel([""]), { key: "", kind: "call", node, members: [] }, 1), [
    ["–", "3"],
    ["kernel", "7"],
  ]);
});

test("two graphs become one, and each node knows whose it is", () => {
  const one = readGraph(
    makeGraph(
      [
        ["call", ""],
        ["call", "a", 0],
        ["call", "b", 0],
      ],
      [[1, 2]],
    ),
  );
  const other = readGraph(
    makeGraph(
      [
        ["call", ""],
        ["call", "a", 0],
        ["call", "c", 0],
      ],
      [[1, 2]],
    ),
  );

  const { graph, sides } = mergeGraphs(one, other, (path) => path !== "a");

  assert.deepEqual(
    [...sides],
    [
      [":1", "both"],
      ["a:1", "changed"],
      ["b:1", "first"],
      ["c:1", "second"],
    ],
  );
  assert.deepEqual(graph.node(0).children, [1, 2, 3]);
  assert.deepEqual(
    graph.edges(0).map(({ source, target }) => [source, target]),
    [
      [1, 2],
      [1, 3],
    ],
  );
});

test("a table has a line for each point, and no cell that a spreadsheet would run", () => {
  const csv = toCsv([
    { series: { id: 0, path: "=cmd", name: 'a"b' }, points: { steps: [3], columns: { value: [0.5] } } },
  ]);

  assert.equal(csv, 'path,name,step,value\r\n\'=cmd,"a""b",3,0.5\r\n');
});

test("a ridge has few lines, and that of the shown step among them", () => {
  const starts = Array.from({ length: 500 }, (_, at) => at);
  const columns = starts.map((at) => [at === 7 ? Infinity : at + 1]);
  const heat = { title: "", isLogarithmic: true, paths: ["a"], starts, ends: starts, columns };

  const { lines, current, low, high } = ridge(heat, 123, 20);

  assert.ok(lines.length <= 21);
  assert.equal(lines[current]!.first, 123);
  assert.deepEqual([low, high], [1, 500]);
  assert.deepEqual(thinned(3, 20, 1), [0, 1, 2]);
});
