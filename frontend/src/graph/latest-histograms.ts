/** The small histograms in the boxes: the distribution of each output at the shown step. */

import { computed, effect, signal } from "@preact/signals";
import { type Column, intoRows, type Range, readColumn } from "../data/histograms";
import { callName, readName, type SeriesName } from "../data/names";
import { source } from "../state/live";
import { oneAtATime } from "../state/one-at-a-time";
import { series, shown } from "../state/state";
import { referenceStep, step } from "../state/time";
import { camera, isIn } from "./camera";
import type { Item } from "./levels";
import { scene } from "./state";

export const glances = signal<ReadonlyMap<number, Column>>(new Map());
/** The same at the compared step, if there is one. */
export const references = signal<ReadonlyMap<number, Column>>(new Map());

/** The main series of each call: its output, else its weight. */
const telling = computed(() => {
  const best = new Map<string, { id: number; rank: number }>();
  for (const { id, path, name, kind } of series.value) {
    const read = readName(name);
    const rank = kind === "histogram" ? rankOf(read) : 0;
    const key = `${path}:${read.call}`;
    if (rank > (best.get(key)?.rank ?? 0)) best.set(key, { id, rank });
  }
  return best;
});

function rankOf({ isEvaluation, what, aspect }: SeriesName): number {
  const rank = ["weight", "output.0", "output"].indexOf(what) + 1;
  return aspect || !rank ? 0 : rank + (isEvaluation ? 0 : 0.5);
}

export function glanceSeries({ kind, node }: Item): number | undefined {
  if (kind !== "call") return undefined;
  const own = telling.value.get(`${node.path}:${callName(node.number)}`);
  const first = telling.value.get(`${node.path}:1`);
  // Of the series of the first call, only the weight belongs to all calls.
  return (own ?? (first && first.rank < 2 ? first : undefined))?.id;
}

const visible = computed<readonly number[]>(() => {
  const region = camera.region.value;
  if (region.detail !== "near") return [];
  const ids = scene.value.boxes.filter((box) => !box.open && isIn(region, box)).map((box) => glanceSeries(box.item));
  return [...new Set(ids.filter((id) => id !== undefined))];
});

const read = oneAtATime(async () => {
  const [ids, at, marked] = [visible.peek(), step.peek(), referenceStep.peek()];
  if (!ids.length || at < 0) return;
  glances.value = await columnsAt(ids, at);
  references.value = marked === null ? new Map() : await columnsAt(ids, marked);
});

/** The histograms of some series of the shown run at a step. */
export async function columnsAt(ids: readonly number[], at: number): Promise<ReadonlyMap<number, Column>> {
  const [from, store] = [source.peek(), shown.peek()];
  if (!from || !store) return new Map();
  // A failed read is repeated at the next step; the page shows the error elsewhere.
  const sent = await from.glance(store.number, ids, at).catch(() => null);
  const seen = sent?.glances.filter((one) => one.column !== null) ?? [];
  return new Map(seen.map((one) => [one.series, readColumn(one.column!)]));
}

effect(() => {
  void [visible.value, step.value, referenceStep.value, source.value];
  void read();
});

const BARS = 23;

/** The outline of a small histogram, with values from left to right. */
export function outline(column: Column, { low, high }: Range, w: number, h: number): string {
  const edges = Float64Array.from({ length: BARS + 1 }, (_, at) => low + (at / BARS) * (high - low));
  const heights = intoRows(column, edges);
  const most = Math.max(...heights) || 1;
  const wide = w / BARS;
  const steps = [...heights].map((height, at) => {
    const y = (h * (1 - height / most)).toFixed(1);
    return `L${(at * wide).toFixed(1)},${y}L${((at + 1) * wide).toFixed(1)},${y}`;
  });
  return `M0,${h}${steps.join("")}L${w},${h}Z`;
}
