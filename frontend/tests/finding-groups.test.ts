import assert from "node:assert/strict";
import test from "node:test";
import { rankOfScalar, titleOfRun } from "../src/data/names";
import type { Finding } from "../src/data/records";
import { readGraph } from "../src/graph/calls";
import { beginnings, leadOf, problemsByPath, stepsOf, together } from "../src/training/finding-groups";

const graph = readGraph({
  passes: 1,
  specs: [],
  edges: [],
  nodes: [
    { kind: "call", path: "" },
    { kind: "call", path: "a", parent: 0 },
    { kind: "call", path: "a", parent: 0, number: 2 },
    { kind: "op", path: "a", parent: 2, name: "sqrt" },
  ],
});
const series = ["output", "2:output"].map((name, id) => ({ id, path: "a", name, kind: "histogram" as const }));
const make = (fields: Partial<Finding>): Finding => ({ severity: "error", kind: "nan", message: "", ...fields });

test("a finding leads to the call that its series is of", () => {
  const lead = leadOf(make({ path: "a", facts: { series: "a.2:output" } }), series, graph);

  assert.equal(lead.series, series[1]);
  assert.equal(lead.call!.key, "a:2");
});

test("a finding leads to its op", () => {
  const lead = leadOf(make({ path: "a", call: 2, op: "sqrt" }), series, graph);

  assert.equal(lead.op!.name, "sqrt");
  assert.equal(leadOf(make({ path: "a", call: 1, op: "sqrt" }), series, graph).op, undefined);
});

test("a finding of all ranks finds its module by the series", () => {
  assert.equal(leadOf(make({ facts: { series: "a.output" } }), series, graph).path, "a");
});

test("a finding of a module that never ran leads to no call", () => {
  const { path, call } = leadOf(make({ path: "b" }), series, graph);

  assert.deepEqual([path, call], ["b", undefined]);
});

test("what was found at one step stands together, the worst first", () => {
  const found = [
    make({ severity: "warning", kind: "dead", step: 3 }),
    make({ path: "a", step: 4 }),
    make({ path: "b", step: 4 }),
    make({ path: "c", step: 5 }),
    make({ path: "d" }),
    make({ path: "e" }),
  ];

  const groups = together(found).map((group) => group.map(({ path, kind }) => path ?? kind));

  assert.deepEqual(groups, [["a", "b"], ["c"], ["d"], ["e"], ["dead"]]);
});

test("numbers of a run are named in words, and what a person logged comes first", () => {
  assert.equal(titleOfRun("lr"), "learning rate");
  assert.equal(titleOfRun("lr.2"), "learning rate, group 2");
  assert.equal(titleOfRun("position.update"), "position (update / weight)");
  assert.equal(titleOfRun("val/acc"), "val/acc");
  assert.deepEqual(
    [rankOfScalar("", "loss"), rankOfScalar("", "lr"), rankOfScalar("", "position.update"), rankOfScalar("a", "loss")],
    [0, 1, 2, 2],
  );
});

test("a problem is seen from its first step to its last one", () => {
  assert.deepEqual(stepsOf([make({ step: 5 })]), [5, 5]);
  assert.deepEqual(stepsOf([make({ step: 5, first_step: 2, last_step: 9 }), make({ step: 1 })]), [1, 9]);
  assert.equal(stepsOf([make({})]), undefined);
});

test("a problem counts once at each module around it, and what is for information does not", () => {
  const found = problemsByPath([
    make({ path: "a.b", step: 4 }),
    make({ path: "a.c", step: 4 }),
    make({ path: "a.d", step: 9, severity: "info" }),
  ]);
  const counts = (path: string) => [found.get(path)!.here, found.get(path)!.total];

  assert.deepEqual(counts(""), [0, 1]);
  assert.deepEqual(counts("a"), [0, 1]);
  assert.deepEqual(counts("a.c"), [1, 1]);
  assert.deepEqual(counts("a.d"), [0, 0]);
  assert.equal(found.get("e"), undefined);
});

test("one tick stands at each step at which a problem begins, the worst one", () => {
  const found = [
    make({ severity: "warning", kind: "dead", step: 3 }),
    make({ step: 3 }),
    make({ step: 8, first_step: 1 }),
    make({ severity: "info", step: 5 }),
  ];

  assert.deepEqual(
    beginnings(found).map(([step, { severity }]) => [step, severity]),
    [
      [1, "error"],
      [3, "error"],
    ],
  );
});
