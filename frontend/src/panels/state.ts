/** Which nodes are pinned into which column, and how their series are drawn. */

import { computed, signal } from "@preact/signals";
import { run } from "../state/state";

/** Each column is a list of node keys. */
export const columns = signal<readonly (readonly string[])[]>([]);

export const MODES = ["heat", "percentiles", "lines"] as const;
export type Mode = (typeof MODES)[number];
export const mode = signal<Mode>("heat");
export const logarithmic = signal(false);
/** The smoothing of scalars. */
export const smoothing = signal(0);
/** The share of outliers that the axis hides, if the user set it. */
export const chosenRejection = signal<number | null>(null);
const USUAL_REJECTION = 0.1;
export const rejected = computed(
  () => chosenRejection.value ?? run.value?.reject_outlier_proportion ?? USUAL_REJECTION,
);

/** The series to scroll to; a new object each time, so that the same one can be requested again. */
export const sought = signal<{ readonly series: number } | null>(null);

/** The colors of pins: distinguishable for color-blind readers, and none like the error color. */
const COLORS = ["#00798c", "#edae49", "#5f4bb6", "#2e933c", "#d17a22", "#3f8efc", "#a44a8f"];

/** A node keeps its color for as long as it is pinned. */
const given = new Map<string, number>();

export const pins = computed<ReadonlyMap<string, string>>(() => {
  const keys = [...new Set(columns.value.flat())];
  for (const key of given.keys()) if (!keys.includes(key)) given.delete(key);
  for (const key of keys) {
    if (given.has(key)) continue;
    const taken = new Set([...given.values()]);
    const free = COLORS.findIndex((_, at) => !taken.has(at));
    given.set(key, free < 0 ? given.size % COLORS.length : free);
  }
  return new Map(keys.map((key) => [key, COLORS[given.get(key)!]!]));
});

/** Adds a node to the end of a column; an index after the last column creates one. */
export function pin(key: string, column = Math.max(0, columns.value.length - 1)): void {
  const next = columns.value.map((keys) => keys.filter((one) => one !== key));
  if (column >= next.length) next.push([key]);
  else next[column] = [...next[column]!, key];
  columns.value = next.filter((keys) => keys.length);
}

export function unpin(key: string): void {
  columns.value = columns.value.map((keys) => keys.filter((one) => one !== key)).filter((keys) => keys.length);
}

export function togglePin(key: string): void {
  if (pins.value.has(key)) unpin(key);
  else pin(key);
}

export function removeColumn(column: number): void {
  columns.value = columns.value.filter((_, at) => at !== column);
}

/** Moves a column one place; nothing happens at the ends. */
export function moveColumn(column: number, by: -1 | 1): void {
  const to = column + by;
  if (to < 0 || to >= columns.value.length) return;
  const next = [...columns.value];
  [next[column], next[to]] = [next[to]!, next[column]!];
  columns.value = next;
}
