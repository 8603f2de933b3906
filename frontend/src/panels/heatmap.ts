/** A heat map as an image: one vertical slice per step; empty bins are transparent. */

import { type Column, fromLog, type Heat, intoRows, type Range, rangeOfHeat, toLog } from "../data/histograms";

export interface Axis extends Range {
  /** Set for a logarithmic axis: below this value it is linear. */
  readonly unit: number | undefined;
}

const ROWS = 48;

/** One axis for heat maps side by side. */
export function axisFor(heats: readonly Heat[], rejected: number, logarithmic: boolean): Axis | undefined {
  const ranges = heats.flatMap((heat) => rangeOfHeat(heat, rejected) ?? []);
  if (!ranges.length) return undefined;
  const { low, high } = snapped({
    low: Math.min(...ranges.map((range) => range.low)),
    high: Math.max(...ranges.map((range) => range.high)),
  });
  const unit = Math.max(Math.abs(low), Math.abs(high)) / 1000;
  return { low, high, unit: logarithmic ? unit : undefined };
}

/**
 * A range that ends at edges of bins, or a little beyond: so the axis of a live run does not change for many
 * steps, and earlier steps are not redrawn.
 */
function snapped({ low, high }: Range): Range {
  const grid = 2 ** Math.floor(Math.log2((high - low) / 32));
  return { low: Math.floor(low / grid) * grid, high: Math.ceil(high / grid) * grid };
}

/** From 0 at the low end to 1 at the high end. */
export function shareOf({ low, high, unit }: Axis, value: number): number {
  if (unit === undefined) return (value - low) / (high - low);
  const [from, to] = [toLog(low, unit), toLog(high, unit)];
  return (toLog(value, unit) - from) / (to - from);
}

export function valueAt({ low, high, unit }: Axis, share: number): number {
  if (unit === undefined) return low + share * (high - low);
  const [from, to] = [toLog(low, unit), toLog(high, unit)];
  return fromLog(from + share * (to - from), unit);
}

/**
 * The image of some steps, from the first to the last, `width` pixels wide. Its rows run from high values to low
 * ones. The full color is that of the most that fell into one bin, whose root is `atLeast` or more.
 */
export function imageOf(
  heat: Heat,
  axis: Axis,
  width: number,
  [from, to]: readonly [number, number],
  ink: readonly [number, number, number],
  atLeast: number,
): { image: ImageData; most: number } {
  const slices = slicesOf(heat.columns, axis, width, from, to);
  const image = new ImageData(width, ROWS);
  const pixels = new Uint32Array(image.data.buffer);
  const most = slices.reduce((most, slice) => Math.max(most, slice?.most ?? 0), atLeast);
  const inks = inksOf(ink);
  const scale = (inks.length - 1) / most;
  for (let x = 0; x < width; x++) {
    const slice = slices[x];
    if (!slice) continue;
    const { roots, to } = slice;
    for (let row = slice.from; row < to; row++) {
      const root = roots[row]!;
      if (root) pixels[(ROWS - 1 - row) * width + x] = inks[(scale * root) | 0]!;
    }
  }
  return { image, most };
}

const SHADES = 224;
const GRAY = 120;
/** The opacity of a bin with a single value, of 255: light but visible. */
const FAINTEST = 255 - SHADES + 1;

const knownInks = new Map<string, Uint32Array>();

/** From light gray for a single value to the full color for the largest count. */
function inksOf(ink: readonly [number, number, number]): Uint32Array {
  const key = ink.join();
  let inks = knownInks.get(key);
  if (!inks) {
    inks = Uint32Array.from({ length: SHADES }, (_, shade) => {
      const colorful = Math.min(1, (3 * shade) / SHADES);
      const [red, green, blue] = ink.map((part) => Math.round(GRAY + colorful * (part - GRAY)));
      return ((FAINTEST + shade) << 24) | (blue! << 16) | (green! << 8) | red!;
    });
    knownInks.set(key, inks);
  }
  return inks;
}

interface Slice {
  readonly column: Column;
  /** The square roots of all counts, so that rare values are visible. */
  readonly roots: Float32Array;
  /** The first and the last row with values. */
  readonly from: number;
  readonly to: number;
  readonly most: number;
}

/** The columns of a heat map on an axis; a live run only appends to them. */
interface Strip {
  readonly axis: Axis;
  readonly edges: Float64Array;
  readonly slices: Slice[];
}

/** By the first column, which a growing heat map keeps. */
const strips = new WeakMap<Column, Strip>();

function stripOf(first: Column, axis: Axis): Strip {
  const known = strips.get(first);
  if (known && known.axis.low === axis.low && known.axis.high === axis.high && known.axis.unit === axis.unit)
    return known;
  const edges = Float64Array.from({ length: ROWS + 1 }, (_, row) => valueAt(axis, row / ROWS));
  const strip = { axis, edges, slices: [] };
  strips.set(first, strip);
  return strip;
}

function sliceOf({ slices, edges }: Strip, column: Column, at: number): Slice {
  const known = slices[at];
  if (known?.column === column) return known;
  const roots = intoRows(column, edges).map(Math.sqrt);
  const most = roots.reduce((most, root) => Math.max(most, root), 0);
  const from = Math.max(
    0,
    roots.findIndex((root) => root > 0),
  );
  return (slices[at] = { column, roots, most, from, to: roots.findLastIndex((root) => root > 0) + 1 });
}

/** The column of each pixel: the last one that starts before it; none after the end. */
function slicesOf(
  columns: readonly Column[],
  axis: Axis,
  width: number,
  from: number,
  to: number,
): (Slice | undefined)[] {
  const shown = new Array<Slice | undefined>(width);
  const strip = stripOf(columns[0]!, axis);
  const end = columns.at(-1)!.lastStep + 1;
  let [at, slice] = [-1, undefined as Slice | undefined];
  for (let x = 0; x < width; x++) {
    const step = from + ((x + 0.5) / width) * (to - from);
    if (step >= end) break;
    const before = at;
    while (at + 1 < columns.length && columns[at + 1]!.firstStep <= step) at++;
    if (at !== before) slice = sliceOf(strip, columns[at]!, at);
    shown[x] = slice;
  }
  return shown;
}
