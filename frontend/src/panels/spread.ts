/** Overlays of a tensor plot: its axis, the zero line, and ticks for NaN. */

import type uPlot from "uplot";
import { formatShort } from "../data/formats";
import type { Heat } from "../data/histograms";
import { resolve } from "../frame/theme";
import type { Drawing } from "./drawings";
import { type Axis, shareOf, valueAt } from "./heatmap";

/** The axis runs from 0 to 1, so that a logarithmic one needs no special handling. */
export function withAxis(axis: Axis | undefined): Pick<Drawing, "range" | "axis" | "splits" | "label"> {
  return {
    axis,
    range: [0, 1],
    splits: () => [0, 1],
    label: (share) => (axis ? formatShort(valueAt(axis, share)) : ""),
  };
}

export function markSpread(plot: uPlot, heat: Heat | undefined, axis: Axis | undefined): void {
  if (axis) markZero(plot, axis);
  if (heat) markBroken(plot, heat.brokenSteps);
}

function markZero(plot: uPlot, axis: Axis): void {
  const share = shareOf(axis, 0);
  if (share <= 0 || share >= 1) return;
  const y = Math.round(plot.bbox.top + plot.bbox.height * (1 - share)) + 0.5;
  const { ctx } = plot;
  ctx.save();
  ctx.setLineDash([4 * devicePixelRatio, 3 * devicePixelRatio]);
  ctx.strokeStyle = resolve("dim");
  ctx.lineWidth = 1;
  ctx.beginPath();
  ctx.moveTo(plot.bbox.left, y);
  ctx.lineTo(plot.bbox.left + plot.bbox.width, y);
  ctx.stroke();
  ctx.restore();
}

/** A tick on the axis at each of some steps. */
export function markBroken(plot: uPlot, steps: readonly number[]): void {
  if (!steps.length) return;
  const unit = devicePixelRatio;
  const bottom = plot.bbox.top + plot.bbox.height;
  plot.ctx.save();
  plot.ctx.fillStyle = resolve("alarm");
  for (const at of steps) {
    plot.ctx.fillRect(Math.round(plot.valToPos(at, "x", true)) - unit, bottom - 7 * unit, 2 * unit, 7 * unit);
  }
  plot.ctx.restore();
}
