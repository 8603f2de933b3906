/** A statistic of layers × steps from the server, which grows while a training runs. */

import type { LayerHeatPayload, Sent } from "./records";

export interface LayerHeat {
  readonly title: string;
  readonly isLogarithmic: boolean;
  /** The modules in execution order. */
  readonly paths: readonly string[];
  /** First and last step of each column. */
  readonly starts: readonly number[];
  readonly ends: readonly number[];
  /** A value per path: infinite for NaN or Inf, NaN if nothing was recorded. */
  readonly columns: readonly (readonly number[])[];
}

/** `known` with new data; undefined if columns were merged or rows added: then everything must be requested. */
export function extendLayers(known: LayerHeat | undefined, sent: LayerHeatPayload): LayerHeat | undefined {
  const { title, starts, ends } = sent;
  const paths = sent.paths ?? known?.paths ?? [];
  const kept = starts.length - sent.columns.length;
  if (paths.length !== sent.rows || kept > (known?.columns.length ?? 0)) return undefined;
  for (let at = 0; at < kept; at++) {
    if (known!.starts[at] !== starts[at] || known!.ends[at] !== ends[at]) return undefined;
  }
  const columns = [...(known?.columns.slice(0, kept) ?? []), ...sent.columns.map((column) => column.map(readCell))];
  return { title, isLogarithmic: sent.logarithmic, paths, starts, ends, columns };
}

function readCell(sent: Sent | null): number {
  return sent === null ? NaN : typeof sent === "number" ? sent : Infinity;
}

/** The column of a step, or the last one before it. */
export function columnOfStep({ starts }: LayerHeat, step: number): number {
  return Math.max(
    0,
    starts.findLastIndex((start) => start <= step),
  );
}

export interface HeatScale {
  readonly low: number;
  readonly high: number;
  readonly isLogarithmic: boolean;
  readonly hasZero: boolean;
  readonly hasNonfinite: boolean;
}

/** The color scale starts at this share of the largest value: one underflow must not flatten all others. */
const WIDEST = 1e-12;

/** The color scale: its ends are rounded, so that it does not change at every step of a running training. */
export function scaleOf({ columns, isLogarithmic }: LayerHeat): HeatScale {
  let [low, high, hasZero, hasNonfinite] = [Infinity, 0, false, false];
  for (const column of columns) {
    for (const value of column) {
      if (value === Infinity) hasNonfinite = true;
      else if (value === 0) hasZero = true;
      else if (value > 0) {
        if (value < low) low = value;
        if (value > high) high = value;
      }
    }
  }
  if (!isLogarithmic) return { low: 0, high: high > 1 ? high : 1, isLogarithmic, hasZero: false, hasNonfinite };
  if (low > high) [low, high] = [1e-3, 1];
  low = rounded(Math.max(low, high * WIDEST), Math.floor);
  high = rounded(high, Math.ceil);
  return { low, high: high > low ? high : 10 * low, isLogarithmic, hasZero, hasNonfinite };
}

/** The next 1, 2 or 5 times a power of ten. */
function rounded(value: number, to: typeof Math.floor): number {
  const power = 10 ** Math.floor(Math.log10(value));
  const steps = [1, 2, 5, 10];
  // A value within rounding error is already round.
  const isAt = (one: number) => Math.abs(value / power - one) < 1e-9;
  const exact = steps.find(isAt);
  if (exact) return tidy(exact * power);
  const found = to === Math.floor ? steps.findLast((one) => one * power < value) : steps.find((one) => one * power > value);
  return tidy((found ?? 1) * power);
}

function tidy(value: number): number {
  return Number(value.toPrecision(3));
}

/** From 0 at the low end to 1 at the high end. */
export function shareOn({ low, high, isLogarithmic }: HeatScale, value: number): number {
  const share = isLogarithmic ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low);
  return Math.min(1, Math.max(0, share));
}
