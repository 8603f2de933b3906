/** What a plot draws, for each kind of plot. */

import type uPlot from "uplot";
import { formatShort } from "../data/formats";
import { fromLog, type Heat, quantiles, toLog } from "../data/histograms";
import type { Points } from "../data/points";
import type { Series } from "../data/records";
import { channels, resolve } from "../frame/theme";
import { heatDrawing } from "./heat-drawing";
import { type Axis, axisFor, shareOf } from "./heatmap";
import { markBroken, markSpread, withAxis } from "./spread";
import type { Mode } from "./state";

export interface Drawing {
  /** A plot of another kind must be created again. */
  readonly sort: string;
  readonly data: uPlot.AlignedData;
  readonly series: readonly uPlot.Series[];
  readonly bands: readonly uPlot.Band[];
  /** The vertical scale, which may be logarithmic. */
  readonly range: [number, number];
  readonly axis: Axis | undefined;
  /** The range of steps, if the data does not define it. */
  readonly span?: readonly [number, number] | undefined;
  splits(scale: uPlot.Scale): number[];
  label(value: number): string;
  /** Below the lines. */
  paint(plot: uPlot): void;
  /** Above the lines. */
  mark(plot: uPlot): void;
  /** Draws only what is new since another drawing; returns whether that was enough. */
  paintNew?(plot: uPlot, known: Drawing): boolean;
}

export interface Subject {
  readonly mode: Mode;
  readonly heat: Heat | undefined;
  readonly points: Points | undefined;
  /** The same series in other runs. */
  readonly others: readonly Points[];
  /** The same, if they are beside this one with the same axes. */
  readonly besides: readonly Heat[];
  /** The smoothing factor; 0 draws the points unchanged. */
  readonly smoothing: number;
  readonly series: Series;
  readonly color: string;
  readonly logarithmic: boolean;
  readonly rejected: number;
  /** Whether the run is still running. */
  readonly isLive: boolean;
}

export function drawingFor(subject: Subject): Drawing {
  if (subject.mode === "heat") return heatDrawing(subject);
  if (subject.mode === "percentiles") return percentileDrawing(subject);
  return lineDrawing(subject);
}

const SHARES = [0.05, 0.25, 0.5, 0.75, 0.95];

function percentileDrawing({ heat, besides, color, logarithmic, rejected }: Subject): Drawing {
  const axis = heat && axisFor([heat, ...besides], rejected, logarithmic);
  const ends = (heat ? [heat, ...besides] : []).flatMap((one) => one.columns.map((column) => column.firstStep));
  const columns = heat?.columns ?? [];
  const found = columns.map((column) => quantiles(column, SHARES));
  const lines = SHARES.map((_, at) => found.map((values) => (values && axis ? shareOf(axis, values[at]!) : null)));
  const edge: uPlot.Series = { stroke: color, width: 0, points: { show: false } };
  return {
    ...withAxis(axis),
    sort: "percentiles",
    span: ends.length ? [Math.min(...ends), Math.max(...ends)] : undefined,
    data: [columns.map((column) => column.firstStep), ...lines],
    series: [{}, edge, edge, { ...edge, width: 1.6 }, edge, edge],
    bands: [
      { series: [5, 1], fill: fade(color, 0.16) },
      { series: [4, 2], fill: fade(color, 0.3) },
    ],
    paint: () => undefined,
    mark: (plot) => markSpread(plot, heat, axis),
  };
}

function fade(color: string, alpha: number): string {
  return `rgba(${channels(color).join(",")},${alpha})`;
}

function lineDrawing({ points, others, series, color, logarithmic, smoothing }: Subject): Drawing {
  const smooths = !series.kind && smoothing > 0;
  const fields = series.kind ? ["mean", "low", "high", "min", "max"] : smooths ? ["smooth", "value"] : ["value"];
  const smooth = (values: number[]) => (smooths ? smoothed(values, smoothing) : values);
  const own = fields.map((field) =>
    field === "smooth" ? smooth(columnFor(points, "value")) : columnFor(points, field),
  );
  const [steps, lines] = others.length ? together(points, own, others, (one) => smooth(columnFor(one, series.kind ? "mean" : "value"))) : [points?.steps ?? [], own];
  const scaled = scalingFor(lines, logarithmic);
  const line: uPlot.Series = {
    stroke: color,
    width: 1.6,
    points: { show: true, size: 4, filter: lonely },
  };
  const edge: uPlot.Series = { stroke: color, width: 0, points: { show: false } };
  const faint: uPlot.Series = { stroke: fade(color, 0.45), width: 0.8, dash: [2, 3], points: { show: false } };
  const compared = others.map((_, at): uPlot.Series => ({
    stroke: resolve(OTHERS[at % OTHERS.length]!),
    width: 1.4,
    points: { show: true, size: 4, filter: lonely },
  }));
  return {
    sort: `lines ${fields.join()} ${others.length} ${color}`,
    data: [[...steps], ...lines.map((values) => values.map(scaled.to))],
    series: [{}, ...(series.kind ? [line, edge, edge, faint, faint] : smooths ? [line, faint] : [line]), ...compared],
    bands: series.kind ? [{ series: [3, 2], fill: fade(color, 0.2) }] : [],
    axis: undefined,
    range: scaled.range,
    splits: ({ min = 0, max = 1 }) => [min ?? 0, ((min ?? 0) + (max ?? 1)) / 2, max ?? 1],
    label: (value) => formatShort(scaled.from(value)),
    paint: () => undefined,
    mark: (plot) => markBroken(plot, brokenPoints(points, series)),
  };
}

