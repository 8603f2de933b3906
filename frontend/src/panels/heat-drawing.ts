/** A heat map on a plot. For a running training only new columns are drawn, while the axes do not change. */

import type uPlot from "uplot";
import type { Column, Heat } from "../data/histograms";
import { channels, resolve } from "../frame/theme";
import type { Drawing, Subject } from "./drawings";
import { type Axis, axisFor, imageOf } from "./heatmap";
import { markSpread, withAxis } from "./spread";

const INVISIBLE: uPlot.Series = { paths: () => null, points: { show: false } };

class HeatDrawing implements Drawing {
  readonly sort = "heat";
  readonly series = [{}, INVISIBLE];
  readonly bands = [];
  readonly data: uPlot.AlignedData;
  readonly range: Drawing["range"];
  readonly splits: Drawing["splits"];
  readonly label: Drawing["label"];
  /** The last step of the axis. */
  private readonly end: number;
  /** The square root of the largest count, which has the full color; 0 before it was drawn. */
  private most = 0;

  constructor(
    private readonly heat: Heat | undefined,
    readonly axis: Axis | undefined,
    private readonly color: string,
    isLive: boolean,
    besides: readonly Heat[],
  ) {
    const filled = (heat ? [heat, ...besides] : []).map((one) => one.columns).filter((columns) => columns.length);
    this.end = Math.max(0, ...filled.map((columns) => roomFor(columns, isLive)));
    this.data = filled.length
      ? [[Math.min(...filled.map((columns) => columns[0]!.firstStep)), this.end], [0, 0]]
      : [[], []];
    ({ range: this.range, splits: this.splits, label: this.label } = withAxis(axis));
  }

  paint(plot: uPlot): void {
    this.most = this.paintPart(plot, 0, Math.max(1, Math.round(plot.bbox.width)), 0);
  }

  mark(plot: uPlot): void {
    markSpread(plot, this.heat, this.axis);
  }

  paintNew(plot: uPlot, known: Drawing): boolean {
    if (!(known instanceof HeatDrawing)) return false;
    const first = this.firstNewSince(known);
    if (!first || plot.scales["x"]!.max !== this.end) return false;
    const { left, top, width, height } = plot.bbox;
    const from = Math.max(0, Math.floor(plot.valToPos(first.firstStep, "x", true) - left));
    const { ctx } = plot;
    ctx.save();
    ctx.beginPath();
    ctx.rect(left + from, top, width - from, height);
    ctx.clip();
    this.most = this.paintPart(plot, from, Math.max(1, Math.round(width)), known.most);
    this.mark(plot);
    ctx.restore();
    return this.most === known.most;
  }

  /** The first column that is not in another drawing, on the same axes. */
  private firstNewSince(known: HeatDrawing): Column | undefined {
    const [before, now] = [known.heat?.columns ?? [], this.heat?.columns ?? []];
    const isSame = (at: number) => before[at] === now[at];
    // The last column may have grown since, and counts as new then.
    const at = isSame(before.length - 1) ? before.length : before.length - 1;
    const isAlike = known.color === this.color && known.end === this.end && known.most > 0;
    const hasGrown = at > 0 && isSame(0) && isSame(at - 1);
    return isAlike && hasGrown && sameAxis(known.axis, this.axis) ? now[at] : undefined;
  }

  /** Draws the pixels [from, to); returns the square root of the largest count, at least `most`. */
  private paintPart(plot: uPlot, from: number, to: number, most: number): number {
    const { left, top, height } = plot.bbox;
    const { min, max } = plot.scales["x"]!;
    if (!this.heat || !this.axis || min == null || max == null || to <= from) return most;
    const each = (max - min) / Math.max(1, Math.round(plot.bbox.width));
    const steps = [min + from * each, min + to * each] as const;
    const drawn = imageOf(this.heat, this.axis, to - from, steps, channels(this.color), most);
    const { ctx } = plot;
    // uPlot caches the state of the context, so it must be restored.
    ctx.save();
    ctx.fillStyle = resolve("paper");
    ctx.fillRect(left + from, top, to - from, height);
    ctx.imageSmoothingEnabled = false;
    const { width, height: rows } = drawn.image;
    ctx.drawImage(onCanvas(drawn.image), 0, 0, width, rows, left + from, top, to - from, height);
    ctx.restore();
    return drawn.most;
  }
}

export function heatDrawing({ heat, besides, color, logarithmic, rejected, isLive }: Subject): Drawing {
  const axis = heat && axisFor([heat, ...besides], rejected, logarithmic);
  return new HeatDrawing(heat, axis, color, isLive, besides);
}

/** The axis of a running training extends a little beyond its last step. */
function roomFor(columns: readonly Column[], isLive: boolean): number {
  const end = columns.at(-1)!.lastStep + 1;
  const grid = 2 ** Math.floor(Math.log2(Math.max(1, (end - columns[0]!.firstStep) / 16)));
  return isLive ? Math.ceil((end + 1) / grid) * grid : end;
}

function sameAxis(one: Axis | undefined, other: Axis | undefined): boolean {
  return one?.low === other?.low && one?.high === other?.high && one?.unit === other?.unit;
}

/** One canvas for all heat maps: creating one takes longer than drawing on it. */
const shared = new OffscreenCanvas(1, 1);
const sharedContext = shared.getContext("2d", { willReadFrequently: true })!;

function onCanvas(image: ImageData): OffscreenCanvas {
  if (shared.width < image.width) shared.width = image.width;
  if (shared.height < image.height) shared.height = image.height;
  sharedContext.putImageData(image, 0, 0);
  return shared;
}
