/** A heat map as an image: one vertical slice a step, nothing where nothing fell. */

import { type Column, fromLog, type Heat, intoRows, type Range, rangeOf, toLog } from "../data/histograms";

export interface Axis extends Range {
  /** Set for a logarithmic axis: below it, it is even. */
  readonly unit: number | undefined;
}

const ROWS = 48;

export function axisFor(heat: Heat, rejected: number, logarithmic: boolean): Axis | undefined {
  const range = rangeOf(heat.columns, rejected);
  if (!range) return undefined;
  const unit = Math.max(Math.abs(range.low), Math.abs(range.high)) / 1000;
  return { ...range, unit: logarithmic ? unit : undefined };
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

/** The image of the steps [from, to], `width` pixels wide. Its rows run from high values to low ones. */
export function imageOf(
  heat: Heat,
  axis: Axis,
  width: number,
  from: number,
  to: number,
  ink: readonly [number, number, number],
): ImageData {
  const image = new ImageData(Math.max(1, width), ROWS);
  const pixels = new Uint32Array(image.data.buffer);
  const slices = slicesOf(heat.columns, width, from, to).map((column) => column && sliceOf(column, axis));
  const most = slices.reduce((most, slice) => Math.max(most, slice?.most ?? 0), 0);
  const inks = inksOf(ink);
  const scale = (inks.length - 1) / most;
  for (let x = 0; x < slices.length; x++) {
    const slice = slices[x];
    if (!slice) continue;
    for (let row = slice.from; row < slice.to; row++) {
      const root = slice.roots[row]!;
      if (root) pixels[(ROWS - 1 - row) * image.width + x] = inks[(scale * root) | 0]!;
    }
  }
  return image;
}

const SHADES = 224;
const GRAY = 120;
/** How opaque a bin with a single value is, of 255: light, and yet to be seen. */
const FAINTEST = 255 - SHADES + 1;

const knownInks = new Map<string, Uint32Array>();

/** From the light gray of a single value to the full colour of the most that fell into one bin. */
function inksOf(ink: readonly [number, number, number]): Uint32Array {
  const key = ink.join();
  let inks = knownInks.get(key);
  if (!inks) {
    inks = Uint32Array.from({ length: SHADES }, (_, shade) => {
      const colourful = Math.min(1, (3 * shade) / SHADES);
      const [red, green, blue] = ink.map((part) => Math.round(GRAY + colourful * (part - GRAY)));
      return ((FAINTEST + shade) << 24) | (blue! << 16) | (green! << 8) | red!;
    });
    knownInks.set(key, inks);
  }
  return inks;
}

interface Slice {
  readonly axis: Axis;
  /** The roots of the counts of all rows, which show what is rare, too. */
  readonly roots: Float32Array;
  /** Between which rows anything fell. */
  readonly from: number;
  readonly to: number;
  readonly most: number;
}

/** What was worked out for a column the last time: a live run draws all of them again at each step. */
const known = new WeakMap<Column, Slice>();

function sliceOf(column: Column, axis: Axis): Slice {
  const last = known.get(column);
  if (last && last.axis.low === axis.low && last.axis.high === axis.high && last.axis.unit === axis.unit) return last;
  const roots = intoRows(column, edgesOf(axis)).map(Math.sqrt);
  const most = roots.reduce((most, root) => Math.max(most, root), 0);
  const from = Math.max(
    0,
    roots.findIndex((root) => root > 0),
  );
  const slice = { axis, roots, most, from, to: roots.findLastIndex((root) => root > 0) + 1 };
  known.set(column, slice);
  return slice;
}

const edges = new WeakMap<Axis, Float64Array>();

function edgesOf(axis: Axis): Float64Array {
  const found = edges.get(axis) ?? Float64Array.from({ length: ROWS + 1 }, (_, row) => valueAt(axis, row / ROWS));
  edges.set(axis, found);
  return found;
}

/** The column that each pixel shows: the last that began before it. */
function slicesOf(columns: readonly Column[], width: number, from: number, to: number): (Column | undefined)[] {
  let at = -1;
  return Array.from({ length: Math.max(1, width) }, (_, x) => {
    const step = from + ((x + 0.5) / width) * (to - from);
    while (at + 1 < columns.length && columns[at + 1]!.firstStep <= step) at++;
    return columns[at];
  });
}
