import assert from "node:assert/strict";
import test from "node:test";
import { readLists, readPlace, writeLists, writePlace } from "../src/state/address";
import { formatBytes, formatCount, formatMoment, formatNumber, formatShape, formatShare, formatShort } from "../src/data/formats";

test("numbers are written as the other views write them", () => {
  assert.equal(formatCount(999), "999");
  assert.equal(formatCount(9_408), "9.4K");
  assert.equal(formatCount(25_557_032), "25.6M");
  assert.equal(formatBytes(512), "512 B");
  assert.equal(formatBytes(259_584), "253.5 KB");
  assert.equal(formatShape([3, 224, 224]), "3×224×224");
  assert.equal(formatShape([]), "scalar");
  assert.equal(formatShare(1, 1000), "<1%");
});

test("measured numbers keep four digits", () => {
  assert.equal(formatNumber(0.0123456), "0.01235");
  assert.equal(formatNumber(1.234e-7), "1.23e-7");
  assert.equal(formatNumber(0), "0");
  assert.equal(formatNumber(NaN), "NaN");
});

test("an address is read back as it was written, whatever a module is called", () => {
  const place = { module: 'a.<b onclick="x">&=#%.é💥', search: "1 + 1" };

  assert.deepEqual(readPlace(writePlace(place)), place);
});

test("lists are read back as they were written, whatever stands in them", () => {
  const lists = [["a,b", "c;d\\"], ["é💥"]];

  assert.deepEqual(readLists(writeLists(lists)), lists);
});

test("small numbers on an axis are short", () => {
  assert.equal(formatShort(-0.00381), "-3.8e-3");
  assert.equal(formatShort(0.0564), "0.0564");
});

test("the day of a moment is told where it is another one", () => {
  const [then, later] = [new Date(2024, 4, 17, 9, 5), new Date(2024, 4, 18)].map(Number) as [number, number];

  assert.equal(formatMoment(then, then), "09:05");
  assert.equal(formatMoment(then, later), "May 17 09:05");
});
