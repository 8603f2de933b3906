/** Gradient norms as a ridge plot: few enough lines to distinguish, including the shown step. */

import type { LayerHeat } from "../data/layer-heat";

export interface Ridge {
  /** From the earliest to the latest step. */
  readonly lines: readonly { readonly first: number; readonly norms: LayerHeat["columns"][number] }[];
  readonly layers: number;
  /** The smallest and largest finite, non-zero norm. */
  readonly low: number;
  readonly high: number;
  /** The line of the step that is shown. */
  readonly current: number;
}

export function ridge(heat: LayerHeat, step: number, most: number): Ridge {
  const shown = heat.starts.findLastIndex((first) => first <= step);
  const columns = thinned(heat.starts.length, most, shown);
  const lines = columns.map((column) => ({ first: heat.starts[column]!, norms: heat.columns[column]! }));
  let [low, high] = [Infinity, -Infinity];
  for (const { norms } of lines) {
    for (const norm of norms) {
      if (!(norm > 0) || !Number.isFinite(norm)) continue;
      low = Math.min(low, norm);
      high = Math.max(high, norm);
    }
  }
  return { lines, layers: heat.paths.length, low, high, current: columns.indexOf(shown) };
}

/** This many indices, evenly spread, always including a given one. */
export function thinned(count: number, most: number, kept: number): number[] {
  const all = Array.from({ length: count }, (_, at) => at);
  if (count <= most) return all;
  const each = (count - 1) / (most - 1);
  const chosen = new Set(Array.from({ length: most }, (_, at) => Math.round(at * each)));
  if (kept >= 0) chosen.add(kept);
  return all.filter((at) => chosen.has(at));
}
