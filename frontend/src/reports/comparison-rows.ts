/** The rows of two trees side by side: which are shown, which are changed, and how far apart they are. */

import { readNumber } from "../data/points";
import type { Sent } from "../data/records";

export interface SideModule {
  readonly path: string;
  readonly name: string;
  readonly class: string;
}

export interface BothHistograms {
  readonly before: readonly number[];
  readonly after: readonly number[];
  readonly low: number;
  readonly high: number;
}

export interface TensorChange {
  readonly name: string;
  /** Shape and dtype; undefined if only the other model has it. */
  readonly before?: string;
  readonly after?: string;
  readonly distance?: Sent;
  readonly cosine?: number;
  readonly largest?: number;
  /** How many values are NaN before and after, if any is. */
  readonly nan?: readonly [number, number];
  readonly rank?: number;
  readonly histograms?: BothHistograms;
}

export interface PairRow {
  readonly depth: number;
  readonly a?: SideModule;
  readonly b?: SideModule;
  readonly verdict?: "added" | "removed" | "changed";
  readonly words?: readonly string[];
  readonly distance?: Sent;
  readonly tensors?: readonly TensorChange[];
}

/** What a parent shows of the rows below it. */
export interface Below {
  readonly changed: number;
  /** The largest distance; -1 if no values changed. */
  readonly distance: number;
}

/** NaN is as far as it can be. */
export function distanceOf(row: PairRow | TensorChange): number {
  if (row.distance === undefined) return -1;
  const distance = readNumber(row.distance);
  return Number.isNaN(distance) ? Infinity : distance;
}

export function sumBelow(rows: readonly PairRow[], parents: readonly number[]): Below[] {
  const below = rows.map(() => ({ changed: 0, distance: -1 }));
  for (let at = rows.length - 1; at > 0; at--) {
    const parent = below[parents[at]!]!;
    const own = below[at]!;
    parent.changed += own.changed + (rows[at]!.verdict ? 1 : 0);
    parent.distance = Math.max(parent.distance, own.distance, distanceOf(rows[at]!));
  }
  return below;
}

/** The indices of the rows that are shown, in order. */
export function shownRows(
  rows: readonly PairRow[],
  parents: readonly number[],
  below: readonly Below[],
  closed: ReadonlySet<number>,
  isChangedOnly: boolean,
): number[] {
  const hidden = new Set<number>();
  const shown: number[] = [];
  rows.forEach((row, at) => {
    const parent = parents[at]!;
    if (parent >= 0 && (hidden.has(parent) || closed.has(parent))) hidden.add(at);
    else if (!isChangedOnly || row.verdict || below[at]!.changed) shown.push(at);
    else hidden.add(at);
  });
  return shown;
}

/** The changed row after or before one, around the end. */
export function changeFrom(changed: readonly number[], at: number, step: 1 | -1): number | undefined {
  if (step > 0) return changed.find((one) => one > at) ?? changed[0];
  return changed.findLast((one) => one < at) ?? changed.at(-1);
}

const FAINTEST = 0.16;
const SMALLEST = 1e-6;

/** How strong the color of a distance is, from 0 to 1, by its logarithm: a small change is seen, too. */
export function strength(distance: number): number {
  if (!(distance > 0)) return 0;
  const share = 1 - Math.log(Math.min(1, Math.max(SMALLEST, distance))) / Math.log(SMALLEST);
  return FAINTEST + (1 - FAINTEST) * share;
}
