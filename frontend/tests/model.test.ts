import assert from "node:assert/strict";
import test from "node:test";
import { makeModel, makeSlot } from "./make";

test("a tied tensor names its other places", () => {
  const weight = makeSlot("weight", 5);
  const model = makeModel(["", "embed", "head"], { embed: { slots: [weight] }, head: { slots: [weight] } });

  assert.deepEqual(model.tied(2, weight), [{ module: 1, slot: "weight" }]);
});

test("a module knows where else it stands", () => {
  const model = makeModel(["", "a", "b"], { b: { alias_of: 1 } });

  assert.deepEqual(model.alsoAt(1), [2]);
});

test("of two modules with one path the first is found", () => {
  const model = makeModel(["", "a", "a"]);

  assert.equal(model.find("a"), 1);
});

test("the line leads from the root to the module", () => {
  const model = makeModel(["", "a", "a.b"]);

  assert.deepEqual(
    model.line(2).map((module) => module.path),
    ["", "a", "a.b"],
  );
});
