/** Histograms over steps from the server, and values derived from them. */

import type { HistogramsPayload, SentColumn } from "./records";

export interface Column {
  readonly firstStep: number;
  readonly lastStep: number;
  /** Bin i reaches from (first + i) · width to the next edge. */
  readonly width: number;
  readonly first: number;
  readonly counts: readonly number[];
  /** Number of NaN and Inf values. */
  readonly broken: number;
}

export interface Heat {
  /** Steps per column. */
  readonly stepsEach: number;
  readonly columns: readonly Column[];
  /** The steps of columns with NaN or Inf. */
  readonly brokenSteps: readonly number[];
}

export function readColumn([firstStep, lastStep, exponent, first, counts, broken]: SentColumn): Column {
  return { firstStep, lastStep, width: 2 ** exponent, first, counts, broken };
}

/**
 * `known` with new columns. The last known column may have grown and is sent again. Undefined if the
 * server now puts more steps into each column: then everything must be read again.
 */
export function extendHeat(known: Heat | undefined, sent: HistogramsPayload["histograms"][number]): Heat | undefined {
  const columns = sent.columns.map(readColumn);
  const brokenSteps = columns.filter((column) => column.broken > 0).map((column) => column.firstStep);
  if (!known?.columns.length) return { stepsEach: sent.width, columns, brokenSteps };
  if (known.stepsEach !== sent.width) return undefined;
  const from = columns[0]?.firstStep ?? Infinity;
  return {
    stepsEach: sent.width,
    columns: [...known.columns.filter((column) => column.firstStep < from), ...columns],
    brokenSteps: [...known.brokenSteps.filter((step) => step < from), ...brokenSteps],
  };
}

export function columnOf(heat: Heat, step: number): Column | undefined {
  return heat.columns.findLast((column) => column.firstStep <= step);
}

export interface Range {
  readonly low: number;
  readonly high: number;
}

/** The range of the values, without a share of outliers on each side. */
export function rangeOf(columns: readonly Column[], rejected: number): Range | undefined {
  return widened(columns.reduce((range: Range | undefined, column) => joined(range, column, rejected), undefined));
}

/** The range of a heat map up to one of its columns: a live run adds a column at each step. */
const ranges = new WeakMap<Column, { readonly rejected: number; readonly range: Range | undefined }>();

/** The value of a column if all its values are equal: it has one narrow bin. */
export function constantOf({ counts, first, width, broken }: Column): string {
  if (broken || counts.filter((count) => count > 0).length !== 1) return "";
  if (!first && width < 1e-8) return "all 0";
  return `all ≈${Number(((first + 0.5) * width).toPrecision(2))}`;
}

/** The same for a whole heat map. */
export function rangeOfHeat({ columns }: Heat, rejected: number): Range | undefined {
  const known = columns.findLastIndex((column) => ranges.get(column)?.rejected === rejected);
  let range = known < 0 ? undefined : ranges.get(columns[known]!)!.range;
  for (let at = known + 1; at < columns.length; at++) {
    range = joined(range, columns[at]!, rejected);
    ranges.set(columns[at]!, { rejected, range });
  }
  return widened(range);
}

function joined(range: Range | undefined, column: Column, rejected: number): Range | undefined {
  const bulk = rejected > 0 ? quantiles(column, [rejected / 2, 1 - rejected / 2]) : ends(column);
  if (!bulk) return range;
  const [low, high] = bulk as [number, number];
  return range ? { low: Math.min(range.low, low), high: Math.max(range.high, high) } : { low, high };
}

/** An axis needs a length even if all values are equal. */
function widened(range: Range | undefined): Range | undefined {
  if (!range || range.low < range.high) return range;
  const spare = Math.abs(range.low) / 2 || 1;
  return { low: range.low - spare, high: range.high + spare };
}

function ends({ counts, first, width }: Column): number[] | undefined {
  const from = counts.findIndex((count) => count > 0);
  if (from < 0) return undefined;
  const to = counts.findLastIndex((count) => count > 0);
  return [(first + from) * width, (first + to + 1) * width];
}

/** The quantiles of a column, assuming uniform values within a bin. */
export function quantiles(column: Column, shares: readonly number[]): number[] | undefined {
  const total = column.counts.reduce((sum, count) => sum + count, 0);
  if (!total) return undefined;
  let [bin, below] = [0, 0];
  return shares.map((share) => {
    const wanted = share * total;
    while (bin < column.counts.length - 1 && below + column.counts[bin]! < wanted) below += column.counts[bin++]!;
    const inside = column.counts[bin] ? (wanted - below) / column.counts[bin]! : 0;
    return (column.first + bin + Math.min(1, Math.max(0, inside))) * column.width;
  });
}

/** The bin of a value: its edges and its count. */
export function binAt(column: Column, value: number): { low: number; high: number; count: number } {
  const at = Math.floor(value / column.width);
  return { low: at * column.width, high: (at + 1) * column.width, count: column.counts[at - column.first] ?? 0 };
}

/** The counts of a column between ascending edges; a bin that spans several rows is divided. */
export function intoRows(column: Column, edges: Float64Array): Float32Array {
  const rows = new Float32Array(edges.length - 1);
  let row = 0;
  column.counts.forEach((count, at) => {
    if (!count) return;
    const low = (column.first + at) * column.width;
    const high = low + column.width;
    while (row < rows.length - 1 && edges[row + 1]! <= low) row++;
    for (let one = row; one < rows.length && edges[one]! < high; one++) {
      const shared = Math.min(high, edges[one + 1]!) - Math.max(low, edges[one]!);
      if (shared > 0) rows[one]! += (count * shared) / column.width;
    }
  });
  return rows;
}

/** Linear near zero, logarithmic away from it: shows small and large values of both signs. */
export function toLog(value: number, unit: number): number {
  return Math.sign(value) * Math.log1p(Math.abs(value) / unit);
}

export function fromLog(value: number, unit: number): number {
  return Math.sign(value) * Math.expm1(Math.abs(value)) * unit;
}
