/** Gradient norms as the lines of a ridge: few enough to be told apart, with the shown step among them. */

import { readNumber } from "../data/points";
import type { FlowPayload } from "../data/records";

export interface Ridge {
  /** From the earliest to the latest step. */
  readonly lines: readonly { readonly first: number; readonly norms: readonly number[] }[];
  readonly layers: number;
  /** The smallest and largest norm of all that are finite and not zero. */
  readonly low: number;
  readonly high: number;
  /** The line of the step that is shown. */
  readonly current: number;
}

/** The layers in the order in which they ran, as far as that is known. */
export function inOrder(flow: FlowPayload, placeOf: (path: string) => number | undefined): FlowPayload {
  const place = (path: string) => placeOf(path) ?? Infinity;
  return { ...flow, layers: flow.layers.toSorted((one, other) => place(one.path) - place(other.path) || 0) };
}

export function ridge(flow: FlowPayload, step: number, most: number): Ridge {
  const shown = flow.steps.findLastIndex(([first]) => first <= step);
  const columns = thinned(flow.steps.length, most, shown);
  const lines = columns.map((column) => ({
    first: flow.steps[column]![0],
    norms: flow.layers.map((layer) => readNumber(layer.norms[column] ?? NaN)),
  }));
  let [low, high] = [Infinity, -Infinity];
  for (const { norms } of lines) {
    for (const norm of norms) {
      if (!(norm > 0) || !Number.isFinite(norm)) continue;
      low = Math.min(low, norm);
      high = Math.max(high, norm);
    }
  }
  return { lines, layers: flow.layers.length, low, high, current: columns.indexOf(shown) };
}

/** So many places out of a number of them, evenly spread, and one of them for sure. */
export function thinned(count: number, most: number, kept: number): number[] {
  const all = Array.from({ length: count }, (_, at) => at);
  if (count <= most) return all;
  const each = (count - 1) / (most - 1);
  const chosen = new Set(Array.from({ length: most }, (_, at) => Math.round(at * each)));
  if (kept >= 0) chosen.add(kept);
  return all.filter((at) => chosen.has(at));
}
