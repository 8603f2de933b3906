/** The series of a pinned node, in display order. */

import { callName, isFlow, readName, type SeriesName } from "../data/names";
import type { Series } from "../data/records";
import { type CallGraph, push } from "../graph/calls";
import { comparedRuns } from "../state/state";

/** A plot is created again for another series or another comparison. */
export function keyOf({ id }: Series): string {
  return [id, ...comparedRuns.value].join(" ");
}

/** A quantity, and its gradient beside it. */
export interface Pair {
  readonly value: Series | undefined;
  readonly gradient: Series | undefined;
}

export interface Section {
  readonly title: string;
  readonly pairs: readonly Pair[];
}

/** The series of a node: all of a call, or one of an input, output or attached tensor. */
export function seriesOf(graph: CallGraph, id: number, all: readonly Series[]): readonly Series[] {
  const node = graph.node(id);
  const call = callName(graph.callAround(id).number);
  const here = all.filter((one) => one.path === node.path).map((one) => ({ one, name: readName(one.name) }));
  const numbered = new Set(here.filter(({ name }) => name.call === call).map(({ name }) => name.what));
  const belongs = (name: SeriesName) => name.call === call || (isHeld(name) && !numbered.has(name.what));
  const root = { input: "input", output: "output", attached: "", op: "", call: "" }[node.kind];
  const place = [root, node.name].filter(Boolean).join(".");
  return here
    .filter(({ name }) => belongs(name) && (node.kind === "call" || [place, root].includes(name.what)))
    .map(({ one }) => one);
}

/** Parameters are the same in all calls of a module, and have no number. */
function isHeld(name: SeriesName): boolean {
  return name.call === 1 && !isFlow(name, "input") && !isFlow(name, "output");
}

/** The series of a node in sections: inputs and outputs, then parameters. */
export function sectionsOf(series: readonly Series[], isParameter: (name: string) => boolean): readonly Section[] {
  const titled: [string, (name: SeriesName) => boolean][] = [
    ["In eval mode", (name) => name.isEvaluation],
    ["Inputs", (name) => isFlow(name, "input")],
    ["Outputs", (name) => isFlow(name, "output")],
    ["Parameters", ({ what }) => isParameter(what)],
    ["Other", () => true],
  ];
  const sections = new Map(ORDER.map((title) => [title, [] as Pair[]]));
  for (const group of byQuantity(series)) {
    const name = readName(group[0]!.name);
    const title = titled.find(([, belongs]) => belongs(name))![0];
    sections.get(title)!.push(...pairsOf(group));
  }
  return [...sections].map(([title, pairs]) => ({ title, pairs })).filter(({ pairs }) => pairs.length);
}

const ORDER = ["Inputs", "Outputs", "Parameters", "In eval mode", "Other"];

/** Series of the same quantity are grouped. */
function byQuantity(series: readonly Series[]): Iterable<Series[]> {
  const groups = new Map<string, Series[]>();
  for (const one of series) {
    const { isEvaluation, call, what } = readName(one.name);
    push(groups, JSON.stringify([isEvaluation, call, what]), one);
  }
  return groups.values();
}

/** A value with its gradient, then its other series. */
function pairsOf(group: readonly Series[]): Pair[] {
  const aspect = (one: Series) => readName(one.name).aspect;
  const value = group.find((one) => !aspect(one));
  const gradient = group.find((one) => ["grad", "grad_norm"].includes(aspect(one)));
  const more = group.filter((one) => one !== value && one !== gradient);
  const first = value || gradient ? [{ value, gradient }] : [];
  return [...first, ...more.map((one) => ({ value: one, gradient: undefined }))];
}