/** One field of each point; "low" and "high" are one standard deviation around the mean. */
function columnFor(points: Points | undefined, field: string): number[] {
  if (!points) return [];
  const { mean = [], std = [] } = points.columns;
  if (field === "low") return mean.map((value, at) => value - std[at]!);
  if (field === "high") return mean.map((value, at) => value + std[at]!);
  return [...(points.columns[field] ?? [])];
}

/** The colors of the compared runs. */
export const OTHERS = ["warning", "good", "accent", "dim"];

/** A single value without neighbors has no line, so it is drawn as a point. */
function lonely(plot: uPlot, at: number): number[] {
  const values = plot.data[at]!;
  const isThere = (place: number, by: number): boolean => {
    for (let one = place + by; one >= 0 && one < values.length; one += by)
      if (values[one] !== undefined) return values[one] !== null;
    return false;
  };
  const found: number[] = [];
  values.forEach((value, place) => {
    if (value != null && !isThere(place, -1) && !isThere(place, 1)) found.push(place);
  });
  return found;
}

/** An exponential moving average, corrected for the first values. */
export function smoothed(values: readonly number[], weight: number): number[] {
  let [sum, total] = [0, 0];
  return values.map((value) => {
    if (!Number.isFinite(value)) return value;
    [sum, total] = [sum * weight + value, total * weight + 1];
    return sum / total;
  });
}

/** Several runs over all their steps. A step that a run did not log is not a gap in its line. */
function together(
  points: Points | undefined,
  own: number[][],
  others: readonly Points[],
  lineOf: (one: Points) => number[],
): [number[], (number | undefined)[][]] {
  const steps = [...new Set([...(points?.steps ?? []), ...others.flatMap((one) => one.steps)])].sort((a, b) => a - b);
  const spread = (from: readonly number[], values: readonly number[]) => {
    const at = new Map(from.map((one, place) => [one, values[place]!]));
    return steps.map((one) => at.get(one));
  };
  const lines = own.map((values) => spread(points?.steps ?? [], values));
  return [steps, [...lines, ...others.map((one) => spread(one.steps, lineOf(one)))]];
}

interface Scaling {
  readonly range: [number, number];
  /** uPlot draws a gap at null; NaN and Inf would break its scale. */
  to(value: number | undefined): number | null | undefined;
  from(value: number): number;
}

function scalingFor(lines: readonly (readonly (number | undefined)[])[], logarithmic: boolean): Scaling {
  let [low, high] = [Infinity, -Infinity];
  for (const values of lines) {
    for (const value of values) {
      if (value === undefined || !Number.isFinite(value)) continue;
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
  }
  if (low > high) [low, high] = [0, 1];
  if (low === high) [low, high] = low ? [low - Math.abs(low) / 2, high + Math.abs(high) / 2] : [0, 1];
  const unit = Math.max(Math.abs(low), Math.abs(high)) / 1000;
  const to = (value: number) => (logarithmic ? toLog(value, unit) : value);
  return {
    range: [to(low), to(high)],
    to: (value) => (value === undefined ? undefined : Number.isFinite(value) ? to(value) : null),
    from: (value) => (logarithmic ? fromLog(value, unit) : value),
  };
}

/** The steps with NaN or Inf: a gap alone is easy to miss. */
function brokenPoints(points: Points | undefined, series: Series): number[] {
  const values = points?.columns[series.kind ? "mean" : "value"] ?? [];
  const count = (field: string, at: number) => points?.columns[field]?.[at] ?? 0;
  return (points?.steps ?? []).filter(
    (_, at) => count("nan", at) + count("inf", at) > 0 || !Number.isFinite(values[at]),
  );
}
